"""What canonical NaNs cost (`--canonical-nans`): two kernels of dense float arithmetic, and a third without any.

Of the chains of arithmetic in them only the ends pay: *places* says after how many instructions code was added, and
*arithmetic* of how many that make NaNs.
"""

from __future__ import annotations

from dataclasses import replace

from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.nans import MAKING_NANS, to_make_canonical
from wasmckpt.snapshot.prepare import options_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.validate import analyze

from ..guests import kernel_start
from ..measure import geo_mean, interleaved
from ..programs import kernels
from ..report import Report, Table
from ..settings import Settings

_FLOATS, _NONE = ("nbody", "matmul"), "sha256"


def run(settings: Settings, report: Report) -> None:
    """CPU time with canonical NaNs, against the same rewritten module without, and against the plain one."""
    for engine in settings.engines(report):
        table = Table(
            f"{engine.name}: CPU time",
            [("kernel", ""), ("arithmetic", ""), ("places", ""), ("plain, ms", ".1f"), ("rewritten / plain", ".2f"),
             ("canonical / plain", ".2f"), ("canonical / rewritten", ".2f"), ("range", ""), ("code", ".2f")],
            note="*Range*: canonical against plain on each fresh instance alone. *Code*: bytes of the module, rewritten"
                 " = 1.",
        )
        ratios: list[float] = []
        for sample in kernels(report, settings.case):
            if sample.name not in (*_FLOATS, _NONE):
                continue
            with report.kept(f"{sample.name} on {engine.name}"):
                options = options_for(engine)
                built = {
                    "plain": sample.wasm, "ours": instrument(sample.wasm, options).wasm,
                    "canonical": instrument(sample.wasm, replace(options, canonical_nans=True)).wasm,
                }
                starts = {name: kernel_start(engine, engine.compile(wasm), sample) for name, wasm in built.items()}
                fresh, rounds = (4, 10) if engine.name == "wasmtime" else (3, 3)
                times = interleaved(starts, fresh=settings.few(fresh), rounds=settings.few(rounds))
                plain, ours, canonical = times["plain"], times["ours"], times["canonical"]
                low, high = canonical.ratios(plain)
                making, places = _counts(sample.wasm)
                table.rows.append([
                    sample.name, str(making), str(places), plain.best * 1e3, ours.ratio(plain), canonical.ratio(plain),
                    canonical.ratio(ours), f"{low:.2f}-{high:.2f}", len(built["canonical"]) / len(built["ours"]),
                ])
                settings.progress(table.rows[-1])
                if sample.name in _FLOATS:
                    ratios.append(canonical.ratio(ours))
        if ratios:
            table.rows.append([
                f"geo mean of {' and '.join(_FLOATS)}", "", "", None, None, None, geo_mean(ratios), "", None,
            ])
        report.tables.append(table)


def _counts(wasm: bytes) -> tuple[int, int]:
    """Instructions that make NaNs, and those after which they are made canonical."""
    module = decode(wasm)
    codes = [analyze(module, func) for func in range(module.imported_funcs, len(module.func_types))]
    return (sum(op in MAKING_NANS for code in codes for op in code.ops),
            sum(1 for code in codes for _ in to_make_canonical(code)))
