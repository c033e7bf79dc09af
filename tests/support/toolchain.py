"""Builds sample modules: finds a C compiler for wasm32-wasi, keeps what it built in the user's cache folder.

No pytest here: `make demo` builds its sample before any test tool is installed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from wasmtime import wat2wasm

from wasmckpt import cachefolder

__all__ = ["Unavailable", "build_c", "build_go", "build_wat", "cache_folder", "crate_sources", "publish"]

COMPILERS: Final = ("clang", *(f"clang-{version}" for version in range(21, 13, -1)))
TARGET: Final = "--target=wasm32-wasi"


class Unavailable(Exception):
    """Something that a build needs is not on this machine: ``need`` names it (``clang``, ``cargo``)."""

    def __init__(self, need: str, reason: str) -> None:
        super().__init__(reason)
        self.need = need
        self.reason = reason


@functools.cache
def cache_folder() -> Path:
    """The folder for built things of this version; a temporary one where the user's cache cannot be written."""
    try:
        version = importlib.metadata.version("wasmckpt")
    except importlib.metadata.PackageNotFoundError:
        version = "source"
    folder = cachefolder.cache_folder() / version
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(folder)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="wasmckpt-cache-"))
    return folder


@functools.cache
def compiler() -> tuple[tuple[str, ...], str]:
    """The C compiler's command line and its version text; the first that really builds for wasm32-wasi.

    Raises:
        Unavailable: none does.
    """
    named = os.environ.get("WASMCKPT_CC")
    candidates = [tuple(shlex.split(named))] if named else [(name,) for name in COMPILERS]
    for command in candidates:
        if shutil.which(command[0]) is None:
            continue
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
        with tempfile.TemporaryDirectory() as scratch:
            probe = Path(scratch, "probe.c")
            probe.write_text("#include <stdio.h>\nint main(void) { return puts(\"ok\") < 0; }\n")
            done = subprocess.run([*command, TARGET, "-O0", str(probe), "-o", str(Path(scratch, "probe.wasm"))],
                                  capture_output=True, check=False)
        if done.returncode == 0:
            return command, version
    raise Unavailable("clang", "no C compiler for wasm32-wasi here: run .ci/install-toolchain, or set WASMCKPT_CC")


def build_c(name: str, sources: Sequence[Path], flags: Sequence[str], *, places: Mapping[str, Path] | None = None,
            watched: Iterable[Path] = (), only_cached: bool = False) -> Path:
    """Compiles and links C sources into one module, DWARF stripped, names kept.

    Args:
        name: stem of the file made.
        sources: files to compile, together.
        flags: appended to ``-O2``, so they may override it; ``$NAME`` stands for a folder of ``places``.
        places: folders by name; their paths do not count for the cache key: another clone finds the same module.
        watched: headers whose content counts for the cache key too.
        only_cached: do not build, for modules that take minutes.

    Returns:
        The path in the cache: the same as long as sources, flags and compiler are.

    Raises:
        Unavailable: there is no compiler, or ``only_cached`` and it is not built.
        RuntimeError: the compiler refused; the message is its own.
    """
    command, version = compiler()
    options = ["-O2", "-Wl,--strip-debug", *flags]
    digest = hashlib.sha256("\0".join([version, *options]).encode())
    for path in [*sources, *watched]:
        digest.update(b"\0" + path.name.encode() + b"\0" + path.read_bytes())
    target = cache_folder() / "modules" / f"{name}-{digest.hexdigest()[:16]}.wasm"
    if target.exists():
        return target
    if only_cached:
        raise Unavailable(name, f"{name} takes minutes to build; `python -m tests.support.samples {name}` does it")
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch, "module.wasm")
        for place, folder in (places or {}).items():
            options = [option.replace(f"${place}", str(folder)) for option in options]
        done = subprocess.run([*command, TARGET, *options, *map(str, sources), "-o", str(built)],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name} does not build:\n{done.stderr[:3000]}")
        return publish(built.read_bytes(), target)


def build_wat(name: str, source: Path) -> Path:
    """Assembles one WAT file; returns its path in the cache."""
    text = source.read_bytes()
    target = cache_folder() / "modules" / f"{name}-{hashlib.sha256(text).hexdigest()[:16]}.wasm"
    return target if target.exists() else publish(bytes(wat2wasm(text.decode())), target)


def build_go(name: str, source: Path) -> Path:
    """Compiles one Go file for wasip1; returns its path in the cache.

    Raises:
        Unavailable: there is no Go. RuntimeError: it refused; the message is its own.
    """
    go = shutil.which("go")
    if go is None:
        raise Unavailable("go", "Go is not installed")
    version = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    key = hashlib.sha256(version.encode() + source.read_bytes()).hexdigest()[:16]
    target = cache_folder() / "modules" / f"{name}-{key}.wasm"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch, "module.wasm")
        done = subprocess.run(
            [go, "build", "-trimpath", "-ldflags=-s -w", "-o", str(built), str(source)], capture_output=True, text=True,
            env=os.environ | {"GOOS": "wasip1", "GOARCH": "wasm", "GOFLAGS": "", "GO111MODULE": "off"}, check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{name} does not build:\n{done.stderr[:3000]}")
        return publish(built.read_bytes(), target)


def publish(content: bytes, target: Path) -> Path:
    """Writes a file under its final name at once, so that a second builder never sees half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    os.replace(scratch, target)
    return target


def crate_sources(crate: str) -> Path:
    """The unpacked source of a crate ``NAME@VERSION``, fetched by cargo into the cache; nothing of it is run.

    Raises:
        Unavailable: no cargo, or it cannot fetch.
    """
    name, version = crate.split("@")
    unpacked = cache_folder() / "crates" / f"{name}-{version}"
    if unpacked.is_dir():
        return unpacked
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        raise Unavailable("cargo", f"the source of {name} comes from a crate, and cargo is not installed")
    unpacked.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=unpacked.parent) as scratch:
        project = Path(scratch)
        (project / "src").mkdir()
        (project / "src" / "lib.rs").touch()
        (project / "Cargo.toml").write_text(
            f'[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n'
            f'[dependencies.{name}]\nversion = "={version}"\ndefault-features = false\n[workspace]\n'
        )
        done = subprocess.run([cargo, "vendor", "--quiet", "--versioned-dirs", "vendor"], cwd=project,
                              capture_output=True, text=True, check=False)
        found = sorted((project / "vendor").glob(f"{name}-{version}*"))
        if done.returncode != 0 or not found:
            raise Unavailable("cargo", f"cargo could not fetch {crate}: {done.stderr.strip()[-500:]}")
        try:
            os.replace(found[0], unpacked)
        except OSError:
            if not unpacked.is_dir():  # else somebody else was faster, with the same content
                raise
    return unpacked
