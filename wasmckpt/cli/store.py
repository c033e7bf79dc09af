"""``wasmckpt store``: looks after a folder with images of many programs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from ..store import Entry, Retention
from ..store.levels import open_store, pull, push
from ..store.remote import RemoteStore
from ..store.store import Store
from .output import amount, count, print_json, say, working
from .params import FILE, FOLDER
from .sealing import compressing_options, reading_options, writing_options

__all__ = ["command"]

_as_json = click.option("--json", "as_json", is_flag=True, help="For programs.")
_number = click.option("--number", type=click.IntRange(min=1), metavar="N", help="This image, not the newest.")
_folder = click.argument("folder", type=FOLDER, metavar="DIR|URL")
_local = click.argument("folder", type=FOLDER, metavar="DIR")


@click.group("store")
def command() -> None:
    """Look after a store: a folder with images, made by `run --store DIR`, or a bucket, s3://BUCKET/PREFIX."""


@command.command("ls")
@_folder
@click.argument("name", required=False)
@_as_json
def ls(folder: str, name: str | None, as_json: bool) -> None:
    """List the images in DIR, of all programs or of NAME."""
    entries = open_store(folder).entries(name)
    if as_json:
        print_json([_plain(entry) for entry in entries])
        return
    click.echo(f"{'NAME':<16} {'NUMBER':>6}  {'TAKEN':<19}  {'SIZE':>10} {'RESTS ON':>8} {'FRAMES':>7}  "
               f"{'RUNTIME':<10} SHA256")
    for entry in entries:
        taken = datetime.fromtimestamp(entry.taken).isoformat(" ", "seconds")
        click.echo(f"{entry.job:<16} {entry.number:>6}  {taken}  {amount(entry.size):>10} {entry.position or '-':>8} "
                   f"{entry.frames:>7}  {entry.runtime:<10} {entry.sha256.hex()[:12]}")


@command.command("verify")
@_folder
@reading_options
@_as_json
def verify(folder: str, as_json: bool) -> int:
    """Read every image in DIR, and name what is damaged. The exit code is 0 if nothing is, else 65."""
    with working(f"checking {folder}"):
        problems = open_store(folder).verify()
    if as_json:
        print_json({"good": not problems, "problems": [
            {"sha256": problem.sha256.hex(), "what": problem.what} for problem in problems
        ]})
    else:
        for problem in problems:
            click.echo(f"{problem.sha256.hex()[:12]}: {problem.what}")
        click.echo(f"{folder}: {count(len(problems), 'damaged image') if problems else 'good'}")
    return 65 if problems else 0


@command.command("compact")
@_folder
@click.argument("name", required=False)
@_number
@reading_options
@writing_options
@compressing_options
def compact(folder: str, name: str | None, number: int | None) -> None:
    """Make the newest image (of NAME, or of each program) one that rests on no other. Programs may run on."""
    store = open_store(folder)
    for job in dict.fromkeys(entry.job for entry in store.entries()) if name is None else [name]:
        with working(f"compacting {job}"):
            entry = store.compact(job, number)
        say(f"{entry.number} of {job}: {amount(entry.size)}, rests on no other")


@command.command("gc")
@_folder
@click.option("--keep-last", "last", type=click.IntRange(min=1), metavar="N", help="Keep the newest N of each program.")
@click.option("--keep-hourly", "hourly", type=click.IntRange(min=1), metavar="N", help="And one for each of N hours.")
@click.option("--keep-daily", "daily", type=click.IntRange(min=1), metavar="N", help="And one for each of N days.")
@_as_json
def gc(folder: str, last: int | None, hourly: int | None, daily: int | None, as_json: bool) -> None:
    """Free what no image in DIR needs. An image that others rest on is needed as long as they are."""
    store, rule = open_store(folder), Retention(last, hourly, daily)
    with working(f"tidying {folder}"):
        gone = sum([store.prune(job, rule) for job in {entry.job for entry in store.entries()}])
        freed = store.gc()
    if as_json:
        print_json({"images": gone, **asdict(freed)})
    else:
        say(f"let go of {count(gone, 'image')}; freed {count(freed.files, 'file')}, {amount(freed.size)}")


@command.command("rm")
@_folder
@click.argument("name")
@_number
def remove(folder: str, name: str, number: int | None) -> None:
    """Let go of the images of the program NAME, or of one; `gc` frees their space."""
    store = open_store(folder)
    store.entry(name, number)
    say(f"let go of {count(store.remove(name, number), 'image')}")


@command.command("export")
@_folder
@click.argument("name")
@click.option("-o", "--output", type=FILE, required=True, metavar="IMAGE", help="The file.")
@_number
@click.option("--carry-module", is_flag=True, help="Put the module into the image.")
@reading_options
@writing_options
@compressing_options
def export(folder: str, name: str, output: str, number: int | None, carry_module: bool) -> None:
    """Write an image of the program NAME as one file that rests on no other."""
    with working(f"writing {output}"):
        entry = open_store(folder).export(name, output, number, carry_module=carry_module)
    say(f"{output}: {entry.number} of {name}")


@command.command("import")
@_folder
@click.argument("image", type=FILE)
@click.option("--name", required=True, help="The program's name in the store.")
@reading_options
@writing_options
@compressing_options
def import_image(folder: str, image: str, name: str) -> None:
    """Add IMAGE to the store DIR, which is made if it is not there."""
    with working(f"reading {image}"):
        entry = open_store(folder, create=True).import_image(name, image)
    say(f"{image}: {entry.number} of {name}")


@command.command("push")
@_local
@click.argument("url")
@click.argument("name", required=False)
def push_command(folder: str, url: str, name: str | None) -> None:
    """Copy the images in DIR, of all programs or of NAME, to the bucket s3://BUCKET/PREFIX, as far as they are not
    there, the newest first."""
    store, remote = Store(folder), RemoteStore(url, create=True)
    done = 0
    with working(f"copying to {url}"):
        for entry in sorted(store.entries(name), key=lambda entry: -entry.taken):
            done += push(store, remote, entry) is not None
    say(f"copied {count(done, 'image')}")


@command.command("pull")
@click.argument("url")
@_local
@click.argument("name")
@_number
def pull_command(url: str, folder: str, name: str, number: int | None) -> None:
    """Copy the newest image of the program NAME, or another one, from a bucket to the store DIR."""
    with working(f"copying from {url}"):
        entry = pull(RemoteStore(url), Store(folder, create=True), name, number)
    say("it is there already" if entry is None else f"{entry.number} of {name}: {amount(entry.size)}")


def _plain(entry: Entry) -> dict[str, Any]:
    data = asdict(entry)
    for key in ("sha256", "parent", "module"):
        data[key] = None if data[key] is None else data[key].hex()
    return data
