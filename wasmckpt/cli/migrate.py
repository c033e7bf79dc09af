"""``wasmckpt migrate``: run a program and move it while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from ..snapshot.job import Job, check
from .attend import Hop, attend
from .params import DURATION, RUNTIME, Grant, read_module
from .programs import checkpoint_options, config_of, entry_of, grant_options, plan_of, program_options

__all__ = ["command"]


@click.command("migrate")
@click.argument("module", type=str)
@click.argument("args", nargs=-1)
@click.option("--from", "origin", type=RUNTIME, required=True, help="What it starts on.")
@click.option("--to", "targets", type=RUNTIME, multiple=True, required=True,
              help="What it moves to; several times: from each to the next.")
@click.option("--after", "times", type=DURATION, multiple=True, required=True,
              help="Time on a runtime before the move; the last one counts for all further moves.")
@click.option("--back-after", type=DURATION, help="Return to the first runtime after so long on the last.")
@grant_options
@program_options
@checkpoint_options
def command(
    module: str, args: tuple[str, ...], origin: str, targets: tuple[str, ...], times: tuple[float, ...],
    back_after: float | None, grants: tuple[Grant, ...], stack_size: int, environment: tuple[tuple[str, str], ...],
    invoke: str | None, seed: int | None, **checkpoints: Any,
) -> int:
    """Run MODULE with ARGS (behind --), and move it between runtimes while it runs."""
    if len(times) > len(targets):
        raise UsageError("more --after than --to")
    wasm = read_module(module)
    hops = [Hop(target, times[min(i, len(times) - 1)]) for i, target in enumerate(targets)]
    if back_after is not None:
        hops.append(Hop(origin, back_after))
    plan = plan_of(module, print_results=invoke is not None, module=wasm, hops=hops, **checkpoints)
    values = entry_of(wasm, invoke, args) if invoke is not None else ()
    for target in dict.fromkeys(targets):
        check(wasm, target, stack_bytes=stack_size)  # before anything has run
    config = config_of(
        grants, arguments=(Path(module).name, *(args if invoke is None else ())), environment=environment, seed=seed
    )
    return attend(
        lambda: Job.start(
            wasm, origin, config=config, invoke=invoke, arguments=values, stack_bytes=stack_size, freeze_at=plan.at
        ),
        plan,
    )
