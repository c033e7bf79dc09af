"""Jobs that move to other agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...errors import CheckpointError, StorageError
from ..output import print_json, say
from ..params import DURATION
from .reach import agent, as_json, plain

__all__ = ["migrate", "migrations"]


@click.command("migrate")
@click.argument("job")
@click.option("--to", "to", required=True, metavar="URL", help="The other agent.")
@click.option("--runtime", help="On which it goes on there; default: the one it runs on.")
@click.option("--to-token-file", "token_file", metavar="FILE",
              help="The other agent's token; default: the one in this agent's settings.")
@click.option("--downtime", type=DURATION, default="50ms", show_default=True,
              help="That it may stand still, if that can be had.")
@click.option("--most-downtime", type=DURATION, default="2s", show_default=True,
              help="If it cannot; beyond that it stays.")
@click.option("--force", is_flag=True, help="Move it however long it has to stand still.")
@as_json
@click.pass_context
def migrate(
    ctx: click.Context, job: str, to: str, runtime: str | None, token_file: str | None, downtime: float,
    most_downtime: float, force: bool, as_json: bool,
) -> None:
    """Move JOB, which runs, to another agent, where it goes on. Ctrl-C calls the move off: then it stays."""
    with agent(ctx) as client:
        from ...api import Migrate

        found = client.job(job)
        move = client.migrate(job, Migrate(
            to=to, runtime=runtime or found.runtime, token=None if token_file is None else _token(token_file),
            downtime=downtime, most_downtime=max(downtime, most_downtime), force=force,
        ))
        try:
            last: dict[str, Any] = {}
            for event in client.follow_migration(found.id, move.id):
                last = dict(event.data)
                if not as_json:
                    say(event.text)
        except KeyboardInterrupt:
            move = client.cancel_migration(found.id, move.id)
            say(f"the move is {move.state}")
            raise
        move = client.migration(found.id, move.id)
    if as_json:
        print_json(plain(move))
    if move.problem is not None and move.state not in ("moved", "telling"):
        from ...api import raised_by

        raise raised_by(0, move.problem.model_dump())
    if last.get("step") != "moved" and move.state not in ("moved", "telling"):
        raise CheckpointError("the move did not come to its end", state=move.state)


@click.command("migrations")
@click.argument("job")
@as_json
@click.pass_context
def migrations(ctx: click.Context, job: str, as_json: bool) -> None:
    """List the moves of JOB, to here and away."""
    with agent(ctx) as client:
        found = client.migrations(job)
    if as_json:
        print_json([plain(move) for move in found])
        return
    click.echo(f"{'MOVE':<33} {'':<4} {'STATE':<12} {'RUNTIME':<10} PEER")
    for move in found:
        click.echo(f"{move.id:<33} {move.direction:<4} {move.state:<12} {move.runtime:<10} {move.peer}")


def _token(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as reason:
        raise StorageError(f"the token cannot be read: {reason}", path=path) from None
