"""Jobs of an agent: looked at, changed, ended."""

from __future__ import annotations

import time

import click

from ..output import duration, print_json, say
from ..params import DURATION
from .reach import agent, as_json, plain

__all__ = ["hibernate", "ps", "rm", "start", "stop", "wait", "wake"]


@click.command("ps")
@click.option("--label", "labels", multiple=True, metavar="NAME[=VALUE]", help="Only those with this label.")
@as_json
@click.pass_context
def ps(ctx: click.Context, labels: tuple[str, ...], as_json: bool) -> None:
    """List the agent's jobs, the newest first."""
    with agent(ctx) as client:
        jobs = list(client.all_jobs(labels=labels, limit=1000))
    if as_json:
        print_json([plain(job) for job in jobs])
        return
    click.echo(f"{'NAME':<20} {'STATE':<11} {'RUNTIME':<10} {'SINCE':<8} {'IMAGE':>5} WHY")
    for job in jobs:
        why = job.problem.detail if job.problem else job.why
        code = f" {job.exit_code}" if job.exit_code else ""
        click.echo(f"{job.name:<20} {job.state + code:<11} {job.runtime:<10} "
                   f"{duration(max(0.0, time.time() - job.changed)):<8} {job.checkpoint or '-':>5} {why}")


@click.command("wait")
@click.argument("job")
@click.option("--timeout", type=DURATION, help="Give up after that.")
@as_json
@click.pass_context
def wait(ctx: click.Context, job: str, timeout: float | None, as_json: bool) -> int:
    """Wait until JOB has ended; the exit code is the program's, or that of the error by which it failed."""
    with agent(ctx) as client:
        found = client.wait(job, timeout=timeout)
    if as_json:
        print_json(plain(found))
    if found.problem is not None:
        from ...api import raised_by

        if not as_json:
            raise raised_by(0, found.problem.model_dump())
        return found.problem.exit_code
    return (found.exit_code or 0) & 0xFF


@click.command("stop")
@click.argument("job")
@click.option("--checkpoint", is_flag=True, help="With an image, from which it can go on.")
@click.pass_context
def stop(ctx: click.Context, job: str, checkpoint: bool) -> None:
    """End JOB."""
    with agent(ctx) as client:
        found = client.stop(job, checkpoint=checkpoint)
    say(f"{found.name} is {found.state}" + (f", as image {found.checkpoint}" if checkpoint else ""))


@click.command("start")
@click.argument("job")
@click.pass_context
def start(ctx: click.Context, job: str) -> None:
    """Start JOB, which has ended, from its beginning."""
    with agent(ctx) as client:
        found = client.start(job)
    say(f"{found.name} is {found.state}")


@click.command("hibernate")
@click.argument("job")
@click.pass_context
def hibernate(ctx: click.Context, job: str) -> None:
    """Put JOB away as an image, without a process."""
    with agent(ctx) as client:
        found = client.hibernate(job)
    say(f"{found.name} is {found.state}, as image {found.checkpoint}")


@click.command("wake")
@click.argument("job")
@click.pass_context
def wake(ctx: click.Context, job: str) -> None:
    """Let JOB go on, which was put away."""
    with agent(ctx) as client:
        found = client.wake(job)
    say(f"{found.name} is {found.state}")


@click.command("rm")
@click.argument("job")
@click.option("--force", is_flag=True, help="Even if it runs.")
@click.pass_context
def rm(ctx: click.Context, job: str, force: bool) -> None:
    """Forget JOB, its output and its images."""
    with agent(ctx) as client:
        client.delete(job, force=force)
