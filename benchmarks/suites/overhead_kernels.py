"""What being ready to be frozen costs seven tight kernels and eight loops over arrays such as PolyBench has, and what
each decision of the rewriter is worth."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from tests.support.samples import KERNELS, LOOPS
from wasmckpt.instrument.instrument import instrument
from wasmckpt.runtimes import Engine
from wasmckpt.snapshot.prepare import options_for

from ..guests import kernel_start
from ..measure import geo_mean, interleaved
from ..programs import kernels
from ..report import Goal, Report, Table
from ..settings import Settings

VARIANTS = {
    "ours": {},
    "no unrolling": {"unroll": 1},
    "all locals": {"all_locals": True},
    "exits in place": {"out_of_line": 0},
    "exits not shared": {"share_exits": False},
}
COMPILERS, INTERPRETERS = 1.00, 1.03
GOALS = defaultdict(lambda: INTERPRETERS, wasmtime=COMPILERS, wasmer=COMPILERS)


def run(settings: Settings, report: Report) -> None:
    """CPU time of the rewritten module against the plain one."""
    for engine in settings.engines(report):
        _table(settings, report, engine, "seven kernels", KERNELS)
        _table(settings, report, engine, "loops over arrays", LOOPS)


def _table(settings: Settings, report: Report, engine: Engine, what: str, folder: Path) -> None:
    table = Table(
        f"{what}, {engine.name}: CPU time, plain = 1",
        [("kernel", ""), ("plain, ms", ".1f"), *((name, ".2f") for name in VARIANTS), ("ours, range", ""),
         ("code", ".2f")],
        note="*Range*: the ratio on each fresh instance alone. *Code*: bytes of the module, plain = 1.",
    )
    columns: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for sample in kernels(report, settings.case, folder):
        with report.kept(f"{sample.name} on {engine.name}"):
            options = options_for(engine)
            built = {"plain": sample.wasm}
            for name, changed in VARIANTS.items():
                built[name] = instrument(sample.wasm, replace(options, **changed)).wasm  # type: ignore[arg-type]
            starts = {name: kernel_start(engine, engine.compile(wasm), sample) for name, wasm in built.items()}
            slow = engine.name != "wasmtime"
            fresh, rounds = (3, 3) if slow else (4, 10)
            times = interleaved(starts, fresh=settings.few(fresh), rounds=settings.few(rounds))
            plain = times["plain"]
            low, high = times["ours"].ratios(plain)
            for name in VARIANTS:
                columns[name].append(times[name].ratio(plain))
            table.rows.append([
                sample.name, plain.best * 1e3, *(columns[name][-1] for name in VARIANTS), f"{low:.2f}-{high:.2f}",
                len(built["ours"]) / len(built["plain"]),
            ])
            settings.progress(table.rows[-1])
            if sample.name == "fib":
                report.goals.append(Goal(f"recursion (fib), {engine.name}", columns["ours"][-1], 1.15))
    means = [geo_mean(columns[name]) for name in VARIANTS]
    table.rows.append(["geo mean", None, *means, "", None])
    report.tables.append(table)
    report.goals.append(Goal(f"{what}, geo mean, {engine.name}", means[0], GOALS[engine.name]))
