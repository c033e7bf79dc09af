"""``wasmckpt restore``: run on from an image."""

from __future__ import annotations

from typing import Any

import click

from ..snapshot.job import Job
from .attend import attend
from .params import FILE, Grant, read_module
from .programs import checkpoint_options, config_of, grant_options, plan_of, runtime_option

__all__ = ["command"]


@click.command("restore")
@click.argument("image", type=FILE)
@click.option("--module", "module_path", type=FILE, metavar="MODULE",
              help="The original module, unless the image carries it.")
@click.option("--accept-changed", is_flag=True, help="Go on even if open files are not what they were.")
@runtime_option
@grant_options
@checkpoint_options
def command(
    image: str, module_path: str | None, accept_changed: bool, runtime: str, grants: tuple[Grant, ...], stack_size: int,
    **checkpoints: Any,
) -> int:
    """Run on from IMAGE, on any runtime. Folders are granted anew; arguments and environment are in the image."""
    wasm = None if module_path is None else read_module(module_path)
    plan = plan_of(module_path or image, print_results=True, module=wasm, **checkpoints)
    return attend(
        lambda here: Job.restore(
            image, runtime, module=wasm, config=config_of(grants), accept_changed=accept_changed,
            stack_bytes=stack_size, freeze_at=plan.at, on_checkpoint_here=here,
        ),
        plan,
    )
