"""WasmEdge, from Debian 13's package ``libwasmedge0``, unpacked into a folder of its own with all that it needs.

That is 18 packages, 42 MB to fetch and 177 MB unpacked, the C library included: so it runs on an older Debian too, in
processes that are started through the dynamic loader that comes with it (`loader` in this package). ``apt-get`` works
out what is needed: it is told that nothing is installed, and works in folders of its own; the system stays as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wasmckpt.errors import RuntimeMissing

__all__ = ["FILE", "VERSION", "install"]

VERSION: Final = "0.14.1"
FILE: Final = f"usr/lib/{sysconfig.get_config_var('MULTIARCH')}/libwasmedge.so.0"
_PACKAGE: Final = "libwasmedge0"
_RELEASE: Final = "trixie"
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def install(folder: Path, say: Callable[[str], None]) -> None:
    """Fill the empty ``folder``; what has been fetched already is not fetched again.

    Raises:
        RuntimeMissing: a tool or Debian's keys are not here, or the packages cannot be had.
    """
    for tool, package in (("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        if shutil.which(tool) is None:
            raise _missing(f"there is no {tool} here", f"install {package}, or name a library that you have")
    if not _KEYRING.is_file():
        raise _missing("Debian's keys are not here", "install debian-archive-keyring")
    work = folder / "apt"
    options = _private(work)
    say("asking for the list of packages")
    _run(["apt-get", *options, "update"])
    say("fetching libwasmedge0 and what it needs (42 MB)")
    _run(["apt-get", *options, "--assume-yes", "--download-only", "install", _PACKAGE])
    packages = sorted((work / "archives").glob("*.deb"))
    if not any(package.name.startswith(f"{_PACKAGE}_{VERSION}") for package in packages):
        raise _missing(f"Debian has another version of {_PACKAGE} now", "update wasmckpt")
    for number, file in enumerate(packages, 1):
        say(f"unpacking {number} of {len(packages)}: {file.name.partition('_')[0]}")
        _run(["dpkg-deb", "--extract", str(file), str(folder)])
    shutil.rmtree(work)


def _private(work: Path) -> list[str]:
    """Options by which apt has its own lists, cache and state, one source, and nothing installed."""
    for name in ("lists/partial", "archives/partial", "state", "empty"):
        (work / name).mkdir(parents=True, exist_ok=True)
    (work / "status").write_text("")
    (work / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {_RELEASE} main\n")
    settings = {
        "Dir::Etc::sourcelist": work / "sources.list", "Dir::Etc::sourceparts": work / "empty",
        "Dir::Etc::preferences": "/dev/null", "Dir::Etc::preferencesparts": work / "empty",
        "Dir::State": work / "state", "Dir::State::lists": work / "lists", "Dir::State::status": work / "status",
        "Dir::Cache": work, "Dir::Cache::archives": work / "archives", "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "", "APT::Install-Recommends": "0", "APT::Sandbox::User": "root",
        "Acquire::Retries": "3", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::Languages": "none",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _mirror() -> str:
    """Where this machine gets Debian's packages from."""
    told = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
    for address in told.split():
        if address.rstrip("/").endswith("/debian"):
            return address
    raise _missing("apt has no source of Debian's packages here", "name a library that you have")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL,
                          env={**os.environ, "LC_ALL": "C"}, check=False)
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.startswith(("E:", "dpkg"))] or [done.stderr.strip()]
        raise _missing(f"{command[0]} failed: {words[-1]}", "see whether apt-get works by itself on this machine")
    return done.stdout


def _missing(what: str, hint: str) -> RuntimeMissing:
    return RuntimeMissing(f"wasmedge cannot be installed: {what}", hint=hint, runtime="wasmedge")
