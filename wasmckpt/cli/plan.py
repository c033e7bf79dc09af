"""``wasmckpt plan``: how often to take checkpoints, where to keep them, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import click

from ..errors import UsageError
from ..planning import (
    Model,
    Sense,
    Simulated,
    best_interval,
    compare_journal,
    compare_replicas,
    daly_interval,
    ettr,
    hide_transfer,
    simulate,
    useful_fraction,
    young_interval,
)
from .output import print_json, working
from .params import FILE
from .plan_text import lines
from .quantities import BANDWIDTH, DATA, PERCENT, RATE, TIME, number

__all__ = ["command", "document"]

_FAILURE_RATE: Final = 6.5e-3 / 86400
"""Per node and second: 6.5 failures in 1000 days of a node, on the larger of two clusters of Kokolis et al. 2025."""
_CHECKPOINT: Final = 0.005
"""Median stop of a program with 64 MiB on wasmtime, docs/benchmarks.md."""
_RESTART: Final = 0.137
"""`wasmckpt restore` of a small program, process start included, docs/benchmarks.md."""
_MONTH: Final = 30 * 86400.0
_GIB: Final = float(1 << 30)
_DAY: Final = 86400.0

Document = dict[str, Any]


@click.command("plan")
@click.option("--nodes", type=int, default=1, show_default=True, help="Machines that the job needs at once.")
@click.option("--mtbf", type=TIME, help="Mean time between failures of one machine.")
@click.option("--failure-rate", type=RATE, help="The same as a rate; default: 6.5e-3/d (large clusters, Kokolis 2025).")
@click.option("--checkpoint", type=TIME, default="5ms", show_default=True,
              help="What a checkpoint costs the job (default: stop of a program with 64 MiB).")
@click.option("--restore", type=TIME, default="137ms", show_default=True,
              help="From a failure until the job computes again (default: `wasmckpt restore` alone; add the time until "
                   "a failure is noticed).")
@click.option("--interval", type=TIME, help="Judge this time between checkpoints as well.")
@click.option("--simulate", "simulated", is_flag=True, help="Check it by a simulated job with injected failures.")
@click.option("--failures", type=int, default=20_000, show_default=True, help="How many the simulation injects.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulation's random numbers.")
@click.option("--shape", type=number(0.1, 10), default="1.0", show_default=True,
              help="Simulate Weibull failures of this shape; below 1 young machines fail more often.")
@click.option("--plot", type=FILE, metavar="FILE", help="Draw useful time over the interval: .svg or .png.")
@click.option("--journal-cost", type=PERCENT, help="Longer journal or more images? What recording costs of all time.")
@click.option("--replay-speed", type=number(0.001, 1e6), default="1.0", show_default=True,
              help="How many times faster than the first time the journal is replayed.")
@click.option("--journal-rate", type=BANDWIDTH, help="How fast the journal grows.")
@click.option("--longest-replay", type=TIME, help="What a replay may take at most.")
@click.option("--image-size", type=DATA, help="Memory or storage? Size of one machine's image.")
@click.option("--memory-checkpoint", type=TIME, help="What a checkpoint to a neighbour's memory costs the job.")
@click.option("--memory-restore", type=TIME, help="As --restore, from a neighbour's memory.")
@click.option("--copies", type=int, default=1, show_default=True, help="Replicas of an image, in other machines.")
@click.option("--together", type=int, default=1, show_default=True,
              help="Machines that may die in one event (a rack), the job's among them.")
@click.option("--group-share", type=PERCENT, default="0%", show_default=True,
              help="Part of a machine's failures that are such events.")
@click.option("--repair", type=TIME, default="60s", show_default=True, help="Until a replica that died is made anew.")
@click.option("--loss", type=TIME, default="1h", show_default=True, help="Work to do again when all copies are gone.")
@click.option("--images", type=int, default=2, show_default=True, help="Images kept on storage for each machine.")
@click.option("--memory-price", type=number(0, 1e9), default="3.0", show_default=True,
              help="Of a GiB of memory for a month. Examples, as the next two: give your own.")
@click.option("--storage-price", type=number(0, 1e9), default="0.02", show_default=True,
              help="Of a GiB of storage for a month.")
@click.option("--node-price", type=number(0, 1e9), default="1.0", show_default=True,
              help="Of a machine for an hour.")
@click.option("--step", type=TIME, help="Can the transfer hide? Time to compute one step.")
@click.option("--changes", type=DATA, help="What one step changes.")
@click.option("--bandwidth", type=BANDWIDTH, help="Of the line that the changes go through.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(plot: str | None, as_json: bool, **options: Any) -> None:
    """How often to take checkpoints, and how much of the time is useful then.

    Times have units: ns us ms s m h d w y. Formulas and their sources: docs/planning.md.
    """
    if plot is not None and not plot.lower().endswith((".svg", ".png")):
        raise UsageError("a plot is an .svg or .png file", path=plot)
    with working("simulating"):
        found = document(**options)
    if plot is not None:
        from .plan_plot import draw

        with working("drawing"):
            draw(plot, _model(options), found)
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(lines(found)))


def _model(options: Mapping[str, Any]) -> Model:
    if options["mtbf"] is not None and options["failure_rate"] is not None:
        raise UsageError("the same thing is given twice", hint="leave out --mtbf or --failure-rate")
    mtbf = options["mtbf"] if options["mtbf"] is not None else 1 / (options["failure_rate"] or _FAILURE_RATE)
    return Model(options["nodes"], mtbf, options["checkpoint"], options["restore"])


def document(**options: Any) -> Document:
    """All answers, as ``--json`` prints them. Raises `UsageError`."""
    model = _model(options)
    best = best_interval(model.checkpoint, model.system_mtbf)
    chosen = options["interval"] if options["interval"] is not None else best
    sense = Sense.of(model, chosen)
    found: Document = {
        "nodes": model.nodes, "node_mtbf": model.mtbf, "mtbf": model.system_mtbf, "checkpoint": model.checkpoint,
        "restore": model.restart,
        "best": _at(model, best),
        "young": _at(model, young_interval(model.checkpoint, model.system_mtbf)),
        "daly": _at(model, max(daly_interval(model.checkpoint, model.system_mtbf), best * 1e-3)),
        "given": None if options["interval"] is None else _at(model, chosen),
        "ettr": {
            "interval": chosen, "useful": ettr(model, chosen),
            "useful_with_checkpoints": ettr(model, chosen, checkpoints=True),
        },
        "approximations": {"ratio": sense.ratio, "good": sense.good},
        "simulation": None, "journal": _journal(model, options), "replica": _replica(model, options),
        "transfer": _transfer(options),
    }
    if options["simulated"]:
        run = simulate(model, chosen, failures=options["failures"], seed=options["seed"], shape=options["shape"])
        found["simulation"] = _simulation(run, chosen, options)
    return found


def _at(model: Model, interval: float) -> Document:
    return {"interval": interval, "useful": useful_fraction(model, interval)}


def _simulation(run: Simulated, interval: float, options: Mapping[str, Any]) -> Document:
    return {
        "interval": interval, "useful": run.fraction, "failures": run.failures, "seed": options["seed"],
        "shape": options["shape"], "lost": run.lost / run.passed, "restarting": run.restarting / run.passed,
        "checkpoints": run.checkpoints / run.passed,
    }


def _journal(model: Model, options: Mapping[str, Any]) -> Document | None:
    if options["journal_cost"] is None:
        if options["journal_rate"] is not None or options["longest_replay"] is not None:
            raise UsageError("a journal without its cost", hint="add --journal-cost 1%")
        return None
    longest = options["longest_replay"]
    found = compare_journal(
        model, cost=options["journal_cost"], replay=options["replay_speed"], rate=options["journal_rate"] or 0.0,
        longest=math.inf if longest is None else longest,
    )
    return {
        "longer_journal": found.longer_journal, "interval": found.interval, "useful": found.useful,
        "replay": found.replay, "size": found.size if options["journal_rate"] else None,
        "interval_without": found.interval_without, "useful_without": found.useful_without,
        "break_even_cost": found.break_even,
    }


def _all_or_none(options: Mapping[str, Any], *names: str) -> bool:
    missing = [name for name in names if options[name] is None]
    if missing and len(missing) < len(names):
        wanted = ", ".join("--" + name.replace("_", "-") for name in missing)
        raise UsageError("this question needs more to be answered", hint=f"add {wanted}")
    return not missing


def _replica(model: Model, options: Mapping[str, Any]) -> Document | None:
    if not _all_or_none(options, "image_size", "memory_checkpoint", "memory_restore"):
        return None
    memory = Model(model.nodes, model.mtbf, options["memory_checkpoint"], options["memory_restore"])
    found = compare_replicas(
        memory, model, size=options["image_size"], copies=options["copies"], together=options["together"],
        group_share=options["group_share"], repair=options["repair"], loss=options["loss"], images=options["images"],
        memory_price=options["memory_price"] / _GIB / _MONTH, storage_price=options["storage_price"] / _GIB / _MONTH,
        node_price=options["node_price"] / 3600,
    )
    return {
        "replica": found.replica,
        "memory": {
            "interval": found.interval_memory, "useful": found.useful_memory, "cost_day": found.cost_memory * _DAY,
        },
        "storage": {
            "interval": found.interval_storage, "useful": found.useful_storage, "cost_day": found.cost_storage * _DAY,
        },
        "loss_mtbf": found.loss_mtbf if found.loss_mtbf < 1e100 else None, "dies_with_group": found.by_group,
        "enough_copies": found.enough_copies, "break_even_memory_price": found.break_even_price * _GIB * _MONTH,
        "break_even_node_mtbf": found.break_even_mtbf,
    }


def _transfer(options: Mapping[str, Any]) -> Document | None:
    if not _all_or_none(options, "step", "changes", "bandwidth"):
        return None
    found = hide_transfer(options["step"], options["changes"], options["bandwidth"], copies=options["copies"])
    return {
        "free": found.free, "ratio": found.ratio if math.isfinite(found.ratio) else None, "sending": found.sending,
        "slowdown": found.slowdown, "largest_changes": found.largest_changes, "least_bandwidth": found.least_bandwidth,
    }
