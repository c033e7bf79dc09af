"""Agents for tests: in this process, without HTTP (`agents`), and as processes of their own (`serve`)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wasmckpt.agent.config import AgentConfig
from wasmckpt.agent.records import Record
from wasmckpt.agent.service import Agent
from wasmckpt.api import ENDED, JobSpec, State
from wasmckpt.client import AgentClient
from wasmckpt.client.where import local

__all__ = ["Agents", "Serve", "Served", "ended", "new_job", "reaches"]

PATIENCE = 120.0
Agents = Callable[..., Agent]


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    """``agents(**settings)`` opens the agent of one folder; the one before is closed first."""
    opened: list[Agent] = []

    def open_(**settings: Any) -> Agent:
        for before in opened:
            before.close()
        opened.append(Agent(AgentConfig(state=tmp_path / "state", **settings)))
        return opened[-1]

    yield open_
    for agent in opened:
        agent.close()


def upload(agent: Agent, module: bytes) -> str:
    """Gives its digest."""
    with agent.modules.upload() as incoming:
        incoming.write(module)
        return agent.modules.add(incoming)[0].sha256


def new_job(agent: Agent, module: bytes, **spec: Any) -> str:
    """A job's name."""
    return agent.create(JobSpec(module=upload(agent, module), **spec)).name


def reaches(agent: Agent, job: str, *states: State) -> Record:
    """Wait until a job is in one of these states; fails if it has ended otherwise."""
    end = time.monotonic() + PATIENCE
    while True:
        record = agent.records.get(job)
        if record.state in states:
            return record
        assert record.state not in ENDED, f"{record.state}: {record.problem}"
        assert time.monotonic() < end, f"waited in vain: {record.state}"
        time.sleep(0.01)


def ended(agent: Agent, job: str) -> Record:
    """Wait until a job has ended, however."""
    return reaches(agent, job, *ENDED)


def output(agent: Agent, job: str) -> bytes:
    """What it has written."""
    return agent.log(job, "stdout", 0, 1 << 24).data


class Served:
    """An agent in a process of its own, below ``state``. `start` after `kill` or `stop` starts it again there."""

    def __init__(self, state: Path, arguments: tuple[str, ...]) -> None:
        self.state, self._arguments = state, arguments
        self.process: subprocess.Popen[bytes] | None = None
        self._clients: list[AgentClient] = []

    def start(self, **environment: str) -> Served:
        (self.state / "agent.json").unlink(missing_ok=True)
        log = open(self.state.parent / "agent.log", "ab")  # noqa: SIM115  # the process has it
        with log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "wasmckpt.cli", "agent", "--state", str(self.state), "--listen", "127.0.0.1:0",
                 *self._arguments], env={**os.environ, **environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )
        if "WASMCKPT_FAULT" not in environment:
            self.listens()
        return self

    def listens(self) -> None:
        end = time.monotonic() + PATIENCE
        while not (self.state / "agent.json").exists():
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, "it does not listen"
            time.sleep(0.02)

    def log(self) -> str:
        return (self.state.parent / "agent.log").read_text()

    @property
    def url(self) -> str:
        return str(json.loads((self.state / "agent.json").read_text())["url"])

    @property
    def token(self) -> str:
        return (self.state / "token").read_text().strip()

    def client(self) -> AgentClient:
        client = AgentClient(local(self.state, timeout=PATIENCE))
        self._clients.append(client)
        return client

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def killed(self) -> None:
        """Wait until a fault has killed it."""
        assert self.process is not None
        assert self.process.wait(PATIENCE) == -signal.SIGKILL, self.log()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.kill()


Serve = Callable[..., Served]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """``serve(*arguments, **environment)`` starts an agent as a process; it is gone after the module's tests.
    ``environment`` is that of this first one only."""
    started: list[Served] = []

    def start(*arguments: str, **environment: str) -> Served:
        state = tmp_path_factory.mktemp("agent") / "state"
        state.mkdir()
        started.append(Served(state, arguments))
        return started[-1].start(**environment)

    yield start
    for served in started:
        served.close()


@pytest.fixture(scope="module")
def served(serve: Serve) -> Served:
    """One that the tests of a module share."""
    return serve()
