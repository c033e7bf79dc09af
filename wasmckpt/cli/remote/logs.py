"""What jobs of an agent write, and what happens to them."""

from __future__ import annotations

import json
import sys
from datetime import datetime

import click

from .reach import agent, as_json, plain

__all__ = ["events", "logs"]


@click.command("logs")
@click.argument("job")
@click.option("--stderr", is_flag=True, help="Its standard error, not its output.")
@click.option("-f", "--follow", is_flag=True, help="Go on until it has ended.")
@click.option("--offset", type=click.IntRange(min=0), default=0, help="From this byte on.")
@click.pass_context
def logs(ctx: click.Context, job: str, stderr: bool, follow: bool, offset: int) -> None:
    """Show what JOB has written, byte for byte."""
    stream, out = "stderr" if stderr else "stdout", sys.stdout.buffer
    with agent(ctx) as client:
        if follow:
            for piece in client.follow_log(job, stream, offset):
                out.write(piece.data)
                out.flush()
            return
        while True:
            begin, data = client.log(job, stream, offset)
            if not data:
                break
            out.write(data)
            offset = begin + len(data)
    out.flush()


@click.command("events")
@click.option("--job", help="Of this job only.")
@click.option("-f", "--follow", is_flag=True, help="Go on with those that are still to come.")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Behind the event with this number.")
@as_json
@click.pass_context
def events(ctx: click.Context, job: str | None, follow: bool, after: int, as_json: bool) -> None:
    """Show what has happened, oldest first; with --json one document a line."""
    with agent(ctx) as client:
        while not follow:
            found = client.events(after, job, limit=1000)
            if not found:
                return
            for event in found:
                _show(event, as_json)
            after = found[-1].number
        for event in client.follow_events(after, job):
            _show(event, as_json)


def _show(event: object, as_json: bool) -> None:
    document = plain(event)
    if as_json:
        click.echo(json.dumps(document))
        return
    at = datetime.fromtimestamp(document["at"]).isoformat(" ", "milliseconds")
    job = (document["job"] or "-")[:8]
    click.echo(f"{document['number']:>7} {at} {job:<8} {document['kind']:<12} {document['text']}")
