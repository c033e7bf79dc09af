"""Several agents as one: placement, following jobs and events over moves and losses; the example of an orchestrator."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from wasmckpt.api import JobSpec, NodeInfo, State
from wasmckpt.client import Fleet, Happening, Where, least_loaded
from wasmckpt.errors import NotFound, RetryLater, UsageError

from ..migrate.programs import writes, writes_output
from .conftest import PATIENCE, Serve
from .test_neighbours import Fleet as Agents
from .test_neighbours import wait

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "orchestrator.py"


def fleet_of(agents: Agents, **settings: object) -> Fleet:
    return Fleet([Where(served.url, served.token, timeout=30.0) for served in agents.agents], **settings)  # type: ignore[arg-type]


def test_placed_found_and_moved(serve: Serve, tmp_path: Path) -> None:
    agents = Agents(serve, tmp_path, 2)
    module = writes(10_000)
    seen: list[Mapping[str, NodeInfo]] = []

    def last(spec: JobSpec, nodes: Mapping[str, NodeInfo]) -> list[str]:
        seen.append(nodes)
        return sorted(nodes, key=lambda url: -agents.urls.index(url))

    async def use() -> None:
        digest = agents.clients[0].upload(module).sha256
        async with fleet_of(agents, place=last) as fleet:
            assert set(fleet.urls) == set(await fleet.nodes()) == set(agents.urls)
            happenings: list[Happening] = []
            following = asyncio.create_task(follow(fleet, happenings))
            await asyncio.sleep(1)
            placed = await fleet.create(JobSpec(module=digest, name="here"), module)
            assert placed.url == agents.urls[1]
            assert set(seen[-1]) == set(agents.urls)
            with pytest.raises(UsageError, match="not enough agents"):
                await fleet.create(JobSpec(module=digest), module, neighbours=2)
            await fleet.wait("here", until=lambda job: job.state is State.RUNNING)
            moved = await fleet.migrate("here", agents.urls[0], runtime="wasm3", downtime=1.0, most_downtime=60.0)
            assert (moved.url, moved.job.runtime) == (agents.urls[0], "wasm3")
            assert [one.url for one in await fleet.jobs()] == [agents.urls[0]]
            assert (await fleet.find(placed.job.id)).url == agents.urls[0]
            with pytest.raises(NotFound):
                await fleet.find("nowhere")
            agents.agents[1].kill()
            assert [one.url for one in await fleet.jobs()] == [agents.urls[0]]
            with pytest.raises(RetryLater):
                await fleet.find("nowhere")  # it may be with the one that does not answer
            await until(lambda: any(one.lost for one in happenings))
            agents.agents[1].start()
            back = agents.urls[1]  # what happened while it was lost comes when it is back
            await until(lambda: any(
                one.url == back and one.event is not None and one.event.kind == "started" for one in happenings))
            ending = asyncio.create_task(fleet.wait("here"))
            await fleet.client(agents.urls[0]).stop("here")
            assert (await ending).job.state is State.STOPPED
            following.cancel()
        kinds = [(one.url, one.event.kind) for one in happenings if one.event is not None]
        assert (agents.urls[1], "created") in kinds
        assert (agents.urls[0], "state") in kinds
        assert (agents.urls[1], "started") in kinds, "what happened while it was lost came when it was back"
        assert [one.lost for one in happenings if one.event is None] == [True, False]

    asyncio.run(use())


async def follow(fleet: Fleet, into: list[Happening]) -> None:
    async for happening in fleet.events():
        into.append(happening)


async def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


def test_the_least_loaded() -> None:
    """Those that drain, or have not the runtime, are no candidates."""

    def node(load: float, running: int, *, draining: bool = False, runtime: str = "wasmtime") -> NodeInfo:
        made: Any = NodeInfo.model_construct
        return made(  # type: ignore[no-any-return]
            load=[load], cpus=2, jobs={"running": running}, memory_available=1, draining=draining,
            runtimes=[type("R", (), {"name": runtime, "version": "1"})()])

    nodes = {"busy": node(4.0, 1), "idle": node(0.0, 0), "some": node(0.0, 2), "ends": node(0.0, 0, draining=True),
             "other": node(0.0, 0, runtime="wamr")}
    assert least_loaded(JobSpec(module="0" * 64), nodes) == ["idle", "some", "busy"]


def test_the_orchestrator(serve: Serve, tmp_path: Path) -> None:
    """It is under 100 lines, spreads programs that all began at one agent, and when an agent is lost and one program
    fails all of them end, having said everything once."""
    assert len(EXAMPLE.read_text().splitlines()) < 100
    agents = Agents(serve, tmp_path, 3)
    rounds = {"sim-a": 700, "sim-b": 701, "sim-c": 702, "sim-d": 703}
    lines = ["[agents]"]
    for n, url in enumerate(agents.urls):
        lines.append(f'"{url}" = "{tmp_path}/token-{n}"')
    for name, number in rounds.items():
        (tmp_path / f"{name}.wasm").write_bytes(writes(number))
        lines += [f"[programs.{name}]", f'module = "{tmp_path}/{name}.wasm"', "neighbours = 2",
                  "checkpoint = {every_seconds = 0.5}"]
    (tmp_path / "fleet.toml").write_text("\n".join(lines))
    for name, number in rounds.items():  # all at the first one, so that there is something to even out
        agents.new(module=writes(number), name=name)
    with subprocess.Popen([sys.executable, str(EXAMPLE), str(tmp_path / "fleet.toml")], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as process:
        try:
            wait(lambda: sum(_running(agents, n) > 0 for n in range(3)) > 1, "the load to be evened out")
            for name in rounds:
                wait(lambda name=name: _kept(agents, name), "an image of each at the others")  # type: ignore[misc]
            agents.agents[0].kill()
            out, _ = process.communicate(timeout=2 * PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 0, out
    for name, number in rounds.items():
        assert f"{name}: exited, exit code 0" in out
        agents.finished(name, writes_output(number))
    assert "moved from" in out
    assert f"{agents.urls[0]}: does not answer" in out


def _running(agents: Agents, n: int) -> int:
    return len(agents.clients[n].jobs(states=[State.RUNNING]).items)


def _kept(agents: Agents, name: str) -> bool:
    for client in agents.clients:
        try:
            job = client.job(name)
        except NotFound:
            continue
        if job.state is not State.MOVED and all((one.number or 0) > 0 for one in client.neighbours(name)):
            return True
    return False
