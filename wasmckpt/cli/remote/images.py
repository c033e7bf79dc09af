"""Images of an agent's jobs."""

from __future__ import annotations

from datetime import datetime

import click

from ..output import amount, count, print_json, say
from ..params import FILE, RUNTIME
from .reach import agent, as_json, everything, plain

__all__ = ["checkpoint", "checkpoints", "download", "restore", "upload"]

_number = click.option("--number", type=click.IntRange(min=1), metavar="N", help="This image, not the newest.")


@click.command("checkpoint")
@click.argument("job")
@click.option("-o", "--output", type=FILE, metavar="IMAGE", help="Fetch it as a file too.")
@click.option("--carry-module", is_flag=True, help="Put the module into that file.")
@as_json
@click.pass_context
def checkpoint(ctx: click.Context, job: str, output: str | None, carry_module: bool, as_json: bool) -> None:
    """Take an image of JOB, which goes on."""
    with agent(ctx) as client:
        taken = client.checkpoint(job)
        if output is not None:
            client.download(job, taken.number, output, carry_module=carry_module)
    if as_json:
        print_json(plain(taken))
    else:
        say(f"image {taken.number} of {taken.job}: {amount(taken.size)}, {count(taken.frames, 'frame')}")


@click.command("checkpoints")
@click.argument("job")
@as_json
@click.pass_context
def checkpoints(ctx: click.Context, job: str, as_json: bool) -> None:
    """List the images of JOB, oldest first."""
    with agent(ctx) as client:
        found = everything(lambda cursor: client.checkpoints(job, cursor, 1000))
    if as_json:
        print_json([plain(one) for one in found])
        return
    click.echo(f"{'NUMBER':>6}  {'TAKEN':<19}  {'SIZE':>10} {'FRAMES':>7}  RUNTIME")
    for one in found:
        taken = datetime.fromtimestamp(one.taken).isoformat(" ", "seconds")
        click.echo(f"{one.number:>6}  {taken}  {amount(one.size):>10} {one.frames:>7}  {one.runtime}")


@click.command("download")
@click.argument("job")
@click.option("-o", "--output", type=FILE, required=True, metavar="IMAGE", help="The file.")
@_number
@click.option("--carry-module", is_flag=True, help="Put the module into it.")
@click.pass_context
def download(ctx: click.Context, job: str, output: str, number: int | None, carry_module: bool) -> None:
    """Fetch an image of JOB as a file, for `wasmckpt restore` and `inspect`."""
    with agent(ctx) as client:
        client.download(job, number or client.job(job).checkpoint or 1, output, carry_module=carry_module)


@click.command("upload")
@click.argument("job")
@click.argument("image", type=FILE)
@click.pass_context
def upload(ctx: click.Context, job: str, image: str) -> None:
    """Give IMAGE to JOB, whose module it is of; `restore` lets it go on from there."""
    with agent(ctx) as client:
        found = client.upload_checkpoint(job, image)
    say(f"image {found.number} of {found.job}")


@click.command("restore")
@click.argument("job")
@_number
@click.option("--runtime", type=RUNTIME, help="On which; default: the one it was on.")
@click.pass_context
def restore(ctx: click.Context, job: str, number: int | None, runtime: str | None) -> None:
    """Let JOB go on from one of its images. What it did after that is lost."""
    with agent(ctx) as client:
        found = client.restore(job, number, runtime=runtime)
    say(f"{found.name} is {found.state}")
