"""``wasmckpt verify``: whether an image is whole, and fits its module."""

from __future__ import annotations

import click

from ..formats.check import check
from ..formats.files import seal_of
from ..host.journal.file import read_journal
from ..wasm.decode import decode
from ..wasm.validate import validate
from .journal import is_journal
from .output import print_json, working
from .params import FILE, read_image, read_module
from .sealing import plain, reading_options

__all__ = ["command"]


@click.command("verify")
@click.argument("image", type=FILE)
@click.option("--module", "module_path", type=FILE, metavar="MODULE", help="Check it against this module, too.")
@reading_options
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(image: str, module_path: str | None, as_json: bool) -> None:
    """Check IMAGE, and those that it rests on: digest, structure, limits; with its module (or if it carries one) also
    every place and type.

    Tells whether it is encrypted and who has signed it, which with --require-signed-by must be one of those. A journal
    is read to its end as well.

    The exit code is 0 if it is good, 65 if it is damaged or of another module.
    """
    if is_journal(image):
        read_journal(image)
        if as_json:
            print_json({
                "image": image, "good": True, "against_module": False, "encrypted_with": [], "signed_by": None,
            })
        else:
            click.echo(f"{image}: good (a journal: frames and checksums)")
        return
    held = read_image(image)
    raw = held.module.content if module_path is None else read_module(module_path)
    if raw is not None:
        with working(f"checking {image}"):
            module = decode(raw)
            validate(module)
            check(held, module)
    seal = seal_of(image)
    checked = "digest and structure" if raw is None else "digest, structure, and against the module"
    if seal.keys:
        checked += ", encrypted"
    if seal.signer is not None:
        checked += f", signed by {seal.signer.text}"
    if as_json:
        print_json({"image": image, "good": True, "against_module": raw is not None, **plain(seal)})
    else:
        click.echo(f"{image}: good ({checked})")
