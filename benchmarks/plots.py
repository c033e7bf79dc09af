"""Plots of costs; the same figures make the same file. matplotlib is loaded here when a plot is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .report import Cell

__all__ = ["costs", "frontier", "rounds"]


def costs(rows: Mapping[str, Sequence[tuple[str, Cell, Cell]]], path: Path) -> None:
    """Time and code of each program (name, time, code; plain = 1), a panel for each, a mark for each runtime."""
    figure = _figure(8, 4.5)
    panels = figure.subplots(1, 2, sharey=True)
    names = list(dict.fromkeys(name for found in rows.values() for name, _, _ in found))
    for panel, label, column in ((panels[0], "CPU time", 1), (panels[1], "bytes of code", 2)):
        for mark, (runtime, found) in zip("os^vD", rows.items(), strict=False):
            shown = [(row[column], names.index(row[0])) for row in found if row[column] is not None]
            panel.plot([value for value, _ in shown], [place for _, place in shown], mark, label=runtime)
        panel.axvline(1, color="black", linewidth=0.8)
        panel.set_xlabel(f"{label}, plain = 1")
        panel.grid(alpha=0.3)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[0].legend(frameon=False)
    _save(figure, path)


def frontier(points: Mapping[str, Mapping[str, tuple[float, float]]], path: Path) -> None:
    """Code and time (plain = 1) of each way to rewrite, a panel for each runtime."""
    figure = _figure(8, 4)
    panels = figure.subplots(1, len(points), squeeze=False)[0]
    for panel, (runtime, found) in zip(panels, points.items(), strict=True):
        for name, (code, time) in found.items():
            panel.plot([code], [time], "o" if name == "ours" else ".", color="black" if name == "ours" else "tab:blue")
            panel.annotate(name, (code, time), textcoords="offset points", xytext=(4, 3), fontsize=7)
        panel.set_title(runtime)
        panel.set_xlabel("bytes of code, plain = 1")
        panel.set_ylabel("CPU time, plain = 1")
        panel.grid(alpha=0.3)
        panel.margins(0.15)
    _save(figure, path)


def rounds(progress: Sequence[Any], stopped: float, path: Path) -> None:
    """A live move: pages of each round, and what a stop after it was expected to take, beside the one there was."""
    figure = _figure(7, 3.5)
    panel = figure.subplots()
    found = [one for one in progress if one.step == "round"]
    numbers = [one.round for one in found]
    panel.bar(numbers, [one.pages * 4096 / 1e6 for one in found], width=0.6, color="tab:blue", label="sent")
    panel.set_yscale("log")
    panel.set_xlabel("round")
    panel.set_ylabel("MB of pages")
    panel.set_xticks([*numbers, numbers[-1] + 1], [*map(str, numbers), "stop"])
    other = panel.twinx()
    other.plot(numbers, [one.expected * 1e3 for one in found], "o-", color="black", label="a stop now")
    other.plot([numbers[-1] + 1], [stopped * 1e3], "s", color="tab:red", label="the stop")
    other.axhline(50, color="tab:red", linewidth=0.8, linestyle=":")
    other.set_yscale("log")
    other.set_ylabel("ms")
    lines = [panel.get_legend_handles_labels(), other.get_legend_handles_labels()]
    panel.legend(lines[0][0] + lines[1][0], lines[0][1] + lines[1][1], frameon=False)
    _save(figure, path)


def _figure(width: float, height: float) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "wasmckpt"
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None})
