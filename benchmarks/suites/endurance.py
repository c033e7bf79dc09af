"""An hour of a program that takes a checkpoint every 200 ms, compressed: as many checkpoints, one after the other.

The program writes at random places of a memory that grows, forgets half of what it has now and then (pages become
zero), and calls out. Its images go to a store that keeps the last twenty; the newest is made whole when it rests on 32
others.
*Overhead*: turns of the program per second without checkpoints, against those with one every 200 ms. *Leaks*: memory,
descriptors, children and threads of the worker and of the process that looks after it, files of the store and of the
folder for temporary files, by parts of the hour. The store is in memory, so that the hour passes in minutes; for the
overhead it is on the disk. The plot has all images."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from wasmckpt.snapshot.job import Job
from wasmckpt.store import Retention, Series, Store
from wasmckpt.wasm.values import I32, Value

from ..docs import PAGE
from ..guests import wat
from ..measure import percentile
from ..report import Goal, Report, Table
from ..settings import Settings

MIB = 1 << 20
HOUR = 18_000
"""Checkpoints, one every 200 ms."""
MOST_SECONDS = 200.0
"""An hour takes seven minutes and a half of a quiet machine; so much of it is done as this allows."""
EVERY = 0.2
KEPT = 20
PARTS = 8
GROWING = """(module (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
  (memory (export "memory") 16 256) (global $turn (mut i64) (i64.const 0))
  (func (export "run") (param $n i32) (result i32) (local $x i64) (local $at i32)
    (local.set $x (i64.const 0x9e3779b97f4a7c15))
    (loop $l
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
      (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
      (global.set $turn (i64.add (global.get $turn) (i64.const 1)))
      (if (i64.eqz (i64.and (global.get $turn) (i64.const 0xffff)))
        (then
          (local.set $at (i32.rem_u (i32.wrap_i64 (i64.shr_u (local.get $x) (i64.const 20)))
                                    (i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 8))))
          (i64.store (local.get $at) (local.get $x))
          (drop (call $yield))))
      (if (i64.eqz (i64.and (global.get $turn) (i64.const 0x3fffffff)))
        (then
          (drop (memory.grow (i32.const 1)))
          (memory.fill (i32.const 0) (i32.const 0) (i32.shl (memory.size) (i32.const 15)))))
      (br $l))
    (i32.const 0)))"""


@dataclass
class Seen:
    """What the processes and folders hold at one moment, and all images since the last one."""

    rss: int
    own: int
    descriptors: int
    own_descriptors: int
    threads: int
    children: int
    store: int
    temporary: int
    sizes: list[int] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)


def run(settings: Settings, report: Report) -> None:
    """A table by parts of the hour, one of the overhead, and the plot."""
    name = settings.names[0]
    with report.kept("the hour"), tempfile.TemporaryDirectory(dir=_quick_folder()) as folder:
        _hour(settings, report, name, Path(folder))
    with report.kept("overhead"):
        _overhead(settings, report)


def _quick_folder() -> str | None:
    """In memory, where there is such a folder: an hour's images are synced in minutes."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _start(name: str) -> Job:
    return Job.start(wat(GROWING), name, invoke="run", arguments=(Value(I32, 0),))


def _hour(settings: Settings, report: Report, name: str, folder: Path) -> None:
    series = Series(Store(folder / "store", create=True), "bench", wat(GROWING), rule=Retention(last=KEPT))
    wanted = 40 if settings.quick else HOUR
    parts: list[Seen] = []
    images: list[tuple[float, int, bool]] = []
    with _start(name) as job:
        began = time.monotonic()
        seconds = 4.0 if settings.quick else MOST_SECONDS
        sizes: list[int] = []
        stops: list[float] = []
        while len(images) < wanted and time.monotonic() - began < seconds:
            taken = series.take(job.checkpoint)[1]
            images.append((len(images) * EVERY / 60, taken.size, taken.parent is None))
            sizes.append(taken.size)
            stops.append(taken.stopped * 1e3)
            if time.monotonic() - began > seconds * (len(parts) + 1) / PARTS or len(images) == wanted:
                parts.append(_look(job, folder, sizes, stops))
                sizes, stops = [], []
        passed = time.monotonic() - began
        statistics = job.statistics
    table = Table(
        f"{name}: {len(images):,} checkpoints in {passed:.0f} s, {len(images) * EVERY / 60:.0f} minutes of one every "
        f"200 ms",
        [("part", "d"), ("checkpoints", ",d"), ("image, median, KiB", ",.0f"), ("largest", ",.0f"),
         ("stop, median, ms", ".2f"), ("99 %", ".1f"), ("worker, MiB", ".1f"), ("this process", ".1f"),
         ("descriptors", ""), ("threads", "d"), ("children", "d"), ("store, MiB", ".1f"), ("temporary files", "d")],
        note=f"Failed {statistics.failed}, dropped {statistics.dropped}. Descriptors: of the worker, of this process.",
    )
    for number, part in enumerate(parts, 1):
        table.rows.append([
            number, len(part.sizes), percentile(part.sizes, 0.5) / 1024, max(part.sizes) / 1024,
            percentile(part.stops, 0.5), percentile(part.stops, 0.99), part.rss / MIB, part.own / MIB,
            f"{part.descriptors}, {part.own_descriptors}", part.threads, part.children, part.store / MIB,
            part.temporary,
        ])
        settings.progress(table.rows[-1])
    report.tables.append(table)
    early, late = parts[len(parts) // 3], parts[-1]
    half = len(parts) // 2
    if not settings.quick:
        report.goals += [
            # The least of each half: making an image whole takes memory, and gives it back.
            Goal("an hour: memory of the worker, second half against first",
                 min(part.rss for part in parts[half:]) / min(part.rss for part in parts[:half]), 1.1),
            Goal("an hour: memory of the process beside it",
                 min(part.own for part in parts[half:]) / min(part.own for part in parts[:half]), 1.1),
            Goal("an hour: descriptors, children, threads more", sum(
                max(0, getattr(late, what) - getattr(early, what))
                for what in ("descriptors", "own_descriptors", "children", "threads", "temporary")
            ), 0),
            Goal("an hour: checkpoints that failed", statistics.failed, 0),
        ]
        _plot(images, PAGE.parent / "endurance.svg")
        table.note += "\n\n![Sizes of the images](endurance.svg)"


def _look(job: Job, folder: Path, sizes: list[int], stops: list[float]) -> Seen:
    gc.collect()
    worker, own = psutil.Process(job.pid), psutil.Process()
    files = [file for file in (folder / "store").rglob("*") if file.is_file()]
    return Seen(
        worker.memory_info().rss, own.memory_info().rss, worker.num_fds(), own.num_fds(), worker.num_threads(),
        len(worker.children()), sum(file.stat().st_size for file in files),
        len([entry for entry in os.scandir(tempfile.gettempdir()) if "wckpt" in entry.name])
        + sum(file.name.endswith(".part") for file in files), sizes, stops,
    )


def _overhead(settings: Settings, report: Report) -> None:
    """Turns that the program makes in the same time, by turns with and without checkpoints."""
    table = Table(
        "The same program, a checkpoint every 200 ms",
        [("runtime", ""), ("million turns a second without", ".1f"), ("with", ".1f"), ("overhead", ".3f")],
    )
    seconds = 1.0 if settings.quick else 8.0
    for name in settings.names:
        rates: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(settings.few(2)):
            for with_ in (False, True):
                rates[with_].append(_rate(name, seconds, with_))
        without, with_them = max(rates[False]), max(rates[True])
        table.rows.append([name, without / 1e6, with_them / 1e6, without / with_them - 1])
        settings.progress(table.rows[-1])
    report.tables.append(table)


def _rate(name: str, seconds: float, with_: bool) -> float:
    from wasmckpt import formats

    def turns(data: bytes | None) -> int:
        assert data is not None
        return formats.decode(data).globals[0].bits

    with tempfile.TemporaryDirectory() as folder, _start(name) as job:
        series = Series(Store(Path(folder, "store"), create=True), "bench", rule=Retention(last=KEPT))
        first = turns(job.checkpoint().data)
        began = time.perf_counter()
        due = began
        while (now := time.perf_counter()) - began < seconds:
            due = max(due + EVERY, now)
            time.sleep(due - now)
            if with_:
                series.take(job.checkpoint)
        passed = time.perf_counter() - began
        return (turns(job.checkpoint().data) - first) / passed


def _plot(images: list[tuple[float, int, bool]], path: Path) -> None:
    """Each image's size over the time at which it would be taken."""
    import matplotlib  # an extra, for this plot alone

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "wasmckpt"
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    step = max(1, len(images) // 1500)
    for whole, label, mark in ((False, "difference to the one before", "."), (True, "whole", "o")):
        chosen = [image for image in images if image[2] is whole]
        chosen = chosen if whole else chosen[::step]
        axes.plot([at for at, _, _ in chosen], [size / 1024 for _, size, _ in chosen], mark, markersize=3, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("minutes, one image every 200 ms")
    axes.set_ylabel("image, KiB")
    axes.legend(frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})
