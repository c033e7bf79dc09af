"""Asyncify (Binaryen), the usual way to make WebAssembly stop, on the same modules beside ours.

*Asyncify* alone can stop only where the program calls an import; a kernel has none. *With polls* it can stop at loops,
as ours can: a test of an exported global at each loop's header, before a call of an import that may unwind. *wasm-opt*
is the plain module through the optimizer that runs after Asyncify: what of its figure is not Asyncify's."""

from __future__ import annotations

from wasmckpt.instrument.instrument import instrument
from wasmckpt.runtimes import Engine
from wasmckpt.snapshot.prepare import options_for

from ..asyncify import asyncified, optimized, version
from ..guests import kernel_start, program_start
from ..measure import Start, geo_mean, interleaved
from ..programs import kernels, programs
from ..report import Cell, Goal, Report, Table
from ..settings import Settings
from .overhead_programs import code_bytes

NAMES = ("ours", "asyncify", "with polls", "wasm-opt")


def run(settings: Settings, report: Report) -> None:
    """CPU time and code, plain = 1."""
    with report.kept("Binaryen"):
        report.facts["binaryen"] = version()
    built: dict[str, dict[str, bytes]] = {}
    for engine in settings.engines(report):
        for what, samples in (
            ("kernels", kernels(report, settings.case)), ("real programs", programs(report, quick=settings.quick)),
        ):
            table = Table(
                f"{what}, {engine.name}: plain = 1",
                [("module", ""), *((f"time, {name}", ".2f") for name in NAMES),
                 *((f"code, {name}", ".2f") for name in NAMES)],
            )
            for sample in samples:
                with report.kept(f"{sample.name} on {engine.name}"):
                    plain = sample.wasm
                    made = built.setdefault(sample.name, {})
                    with report.kept(f"{sample.name} through Binaryen"):
                        if not made:
                            made["wasm-opt"] = optimized(plain)
                            if sample.kind == "command":
                                made["asyncify"] = asyncified(plain, polls=False)
                            made["with polls"] = asyncified(plain, polls=True)
                    variants = {"plain": plain, "ours": instrument(plain, options_for(engine)).wasm, **made}
                    kernel = sample.kind == "module"
                    starts: dict[str, Start] = {}
                    for name, wasm in variants.items():
                        start = kernel_start if kernel else program_start
                        starts[name] = start(engine, engine.compile(wasm), sample)
                    times = interleaved(starts, fresh=settings.few(3), rounds=settings.few(_rounds(engine, kernel)))
                    row: list[Cell] = [sample.name]
                    row += [times[n].ratio(times["plain"]) if n in times else None for n in NAMES]
                    row += [code_bytes(variants[n]) / code_bytes(plain) if n in variants else None for n in NAMES]
                    table.rows.append(row)
                    settings.progress(row)
            if not table.rows:
                continue
            means: list[Cell] = []
            for n in range(1, len(table.columns)):
                column = [cell for row in table.rows if isinstance(cell := row[n], float)]
                means.append(geo_mean(column) if column else None)
            table.rows.append(["geo mean", *means])
            report.tables.append(table)
            ours, polled = means[0], means[2]
            if isinstance(ours, float) and isinstance(polled, float):
                what = f"{what}, {engine.name}: ours against Asyncify with polls"
                report.goals.append(Goal(what, ours / polled, 1.0))


def _rounds(engine: Engine, kernel: bool) -> int:
    return (6 if kernel else 2) if engine.name == "wasmtime" else (2 if kernel else 1)
