"""How long a program stands still while a checkpoint of it is taken that it survives, and how big the image gets.

By fork the source stops for the fork alone; *spilled*, *read* and *image* are milliseconds since the request, with the
program running. *In place* freezes and resumes the program itself, in the worker, as where fork is not possible. Wall
time; the fork's cost grows with what the process has in memory, Python included: the first tables are of this process,
which has several runtimes and results loaded, the last of a worker, as users have it. A stop by fork is told by the
signal's handler itself: from its first instruction until `fork` has returned to the program. In place it is from the
request until the program runs again, without the first time at a place, when the runtime has to compile what goes on
from there."""

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
from ..settings import Settings, environment

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

WAYS = (
    ("fork", 64, 3.0), ("fork, huge pages", 64, 3.0), ("in-place", 64, 25.0), ("fork", 1024, 10.0),
    ("fork, huge pages", 1024, 3.0),
)
"""How, MiB, and the goal in milliseconds."""


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
        "A whole job (`Job.checkpoint` into a file), one word of each page written",
        [("runtime", ""), ("way", ""), ("memory, MiB", ",d"), ("checkpoints", "d"), ("stop, least, ms", ".2f"),
         ("median", ".2f"), ("worst", ".2f"), ("copied after, ms", ".0f"), ("until the file is there, ms", ".0f"),
         ("image, bytes", ",d")],
    )
    for name in settings.names:
        for way, mib, goal in WAYS[:3] if settings.quick else WAYS:
            kind = way.partition(",")[0]
            with report.kept(f"job on {name}, {way}, {mib} MiB"), environment("WASMCKPT_SNAPSHOT", kind):
                _checkpoints(settings, report, name, way, mib, goal, table)
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
                    what = "image, 1 MiB of random bytes touched of 64, against those"
                    report.goals.append(Goal(what, size / MIB, 1.02))
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


def _checkpoints(
    settings: Settings, report: Report, name: str, way: str, mib: int, goal: float, table: Table
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "image.wck")
        with Job.start(wat(TOUCHING.format(pages=mib * 16)), name, invoke="run",
                       arguments=(Value(I32, mib * MIB), Value(I32, 0)), huge_pages="huge" in way) as job:
            time.sleep(1.0 + mib / 256)
            job.checkpoint(path)
            taken, whole = [], []
            for _ in range(settings.few(4 if mib > 64 else 15)):
                time.sleep(0.05)
                began = time.perf_counter()
                taken.append(job.checkpoint(path))
                whole.append((time.perf_counter() - began) * 1e3)
        stops = [one.stopped * 1e3 for one in taken]
        if not settings.quick:
            what = f"the source's stop, {mib:,} MiB, {way}, {name}"
            report.goals.append(Goal(what, percentile(stops, 0.5), goal, "ms"))
        table.rows.append([
            name, way, mib, len(stops), min(stops), percentile(stops, 0.5), max(stops),
            percentile([one.times.copying * 1e3 for one in taken], 0.5), percentile(whole, 0.5), os.path.getsize(path),
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
