"""An agent's programs are in a sandbox, by themselves, and what is in force is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasmckpt.agent.metrics import metrics
from wasmckpt.api import CheckpointPolicy, JobSpec, Preopen, State
from wasmckpt.errors import UsageError
from wasmckpt.snapshot import landlock, seccomp

from ..support import tiers
from .conftest import Agents, ended, new_job, output, reaches, upload
from .guests import SLEEPS, TALK, TALK_OUTPUT

ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def _walls() -> None:
    if not landlock.interface() or not seccomp.supported():
        tiers.missing("sandbox", "this kernel has no Landlock or no filters of system calls")


def _status(pid: int | None) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


@pytest.mark.slow
def test_by_itself(agents: Agents) -> None:
    """Started, restored, from a process that stands by: each worker; and what a program does is as ever."""
    agent = agents()
    job = new_job(agent, SLEEPS)
    seen = set()
    for _ in range(3):
        record = reaches(agent, job, State.RUNNING)
        pid = agent.jobs.pid(record.id)
        status = _status(pid)
        assert (status["Seccomp"], status["NoNewPrivs"], int(status["CapEff"], 16)) == ("2", "1", 0)
        seen.add(pid)
        agent.jobs.freeze(record.id, "hibernate")
        agent.jobs.wake(record.id)
    assert len(seen) == 3
    reaches(agent, job, State.RUNNING)
    text = metrics(agent).decode()
    assert 'wasmckpt_workers_total{from="standing by"} 0.0' not in text
    talks = new_job(agent, TALK)
    assert ended(agent, talks).state is State.EXITED
    assert output(agent, talks) == TALK_OUTPUT
    info = agent.node.info(agent.jobs)
    assert info.sandbox == {"sandbox": "yes, what there is", "landlock": f"yes, version {landlock.interface()}",
                            "seccomp": "yes", "other users": "no"}
    assert info.warm == ["wasmtime"]


@pytest.mark.slow
def test_off(agents: Agents) -> None:
    agent = agents(sandbox="off")
    record = reaches(agent, new_job(agent, SLEEPS), State.RUNNING)
    assert _status(agent.jobs.pid(record.id))["Seccomp"] == "0"
    assert {answer[:2] for answer in agent.node.info(agent.jobs).sandbox.values()} == {"no"}


@pytest.mark.slow
@pytest.mark.skipif(not ROOT, reason="only root's agent can have another user's workers")
def test_another_user(agents: Agents, tmp_path: Path) -> None:
    """It goes on after a restart of the agent; a journal, which would be in the agent's own folder, is refused."""
    agent = agents(worker_user="nobody", sandbox="required", roots=(tmp_path,))
    folder = tmp_path / "given"
    folder.mkdir(mode=0o777)
    job = new_job(agent, SLEEPS, preopens=[Preopen(host=str(folder), guest="/d")])
    first = _status(agent.jobs.pid(reaches(agent, job, State.RUNNING).id))
    agent = agents(worker_user="nobody", sandbox="required", roots=(tmp_path,))
    record = reaches(agent, job, State.RUNNING)
    for status in (first, _status(agent.jobs.pid(record.id))):
        assert set(status["Uid"].split()) != {"0"}
        assert status["Uid"] == first["Uid"]
    assert agent.take(job).number == 2
    assert agent.node.info(agent.jobs).sandbox["other users"] == "yes, nobody"
    with pytest.raises(UsageError, match="journal"):
        agent.create(JobSpec(module=upload(agent, SLEEPS), checkpoint=CheckpointPolicy(journal=True)))


def test_users_that_cannot_be(agents: Agents) -> None:
    with pytest.raises(UsageError, match="no such user"):
        agents(worker_user="nobody-of-that-name")
    with pytest.raises(UsageError, match="off"):
        agents(worker_user="nobody", sandbox="off")
