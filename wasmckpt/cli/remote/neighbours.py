"""Jobs that agents look after for each other."""

from __future__ import annotations

import click

from ..output import print_json
from .reach import agent, as_json, plain

__all__ = ["neighbours", "takeover"]


@click.command("neighbours")
@click.argument("job", required=False)
@as_json
@click.pass_context
def neighbours(ctx: click.Context, job: str | None, as_json: bool) -> None:
    """List the agents that look after JOB, or the jobs of others that this agent looks after."""
    with agent(ctx) as client:
        if job is None:
            kept = client.replicas()
            if as_json:
                print_json([plain(one) for one in kept])
                return
            click.echo(f"{'JOB':<33} {'NAME':<24} {'IMAGE':<8} OWNER")
            for one in kept:
                click.echo(f"{one.job:<33} {one.name:<24} {_image(one.number):<8} {one.site}")
            return
        found = client.neighbours(job)
    if as_json:
        print_json([plain(one) for one in found])
        return
    click.echo(f"{'NEIGHBOUR':<40} {'IMAGE':<8} {'HEARD':<9} PROBLEM")
    for neighbour in found:
        heard = "never" if neighbour.heard is None else f"{neighbour.heard:.1f} s"
        click.echo(f"{neighbour.url:<40} {_image(neighbour.number):<8} {heard:<9} {neighbour.problem}")


@click.command("takeover")
@click.argument("job")
@as_json
@click.pass_context
def takeover(ctx: click.Context, job: str, as_json: bool) -> None:
    """Let JOB of another agent, which this one looks after, go on here, although nobody has voted for that: you know
    that the other one is gone, and will not come back with the job running."""
    with agent(ctx) as client:
        found = client.take_over(job)
    if as_json:
        print_json(plain(found))
    else:
        click.echo(f"{found.name} goes on here")


def _image(number: int | None) -> str:
    return "none" if number is None else str(number) if number else "begin"
