"""Where the time and the code of being ready to be frozen go: real programs, rewritten with one thing left out or done
in another way.

*Left out* are parts without which a program cannot be frozen (`Options.leave_out`, for this suite only): *no polls at
loops*, *no tests after calls*, and *nothing stored*, in which all polls and tests stay, but where they lead to nothing
is stored, so that no value is kept for it. What that saves is neither in a poll nor in a test: it is in the registers
that the compiler gives away because a value is used once more, in a place that is never reached. The others are ways
that are open to the rewriter: *time* against *code* is the frontier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from wasmckpt.instrument.instrument import instrument
from wasmckpt.snapshot.prepare import options_for

from ..docs import PAGE
from ..guests import program_start
from ..measure import Start, geo_mean, interleaved
from ..plots import frontier
from ..programs import programs
from ..report import Report, Table
from ..settings import Settings
from .overhead_programs import code_bytes

PROGRAMS: Final = ("lua", "wren", "quickjs", "sqlite", "boolector", "zstd", "regexp")

WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ours": {},
    "no polls at loops": {"leave_out": ("loops",)},
    "no tests after calls": {"leave_out": ("calls",)},
    "nothing stored": {"leave_out": ("values",)},
    "no unrolling": {"unroll": 1},
    "all locals": {"all_locals": True},
    "exits in place": {"out_of_line": 0},
    "exits not shared": {"share_exits": False},
}


def run(settings: Settings, report: Report) -> None:
    """CPU time and code of each way, plain = 1."""
    points: dict[str, dict[str, tuple[float, float]]] = {}
    for engine in settings.engines(report):
        time = Table(f"{engine.name}: CPU time, plain = 1", [("way", ""), *((name, ".2f") for name in PROGRAMS),
                                                             ("geo mean", ".3f")])
        code = Table(f"{engine.name}: bytes of code, plain = 1", [*time.columns[:-1], ("geo mean", ".2f")])
        found: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in WAYS}
        for sample in programs(report, quick=settings.quick, wanted=PROGRAMS):
            with report.kept(f"{sample.name} on {engine.name}"):
                plain, options = sample.wasm, options_for(engine)
                built = {"plain": plain}
                for name, changed in WAYS.items():
                    built[name] = instrument(plain, replace(options, **changed)).wasm
                starts: dict[str, Start] = {}
                for name, wasm in built.items():
                    starts[name] = program_start(engine, engine.compile(wasm), sample)
                times = interleaved(starts, fresh=settings.few(3 if engine.name == "wasmtime" else 1), rounds=2)
                for name in WAYS:
                    found[name][sample.name] = (code_bytes(built[name]) / code_bytes(plain),
                                                times[name].ratio(times["plain"]))
                settings.progress([sample.name, *(found[name][sample.name][1] for name in WAYS)])
        means = points[engine.name] = {}
        for name, each in found.items():
            if each:
                means[name] = geo_mean(pair[0] for pair in each.values()), geo_mean(pair[1] for pair in each.values())
                for table, n in ((code, 0), (time, 1)):
                    table.rows.append([name, *(each[p][n] if p in each else None for p in PROGRAMS), means[name][n]])
        report.tables += [time, code]
    if points and not settings.quick:
        name = f"frontier{'-others' if report.names else ''}.svg"
        frontier(points, PAGE.parent / name)
        report.tables[-1].note = f"![Time against code]({name})"
