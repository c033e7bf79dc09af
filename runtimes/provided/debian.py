"""Packages of Debian 13, unpacked into a folder: no root, no change to the system, whatever release it is.

``apt-get`` works out what is needed and checks what it fetches. It is told that nothing is installed, has one source,
and lists, cache and state of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes.provided import tools

__all__ = ["unpack"]

_RELEASE: Final = "trixie"
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def unpack(packages: Sequence[str], folder: Path, *, of: str, say: Callable[[str], None] = lambda _: None,
           architecture: str = "") -> list[str]:
    """Packages with all that they need, below ``folder``; what an interrupted try has fetched is used.

    Args:
        architecture: Debian's name of another processor than this machine's (``arm64``): packages for that one.

    Returns:
        Names of the files of all packages (``libsimde-dev_0.8.2-1_all.deb``).

    Raises:
        RuntimeMissing: a tool or Debian's keys are not here, or the packages cannot be had (``of``: a runtime).
    """
    apt = tools.find("apt-get", of=of, hint="take a library that you have: this is no Debian-like system")
    dpkg = tools.find("dpkg-deb", of=of, hint="install dpkg")
    if not _KEYRING.is_file():
        raise RuntimeMissing(f"{of} cannot be installed: Debian's keys are not here", runtime=of,
                             hint="install debian-archive-keyring")
    work = folder / "apt"
    options = _private(work, _mirror(apt, of), architecture)
    say("asking for Debian's list of packages")
    tools.run([apt, *options, "update"], of=of, complaint="E:")
    say(f"fetching {' '.join(packages)} and what they need")
    tools.run([apt, *options, "--assume-yes", "--download-only", "install", *packages], of=of, complaint="E:")
    files = sorted((work / "archives").glob("*.deb"))
    for number, file in enumerate(files, 1):
        say(f"unpacking {number} of {len(files)}: {file.name.partition('_')[0]}")
        tools.run([dpkg, "--extract", str(file), str(folder)], of=of, complaint="dpkg")
    return [file.name for file in files]


def _private(work: Path, mirror: str, architecture: str) -> list[str]:
    """Options by which apt leaves the system alone."""
    for name in ("lists/partial", "archives/partial", "state", "empty"):
        (work / name).mkdir(parents=True, exist_ok=True)
    (work / "status").write_text("")
    (work / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {mirror} {_RELEASE} main\n")
    settings = {
        "Dir::Etc::sourcelist": work / "sources.list", "Dir::Etc::sourceparts": work / "empty",
        "Dir::Etc::preferences": "/dev/null", "Dir::Etc::preferencesparts": work / "empty",
        "Dir::State": work / "state", "Dir::State::lists": work / "lists", "Dir::State::status": work / "status",
        "Dir::Cache": work, "Dir::Cache::archives": work / "archives", "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "", "APT::Install-Recommends": "0", "APT::Sandbox::User": "root",
        "Acquire::Retries": "3", "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
    }
    if architecture:
        settings |= {"APT::Architecture": architecture, "APT::Architectures": architecture}
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _mirror(apt: str, of: str) -> str:
    """Where this machine gets Debian's packages from."""
    for address in tools.run([apt, "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], of=of):
        if address.rstrip("/").endswith("/debian"):
            return address
    raise RuntimeMissing(f"{of} cannot be installed: apt has no source of Debian's packages here", runtime=of,
                         hint="take a library that you have")
