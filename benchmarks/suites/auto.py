"""Checkpoints as often as they are cheap: what ``--checkpoint-every auto`` takes of a program's time, and says.

The same work with and without `Job.checkpoints(Pace())`, turn by turn, through the whole product: a worker, images into
a file. *computes* keeps to one page; *rewrites* writes every page of its memory again and again, so that all of it is
copied beside each forked copy. *real*: median time with over median time without, less one; *said*: what the account of
the pace has charged. Bound: 3.5 %. The shortest interval is 0.2 s here, so that a short run has many of them."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from wasmckpt.planning import DEFAULT_OVERHEAD, Pace
from wasmckpt.snapshot.job import Job
from wasmckpt.wasm.values import I32, Value

from ..guests import wat
from ..report import Goal, Report, Table
from ..settings import Settings

MIB = 1 << 20
SECONDS = 5.0
_TRIAL = 200
"""Passes that tell how many a run of so many seconds has."""

PASSES = """(module (memory (export "memory") {pages})
  (func (export "run") (param $size i32) (param $passes i32) (result i32) (local $p i32) (local $x i64)
    (loop $pass
      (local.set $p (i32.const 0))
      (loop $write
        (local.set $x (i64.add (i64.mul (local.get $x) (i64.const 6364136223846793005)) (i64.const 1442695041)))
        (i64.store (i32.and (local.get $p) (i32.sub (local.get $size) (i32.const 1))) (local.get $x))
        (br_if $write (i32.lt_u (local.tee $p (i32.add (local.get $p) (i32.const 64))) (i32.const 0x1000000))))
      (br_if $pass (local.tee $passes (i32.sub (local.get $passes) (i32.const 1)))))
    (i32.wrap_i64 (local.get $x))))"""


def run(settings: Settings, report: Report) -> None:
    """One row for each runtime and program."""
    table = Table(
        "With auto, beside without",
        [("runtime", ""), ("program", ""), ("rounds", "d"), ("without, s", ".2f"), ("with, s", ".2f"),
         ("images", ".0f"), ("interval at the end, s", ".2f"), ("said, %", ".2f"), ("real, %", ".2f")],
        note="Images, interval and what is said: medians of the rounds.",
    )
    for name in settings.names:
        for program, size in (("computes", 4096), ("rewrites", 16 * MIB)):
            with report.kept(f"{name}, {program}"):
                _compare(settings, report, name, program, size, table)
    report.tables.append(table)


def _compare(settings: Settings, report: Report, name: str, program: str, size: int, table: Table) -> None:
    wasm = wat(PASSES.format(pages=256))
    one = _time(wasm, name, size, _TRIAL, None)[0] / _TRIAL
    passes = _TRIAL if settings.quick else max(_TRIAL, round(SECONDS / one))
    without, with_it, images, intervals, said = [], [], [], [], []
    for _ in range(settings.few(5)):
        without.append(_time(wasm, name, size, passes, None)[0])
        pace = Pace(shortest=0.05 if settings.quick else 0.2)
        taken, overhead = _time(wasm, name, size, passes, pace)
        with_it.append(taken)
        images.append(pace.taken)
        intervals.append(pace.expected / DEFAULT_OVERHEAD)
        said.append(100 * overhead)
    middle = statistics.median
    real = 100 * (middle(with_it) / middle(without) - 1)
    table.rows.append([
        name, program, len(said), middle(without), middle(with_it), middle(images), max(0.2, middle(intervals)),
        middle(said), real,
    ])
    settings.progress(table.rows[-1])
    if not settings.quick:
        report.goals.append(Goal(f"time lost to auto, {program}, {name}", real, 100 * DEFAULT_OVERHEAD, "%"))


def _time(wasm: bytes, name: str, size: int, passes: int, pace: Pace | None) -> tuple[float, float]:
    """Seconds of the whole work, and the overhead that the pace says."""
    arguments = (Value(I32, size), Value(I32, passes))
    with tempfile.TemporaryDirectory() as folder, Job.start(wasm, name, invoke="run", arguments=arguments) as job:
        began = time.perf_counter()
        for _ in job.checkpoints(pace, Path(folder, "image")) if pace is not None else ():
            pass
        job.wait()
        return time.perf_counter() - began, 0.0 if pace is None else pace.overhead(time.monotonic())
