"""CRIU, to be measured beside us: the one that is installed, else Debian 13's package, unpacked into a folder of its
own (CRIU older than 4.1 fails on kernels of today). It needs root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from wasmckpt.errors import CheckpointError
from wasmckpt.runtimes.provided import debian

__all__ = ["Criu", "Dump", "NoCriu"]

_STATS_HEAD = 12
"""Bytes of two magic numbers and a length, before the statistics' protobuf."""


class NoCriu(Exception):
    """It cannot be had here, or does not run, and why."""


@dataclass(frozen=True)
class Dump:
    """Milliseconds: the command, and while the program stood still (frozen, and being frozen); bytes of all files."""

    wall: float
    frozen: float
    size: int


class Criu:
    """Raises `NoCriu`."""

    def __init__(self) -> None:
        if os.geteuid():
            raise NoCriu("CRIU needs root")
        installed = shutil.which("criu")
        self._command = [installed] if installed else _from_debian()
        try:
            told = subprocess.run([*self._command, "--version"], capture_output=True, text=True, check=True).stdout
            self.version = told.split()[1]
            checked = subprocess.run([*self._command, "check"], capture_output=True, text=True)
        except (OSError, subprocess.SubprocessError, IndexError) as problem:
            raise NoCriu(f"CRIU does not start: {problem}") from problem
        if checked.returncode:
            raise NoCriu(f"CRIU {self.version} does not run on this kernel: {_last(checked)}")

    def dump(self, pid: int, folder: Path) -> Dump:
        """Dump a process, which goes on. Raises `NoCriu`."""
        wall = self._run("dump", "--tree", str(pid), "--leave-running", folder=folder)
        frozen, freezing = _stats((folder / "stats-dump").read_bytes())
        size = sum(file.stat().st_size for file in folder.iterdir())
        return Dump(wall, (frozen + freezing) / 1e3, size)

    def restore(self, pid: int, folder: Path) -> float:
        """Restore a process that is gone, and end it; milliseconds. Raises `NoCriu`."""
        wall = self._run("restore", "--restore-detached", folder=folder)
        os.kill(pid, signal.SIGKILL)
        return wall

    def _run(self, *words: str, folder: Path) -> float:
        began = time.perf_counter()
        done = subprocess.run(
            [*self._command, *words, "--images-dir", str(folder), "--shell-job"], capture_output=True, text=True
        )
        if done.returncode:
            raise NoCriu(f"criu {words[0]}: {_last(done)}")
        return (time.perf_counter() - began) * 1e3


def _last(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip() or done.stdout.strip() or str(done.returncode)).splitlines()[-1]


def _from_debian() -> list[str]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wasmckpt" / "benchmarks" / "criu"
    if not (cache / "usr/sbin/criu").exists():
        shutil.rmtree(cache, ignore_errors=True)
        try:
            debian.unpack(["criu"], cache, of="criu")
        except CheckpointError as problem:
            raise NoCriu(f"no CRIU of 4.1 or newer is to be had: {problem.what}") from problem
        shutil.rmtree(cache / "apt", ignore_errors=True)
    loader = next(cache.rglob("ld-linux-x86-64.so.2"), None)
    if loader is None:
        raise NoCriu("CRIU's package is for another machine")
    return [str(loader), "--library-path", str(loader.parent), str(cache / "usr/sbin/criu")]


def _stats(data: bytes) -> tuple[int, int]:
    """Microseconds for which the processes were frozen, and that freezing them took."""
    at = _STATS_HEAD + 2
    found = {}
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        found[tag >> 3] = value
    return found.get(2, 0), found.get(1, 0)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at
