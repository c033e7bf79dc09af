"""A program that is run by an agent, as if it ran here: its output comes here, and its exit code."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import click

from ...errors import CheckpointError, UsageError
from ..output import report, say
from ..params import DIRECTORY, DURATION, ENVIRONMENT, EVERY, FILE, RUNTIME, Grant, read_module
from .reach import agent

if TYPE_CHECKING:
    from ...client import AgentClient

__all__ = ["run"]


@click.command("run")
@click.argument("module", type=FILE)
@click.argument("args", nargs=-1)
@click.option("--name", help="On the agent; default: one that it makes.")
@click.option("--runtime", type=RUNTIME, default="wasmtime", show_default=True, help="What runs it.")
@click.option("--dir", "grants", type=DIRECTORY, metavar="HOST[::GUEST[::ro]]", multiple=True,
              help="A folder of the agent's machine, below one of its roots.")
@click.option("--env", "environment", type=ENVIRONMENT, multiple=True, help="An environment variable.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="To find it by.")
@click.option("--checkpoint-every", "every", type=EVERY, help="Take an image each time so much has passed.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the last N images.")
@click.option("--journal", is_flag=True, help="Lose nothing, and do nothing twice, when it or the agent is killed.")
@click.option("--hibernate-after", "idle", type=DURATION, help="Put it away when it has waited so long.")
@click.option("--neighbour", "neighbours", multiple=True, metavar="URL",
              help="Another agent that keeps its newest image, and takes it over when that machine is lost.")
@click.option("--invoke", metavar="NAME", help="Call this export, not _start; ARGS are numbers of its types.")
@click.option("-d", "--detach", is_flag=True, help="Print its name, and leave it alone.")
@click.pass_context
def run(
    ctx: click.Context, module: str, args: tuple[str, ...], name: str | None, runtime: str, grants: tuple[Grant, ...],
    environment: tuple[tuple[str, str], ...], labels: tuple[str, ...], every: float | str | None, keep: int | None,
    journal: bool, idle: float | None, neighbours: tuple[str, ...], invoke: str | None, detach: bool,
) -> int:
    """Upload MODULE and run it there, with ARGS. Its output comes here; Ctrl-C stops it. The exit code is the
    program's."""
    wasm = read_module(module)
    checkpoint: dict[str, Any] = {"every_seconds": every, "journal": journal} | ({} if keep is None else {"keep": keep})
    spec: dict[str, Any] = {
        "name": name, "runtime": runtime, "env": dict(environment), "labels": dict(map(_label, labels)),
        "preopens": [{"host": os.path.abspath(g.host), "guest": g.guest, "read_only": g.read_only} for g in grants],
        "checkpoint": checkpoint, "hibernate": {"after_idle_seconds": idle},
        "neighbours": [url.rstrip("/") for url in neighbours],
        **({"args": [os.path.basename(module), *args]} if invoke is None else
           {"invoke": invoke, "arguments": list(args)}),
    }
    with agent(ctx) as client:
        from pydantic import ValidationError

        from ...api import JobSpec

        sha256 = client.upload(wasm).sha256
        try:
            wanted, key = JobSpec(**spec, module=sha256), os.urandom(16).hex()
        except ValidationError as problem:
            first = problem.errors()[0]
            raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        try:
            job = client.create(wanted, key=key)
        except KeyboardInterrupt:  # nobody knows whether it is there already; with the same key it is one job
            if not detach:
                client.stop(client.create(wanted, key=key).name)
            raise
        if detach:
            click.echo(job.name)
            return 0
        try:
            return _attend(client, job.name)
        except KeyboardInterrupt:
            client.stop(job.name)
            say(f"{job.name} is stopped")
            raise


def _attend(client: AgentClient, job: str) -> int:
    streams = [threading.Thread(target=_copy, args=(client, job, stream, fd), daemon=True)
               for stream, fd in (("stdout", 1), ("stderr", 2))]
    for thread in streams:
        thread.start()
    found = client.wait(job)
    for thread in streams:
        thread.join(timeout=30)
    for result in found.results:
        click.echo(result)
    if found.problem is not None:
        from ...api import raised_by

        raise raised_by(0, found.problem.model_dump())
    return (found.exit_code or 0) & 0xFF


def _copy(client: AgentClient, job: str, stream: str, descriptor: int) -> None:
    try:
        for piece in client.follow_log(job, stream):
            data = memoryview(piece.data)
            while data:
                data = data[os.write(descriptor, data):]
    except CheckpointError as problem:
        report(problem)
    except OSError:
        pass  # nobody reads it


def _label(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value
