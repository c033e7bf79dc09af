"""wasmer: its crate ``wasmer-c-api`` (Cranelift, no WASI) with a few functions more, built by cargo (``wasmer_shim``).

PyPI's package ``wasmer`` has no build for Python 3.11 and later. The build takes 7 minutes of processor time. With all
that wasmer names it would be 11: five crates that a library like this does not use, the linker of an experimental form
of artifacts first of all, are replaced (``wasmer_shim/unused``). An interrupted build goes on where it was, if it is
given the same folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wasmckpt.errors import RuntimeMissing

__all__ = ["FILE", "VERSION", "install"]

VERSION: Final = "7.4.2"
FILE: Final = "libwasmer.so"
_RUST: Final = (1, 95)
_SHIM: Final = Path(__file__).parent / "wasmer_shim"
_SAID_EVERY: Final = 20


def install(folder: Path, say: Callable[[str], None]) -> None:
    """Fill the empty ``folder``.

    Raises:
        RuntimeMissing: there is no cargo, no linker or too old a compiler; or cargo cannot fetch or build the crates.
    """
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        raise _missing("there is no cargo here", f"install Rust {'.'.join(map(str, _RUST))} or later")
    if shutil.which("cc") is None:
        raise _missing("there is no cc here", "install gcc: Rust links with it")
    _check_version(cargo)
    work = folder / "build"
    shutil.copytree(_SHIM, work / "source", dirs_exist_ok=True)
    common = ["--locked", "--manifest-path", str(work / "source" / "Cargo.toml")]
    say("fetching the sources of wasmer")
    _run([cargo, "fetch", *common])
    crates = set(_run([cargo, "tree", *common, "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]))
    say(f"compiling wasmer and what it needs, {len(crates)} crates: about 7 minutes of processor time")
    done = 0

    def progress(line: str) -> None:
        nonlocal done
        if line.lstrip().startswith("Compiling"):
            done += 1
            if done % _SAID_EVERY == 0:
                say(f"compiling wasmer: {done} of about {len(crates)} crates")

    _run([cargo, "build", "--release", *common, "--target-dir", str(work / "target")], progress)
    os.replace(work / "target" / "release" / "libwasmckpt_wasmer.so", folder / FILE)
    shutil.rmtree(work)


def _check_version(cargo: str) -> None:
    told = " ".join(_run([cargo, "--version"]))
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) < _RUST:
        raise _missing(f"cargo is too old: {told}", f"install Rust {'.'.join(map(str, _RUST))} or later")


def _run(command: list[str], progress: Callable[[str], None] | None = None) -> list[str]:
    """Lines that cargo writes; with ``progress``, which gets them as they come, those of its standard error."""
    # DOCS_RS: the crate's build script then makes no C header, which nobody needs here.
    environment = {**os.environ, "DOCS_RS": "1", "CARGO_TERM_COLOR": "never"}
    with tempfile.TemporaryFile("w+", errors="replace") as problems, subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL if progress else subprocess.PIPE,
        stderr=subprocess.PIPE if progress else problems, text=True, errors="replace", env=environment,
    ) as process:
        told = []
        for line in (process.stderr if progress else process.stdout) or ():
            told.append(line.rstrip())
            if progress:
                progress(line)
        process.wait()
        problems.seek(0)
        complaints = told if progress else problems.read().splitlines()
    if process.returncode < 0:
        raise _missing(f"cargo was ended by signal {-process.returncode}", "try again: it goes on where it was")
    if process.returncode:
        words = [line.strip() for line in complaints if line.lstrip().startswith("error")] or complaints[-1:]
        raise _missing(f"cargo failed: {''.join(words[:1])}", "see whether cargo works by itself")
    return told


def _missing(what: str, hint: str) -> RuntimeMissing:
    return RuntimeMissing(f"wasmer cannot be installed: {what}", hint=hint, runtime="wasmer")
