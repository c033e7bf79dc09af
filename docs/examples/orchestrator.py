"""An orchestrator: keeps programs running on a fleet of agents, evens out their load, and heals what fails.

    python orchestrator.py fleet.toml

    [agents]                                     # their addresses, and files with their tokens
    "http://127.0.0.1:7420" = "a.token"
    "http://127.0.0.1:7421" = "b.token"
    [programs.sim]                               # as many as you like
    module = "sim.wasm"
    args = ["sim", "1000"]
    neighbours = 2                               # other agents that take it over when its own is lost

It ends when all programs have ended, and prints what became of each. It keeps nothing: start it again at any time.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tomllib
from pathlib import Path
from typing import Any

from wasmckpt.api import JobInfo, JobSpec, State
from wasmckpt.client import Fleet, Where
from wasmckpt.errors import CheckpointError, NotFound

SECONDS = 2.0  # between two looks at the load


async def keep(fleet: Fleet, name: str, program: dict[str, Any]) -> JobInfo:
    """See to it that a program is somewhere, and gets to its end."""
    module, neighbours = Path(program.pop("module")).read_bytes(), program.pop("neighbours", 0)
    spec = JobSpec.model_validate({
        "name": name, "module": hashlib.sha256(module).hexdigest(), "checkpoint": {"every_seconds": "auto"}, **program})
    healed = 0
    while True:
        try:
            placed = await fleet.wait(name)
        except NotFound:
            try:
                placed = await fleet.create(spec, module, neighbours=neighbours, key=f"orchestrator-{name}")
                print(f"{name}: starts at {placed.url}", flush=True)
            except CheckpointError as problem:  # no agent can take it now
                print(f"{name}: {problem}", flush=True)
                await asyncio.sleep(SECONDS)
            continue
        if placed.job.state is not State.FAILED or healed == 3:
            return placed.job
        healed += 1
        print(f"{name}: failed at {placed.url}, goes on from its newest image", flush=True)
        client = fleet.client(placed.url)
        await (client.restore(name) if placed.job.checkpoint else client.start(name))


async def even_out(fleet: Fleet) -> None:
    """One program after the other moves from the agent that runs the most to the one that runs the fewest."""
    while True:
        await asyncio.sleep(SECONDS)
        jobs = await fleet.jobs(states=[State.RUNNING])
        load = {url: 0 for url, node in (await fleet.nodes()).items() if not node.draining}
        for placed in jobs:
            if placed.url in load:
                load[placed.url] += 1
        if len(load) < 2 or max(load.values()) - min(load.values()) < 2:
            continue
        most, fewest = max(load, key=lambda url: load[url]), min(load, key=lambda url: load[url])
        for name in [placed.job.name for placed in jobs if placed.url == most]:
            try:
                await fleet.migrate(name, fewest, most_downtime=30.0)
                print(f"{name}: moved from {most} to {fewest}", flush=True)
                break
            except CheckpointError:  # it has ended, or cannot go there: the next one
                continue


async def watch(fleet: Fleet) -> None:
    """Tell of agents that do not answer, and of those that do again."""
    async for happening in fleet.events():
        if happening.event is None:
            print(f"{happening.url}: {'does not answer' if happening.lost else 'answers again'}", flush=True)


async def main(path: str) -> None:
    settings = tomllib.loads(Path(path).read_text())
    agents = [Where(url, Path(token).read_text().strip(), timeout=10.0) for url, token in settings["agents"].items()]
    async with Fleet(agents) as fleet:
        beside = [asyncio.create_task(even_out(fleet)), asyncio.create_task(watch(fleet))]
        ended = await asyncio.gather(*(keep(fleet, name, dict(program)) for name, program in
                                       settings["programs"].items()))
        for task in beside:
            task.cancel()
    for job in ended:
        print(f"{job.name}: {job.state}" + ("" if job.exit_code is None else f", exit code {job.exit_code}"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
