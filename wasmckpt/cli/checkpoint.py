"""``wasmckpt checkpoint``: an image of a program that runs under a name."""

from __future__ import annotations

import os

import click

from .output import amount, count, duration, print_json, say, working
from .params import FILE, JOB
from .programs import quiet_option
from .registry import ask

__all__ = ["command"]


@click.command("checkpoint")
@click.argument("name", type=JOB)
@click.option("-o", "--output", type=FILE, metavar="IMAGE", help="File for the image; default: NAME.wckpt.")
@click.option("--stop", is_flag=True, help="End the program with the image.")
@click.option("--carry-module", is_flag=True, help="Put the module into the image.")
@click.option("--json", "as_json", is_flag=True, help="Print what was taken as JSON.")
@quiet_option
def command(name: str, output: str | None, stop: bool, carry_module: bool, as_json: bool) -> None:
    """Take an image of the program that was started with --name NAME."""
    path = output or f"{name}.wckpt"
    with working(f"taking a checkpoint of {name}"):
        taken = ask(name, "checkpoint", path=os.path.abspath(path), stop=stop, carry=carry_module)
    if as_json:
        print_json({"path": path, **taken})
    else:
        say(f"checkpoint {path}: {amount(taken['size'])}, {count(taken['frames'], 'frame')}, stopped "
            f"{duration(taken['stopped'])}")
