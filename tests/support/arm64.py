"""Another processor: an arm64 userland that runs here under qemu's emulation of one process, with our runtimes in it.

All of it comes from package registries by their ordinary clients, without root and without a change to the system:
qemu and Debian 13's Python, C library and WasmEdge from Debian; wheels for aarch64 of what we depend on from PyPI;
Wasm3 and WAMR from their sources, built by the clang that builds the samples. A minute, once, into the user's cache
folder. wasmer is left out: it takes many minutes of processor time.

`environment` prepares it when first asked. As a program, ``python -m tests.support.arm64 [WORD ...]`` prepares it,
and runs the arm64 Python with these words, if there are any:

    python -m tests.support.arm64 -m wasmckpt.cli doctor
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes.provided import debian, wamr

from .toolchain import Unavailable, cache_folder, compiler

__all__ = ["NAMES", "TOP", "Arm64", "environment"]

NAMES: Final = ("wasmtime", "wasm3", "wamr", "wasmedge")
"""The runtimes that are there."""
TOP: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = (
    "python3-minimal", "libpython3-stdlib", "libc6-dev", "libgcc-14-dev", "libstdc++6", "libwasmedge0",
)
PYTHON: Final = "3.13"
"""The version in Debian 13."""
WASM3: Final = "0.5.0"
TRIPLE: Final = "aarch64-linux-gnu"
BUILD: Final = 2
"""Goes up when the same parts are put together otherwise."""
_WRAPPER: Final = f"""\
#!/bin/sh
# The arm64 Python, as a program of this machine: it starts itself again by this path (sys.executable).
top=${{0%/system/usr/bin/*}}
exec "$top/qemu-aarch64" -L "$top/system" -0 "$0" "$top/system/usr/bin/python{PYTHON}" "$@"
"""


@dataclass(frozen=True)
class Arm64:
    """The prepared userland in ``folder``."""

    folder: Path

    @property
    def python(self) -> str:
        """Path of the arm64 Python, a script that starts it under qemu."""
        return str(self.folder / "system" / "usr" / "bin" / "python-arm64")

    def settings(self) -> dict[str, str]:
        """Environment of a process there; our package is the one of this source tree."""
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("PYTHON", "LD_", "WASMCKPT_")) or name in ("WASMCKPT_TIER", "WASMCKPT_CACHE")}
        return kept | {
            "PYTHONPATH": f"{TOP}{os.pathsep}{self.folder / 'site'}", "PYTHONNOUSERSITE": "1",
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
            "WASMCKPT_WAMR_LIBRARY": str(self.folder / wamr.FILE),
            "WASMCKPT_WASMEDGE_LIBRARY": str(self.folder / "system" / "usr" / "lib" / TRIPLE / "libwasmedge.so.0"),
        }

    def run(self, *words: str, timeout: float = 800.0, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run the arm64 Python to its end with the words and a standard input."""
        return subprocess.run([self.python, *words], env=self.settings(), input=text, capture_output=True, text=True,
                              timeout=timeout, check=False)


@functools.cache
def environment(say: Callable[[str], None] = lambda _: None) -> Arm64:
    """The userland, prepared if it is not in the cache. Raises `Unavailable`: something that this takes is not here."""
    if os.uname().machine != "x86_64":
        raise Unavailable("arm64", "arm64 is emulated on x86-64 only")
    clang, version = _clang()
    wheels = sorted(_requirements())
    parts = [str(BUILD), version, *PACKAGES, *wheels, str(wamr.VERSION), str(wamr.BUILD)]
    key = hashlib.sha256("\0".join(parts).encode())
    folder = cache_folder() / "arm64" / key.hexdigest()[:16]
    if folder.is_dir():
        return Arm64(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="part-") as scratch:
        part = Path(scratch, "arm64")
        part.mkdir()
        try:
            _system(part, say)
            _wheels(part, wheels, say)
            _wasm3(part, clang, say)
            _wamr(part, clang, say)
        except RuntimeMissing as problem:
            raise Unavailable("arm64", str(problem)) from problem
        try:
            os.rename(part, folder)
        except OSError:
            if not folder.is_dir():  # else somebody else was faster
                raise
    return Arm64(folder)


def _clang() -> tuple[str, str]:
    """The clang that builds the samples, if it builds for arm64 too, and its version text."""
    try:
        command, version = compiler()
    except Unavailable as problem:
        raise Unavailable("arm64", f"Wasm3 and WAMR for arm64 are built by clang: {problem.reason}") from None
    targets = subprocess.run([command[0], "-print-targets"], capture_output=True, text=True, check=False).stdout
    if "aarch64" not in targets:
        raise Unavailable("arm64", f"{command[0]} builds nothing for arm64: install Debian's clang")
    return command[0], version


def _requirements() -> list[str]:
    """What our package depends on, and cffi, which adapters use."""
    wanted = [line.partition(";") for line in importlib.metadata.requires("wasmckpt") or ()]
    return [name.strip() for name, _, marker in wanted if not marker or name.startswith("cffi")]


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        told = (done.stderr or done.stdout).strip()[-500:]
        raise Unavailable("arm64", f"no arm64 userland: {' '.join(command[:3])} failed: {told}")


def _system(part: Path, say: Callable[[str], None]) -> None:
    root = part / "system"
    debian.unpack(PACKAGES, root, of="arm64", say=say, architecture="arm64")
    shutil.rmtree(root / "apt")
    (root / "lib").symlink_to("usr/lib")
    for linker_script in (root / "usr" / "lib" / TRIPLE).glob("lib[cm].so"):
        text = linker_script.read_text()  # the paths in it are those of a whole system
        linker_script.write_text(text.replace(f"/usr/lib/{TRIPLE}/", "").replace(f"/lib/{TRIPLE}/", "")
                                 .replace("/lib/ld-linux", "ld-linux"))
    wrapper = root / "usr" / "bin" / "python-arm64"
    wrapper.write_text(_WRAPPER)
    wrapper.chmod(0o755)
    own = part / "qemu"
    debian.unpack(["qemu-user"], own, of="arm64", say=say)
    os.rename(own / "usr" / "bin" / "qemu-aarch64", part / "qemu-aarch64")
    shutil.rmtree(own)


def _wheels(part: Path, wanted: list[str], say: Callable[[str], None]) -> None:
    say("fetching wheels for aarch64")
    _run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
         "--platform", "manylinux2014_aarch64", "--platform", "manylinux_2_28_aarch64", "--implementation", "cp",
         "--python-version", PYTHON, "--target", str(part / "site"), *wanted)


def _for_arm64(part: Path) -> list[str]:
    return [f"--target={TRIPLE}", f"--sysroot={part / 'system'}"]


def _wasm3(part: Path, clang: str, say: Callable[[str], None]) -> None:
    """The library alone, where the adapter looks for the extension module: of that it takes no more."""
    say("building Wasm3")
    work = part / "wasm3"
    _run(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--no-binary=:all:", "--dest", str(work), f"pywasm3=={WASM3}")
    with tarfile.open(next(work.glob("*.tar.gz"))) as archive:
        archive.extractall(work, filter="data")
    sources = next(work.glob("pywasm3-*/wasm3"))
    _run(clang, *_for_arm64(part), "-fuse-ld=lld", "-shared", "-fPIC", "-O3", "-w", "-fomit-frame-pointer",
         "-fno-stack-check", "-fno-stack-protector", "-DNASSERTS", "-Dd_m3RecordBacktraces=1", f"-I{sources}",
         *map(str, sorted(sources.glob("*.c"))), "-lm", "-o",
         str(part / "site" / f"wasm3.cpython-{PYTHON.replace('.', '')}-{TRIPLE}.so"))
    (part / "site" / f"pywasm3-{WASM3}.dist-info").mkdir()
    shutil.rmtree(work)


def _wamr(part: Path, clang: str, say: Callable[[str], None]) -> None:
    work = part / "wamr"
    work.mkdir()
    target = {f"CMAKE_{language}_COMPILER_TARGET": TRIPLE for language in ("C", "CXX", "ASM")}
    wamr.install(work, say, target | {
        "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": "aarch64", "WAMR_BUILD_TARGET": "AARCH64",
        "WAMR_BUILD_PLATFORM": "linux", "CMAKE_C_COMPILER": clang, "CMAKE_CXX_COMPILER": clang,
        "CMAKE_ASM_COMPILER": clang, "CMAKE_SYSROOT": str(part / "system"), "CMAKE_SHARED_LINKER_FLAGS": "-fuse-ld=lld",
        "CMAKE_EXE_LINKER_FLAGS": "-fuse-ld=lld",
    })
    os.rename(work / wamr.FILE, part / wamr.FILE)
    shutil.rmtree(work)


if __name__ == "__main__":
    try:
        made = environment(lambda line: print(line, file=sys.stderr))
    except Unavailable as missing:  # the tests that need it say so
        print(missing.reason, file=sys.stderr)
        sys.exit(bool(sys.argv[1:]))
    if not sys.argv[1:]:
        print(made.folder)
    else:
        sys.exit(subprocess.run([made.python, *sys.argv[1:]], env=made.settings(), check=False).returncode)
