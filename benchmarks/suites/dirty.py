"""What it costs to know which pages were written: a look with re-protection, by size and by how much was written, and
the first write to a page afterwards; beside reading the same memory once. Wall time, this process, no huge pages."""

from __future__ import annotations

import ctypes
import mmap
import random
import time

from wasmckpt.dirty import BACKENDS, Tracker, probe

from ..measure import percentile
from ..report import Goal, Report, Table
from ..settings import Settings

PAGE = 4096
MIB = 1 << 20


def run(settings: Settings, report: Report) -> None:
    """A table for each size; rows: backends that work here, columns: how much was written."""
    verdicts = [probe(name) for name in BACKENDS]
    for mib in (64,) if settings.quick else (64, 1024):
        table = Table(
            f"{mib:,} MiB, milliseconds",
            [("way", ""), ("first look", ".2f"), ("nothing written", ".2f"), ("1 %", ".2f"), ("100 %", ".2f"),
             ("first write after a look, us a page", ".2f"), ("read all once", ".1f")],
            note="; ".join(f"{v.name}: {v.why}" for v in verdicts if not v.works),
        )
        for verdict in verdicts:
            if verdict.works:
                with report.kept(f"{verdict.name}, {mib} MiB"):
                    table.rows.append(_costs(settings, report, BACKENDS[verdict.name], mib))
                    settings.progress(table.rows[-1])
        report.tables.append(table)


def _costs(settings: Settings, report: Report, backend: type[Tracker], mib: int) -> list[str | float]:
    size = mib * MIB
    area = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    held = ctypes.c_char.from_buffer(area)
    base = ctypes.addressof(held)
    everything = range(size // PAGE)
    some = random.Random(7).sample(everything, len(everything) // 100)
    try:
        _write(base, everything)
        began = time.perf_counter()
        ctypes.string_at(base, size)
        read = time.perf_counter() - began
        unprotected = _write(base, everything)
        with backend([lambda: (base, size)]) as tracker:
            first = _look(tracker)
            times: dict[str, list[float]] = {"none": [], "some": [], "all": []}
            writes = []
            for _ in range(settings.few(9)):
                times["none"].append(_look(tracker))
                _write(base, some)
                times["some"].append(_look(tracker))
                writes.append(_write(base, everything))
                times["all"].append(_look(tracker))
        none, one, whole = (percentile(times[name], 0.5) * 1e3 for name in ("none", "some", "all"))
        if mib == 1024:
            goal = {"uffd": 3.0, "soft-dirty": 30.0}.get(backend.name)
            if goal:
                report.goals.append(Goal(f"look at 1 GiB, 1 % written, {backend.name}", one, goal, "ms"))
        extra = (percentile(writes, 0.5) - unprotected) / len(everything) * 1e6
        return [backend.name, first * 1e3, none, one, whole, extra, read * 1e3]
    finally:
        del held
        area.close()


def _look(tracker: Tracker) -> float:
    began = time.perf_counter()
    tracker.collect()
    return time.perf_counter() - began


def _write(base: int, pages: range | list[int]) -> float:
    """Write one byte of each page; seconds."""
    began = time.perf_counter()
    if isinstance(pages, range):
        ctypes.memset(base, 1, len(pages) * PAGE)
    else:
        for page in pages:
            ctypes.memset(base + page * PAGE, 1, 1)
    return time.perf_counter() - began
