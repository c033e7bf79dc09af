"""``wasmckpt ps``: the programs that run under a name."""

from __future__ import annotations

from typing import Final

import click

from ..errors import CheckpointError, RetryLater
from .output import duration, print_json
from .registry import ask, names

__all__ = ["command"]

_PATIENCE: Final = 5.0
"""Seconds for a job's answer; it gives its worker fewer."""


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(as_json: bool) -> None:
    """List the programs that were started with --name.

    PID is the process that takes signals: SIGUSR1 for a checkpoint, SIGTERM to end the program.
    """
    rows = []
    for name in names():
        try:
            rows.append({"name": name, **ask(name, "list", patience=_PATIENCE)})
        except RetryLater as silent:  # stopped by Ctrl-Z, say; it takes signals all the same
            rows.append({"name": name, "pid": silent.fields.get("pid"), "worker": None, "runtime": None,
                         "state": "silent", "seconds": None, "what": None})
        except CheckpointError:
            continue  # it has just ended
    if as_json:
        print_json(rows)
        return
    click.echo(f"{'NAME':<16} {'PID':>8}  {'RUNTIME':<10} {'STATE':<10} {'SINCE':<8} MODULE")
    for row in rows:
        since = "-" if row["seconds"] is None else duration(row["seconds"])
        click.echo(f"{row['name']:<16} {row['pid'] or '-':>8}  {row['runtime'] or '-':<10} {row['state']:<10} "
                   f"{since:<8} {row['what'] or '-'}")
