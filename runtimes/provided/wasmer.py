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
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes.provided import tools

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
    rust = f"install Rust {'.'.join(map(str, _RUST))} or later"
    cargo = tools.find("cargo", of="wasmer", hint=rust)
    tools.find("cc", of="wasmer", hint="install gcc: Rust links with it")
    told = " ".join(_run([cargo, "--version"]))
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) < _RUST:
        raise RuntimeMissing(f"wasmer cannot be installed: cargo is too old: {told}", hint=rust, runtime="wasmer")
    work = folder / "build"
    shutil.copytree(_SHIM, work / "source", dirs_exist_ok=True)
    common = ["--locked", "--manifest-path", str(work / "source" / "Cargo.toml")]
    say("fetching the sources of wasmer")
    _run([cargo, "fetch", *common])
    crates = set(_run([cargo, "tree", "--quiet", *common, "--edges", "normal,build", "--prefix", "none",
                       "--format", "{p}"]))
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


def _run(command: list[str], progress: Callable[[str], None] | None = None) -> list[str]:
    # DOCS_RS: the crate's build script then makes no C header, which nobody needs here.
    return tools.run(command, of="wasmer", complaint="error", progress=progress,
                     env={"DOCS_RS": "1", "CARGO_TERM_COLOR": "never"})
