"""Jobs move between two agents on the loopback interface, while they run: the output is that of an undisturbed run,
each byte once, whatever is killed when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from wasmckpt.api import ENDED, JobInfo, JobSpec, Migrate, MigrationInfo, State
from wasmckpt.client import AgentClient, AsyncAgentClient, Where
from wasmckpt.client.where import local
from wasmckpt.errors import CheckpointError, Conflict, NotAuthenticated, NotFound, NotSupported, RetryLater

from ..cli.test_json import check
from ..migrate.programs import writes, writes_output
from ..support.pairs import SEED
from ..support.ports import free_port
from ..support.tiers import by_tier
from .conftest import PATIENCE, Serve, Served
from .test_security import _certificate

pytestmark = pytest.mark.slow
LONG: Final = 750
"""Rounds of a job: 15 seconds, however fast the machine is; so much may pass until the last move of a test begins."""
OVER: Final = ("moved", "kept", "telling", "calling-off")


@pytest.fixture(scope="module")
def two(serve: Serve) -> tuple[Served, Served]:
    return serve(), serve()


def steady(serve: Serve, **environment: str) -> Served:
    """One that has the same address when it is started again."""
    return serve("--listen", f"127.0.0.1:{free_port()}", **environment)


def started(agent: AgentClient, **spec: Any) -> str:
    """A job that runs and has said something; gives its id."""
    job = agent.create(JobSpec(module=agent.upload(writes(LONG)).sha256, **spec))
    agent.wait(job.name, until=lambda job: job.state is State.RUNNING, timeout=PATIENCE)
    end = time.monotonic() + PATIENCE
    while agent.log(job.name)[1].count(b"\n") < 3:
        assert time.monotonic() < end
        time.sleep(0.02)
    return job.id


def begun(source: Served, target: Served, job: str, runtime: str = "wasmtime", **wish: Any) -> MigrationInfo:
    given = {"downtime": 1.0, "most_downtime": 60.0, **wish}
    return source.client().migrate(job, Migrate(
        to=target.url, runtime=runtime, token=target.token, **given))


def over(agent: AgentClient, job: str, move: MigrationInfo) -> MigrationInfo:
    """Wait until it has been decided, and both know."""
    end = time.monotonic() + PATIENCE
    while (found := agent.migration(job, move.id)).state not in ("moved", "kept"):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


def finishes(agents: list[AgentClient], job: str) -> None:
    """At one of them and no other the job comes to its end, and has said everything once."""
    end = time.monotonic() + PATIENCE
    while True:
        found = [(agent, info) for agent in agents if (info := _of(agent, job)) is not None]
        ended = [(agent, info) for agent, info in found if info.state in ENDED and info.state is not State.MOVED]
        if ended:
            break
        assert time.monotonic() < end, [info.state for _, info in found]
        time.sleep(0.05)
    assert len(ended) == 1
    agent, info = ended[0]
    assert (info.state, info.exit_code) == (State.EXITED, 0), info.problem
    assert agent.output(job) == writes_output(LONG)


def _of(agent: AgentClient, job: str) -> JobInfo | None:
    """What an agent has of a job."""
    try:
        return agent.job(job)
    except NotFound:
        return None


def test_there_and_back(two: tuple[Served, Served]) -> None:
    """With its name, its output and its labels; on another runtime each time."""
    a, b = two
    here, there = a.client(), b.client()
    job = started(here, labels={"app": "x"}, name="wanders")
    move = begun(a, b, job, "wasm3")
    steps = [event.data["step"] for event in here.follow_migration(job, move.id)]
    assert steps[0] == "begins"
    assert steps[-1] == "moved"
    assert "round" in steps
    assert over(here, job, move).state == "moved"
    gone, come = here.job("wanders"), there.job("wanders")
    assert (gone.state, come.state, come.runtime, come.labels) == (State.MOVED, State.RUNNING, "wasm3", {"app": "x"})
    assert come.id == gone.id == job
    assert come.epoch >= 2
    with pytest.raises(Conflict):
        here.start(job)  # it is not ours any more
    with pytest.raises((Conflict, NotFound)):
        here.restore(job)
    back = begun(b, a, job, "wasmtime")
    assert over(there, job, back).state == "moved"
    assert here.job(job).state is State.RUNNING
    assert there.job(job).state is State.MOVED
    finishes([here, there], job)
    assert [one.direction for one in here.migrations(job)] == ["out", "in"]
    there.delete(job)
    here.delete(job)


def test_for_asyncio(two: tuple[Served, Served]) -> None:
    """The same methods, awaited; to call off what is over changes nothing."""
    a, b = two
    job = started(a.client())

    async def moves() -> None:
        async with AsyncAgentClient(local(a.state, PATIENCE)) as here:
            move = await here.migrate(job, Migrate(
                to=b.url, runtime="wasm3", token=b.token, downtime=1.0, most_downtime=60.0))
            steps = [event.data["step"] async for event in here.follow_migration(job, move.id)]
            assert (steps[0], steps[-1]) == ("begins", "moved")
            over(a.client(), job, move)
            assert (await here.cancel_migration(job, move.id)).state == "moved"
            assert (await here.migration(job, move.id)).state == "moved"
            assert [one.id for one in await here.migrations(job)] == [move.id]

    asyncio.run(moves())
    finishes([a.client(), b.client()], job)


def test_the_command(two: tuple[Served, Served], tmp_path: Path) -> None:
    a, b = two
    job = started(a.client(), name="by-command")
    command = [sys.executable, "-m", "wasmckpt.cli", "--agent", a.url, "--agent-token-file", str(a.state / "token")]
    done = subprocess.run(
        [*command, "migrate", "by-command", "--to", b.url, "--runtime", "wasm3", "--to-token-file",
         str(b.state / "token"), "--downtime", "1s", "--most-downtime", "60s"],
        capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "round 1:" in done.stderr
    assert f"it runs on {b.url}: stopped" in done.stderr
    listed = subprocess.run([*command, "migrations", "by-command", "--json"], capture_output=True, text=True,
                            timeout=PATIENCE, check=True)
    assert [one["state"] for one in json.loads(listed.stdout)] == ["moved"]
    check("agent_migrations", listed.stdout)
    finishes([a.client(), b.client()], job)
    refused = subprocess.run([*command, "migrate", "by-command", "--to", b.url], capture_output=True, text=True,
                             timeout=PATIENCE, check=False)
    assert refused.returncode == 64
    assert "not running" in refused.stderr


def test_it_is_called_off(two: tuple[Served, Served]) -> None:
    a, b = two
    agent = a.client()
    job = started(agent)
    move = begun(a, b, job)
    found = agent.cancel_migration(job, move.id)
    assert found.state in OVER
    over(agent, job, move)
    finishes([agent, b.client()], job)


def test_what_the_other_agent_refuses(two: tuple[Served, Served]) -> None:
    """The job runs on; the error is the one that its cause is."""
    a, b = two
    agent, other = a.client(), b.client()
    job = started(agent, name="refused")
    with pytest.raises(NotAuthenticated):
        agent.migrate(job, Migrate(to=b.url, runtime="wasmtime", token="wck_" + "0" * 16 + "_" + "x" * 43))
    with pytest.raises(RetryLater, match="cannot be reached"):
        agent.migrate(job, Migrate(to="http://127.0.0.1:9", runtime="wasmtime", token=b.token))
    move = begun(a, b, job, "nosuch")
    assert over(agent, job, move).state == "kept"
    problem = agent.migration(job, move.id).problem
    assert problem is not None
    assert problem.type.endswith(("RuntimeMissing", "UsageError")), problem
    taken = other.create(JobSpec(module=other.upload(writes(1)).sha256, name="refused", start=False))
    move = begun(a, b, job)
    assert over(agent, job, move).state == "kept"
    problem = agent.migration(job, move.id).problem
    assert problem is not None
    assert "has that name" in problem.detail
    other.delete(taken.name)
    finishes([agent, other], job)
    assert b.token not in json.dumps([one.model_dump(mode="json") for one in agent.migrations(job)])


def test_over_tls_with_what_the_settings_say(serve: Serve, tmp_path: Path) -> None:
    """Both agents show certificates; the token for the other one is in a file that the settings name."""
    (ours, our_key), (theirs, their_key) = _certificate(tmp_path, "a"), _certificate(tmp_path, "b")
    b = serve("--tls-certificate", str(theirs), "--tls-key", str(their_key), "--tls-clients", str(ours))
    settings = tmp_path / "settings.toml"
    settings.write_text(f"""[peers."{b.url}"]
token_file = "{b.state / 'token'}"
ca = "{theirs}"
certificate = "{ours}"
key = "{our_key}"
""")
    a = serve("--config", str(settings))
    agent = a.client()
    job = started(agent)
    move = agent.migrate(job, Migrate(to=b.url, runtime="wasmtime", downtime=1.0, most_downtime=60.0))
    assert over(agent, job, move).state == "moved"
    there = AgentClient(Where(b.url, b.token, ca=theirs, certificate=ours, key=our_key, timeout=PATIENCE))
    with there:
        finishes([agent, there], job)


def test_a_job_with_a_journal_stays(two: tuple[Served, Served]) -> None:
    a, b = two
    job = started(a.client(), checkpoint={"journal": True})
    with pytest.raises(NotSupported):
        begun(a, b, job)
    a.client().delete(job, force=True)


SOURCE: Final = ("migrate.source-owner", "migrate.source-connected", "migrate.source-round", "migrate.source-held",
                 "migrate.source-prepare-sent", "migrate.source-ready-heard", "agent.moving-away",
                 "migrate.source-gone", "migrate.source-told")
TARGET: Final = ("migrate.target-open", "migrate.target-round", "migrate.target-prepare-heard",
                 "migrate.target-rebuilt", "migrate.target-prepared", "migrate.target-ready", "agent.arrived",
                 "migrate.target-running", "migrate.target-owner", "migrate.target-done")


def _chosen(points: tuple[str, ...]) -> list[str]:
    return sorted(random.Random(f"{SEED} {points[0]}").sample(points, by_tier(check=1, test=1, soak=len(points))))


@pytest.mark.parametrize(("side", "point"), [
    *(("source", point) for point in _chosen(SOURCE)), *(("target", point) for point in _chosen(TARGET)),
])
def test_killed_at_a_step(serve: Serve, side: str, point: str) -> None:
    """Either side, at each named step, and started again: the job is at one of them, and says everything once."""
    fault = {"WASMCKPT_FAULT": f"{point}:kill"}
    a, b = (steady(serve, **(fault if side == one else {})) for one in ("source", "target"))
    for one in (a, b):
        one.listens()
    job = started(a.client(), checkpoint={"every_seconds": 0.2})
    with contextlib.suppress(CheckpointError):
        begun(a, b, job)
    killed = a if side == "source" else b
    killed.killed()
    killed.start()
    finishes([a.client(), b.client()], job)
    for one in (a, b):
        if _of(one.client(), job):
            for move in one.client().migrations(job):
                if move.direction == "out":
                    over(one.client(), job, move)


def test_killed_at_any_moment(serve: Serve) -> None:
    """Both sides, again and again, while the job moves to and fro."""
    draw, agents = random.Random(SEED), [steady(serve), steady(serve)]
    job = started(agents[0].client(), checkpoint={"every_seconds": 0.2})
    for _ in range(by_tier(check=1, test=1, soak=60)):
        for one, other in (agents, agents[::-1]):
            with contextlib.suppress(CheckpointError):
                if one.client().job(job).state is State.RUNNING:
                    begun(one, other, job, draw.choice(["wasmtime", "wasm3"]))
        time.sleep(draw.random() * 0.6)
        killed = draw.choice(agents)
        killed.kill()
        killed.start()
    finishes([one.client() for one in agents], job)


