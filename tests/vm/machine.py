"""A small virtual machine with another kernel, from the distribution's packages, under software emulation.

Nothing is installed: kernel and, where there is none, qemu are unpacked below the cache folder and used from there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from ..support.toolchain import cache_folder
from . import initramfs

__all__ = ["NoMachine", "run"]

_QEMU = "qemu-system-x86_64"
_INIT = '''
import ctypes, os, runpy, sys, traceback
libc = ctypes.CDLL(None)
for kind, where in (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")):
    libc.mount(kind.encode(), where.encode(), kind.encode(), 0, None)
sys.path[:0] = ["/app"]
os.chdir("/app")
os.environ.update(HOME="/tmp", PATH="/bin", WASMCKPT_TIER="test")
code = 1
try:
    runpy.run_path("/app/main.py", run_name="__main__")
    code = 0
except SystemExit as end:
    code = end.code if isinstance(end.code, int) else 1
except BaseException:
    traceback.print_exc()
print(f"\\nRESULT {code}", flush=True)
libc.reboot(0x01234567)  # and qemu ends, by -no-reboot
'''


class NoMachine(Exception):
    """There is no such package, or no way to get it."""


def _do(*command: str, cwd: Path) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=240)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NoMachine(f"{command[0]}: {problem}") from problem
    if done.returncode:
        raise NoMachine(f"{' '.join(command[:3])}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def _unpack(debs: list[Path], folder: Path) -> None:
    for deb in debs:
        _do("dpkg-deb", "-x", str(deb), str(folder), cwd=folder)


def _into(folder: Path, make: Callable[[Path], None]) -> Path:
    """``make(partial folder)``, once; a folder that has its name is complete."""
    if not folder.exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            make(part)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def _kernel(meta: str) -> Path:
    """The newest kernel that a meta-package depends on."""

    def make(folder: Path) -> None:
        for attempt in (0, 1):
            depends = subprocess.run(["apt-cache", "depends", meta], capture_output=True, text=True, check=False).stdout
            found = re.search(r"Depends: (linux-image-\S+)", depends)
            try:
                if not found:
                    raise NoMachine(f"no package {meta} here")
                _do("apt-get", "download", "-q", found[1], cwd=folder)
                break
            except NoMachine:
                if attempt:
                    raise
                _do("apt-get", "update", "-q", cwd=folder)
        _unpack(list(folder.glob("*.deb")), folder)
        for path in [*folder.glob("*.deb"), folder / "lib", folder / "usr"]:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    folder = _into(cache_folder() / "vm" / meta, make)
    return next((folder / "boot").glob("vmlinuz-*"))


def _qemu() -> tuple[list[str], dict[str, str]]:
    """Command and environment."""
    if found := shutil.which(_QEMU):
        return [found], dict(os.environ)

    def make(folder: Path) -> None:
        (folder / "debs" / "partial").mkdir(parents=True)
        _do("apt-get", "install", "-q", "-d", "-y", "--no-install-recommends", "-o",
            f"Dir::Cache::archives={folder}/debs", "qemu-system-x86", cwd=folder)
        _unpack(list((folder / "debs").glob("*.deb")), folder)
        shutil.rmtree(folder / "debs")

    folder = _into(cache_folder() / "vm" / "qemu", make)
    libraries = [folder / "usr/lib/x86_64-linux-gnu", folder / "lib/x86_64-linux-gnu",
                 folder / "usr/lib/x86_64-linux-gnu/qemu"]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}
    return [str(folder / "usr/bin" / _QEMU), "-L", str(folder / "usr/share/qemu"), "-L",
            str(folder / "usr/share/seabios")], environment


def run(meta: str, files: Mapping[str, Path], folder: Path, *, timeout: float = 800) -> tuple[int, str]:
    """Boot the kernel of a meta-package and run ``main.py`` among ``files`` (their paths below /app) as process 1.

    Returns: its exit code, -1 if the machine did not come so far; and all that was printed.

    Raises:
        NoMachine: kernel or qemu cannot be had.
    """
    kernel = _kernel(meta)
    command, environment = _qemu()
    image = folder / "initramfs"
    initramfs.write(image, _INIT, {f"/app/{path}": source for path, source in files.items()})
    command += [
        "-accel", "tcg", "-cpu", "Haswell-noTSX", "-m", "768", "-smp", "1", "-nodefaults", "-no-user-config",
        "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", str(kernel), "-initrd", str(image), "-append",
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr",
    ]
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", check=False, timeout=timeout)
        text = done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        return -1, f"{(late.stdout or b'').decode(errors='replace')}\nno end within {timeout:g} s"
    result = re.search(r"^RESULT (\d+)", text.replace("\r", ""), re.MULTILINE)
    return int(result[1]) if result else -1, text.replace("\r", "")
