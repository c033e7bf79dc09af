"""The agent is killed at every named step, and at any moment: the next one goes on with each job, whose output in the
end is that of an undisturbed run, each byte once; a wish that was sent again is fulfilled once."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path
from typing import Final

import psutil
import pytest

from wasmckpt import Store
from wasmckpt.api import ENDED, Event, JobSpec, State
from wasmckpt.client import AgentClient
from wasmckpt.errors import CheckpointError, Conflict, JobEnded, RetryLater

from ..cli.conftest import wait_for
from ..cli.programs import FOREVER, wat
from ..support.pairs import SEED
from ..support.tiers import by_tier
from .conftest import PATIENCE, Serve, Served
from .guests import LONG, LONG_OUTPUT

pytestmark = pytest.mark.slow
POINTS: Final = (
    "agent.module-named:kill", "agent.committing:kill:4", "agent.committed:kill:5", "agent.creating:kill",
    "agent.starting:kill", "agent.starting:kill:2", "agent.logs-cut:kill", "agent.logs-cut:kill:2",
    "agent.started:kill", "agent.started:kill:2", "agent.checkpointed:kill", "agent.freezing:kill",
    "agent.frozen:kill", "store.indexing:kill", "store.indexed:kill", "store.indexed:kill:2",
    "agent.job-forgotten:kill",
)


def _life(agent: AgentClient, journal: bool) -> str:
    """Everything that is done with a job, so that it can be done again from the beginning; gives its name."""
    module = agent.upload(LONG)
    job = agent.create(JobSpec(
        module=module.sha256, name="j", checkpoint={"every_seconds": 0.1, "journal": journal},
    ), key="life").name
    found = agent.wait(job, until=lambda job: job.state not in (State.PENDING, State.STARTING), timeout=PATIENCE)
    if found.state is State.RUNNING and found.runs == 1:
        with contextlib.suppress(Conflict, JobEnded):  # it has ended meanwhile
            agent.checkpoint(job)
            agent.hibernate(job)
    if agent.job(job).state is State.HIBERNATED:
        agent.wake(job)
    assert agent.wait(job, timeout=PATIENCE).exit_code == 0
    return job


def _chosen() -> list[tuple[str, bool]]:
    points = sorted(random.Random(SEED).sample(POINTS, by_tier(check=1, test=2, soak=len(POINTS))))
    # With a journal logs are cut once only, in the beginning.
    return [(point, journal) for journal in by_tier(check=[False], test=[False], soak=[False, True])
            for point in points if not (journal and point == "agent.logs-cut:kill:2")]


@pytest.mark.parametrize(("point", "journal"), _chosen())
def test_killed_at_a_step(serve: Serve, point: str, journal: bool) -> None:
    served = serve(WASMCKPT_FAULT=point)
    with contextlib.suppress(CheckpointError, AssertionError):  # it is killed, or does not come so far
        served.listens()
        client = served.client()
        job = _life(client, journal)
        assert client.output(job) == LONG_OUTPUT
        client.delete(job)
    served.killed()
    served.start()
    agent = served.client()
    if "job-forgotten" not in point:
        job = _life(agent, journal)
        assert agent.output(job) == LONG_OUTPUT
        assert [one.name for one in agent.all_jobs()] == [job]
        agent.delete(job)
    assert list(agent.all_jobs()) == []
    assert served.stop() == 0
    _nothing_left(served)


def _nothing_left(served: Served) -> None:
    store = Store(served.state / "store")
    assert store.verify() == []
    assert store.entries() == []
    assert not list((served.state / "logs").iterdir())
    assert not list((served.state / "incoming").iterdir())


@pytest.mark.parametrize("journal", [False, True])
def test_killed_at_any_moment(serve: Serve, journal: bool) -> None:
    """Several times in one life; all of its workers are gone with it."""
    draw, served = random.Random(SEED), serve()
    agent = served.client()
    jobs = [agent.create(JobSpec(module=agent.upload(LONG).sha256, checkpoint={
        "every_seconds": 0.1, "journal": journal})).name for _ in range(2)]
    for _ in range(by_tier(check=1, test=2, soak=8)):
        for job in jobs:
            agent.wait(job, until=lambda job: job.state in (State.RUNNING, *ENDED), timeout=PATIENCE)
        time.sleep(draw.random() * 0.5)
        assert served.process is not None
        workers = psutil.Process(served.process.pid).children(recursive=True)
        served.kill()
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
        assert not alive
        served.start()
        agent = served.client()
    for job in jobs:
        found = agent.wait(job, timeout=PATIENCE)
        assert (found.state, found.exit_code) == (State.EXITED, 0), found.problem
        assert agent.output(job) == LONG_OUTPUT
    events: list[Event] = []
    while more := agent.events(events[-1].number if events else 0, limit=1000):
        events += more
    assert sum(event.data.get("state") == "exited" for event in events) == len(jobs)
    assert any(event.text.startswith("the agent had died: it goes on") for event in events)


def test_a_graceful_stop(serve: Serve) -> None:
    """SIGTERM freezes all; nothing is done twice; what has ended stays so, and tokens and keys are known."""
    served = serve()
    agent, token = served.client(), served.token
    done = agent.create(JobSpec(module=agent.upload(wat(FOREVER)).sha256, start=False), key="one")
    running = agent.create(JobSpec(module=agent.upload(LONG).sha256))
    agent.wait(running.name, until=lambda job: job.state is State.RUNNING, timeout=PATIENCE)
    before = agent.events(limit=1000)[-1].number
    assert served.stop() == 0
    assert not (served.state / "agent.json").exists()
    with pytest.raises(RetryLater):
        agent.node()
    agent = served.start().client()
    assert served.token == token
    assert agent.create(JobSpec(module=done.spec.module, start=False), key="one").id == done.id
    found = agent.wait(running.name, timeout=PATIENCE)
    assert (found.exit_code, found.runs) == (0, 2)
    assert agent.output(running.name) == LONG_OUTPUT
    told = [event.data["state"] for event in agent.events(before, running.name) if event.kind == "state"]
    assert told == ["freezing", "hibernated", "pending", "starting", "running", "exited"]


def test_a_worker_that_does_not_stop(serve: Serve, tmp_path: Path) -> None:
    """A program that reaches no safepoint is ended, and goes on from its newest image; the agent's end has a limit."""
    settings = tmp_path / "agent.toml"
    settings.write_text("stop_time = 0.3\nfreeze_time = 3.0\n")
    served = serve("--config", str(settings))
    agent = served.client()
    job = agent.create(JobSpec(module=agent.upload(wat(FOREVER)).sha256))
    agent.wait(job.name, until=lambda job: job.state is State.RUNNING, timeout=PATIENCE)
    agent.checkpoint(job.name)
    pid = agent.job(job.name).pid
    assert pid is not None
    os.kill(pid, 19)  # stopped: it answers nothing
    assert served.stop() == 0
    wait_for(lambda: not psutil.pid_exists(pid), "the worker's end")
    agent = served.start().client()
    found = agent.wait(job.name, until=lambda job: job.state is State.RUNNING, timeout=PATIENCE)
    assert found.runs == 2
    agent.delete(job.name, force=True)
