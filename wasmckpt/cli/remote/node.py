"""The machine that an agent is on."""

from __future__ import annotations

import click

from ...errors import CheckpointError
from ..output import amount, count, print_json, report, say
from .reach import agent, as_json, plain

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
@click.pass_context
def drain(ctx: click.Context) -> int:
    """Freeze all jobs to the store, and start no more. The exit code is 75 if some could not be frozen."""
    with agent(ctx) as client:
        found = client.drain()
    say(f"{count(len(found['frozen']), 'job')} frozen")
    for name, problem in found["failed"].items():
        report(CheckpointError(f"{name}: {problem['detail']}", hint=problem["hint"]))
    return 75 if found["failed"] else 0


@click.command("undrain")
@click.pass_context
def undrain(ctx: click.Context) -> None:
    """End a drain: jobs that it has frozen go on."""
    with agent(ctx) as client:
        say(f"{count(client.undrain(), 'job')} woken")
