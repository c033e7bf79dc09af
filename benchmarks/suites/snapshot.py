"""How long a program stands still while a checkpoint of it is taken that it survives, and how big the image gets.

By fork the source stops for the fork alone; *spilled*, *read* and *image* are milliseconds since the request, with the
program running. *In place* freezes and resumes the program itself, in the worker, as where fork is not possible. Wall
time; the fork's cost grows with what the process has in memory, Python included: the first tables are of this process,
which has several runtimes and results loaded, the last of a worker, as users have it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from wasmckpt import formats
from wasmckpt.runtimes import Engine, GuestThread
from wasmckpt.snapshot.fork import ForkSnapshotter
from wasmckpt.snapshot.job import Job
from wasmckpt.snapshot.program import Phase, Program
from wasmckpt.wasm.values import I32, Value

from ..guests import STACK, prepared, wat
from ..measure import percentile
from ..report import Goal, Report, Table
from ..settings import Settings

MIB = 1 << 20

TOUCHING = """(module (memory (export "memory") {pages})
  (global $at (export "at") (mut i32) (i32.const 0))
  (func (export "run") (param $bytes i32) (param $random i32) (result i32) (local $p i32) (local $x i64)
    (local.set $x (i64.const 0x9e3779b97f4a7c15))
    (loop $fill
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
      (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
      (i64.store (local.get $p) (select (local.get $x) (i64.const 0x0102030405060708) (local.get $random)))
      (local.set $p (i32.add (local.get $p) (select (i32.const 8) (i32.const 4096) (local.get $random))))
      (br_if $fill (i32.lt_u (local.get $p) (local.get $bytes))))
    (global.set $at (i32.const 1))
    (loop $spin (br_if $spin (i64.ne (local.tee $x (i64.add (local.get $x) (i64.const 1))) (i64.const 0))))
    (i32.const 0)))"""
"""Touches ``bytes`` of memory, with random bytes all over or one word a page, then runs on for ever."""


def run(settings: Settings, report: Report) -> None:
    """Stops by fork for growing programs, through the whole product for 64 MiB, and image sizes."""
    for engine in settings.engines(report):
        table = Table(
            f"{engine.name}: by fork, milliseconds",
            [("memory touched", ""), ("snapshots", "d"), ("stop, least", ".2f"), ("median", ".2f"), ("worst", ".2f"),
             ("spilled", ".1f"), ("read", ".1f"), ("image", ".0f")],
        )
        for mib in (1, 64) if settings.quick else (1, 64, 1024):
            with report.kept(f"fork with {mib} MiB on {engine.name}"):
                _by_fork(settings, report, engine, mib, table)
        report.tables.append(table)
    table = Table(
        "A whole job (`Job.checkpoint` into a file), 64 MiB",
        [("runtime", ""), ("way", ""), ("checkpoints", "d"), ("stop, least, ms", ".2f"), ("median", ".2f"),
         ("worst", ".2f"), ("until the file is there, ms", ".0f"), ("image, bytes", "d")],
    )
    for name in settings.names:
        for way in ("fork", "in-place"):
            with report.kept(f"job on {name}, {way}"):
                _job(settings, report, name, way, table)
    report.tables.append(table)
    sizes = Table(
        "Images of a program with 64 MiB of memory", [("touched", ""), ("image, bytes", "d")],
        note="Bytes all over the pages, as xorshift makes them.",
    )
    for name in settings.names[:1]:
        for kib in (0, 64, 1024):
            with report.kept(f"image of {kib} KiB"):
                size = _image_size(name, kib << 10)
                sizes.rows.append([f"{kib} KiB of random bytes", size])
                if kib == 1024:
                    report.goals.append(Goal("image, 1 MiB of random bytes touched of 64", size / 1e6, 1.1, "MB"))
    report.tables.append(sizes)


def _start(engine: Engine, pages: int, touched: int, random: bool) -> tuple[Program, GuestThread[object]]:
    """A program that has touched its memory and runs on."""
    make, _ = prepared(engine, wat(TOUCHING.format(pages=pages)), invoke="run",
                       arguments=(Value(I32, touched), Value(I32, int(random))))
    program = make()
    thread: GuestThread[object] = GuestThread(program.run, stack_bytes=engine.thread_stack_bytes(STACK))
    while program.phase is not Phase.RUNNING or not _touched(program, touched):
        time.sleep(0.01)
    return program, thread


def _touched(program: Program, touched: int) -> bool:
    if not touched:
        return True
    last = touched - 4096
    return any(program.instance.memory("memory").read(last, 4096))


def _end(program: Program, thread: GuestThread[object]) -> None:
    program.request_freeze()
    thread.join()
    program.close()


def _by_fork(settings: Settings, report: Report, engine: Engine, mib: int, table: Table) -> None:
    program, thread = _start(engine, mib * 16, mib * MIB, random=False)
    try:
        forks = ForkSnapshotter(program, thread.native_id)
        taken = []
        for _ in range(settings.few(4 if mib > 64 else 15)):
            taken.append(forks.snapshot(timeout=60.0))
            time.sleep(0.02)
        forks.close()
    finally:
        _end(program, thread)
    stops = [snapshot.stop_ms for snapshot in taken]
    table.rows.append([
        f"{mib:,} MiB", len(stops), min(stops), percentile(stops, 0.5), max(stops),
        percentile([s.spill_ms for s in taken], 0.5), percentile([s.copy_ms for s in taken], 0.5),
        percentile([s.image_ms for s in taken], 0.5),
    ])
    settings.progress(table.rows[-1])


def _job(settings: Settings, report: Report, name: str, way: str, table: Table) -> None:
    before = os.environ.get("WASMCKPT_SNAPSHOT")
    os.environ["WASMCKPT_SNAPSHOT"] = way
    try:
        _checkpoints(settings, report, name, way, table)
    finally:
        os.environ.pop("WASMCKPT_SNAPSHOT")
        if before is not None:
            os.environ["WASMCKPT_SNAPSHOT"] = before


def _checkpoints(settings: Settings, report: Report, name: str, way: str, table: Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "image.wck")
        with Job.start(wat(TOUCHING.format(pages=1024)), name, invoke="run",
                       arguments=(Value(I32, 64 * MIB), Value(I32, 0))) as job:
            time.sleep(1.0)
            stops, whole = [], []
            for _ in range(settings.few(10)):
                began = time.perf_counter()
                stops.append(job.checkpoint(path).stopped * 1e3)
                whole.append((time.perf_counter() - began) * 1e3)
        if way == "fork":
            report.goals.append(Goal(f"the source's stop, 64 MiB, median, {name}", percentile(stops, 0.5), 10, "ms"))
        table.rows.append([
            name, way, len(stops), min(stops), percentile(stops, 0.5), max(stops), percentile(whole, 0.5),
            os.path.getsize(path),
        ])
    settings.progress(table.rows[-1])


def _image_size(name: str, touched: int) -> int:
    from wasmckpt import runtimes

    engine = runtimes.load(name)
    program, thread = _start(engine, 1024, touched, random=True)
    try:
        time.sleep(0.05)
        program.request_freeze()
        thread.join()
        return len(formats.encode(program.capture()))
    finally:
        program.close()
