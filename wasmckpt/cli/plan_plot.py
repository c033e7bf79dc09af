"""The plot of ``wasmckpt plan``: useful time over the interval. matplotlib is loaded here and nowhere else."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import StorageError, UsageError
from ..planning import Model, daly_interval, ettr, simulate, useful_fraction, young_interval

__all__ = ["draw"]

_POINTS = 200
_SIMULATED = 9
_RANGE = 100.0
"""How many times above and below the best interval the plot goes."""


def draw(path: str, model: Model, found: Mapping[str, Any]) -> None:
    """Write the plot, whole or not at all; the same plan makes the same file.

    Raises:
        UsageError: matplotlib is not installed. StorageError: it cannot be written.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise UsageError("plots need matplotlib, which is not installed", hint="pip install 'wasmckpt[plot]'"
                         ) from missing
    best = found["best"]["interval"]
    intervals = [best * _RANGE ** (2 * n / (_POINTS - 1) - 1) for n in range(_POINTS)]
    with matplotlib.rc_context({"svg.hashsalt": "wasmckpt", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.add_subplot()
        exact = [100 * useful_fraction(model, t) for t in intervals]
        axes.plot(intervals, exact, label="exact (exponential failures)")
        axes.plot(intervals, [100 * ettr(model, t) for t in intervals], "--", label="ETTR form: 1 - N r (u0 + dt/2)")
        axes.plot(intervals, [100 * ettr(model, t, checkpoints=True) for t in intervals], ":",
                  label="ETTR form, with checkpoints")
        for name, interval, mark in (
            ("best", best, "o"), ("Young 1974", young_interval(model.checkpoint, model.system_mtbf), "^"),
            ("Daly 2006", daly_interval(model.checkpoint, model.system_mtbf), "v"),
        ):
            if interval > 0:
                axes.plot([interval], [100 * useful_fraction(model, interval)], mark, label=f"{name}: {interval:.3g} s")
        if found["simulation"] is not None:
            run = found["simulation"]
            seen = [best * _RANGE ** (2 * n / (_SIMULATED - 1) - 1) for n in range(_SIMULATED)]
            failures = min(run["failures"], 5000)
            axes.plot(seen, [
                100 * simulate(model, t, failures=failures, seed=run["seed"], shape=run["shape"]).fraction for t in seen
            ], "x", color="black", label="simulated, with injected failures")
        axes.set_xscale("log")
        axes.set_xlabel("seconds between checkpoints")
        axes.set_ylabel("useful time, %")
        low = min(value for value in exact)
        axes.set_ylim(max(0.0, math.floor(low)), None)
        axes.set_title(f"{model.nodes} machines, one failure in {model.system_mtbf:.3g} s, checkpoint "
                       f"{model.checkpoint:.3g} s, restart {model.restart:.3g} s")
        axes.grid(alpha=0.3)
        axes.legend()
        kind = Path(path).suffix.lower().removeprefix(".")
        metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            figure.savefig(temporary, format=kind, metadata=metadata, dpi=120)
            os.replace(temporary, path)
        except OSError as problem:
            Path(temporary).unlink(missing_ok=True)
            raise StorageError(f"the plot cannot be written: {problem.strerror}", path=path) from problem
