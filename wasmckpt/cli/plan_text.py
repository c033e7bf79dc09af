"""What ``wasmckpt plan`` says to people: its document in lines."""

from __future__ import annotations

import math
from typing import Any, Final

from .output import amount, duration

__all__ = ["lines"]

_DAY: Final = 86400.0

Document = dict[str, Any]


def _long(seconds: float) -> str:
    for unit, size in (("y", 365.25 * _DAY), ("d", _DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:.3g} {unit}"
    return duration(seconds)


def _part(fraction: float) -> str:
    """A percentage with as many nines as it has, and one figure more."""
    if not 0.5 < fraction < 1:
        return f"{100 * fraction:.3g} %"
    return f"{100 * fraction:.{max(1, min(9, 1 - math.floor(math.log10(1 - fraction)) - 1))}f} %"


def lines(found: Document) -> list[str]:
    """What `plan.document` found, for people."""
    nodes = found["nodes"]
    shown = [
        f"failures        one in {_long(found['mtbf'])}"
        + (f" on {nodes} machines (each: one in {_long(found['node_mtbf'])})" if nodes > 1 else ""),
        f"costs           checkpoint {duration(found['checkpoint'])}, restart {_long(found['restore'])}",
        _row("best", found["best"], "without approximation"),
        _row("Young", found["young"], "1974, sqrt(2 C M)"),
        _row("Daly", found["daly"], "2006, higher order"),
    ]
    if found["given"] is not None:
        shown.append(_row("given", found["given"], ""))
    form = found["ettr"]
    shown.append(
        f"ETTR form       {_part(form['useful'])} at {_long(form['interval'])}: 1 - N r (u0 + dt/2); with checkpoints "
        f"{_part(form['useful_with_checkpoints'])}"
    )
    if found["simulation"] is not None:
        run = found["simulation"]
        shown.append(
            f"simulated       {_part(run['useful'])} useful, {_part(run['checkpoints'])} checkpoints, "
            f"{_part(run['lost'])} lost, {_part(run['restarting'])} restarting; {run['failures']} failures, "
            f"seed {run['seed']}" + ("" if run["shape"] == 1 else f", Weibull of shape {run['shape']:g}")
        )
    if not found["approximations"]["good"]:
        shown.append(
            f"note            interval or restart is {found['approximations']['ratio']:.2g} of the time between "
            "failures: Young's and the ETTR form fail here, go by the best"
        )
    for part, told in (("journal", _journal_lines), ("replica", _replica_lines), ("transfer", _transfer_lines)):
        if found[part] is not None:
            shown += ["", *told(found[part])]
    return shown


def _row(name: str, at: Document, how: str) -> str:
    useful = "never gets done" if not at["useful"] else f"{_part(at['useful'])} useful"
    return f"{name:<15} each {_long(at['interval'])}, {useful}" + (f"  ({how})" if how else "")


def _journal_lines(found: Document) -> list[str]:
    answer = "longer journal, fewer images" if found["longer_journal"] else "more images; a journal saves no time"
    size = "" if found["size"] is None else f", {amount(round(found['size']))}"
    return [
        f"journal         {answer}",
        f"with it         an image each {_long(found['interval'])}{size}: {_part(found['useful'])} useful, a replay "
        f"takes {_long(found['replay'])} at most",
        f"without         an image each {_long(found['interval_without'])}: {_part(found['useful_without'])} useful",
        f"break-even      recording may cost {_part(found['break_even_cost'])} of the time",
    ]


def _replica_lines(found: Document) -> list[str]:
    answer = "replica in memory" if found["replica"] else "images on storage"
    price, mtbf = found["break_even_memory_price"], found["break_even_node_mtbf"]
    lines = [f"memory/storage  {answer}"]
    for name in ("memory", "storage"):
        one = found[name]
        lines.append(f"{name:<15} each {_long(one['interval'])}, {_part(one['useful'])} useful, costs "
                     f"{one['cost_day']:.3g} a day")
    lost = "never" if found["loss_mtbf"] is None else f"one machine's in {_long(found['loss_mtbf'])}"
    lines.append(f"all copies gone {lost}" + (
        f"; one event can take all: {found['enough_copies']} copies would be enough" if found["dies_with_group"] else ""
    ))
    lines.append("break-even      " + (
        f"memory below {price:.3g} a GiB and month" if price > 0 else "at no price of memory"
    ) + ("" if mtbf is None else f"; machines that fail more often than once in {_long(mtbf)}"))
    return lines


def _transfer_lines(found: Document) -> list[str]:
    if found["ratio"] is None:
        return ["transfer        free: there is nothing to send"]
    slower = f"makes a step {found['slowdown']:.3g} times as long"
    how = "free, hidden behind the computation" if found["free"] else slower
    return [
        f"transfer        {how}: ratio {found['ratio']:.3g} (computing / sending {duration(found['sending'])})",
        f"break-even      {amount(round(found['largest_changes']))} of changes a step, or "
        f"{amount(round(found['least_bandwidth']))}/s",
    ]
