"""Checkpoints of one program with 64 MiB, beside what nobody can do without, and beside CRIU.

*Floors*, in the same run and on the same bytes: copying them (into memory used before), writing and syncing them to a
file, compressing them (zstd, level 3, one thread), hashing them (SHA-256). *Ours*: `Job.checkpoint` into a file; the
program goes on. *CRIU* dumps a process that runs the plain module on the same runtime (under Python, as our workers
are) and lets it run on; its files are not synced. It knows the process and not the program: its images come back on the
same kind of machine with the same files only. Known figures of others for a program with 64 MiB: CRIU 4.2
136 ms, of which frozen 68, 77 MB, restore 93 ms; with 1 MiB touched of 64: 52 ms, frozen 10, 10.9 MB; Wanco 101 ms and
67.2 MB either way. Those are of another machine, and no goals."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import zstandard

from wasmckpt.snapshot.job import Job
from wasmckpt.wasm.values import I32, Value

from ..criu import Criu, NoCriu
from ..guests import wat
from ..measure import percentile
from ..report import Cell, Report, Table
from ..settings import Settings, environment
from .snapshot import MIB, TOUCHING

PLAIN = """
import sys
from wasmckpt import runtimes
engine = runtimes.load(sys.argv[1])
wasm = open(sys.argv[2], "rb").read()
instance = engine.instantiate(engine.compile(wasm), {}, stack_bytes=4 << 20)
instance.call("run", [int(sys.argv[3]), 1])
"""


def run(settings: Settings, report: Report) -> None:
    """A table for all of the memory touched, and one for a mebibyte."""
    mib = 4 if settings.quick else 64
    try:
        criu, why = Criu(), ""
    except NoCriu as problem:
        criu, why = None, str(problem)
    for touched in (mib, 1):
        table = Table(
            f"{touched} MiB of random bytes in {mib} MiB: least of {settings.few(9)}, ms",
            [("what", ""), ("stop", ".2f"), ("stop, median", ".2f"), ("all", ".1f"), ("bytes", ",d"),
             ("restore", ".0f")],
            note=f"CRIU: {why}" if criu is None else f"CRIU {criu.version}.",
        )
        _floors(settings, table, touched)
        for name in settings.names:
            for way in ("fork", "fork, huge pages", "in-place"):
                with report.kept(f"{name}, {way}, {touched} MiB"):
                    _ours(settings, table, name, way, mib, touched)
            if criu is not None:
                with report.kept(f"CRIU, {name}, {touched} MiB"):
                    _criu(settings, table, criu, name, mib, touched)
        report.tables.append(table)


def _floors(settings: Settings, table: Table, touched: int) -> None:
    size = touched * MIB
    data = random.Random(1).randbytes(size)
    target = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(target))
    packer = zstandard.ZstdCompressor(level=3)

    def write() -> None:
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    floors: list[tuple[str, Callable[[], object], int]] = [
        ("floor: copy", lambda: ctypes.memmove(address, data, size), size),
        ("floor: write and sync", write, size),
        ("floor: compress", lambda: packer.compress(data), len(packer.compress(data))),
        ("floor: hash", lambda: hashlib.sha256(data).digest(), 32),
    ]
    for what, act, made in floors:
        act()
        times = []
        for _ in range(settings.few(9)):
            began = time.perf_counter()
            act()
            times.append((time.perf_counter() - began) * 1e3)
        _row(settings, table, [what, None, None, min(times), made, None])


def _ours(settings: Settings, table: Table, name: str, way: str, mib: int, touched: int) -> None:
    wasm = wat(TOUCHING.format(pages=mib * 16))
    with environment("WASMCKPT_SNAPSHOT", way.partition(",")[0]), tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "image")
        with Job.start(wasm, name, invoke="run", arguments=(Value(I32, touched * MIB), Value(I32, 1)),
                       huge_pages="huge" in way) as job:
            time.sleep(0.5 if settings.quick else 3.0)
            job.checkpoint(path)
            stops, whole = [], []
            for _ in range(settings.few(9)):
                time.sleep(0.05)
                began = time.perf_counter()
                stops.append(job.checkpoint(path).stopped * 1e3)
                whole.append((time.perf_counter() - began) * 1e3)
        restores = []
        for _ in range(settings.few(3)):
            began = time.perf_counter()
            Job.restore(path, name, module=wasm).close()
            restores.append((time.perf_counter() - began) * 1e3)
        _row(settings, table, [
            f"{name}, {way}", min(stops), percentile(stops, 0.5), min(whole), path.stat().st_size, min(restores)
        ])


def _criu(settings: Settings, table: Table, criu: Criu, name: str, mib: int, touched: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "plain.wasm")
        module.write_bytes(wat(TOUCHING.format(pages=mib * 16)))
        process = subprocess.Popen(
            [sys.executable, "-c", PLAIN, name, str(module), str(touched * MIB)], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )
        try:
            time.sleep(1.0 if settings.quick else 4.0)
            dumps, restores = [], []
            for number in range(settings.few(9)):
                images = Path(folder, str(number))
                images.mkdir()
                dumps.append(criu.dump(process.pid, images))
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        for _ in range(settings.few(3)):
            restores.append(criu.restore(process.pid, images))
            if not _gone(process.pid):
                break  # its number is still taken
        frozen = [dump.frozen for dump in dumps]
        _row(settings, table, [
            f"{name}, CRIU", min(frozen), percentile(frozen, 0.5), min(dump.wall for dump in dumps), dumps[-1].size,
            min(restores),
        ])


def _gone(pid: int) -> bool:
    """Wait until a restored process, which somebody else reaps, is no more."""
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _row(settings: Settings, table: Table, row: list[Cell]) -> None:
    table.rows.append(row)
    settings.progress(row)
