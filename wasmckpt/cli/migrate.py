"""``wasmckpt migrate``: run a program and move it while it runs, or move one that runs under a name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ..errors import UsageError
from ..snapshot.job import Job, Move, check
from ..wasm.numbers import entry_of
from .attend import Hop, attend, moved
from .output import print_json, say, working
from .params import DURATION, JOB_OR_MODULE, RUNTIME, Grant, read_module
from .programs import checkpoint_options, config_of, grant_options, plan_of, program_options
from .registry import ask

__all__ = ["command"]

_OF_A_JOB = frozenset({"program", "targets", "json", "quiet"})
"""Parameters that mean something for a program that runs already."""


@click.command("migrate")
@click.argument("program", type=JOB_OR_MODULE, metavar="NAME|MODULE")
@click.argument("args", nargs=-1)
@click.option("--from", "origin", type=RUNTIME, help="What MODULE starts on.")
@click.option("--to", "targets", type=RUNTIME, multiple=True, required=True,
              help="What it moves to; several times: from each to the next.")
@click.option("--after", "times", type=DURATION, multiple=True,
              help="Time on a runtime before the move; the last one counts for all further moves.")
@click.option("--back-after", type=DURATION, help="Return to the first runtime after so long on the last.")
@grant_options
@program_options
@checkpoint_options
@click.pass_context
def command(
    ctx: click.Context, /, program: str, origin: str | None, targets: tuple[str, ...], times: tuple[float, ...],
    json: bool, **more: Any,
) -> int:
    """Move a running program to another runtime: NAME, which `run --name` started in another terminal, or MODULE with
    ARGS (behind --), which is started here with --from and moved --after some time.
    """
    if origin is not None:
        if not times:
            raise UsageError("--after is missing", hint="the time before the move: --after 2s")
        return _start_and_move(program, origin, targets, times, json=json, **more)
    if os.sep in program or program.endswith(".wasm"):
        raise UsageError("--from is missing", hint=f"what {program} starts on: --from wasmtime --after 2s")
    for option in ctx.command.params:
        given = ctx.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name not in _OF_A_JOB:
            raise UsageError(f"{option.opts[0]} is for a program that is started here", hint="add --from RUNTIME")
    if len(targets) > 1:
        raise UsageError("a running program is moved to one --to at a time")
    _move(program, targets[0], json)
    return 0


def _move(name: str, target: str, json: bool) -> None:
    with working(f"moving {name} to {target}"):
        answer = ask(name, "migrate", runtime=target)
    if json:
        print_json(answer)
    else:
        say(moved(Move(**answer)))


def _start_and_move(
    module: str, origin: str, targets: tuple[str, ...], times: tuple[float, ...], *, args: tuple[str, ...],
    back_after: float | None, grants: tuple[Grant, ...], stack_size: int, huge_pages: bool, discard_dead_stack: bool,
    environment: tuple[tuple[str, str], ...], invoke: str | None, seed: int | None, canonical_nans: bool,
    **checkpoints: Any,
) -> int:
    if len(times) > len(targets):
        raise UsageError("more --after than --to")
    wasm = read_module(module)
    hops = [Hop(target, times[min(i, len(times) - 1)]) for i, target in enumerate(targets)]
    if back_after is not None:
        hops.append(Hop(origin, back_after))
    plan = plan_of(module, print_results=invoke is not None, module=wasm, hops=hops, **checkpoints)
    values = entry_of(wasm, invoke, args) if invoke is not None else ()
    for target in dict.fromkeys(targets):
        with working(f"asking {target} whether it can run {plan.what}"):
            check(wasm, target, stack_bytes=stack_size)  # before anything has run
    config = config_of(
        grants, arguments=(Path(module).name, *(args if invoke is None else ())), environment=environment, seed=seed
    )
    return attend(
        lambda hooks: Job.start(
            wasm, origin, config=config, invoke=invoke, arguments=values, stack_bytes=stack_size, freeze_at=plan.at,
            on_checkpoint_here=hooks.here, before_call=hooks.before, huge_pages=huge_pages,
            discard_dead_stack=discard_dead_stack, journal=plan.journal, first_image=plan.first_image,
            canonical_nans=canonical_nans,
        ),
        plan,
    )
