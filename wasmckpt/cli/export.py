"""``wasmckpt export``: a module of an image, which goes on by itself."""

from __future__ import annotations

import click

from ..formats.files import seal_of, write_whole
from ..interop import Loss, export
from ..wasm.values import TYPE_NAMES
from .output import amount, count, print_json, say, working
from .params import FILE, read_image, read_module
from .programs import quiet_option
from .sealing import reading_options

__all__ = ["command"]


@click.command("export")
@click.argument("image", type=FILE)
@click.option("-o", "--output", type=FILE, required=True, metavar="FILE", help="Where to write the module.")
@click.option("--module", "module_path", type=FILE, metavar="MODULE",
              help="The original module, unless the image carries it.")
@click.option("--name", default="resume", show_default=True, metavar="NAME",
              help="What the export is called that goes on, where the program was not started by _start.")
@click.option("--accept-losses", is_flag=True,
              help="Also if what cannot be carried (open files, say) would make the program wrong.")
@reading_options
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@quiet_option
def command(
    image: str, output: str, module_path: str | None, name: str, accept_losses: bool, as_json: bool,
) -> None:
    """Make a WebAssembly module of IMAGE that goes on from there, on any runtime with WASI preview 1, without wasmckpt.

    A command goes on by its _start; where another export had been called, one of the name that --name says goes on and
    gives the results. Arguments and variables are those of whoever starts it. What cannot be in a module (open files,
    clocks) is listed, and refused if it would make the program wrong.
    """
    held = read_image(image)
    raw = None if module_path is None else read_module(module_path)
    with working(f"exporting {image}"):
        made = export(held, raw, name=name, accept_losses=accept_losses)
        write_whole(output, made.wasm, "module")
    losses = list(made.losses)
    if seal_of(image).keys:
        losses.append(Loss("encryption", "the image is encrypted, the module is not: it holds the program's memory"))
    for loss in losses:
        say(f"{'lost' if loss.wrong else 'note'}: {loss.what}")
    goes_on = f"goes on by {made.entry}" if made.entry is not None else "nothing goes on, its exports can be called"
    say(f"module {output}: {amount(len(made.wasm))}, {count(len(held.frames), 'frame')}, {goes_on}"
        + (", needs several memories" if made.multi_memory else ""))
    if as_json:
        print_json({
            "image": image, "output": output, "bytes": len(made.wasm), "frames": len(held.frames),
            "entry": made.entry, "results": [TYPE_NAMES[kind] for kind in made.results],
            "multi_memory": made.multi_memory,
            "losses": [{"kind": loss.kind, "what": loss.what, "wrong": loss.wrong} for loss in losses],
        })
