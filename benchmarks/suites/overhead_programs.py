"""What being ready to be frozen costs real programs, in run time, code, compile time and compiled code."""

from __future__ import annotations

import time
from typing import Final

from wasmckpt.instrument.instrument import instrument
from wasmckpt.runtimes import Engine
from wasmckpt.snapshot.prepare import options_for
from wasmckpt.wasm.decode import decode

from ..docs import PAGE
from ..guests import program_start
from ..measure import geo_mean, interleaved
from ..plots import costs
from ..programs import programs
from ..report import Cell, Goal, Report, Table
from ..settings import Settings

_COLUMNS: Final = [
    ("program", ""), ("plain, ms", ".0f"), ("time", ".2f"), ("range", ""), ("code", ".2f"), ("compile time", ".2f"),
    ("compiled size", ".2f"),
]


def run(settings: Settings, report: Report) -> None:
    """Both run under our own WASI host; compiling is not in the run time (Wasm3 compiles when it instantiates)."""
    rows: dict[str, list[tuple[str, Cell, Cell]]] = {}
    for engine in settings.engines(report):
        table = Table(
            f"{engine.name}: plain = 1", _COLUMNS,
            note="*Time*: CPU time of the run. *Code*: bytes of the code section. *Compile time*: CPU time of all "
                 "threads. Each round is a fresh instance; *range*: lowest and highest ratio of groups of two rounds.",
        )
        for sample in programs(report, quick=settings.quick):
            with report.kept(f"{sample.name} on {engine.name}"):
                plain = sample.wasm
                ours = instrument(plain, options_for(engine)).wasm
                compiled = {"plain": engine.compile(plain), "ours": engine.compile(ours)}
                starts = {name: program_start(engine, made, sample) for name, made in compiled.items()}
                turns = 6 if engine.name == "wasmtime" else 3
                times = interleaved(starts, fresh=settings.few(turns), rounds=2)
                compiling, size = None, None
                if blob := compiled["plain"].serialize():
                    size = len(compiled["ours"].serialize() or b"") / len(blob)
                    compiling = _compile_seconds(engine, ours, settings) / _compile_seconds(engine, plain, settings)
                low, high = times["ours"].ratios(times["plain"])
                table.rows.append([
                    sample.name, times["plain"].best * 1e3, times["ours"].ratio(times["plain"]),
                    f"{low:.2f}-{high:.2f}", code_bytes(ours) / code_bytes(plain), compiling, size,
                ])
                settings.progress(table.rows[-1])
                for made in compiled.values():
                    made.close()
        if not table.rows:
            continue
        rows[engine.name] = [(str(row[0]), row[2], row[4]) for row in table.rows]
        means = [
            geo_mean(cell for row in table.rows if isinstance(cell := row[n], float)) if n != 3 else None
            for n in range(2, 7)
        ]
        means = [None if mean is None or mean != mean else mean for mean in means]
        table.rows.append(["geo mean", None, *means])
        report.tables.append(table)
        worst = max(table.rows[:-1], key=lambda row: row[2])  # type: ignore[arg-type,return-value]
        report.goals += [
            Goal(f"real programs, geo mean, {engine.name}", means[0] or 0.0, 1.05),
            Goal(f"real programs, worst ({worst[0]}), {engine.name}", float(worst[2] or 0.0), 1.15),
            Goal(f"code of real programs, geo mean, {engine.name}", means[2] or 0.0, 1.4),
            *(Goal(f"{what} of real programs, geo mean, {engine.name}", mean, 1.5)
              for what, mean in (("compile time", means[3]), ("compiled size", means[4])) if mean),
        ]
    if rows and not settings.quick and not report.names:
        costs(rows, PAGE.parent / "overhead.svg")
        report.tables[-1].note += "\n\n![Time and code, program by program](overhead.svg)"


def code_bytes(wasm: bytes) -> int:
    """Bytes of a module's code section."""
    return sum(section.end - section.start for section in decode(wasm).sections if section.id == 10)


def _compile_seconds(engine: Engine, wasm: bytes, settings: Settings) -> float:
    best = 1e9
    for _ in range(settings.few(2)):
        began = time.process_time()
        engine.compile(wasm).close()
        best = min(best, time.process_time() - began)
    return best
