"""Moves of a running program between each two runtimes that are here: how long it stands still.

From its last instruction on the one to its first on the other: the source is held and its frames are read, the target
rewrites the functions on the stack, compiles the module and rebuilds the frames. Before the stop the target's worker
has been started, and has compiled the module once, which tells whether it can take it. Wall time, median of several
moves, each of a program of its own.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.support.samples import Sample, build, describe
from wasmckpt import runtimes
from wasmckpt.host import WasiConfig
from wasmckpt.snapshot.job import Job, Move

from ..measure import percentile
from ..programs import real_program
from ..report import Report, Table
from ..settings import Settings

_RUNS_ON = 0.1
"""Seconds before it is moved."""


def run(settings: Settings, report: Report) -> None:
    """A small program and a large one, through all ordered pairs."""
    names = settings.names if report.names else tuple(runtimes.available())
    with report.kept("nbody"):
        small = replace(describe("nbody", "large", build("nbody")), args=("1000000000",))
        _between(settings, report, small, names)
    if not settings.quick:
        with report.kept("lua"):
            _between(settings, report, replace(real_program("lua", "large"), args=("1000001",)), names)  # a minute


def _between(settings: Settings, report: Report, sample: Sample, names: Sequence[str]) -> None:
    table = Table(
        f"{sample.name}, {len(sample.wasm):,} bytes: milliseconds of standing still",
        [("from", ""), *((f"to {name}", ".0f") for name in names), ("image, bytes", ""), ("frames", "")],
    )
    for source in names:
        moves: dict[str, list[Move]] = {target: [] for target in names}
        for target, _ in itertools.product(names, range(settings.few(3))):
            with report.kept(f"{sample.name}, {source} to {target}"):
                moves[target].append(_move(sample, source, target))
        every = [move for several in moves.values() for move in several]
        table.rows.append([
            source, *(percentile([m.stopped * 1e3 for m in moves[t]], 0.5) if moves[t] else None for t in names),
            _span([m.size for m in every]), _span([m.frames for m in every]),
        ])
        settings.progress(table.rows[-1])
    report.tables.append(table)


def _span(numbers: Sequence[int]) -> str:
    return f"{min(numbers):,} to {max(numbers):,}" if numbers else "-"


def _move(sample: Sample, source: str, target: str) -> Move:
    with tempfile.TemporaryFile() as stdin, open(os.devnull, "wb") as nowhere:
        stdin.write(sample.stdin)
        stdin.seek(0)
        config = WasiConfig(args=sample.argv, stdin=stdin.fileno(), stdout=nowhere.fileno(), stderr=nowhere.fileno())
        with Job.start(sample.wasm, source, config=config) as job:
            time.sleep(_RUNS_ON)
            return job.migrate(target)
