"""``wasmckpt run``: a program, from its beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..snapshot.job import Job
from ..wasm.numbers import entry_of
from .attend import attend
from .params import FILE, Grant, read_module
from .programs import (
    checkpoint_options,
    config_of,
    grant_options,
    plan_of,
    program_options,
    runtime_option,
)

__all__ = ["command"]


@click.command("run")
@click.argument("module", type=FILE)
@click.argument("args", nargs=-1)
@runtime_option
@grant_options
@program_options
@checkpoint_options
def command(
    module: str, args: tuple[str, ...], runtime: str, grants: tuple[Grant, ...], stack_size: int, huge_pages: bool,
    discard_dead_stack: bool, environment: tuple[tuple[str, str], ...], invoke: str | None, seed: int | None,
    canonical_nans: bool, **checkpoints: Any,
) -> int:
    """Run MODULE, with ARGS (behind -- if they look like options).

    SIGUSR1 takes a checkpoint. Ctrl-C ends the program, once more: at once. The exit code is the program's; 134 if it
    trapped.
    """
    wasm = read_module(module)
    plan = plan_of(module, print_results=invoke is not None, module=wasm, **checkpoints)
    values = entry_of(wasm, invoke, args) if invoke is not None else ()
    config = config_of(
        grants, arguments=(Path(module).name, *(args if invoke is None else ())), environment=environment, seed=seed
    )
    return attend(
        lambda hooks: Job.start(
            wasm, runtime, config=config, invoke=invoke, arguments=values, stack_bytes=stack_size, freeze_at=plan.at,
            on_checkpoint_here=hooks.here, before_call=hooks.before, huge_pages=huge_pages,
            discard_dead_stack=discard_dead_stack, journal=plan.journal, first_image=plan.first_image,
            canonical_nans=canonical_nans,
        ),
        plan,
    )
