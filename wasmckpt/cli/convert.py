"""``wasmckpt convert``: an image in another form."""

from __future__ import annotations

import os

import click

from ..formats.files import write_whole
from ..interop import coredump
from .output import amount, count, print_json, say, working
from .params import FILE, read_image, read_module
from .programs import quiet_option
from .sealing import reading_options

__all__ = ["command"]


@click.command("convert")
@click.argument("image", type=FILE)
@click.option("--to", "form", type=click.Choice(["coredump"]), required=True,
              help="coredump: the core dump of WebAssembly's tool conventions, for debuggers.")
@click.option("-o", "--output", type=FILE, required=True, metavar="FILE", help="Where to write it.")
@click.option("--module", "module_path", type=FILE, metavar="MODULE",
              help="The original module, unless the image carries it.")
@reading_options
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@quiet_option
def command(image: str, form: str, output: str, module_path: str | None, as_json: bool) -> None:
    """Write IMAGE in another form. A core dump holds frames, memories and globals."""
    held = read_image(image)
    raw = None if module_path is None else read_module(module_path)
    with working(f"converting {image}"):
        made = coredump(held, raw, program="" if module_path is None else os.path.basename(module_path))
        write_whole(output, made, "core dump")
    say(f"core dump {output}: {amount(len(made))}, {count(len(held.frames), 'frame')}")
    if as_json:
        print_json({"image": image, "to": form, "output": output, "bytes": len(made), "frames": len(held.frames)})
