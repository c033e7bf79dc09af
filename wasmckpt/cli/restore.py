"""``wasmckpt restore``: run on from an image."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click

from ..errors import UsageError
from ..snapshot.job import Job
from .attend import Here, attend
from .params import FILE, Grant, read_module
from .programs import checkpoint_options, config_of, grant_options, plan_of, runtime_option
from .sealing import reading_options

__all__ = ["command"]


@click.command("restore")
@click.argument("image", type=FILE, metavar="IMAGE|NAME")
@click.option("--number", type=click.IntRange(min=1), metavar="N",
              help="With --store: not the newest image of the program NAME, but this one.")
@click.option("--module", "module_path", type=FILE, metavar="MODULE",
              help="The original module, unless the image carries it.")
@click.option("--accept-changed", is_flag=True, help="Go on even if open files are not what they were.")
@reading_options
@runtime_option
@grant_options
@checkpoint_options
def command(
    image: str, number: int | None, module_path: str | None, accept_changed: bool, runtime: str,
    grants: tuple[Grant, ...], stack_size: int, store: str | None, remote: str | None, **checkpoints: Any,
) -> int:
    """Run on from IMAGE, on any runtime. Folders are granted anew; arguments and environment are in the image.

    With --store: from the newest image of the program NAME in that store, where further ones go as well; with --remote
    from the bucket if the newest, or the one with --number, is only there.
    """
    if store is None and number is not None:
        raise UsageError("--number without a store", hint="add --store DIR")
    with ExitStack() as until_it_runs:
        path, wasm = image, None if module_path is None else read_module(module_path)
        if store is not None:
            from .levels import nearest  # SQLite, which programs without a store need not wait for

            found, module = until_it_runs.enter_context(nearest(store, remote, image, number).reading(image, number))
            path = str(found)
            if wasm is None and module is not None:
                wasm = read_module(str(module))
        source = image if store is not None else module_path or image
        plan = plan_of(source, print_results=True, module=wasm, store=store, remote=remote, **checkpoints)

        def start(here: Here | None) -> Job:
            job = Job.restore(
                path, runtime, module=wasm, config=config_of(grants), accept_changed=accept_changed,
                stack_bytes=stack_size, freeze_at=plan.at, on_checkpoint_here=here,
            )
            until_it_runs.close()
            return job

        return attend(start, plan)
