"""Programs that an agent has."""

from __future__ import annotations

import click

from ..output import amount, print_json
from .reach import agent, as_json, everything, plain

__all__ = ["modules"]


@click.command("modules")
@as_json
@click.pass_context
def modules(ctx: click.Context, as_json: bool) -> None:
    """List the programs that were uploaded."""
    with agent(ctx) as client:
        found = everything(lambda cursor: client.modules(cursor, 1000))
    if as_json:
        print_json([plain(one) for one in found])
        return
    click.echo(f"{'SHA256':<64} {'SIZE':>10} JOBS")
    for one in found:
        click.echo(f"{one.sha256} {amount(one.size):>10} {one.jobs}")
