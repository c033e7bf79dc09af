"""What checkpoints cost in all a program that writes all of its memory over and over, which is the worst case.

The program does a fixed amount of work (each pass writes a word of every 64 bytes of its memory); wall time of the
whole run with a checkpoint every 200 ms, against runs without, in turn. *Each*: what is lost for a checkpoint:
the stop, the copies of pages that it writes while a forked copy lives, faults, and what compressing and writing take of
the two cores. By fork the copy is read at the speed of memory and then killed, so that few writes are copied."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

from wasmckpt.errors import JobEnded
from wasmckpt.snapshot.job import Job
from wasmckpt.store import Series, Store
from wasmckpt.wasm.values import I32, Value

from ..guests import wat
from ..report import Report, Table
from ..settings import Settings, environment

MIB = 1 << 20
EVERY = 0.2
STOPS = "stops, least, ms"
PASSES = """(module (memory (export "memory") {pages})
  (func (export "run") (param $bytes i32) (param $passes i32) (result i64) (local $p i32) (local $x i64)
    (loop $pass
      (local.set $p (i32.const 0))
      (loop $write
        (local.set $x (i64.add (i64.mul (local.get $x) (i64.const 6364136223846793005))
                               (i64.const 1442695040888963407)))
        (i64.store (local.get $p) (local.get $x))
        (br_if $write (i32.lt_u (local.tee $p (i32.add (local.get $p) (i32.const 64))) (local.get $bytes))))
      (br_if $pass (local.tee $passes (i32.sub (local.get $passes) (i32.const 1)))))
    (local.get $x)))"""
PASSES_OF = {"wasmtime": 900, "wasmer": 900}
"""Passes that take some seconds, by runtime; fewer on interpreters."""
WAYS = ("fork", "fork, huge pages", "in-place", "fork, differences")


def run(settings: Settings, report: Report) -> None:
    """One row for each runtime and way."""
    mib = 4 if settings.quick else 64
    table = Table(
        f"{mib} MiB, written over and over; a checkpoint every {EVERY * 1e3:.0f} ms",
        [("runtime", ""), ("way", ""), ("s without", ".2f"), ("s with", ".2f"), ("slowdown", ".3f"),
         ("checkpoints", "d"), (STOPS, ".2f"), ("median", ".2f"), ("copy lived, ms", ".1f"), ("each, ms", ".1f")],
    )
    for name in settings.names:
        passes = PASSES_OF.get(name, 60)
        for way in WAYS:
            with report.kept(f"{name}, {way}"):
                _row(settings, table, name, way, mib, passes)
    report.tables.append(table)


def _row(settings: Settings, table: Table, name: str, way: str, mib: int, passes: int) -> None:
    without, with_, stops, copies = [], [], [], []
    for _ in range(settings.few(2)):
        without.append(_life(name, way, mib, passes, None)[0])
        seconds, taken, copied = _life(name, way, mib, passes, EVERY / (8 if settings.quick else 1))
        with_.append(seconds)
        stops += taken
        copies += copied
    lost = (min(with_) - min(without)) / max(1, len(stops) / len(with_))
    table.rows.append([
        name, way, min(without), min(with_), min(with_) / min(without), len(stops), min(stops),
        sorted(stops)[len(stops) // 2], sorted(copies)[len(copies) // 2], lost * 1e3,
    ])
    settings.progress(table.rows[-1])


def _life(
    name: str, way: str, mib: int, passes: int, every: float | None
) -> tuple[float, list[float], list[float]]:
    """Seconds of a run, stops and lives of copies in ms."""
    wasm = wat(PASSES.format(pages=mib * 16))
    stops: list[float] = []
    copies: list[float] = []
    with environment("WASMCKPT_SNAPSHOT", way.partition(",")[0]), tempfile.TemporaryDirectory() as folder:
        series = Series(Store(Path(folder, "store"), create=True), "bench", wasm)
        with Job.start(wasm, name, invoke="run", arguments=(Value(I32, mib * MIB), Value(I32, passes)),
                       huge_pages="huge" in way) as job:

            def take() -> None:
                assert every is not None
                due = time.perf_counter() + every
                while not job.ended:
                    time.sleep(max(0.0, due - time.perf_counter()))
                    due += every
                    try:
                        taken = (series.take(job.checkpoint)[1] if "differences" in way
                                 else job.checkpoint(os.path.join(folder, "image")))
                    except JobEnded:
                        return
                    stops.append(taken.stopped * 1e3)
                    copies.append(taken.times.copying * 1e3)

            began = time.perf_counter()
            taking = threading.Thread(target=take)
            if every is not None:
                taking.start()
            job.wait()
            seconds = time.perf_counter() - began
            if every is not None:
                taking.join()
    return seconds, stops, copies
