"""``wasmckpt ps``: the programs that run under a name."""

from __future__ import annotations

import click

from ..errors import CheckpointError
from .output import duration, print_json
from .registry import ask, names

__all__ = ["command"]


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(as_json: bool) -> None:
    """List the programs that were started with --name.

    PID is the process that takes signals: SIGUSR1 for a checkpoint, SIGTERM to end the program.
    """
    rows = []
    for name in names():
        try:
            rows.append({"name": name, **ask(name, "list")})
        except CheckpointError:
            continue  # it has just ended
    if as_json:
        print_json(rows)
        return
    click.echo(f"{'NAME':<16} {'PID':>8}  {'RUNTIME':<10} {'STATE':<10} {'SINCE':<8} MODULE")
    for row in rows:
        click.echo(f"{row['name']:<16} {row['pid']:>8}  {row['runtime'] or '-':<10} {row['state']:<10} "
                   f"{duration(row['seconds']):<8} {row['what']}")
