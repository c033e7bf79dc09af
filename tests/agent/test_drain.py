"""A drain moves jobs to another agent: each goes on once, there or here, whatever fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from wasmckpt.api import JobSpec, Preopen, State
from wasmckpt.errors import RetryLater, StorageError, UsageError

from .conftest import PATIENCE, Agents, Serve, Served, ended, new_job, output, reaches
from .guests import LONG, LONG_OUTPUT, SLEEPS

RUN = State.RUNNING


@pytest.mark.slow
def test_to_another_agent_and_back(agents: Agents, served: Served) -> None:
    """What it wrote here and there is what it writes where nothing happens; a name may come back to where it was."""
    agent, there = agents(), served.client()
    job = new_job(agent, LONG, labels={"app": "sim"})
    reaches(agent, job, RUN)
    done = agent.drain(served.url, served.token)
    assert (done.moved, done.frozen, done.failed, done.stayed) == ({job: served.url}, [], {}, {})
    record = agent.records.get(job)
    assert (record.state, record.why) == (State.STOPPED, "moved")
    assert agent.jobs.undrain() == 0
    assert there.wait(job).exit_code == 0
    assert there.job(job).labels == {"app": "sim"}
    assert output(agent, job) + there.output(job) == LONG_OUTPUT
    again = new_job(agent, SLEEPS)
    reaches(agent, again, RUN)
    assert agent.drain(served.url, served.token).moved == {again: served.url}
    agent.jobs.undrain()
    there.stop(again)
    assert new_job(agent, SLEEPS, name=again) == again
    assert [record.name for record in agent.records.in_states([State.STOPPED]) if record.name.startswith(again)]


@pytest.mark.slow
def test_what_does_not_get_away(agents: Agents, served: Served, tmp_path: Path) -> None:
    """Nobody there, no room there for its folder, its name taken: it stays, and goes on here afterwards."""
    folder = tmp_path / "given"
    folder.mkdir()
    agent, there = agents(roots=(tmp_path,)), served.client()
    plain = new_job(agent, LONG)
    reaches(agent, plain, RUN)
    done = agent.drain("http://127.0.0.1:1", "t")
    assert (done.frozen, done.moved, list(done.stayed)) == ([plain], {}, [plain])
    assert agent.jobs.undrain() == 1
    reaches(agent, plain, RUN)
    with_folder = new_job(agent, SLEEPS, preopens=[Preopen(host=str(folder), guest="/d")])
    module = there.upload(SLEEPS).sha256
    taken = new_job(agent, SLEEPS)
    there.create(JobSpec(module=module, name=taken, start=False))
    for job in (with_folder, taken):
        reaches(agent, job, RUN)
    done = agent.drain(served.url, served.token)
    assert set(done.moved) == {plain}
    assert {name: type(problem).__name__ for name, problem in done.stayed.items()} == {
        with_folder: "NotPermitted", taken: "Conflict"}
    assert set(done.frozen) == {with_folder, taken}
    assert agent.jobs.undrain() == 2
    for job in (with_folder, taken):
        reaches(agent, job, RUN)
    assert there.wait(plain).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("point", ["agent.leaving", "agent.left"])
def test_killed_in_between(point: str, serve: Serve, served: Served) -> None:
    """It goes on there or stays here, never both; and here nobody wakes it but a person."""
    there = served.client()
    here = serve(WASMCKPT_FAULT=f"{point}:kill")
    here.listens()
    client = here.client()
    job = client.create(JobSpec(module=client.upload(SLEEPS).sha256)).name
    _until_running(here, job)
    with pytest.raises(RetryLater):  # it dies in the middle of the answer
        client.drain(served.url, served.token)
    here.killed()
    here.start()
    client = here.client()
    found = client.job(job)
    assert (found.state, found.why) == (State.HIBERNATED, f"leaving to {served.url}")
    assert (there.job(job).state is State.STOPPED) == (point == "agent.leaving")
    if point == "agent.leaving":
        client.wake(job)
        _until_running(here, job)
    else:
        _until_running(served, job)
        there.stop(job)


def _until_running(agent: Served, job: str) -> None:
    end = time.monotonic() + PATIENCE
    while agent.client().job(job).state is not RUN:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_no_way(agents: Agents, tmp_path: Path) -> None:
    """It is found out before anything is frozen."""
    agent = agents(drain_to="https://b.example:7420", drain_token_file=tmp_path / "absent")
    assert agent.node.info(agent.jobs).peers == ["https://b.example:7420"]
    job = new_job(agent, LONG)
    reaches(agent, job, RUN)
    with pytest.raises(StorageError):
        agent.drain()
    with pytest.raises(UsageError, match="https only"):
        agent.drain("http://b.example:7420", "token")
    with pytest.raises(UsageError, match="no token"):
        agent.drain("https://b.example:7420", "tök\nen")
    assert not agent.ready()
    assert ended(agent, job).exit_code == 0
    assert output(agent, job) == LONG_OUTPUT
