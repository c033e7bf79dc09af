"""The machine that an agent is on."""

from __future__ import annotations

import click

from ...errors import CheckpointError
from ..output import amount, count, print_json, report, say
from ..params import FILE
from .reach import agent, as_json, plain, read_token

__all__ = ["drain", "node", "undrain"]


@click.command("node")
@as_json
@click.pass_context
def node(ctx: click.Context, as_json: bool) -> None:
    """Show the machine, its runtimes and how many jobs it has."""
    with agent(ctx) as client:
        found = client.node()
    if as_json:
        print_json(plain(found))
        return
    live = ", ".join(f"{number} {state}" for state, number in found.jobs.items() if number) or "none"
    rows = {
        "node": f"{found.name}, {found.system} {found.machine}, wasmckpt {found.version}",
        "load": f"{found.load[0]:.2f} on {count(found.cpus, 'processor')}",
        "memory": f"{amount(found.memory_available)} of {amount(found.memory_total)} available",
        "disk": f"{amount(found.disk_free)} of {amount(found.disk_total)} free",
        "jobs": live + (" (draining)" if found.draining else ""),
        "runtimes": ", ".join(f"{one.name} {one.version}" for one in found.runtimes if one.version) or "none",
    }
    if found.battery is not None:
        rows["battery"] = f"{found.battery.percent:.0f} %"
    for name, text in rows.items():
        click.echo(f"{name:<10} {text}")


@click.command("drain")
@click.option("--to", metavar="URL", help="Another agent, at which they go on; default: as its settings say.")
@click.option("--to-token-file", type=FILE, metavar="FILE", help="Holds a token of that agent.")
@click.pass_context
def drain(ctx: click.Context, to: str | None, to_token_file: str | None) -> int:
    """Start no more jobs, and freeze all that run, or move them to another agent. The exit code is 75 if some could not
    be frozen, or not be moved."""
    token = None if to_token_file is None else read_token(to_token_file)
    with agent(ctx) as client:
        found = client.drain(to, token)
    say(f"{count(len(found['frozen']), 'job')} frozen" + (
        f", {count(len(found['moved']), 'job')} moved" if found["moved"] or found["stayed"] else ""))
    for name, problem in (*found["failed"].items(), *found["stayed"].items()):
        report(CheckpointError(f"{name}: {problem['detail']}", hint=problem["hint"]))
    return 75 if found["failed"] or found["stayed"] else 0


@click.command("undrain")
@click.pass_context
def undrain(ctx: click.Context) -> None:
    """End a drain: jobs that it has frozen go on."""
    with agent(ctx) as client:
        say(f"{count(client.undrain(), 'job')} woken")
