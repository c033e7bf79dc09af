"""``wasmckpt key``: keys that encrypt and sign images."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..errors import ImageError
from .output import count, print_json, say, working
from .params import FILE
from .sealing import reading_options, writing_options

__all__ = ["command"]


@click.group("key")
def command() -> None:
    """Make keys for images, and change the key of encrypted ones."""


@command.command("generate")
@click.option("-o", "--output", type=FILE, required=True, metavar="KEYFILE", help="The file, which is not there yet.")
@click.option("--signing", is_flag=True, help="A key that signs; its public half goes to KEYFILE.pub.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def generate(output: str, signing: bool, as_json: bool) -> None:
    """Make a key, in a file that only its owner can read: one that encrypts images, or one that signs them."""
    from ..formats import keys

    made = keys.generate(keys.SIGNING if signing else keys.ENCRYPTION)
    public = keys.public_of(made) if signing else None
    keys.write_keys(output, [made])
    if public is not None:
        keys.write_keys(f"{output}.pub", [public], public=True)
    if as_json:
        print_json({"path": output, "kind": made.kind, "id": made.id.hex(),
                    "public": None if public is None else public.text})
    elif public is None:
        click.echo(f"{output}: encrypts, id {made.id.hex()}; whoever loses it loses the images")
    else:
        click.echo(f"{output}: signs; who checks needs {output}.pub:\n{public.text}")


@command.command("rewrap")
@click.argument("images", nargs=-1, required=True, type=FILE, metavar="IMAGE|DIR...")
@reading_options
@writing_options
def rewrap(images: tuple[str, ...]) -> None:
    """Give encrypted images the key of --encrypt-with in the place of the one in --key: the files, or all images of a
    store's folder DIR. What else is in them, and who signed them, stays."""
    from ..formats.files import rewrap as rewrap_file

    done = 0
    with working("changing keys"):
        for name in images:
            paths = sorted(Path(name, "images").glob("*.wckpt")) if os.path.isdir(name) else [Path(name)]
            for path in paths:
                try:
                    rewrap_file(path)
                except ImageError as problem:
                    problem.fields.setdefault("path", str(path))
                    raise
                done += 1
    say(f"changed the key of {count(done, 'image')}")
