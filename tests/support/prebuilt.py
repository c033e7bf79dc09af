"""Samples in languages whose toolchain is too large to ask for: built modules lie in ``sample_modules/prebuilt``.

`rebuild` makes such a module anew with pinned tools, unpacked in the user's cache and not installed: AssemblyScript's
compiler from npm, and Debian's Rust, whose standard library for wasm32-wasi is of the same version. Both give the same
bytes each time; a test compares.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from .toolchain import Unavailable, cache_folder

__all__ = ["FOLDER", "SUFFIXES", "rebuild"]

FOLDER: Final = "prebuilt"
ASSEMBLYSCRIPT: Final = "0.28.20"
DEBIAN_RUST: Final = ("rustc", "libstd-rust-1.63", "libstd-rust-dev", "libstd-rust-dev-wasm32")


def rebuild(source: Path) -> bytes:
    """The module of a source in one of `SUFFIXES`.

    Raises:
        Unavailable: its tools are not here and cannot be fetched.
        RuntimeError: the compiler refused; the message is its own.
    """
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch, "module.wasm")
        SUFFIXES[source.suffix](source, built)
        return built.read_bytes()


def _assemblyscript(source: Path, built: Path) -> None:
    def fetch(folder: Path) -> None:
        npm = shutil.which("npm") or _unavailable("npm", "npm is not installed")
        _fetched("npm", [npm, "install", "--no-audit", "--no-fund", f"assemblyscript@{ASSEMBLYSCRIPT}"], folder)

    node = shutil.which("node") or _unavailable("npm", "node is not installed")
    compiler = _kept(f"assemblyscript-{ASSEMBLYSCRIPT}", fetch) / "node_modules" / "assemblyscript" / "bin" / "asc.js"
    _run([node, str(compiler), source.name, "-O2", "--use", "abort=", "-o", str(built)], source.parent)


def _rust(source: Path, built: Path) -> None:
    def fetch(folder: Path) -> None:
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            _unavailable("rust", "Rust for wasm32-wasi comes as Debian's packages, and this is no Debian")
        _fetched("rust", ["apt-get", "download", *DEBIAN_RUST], folder)
        for package in folder.glob("*.deb"):
            _fetched("rust", ["dpkg", "-x", package.name, "."], folder)
            package.unlink()

    linker = shutil.which("wasm-ld-14") or shutil.which("wasm-ld") or _unavailable("rust", "lld is not installed")
    prefix = _kept("rust-debian-1.63", fetch) / "usr"
    library = next(prefix.glob("lib/*/librustc_driver-*.so")).parent
    _run([
        str(prefix / "bin" / "rustc"), "--edition=2021", "--target=wasm32-wasi", f"-Clinker={linker}", "-Copt-level=2",
        "-Clto", "-Ccodegen-units=1", "-Cstrip=symbols", "-Cpanic=abort", f"--remap-path-prefix={prefix}=/rust",
        source.name, "-o", str(built),
    ], source.parent, {"LD_LIBRARY_PATH": str(library)})


SUFFIXES: Final[Mapping[str, Callable[[Path, Path], None]]] = {".ts": _assemblyscript, ".rs": _rust}


def _kept(name: str, fetch: Callable[[Path], None]) -> Path:
    """A folder in the cache, filled by ``fetch`` at first use: under another name, so that it is there whole or not."""
    target = cache_folder() / name
    if not target.is_dir():
        scratch = Path(tempfile.mkdtemp(dir=cache_folder(), prefix=f".{name}-"))
        try:
            fetch(scratch)
            scratch.rename(target)
        except OSError:
            if not target.is_dir():  # else somebody else was faster
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


def _unavailable(need: str, reason: str) -> str:
    raise Unavailable(need, reason)


def _fetched(need: str, command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(need, f"{command[0]} could not fetch it: {(done.stderr or done.stdout).strip()[-500:]}")


def _run(command: Sequence[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=folder, env=os.environ | (environment or {}), capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}:\n{(done.stderr or done.stdout)[:3000]}")
