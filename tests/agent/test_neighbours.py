"""Agents that look after each other's jobs: when a machine is lost, cut off or comes back, a job goes on at exactly one
of them, and in the end has said everything once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wasmckpt.api import JobSpec, Migrate, State
from wasmckpt.client import AgentClient
from wasmckpt.errors import CheckpointError, Conflict, NotFound, NotSupported, UsageError

from ..cli.test_json import check
from ..migrate.programs import writes, writes_output
from ..support.ports import free_port
from .conftest import PATIENCE, Serve, Served
from .machines import writers

pytestmark = pytest.mark.slow
ROUNDS = 300
"""Of 20 ms."""
LEASE = 3.0


class Fleet:
    """Agents that know each other."""

    def __init__(self, serve: Serve, folder: Path, number: int, **settings: object) -> None:
        ports = [free_port() for _ in range(number)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.agents: list[Served] = []
        for n, port in enumerate(ports):
            lines = [f"lease = {LEASE}", f'replicas = "{folder}/replicas-{n}"', "requests_per_second = 1000"]
            lines += [f"{name} = {value}" for name, value in settings.items()]
            for other, url in enumerate(urls):
                if other != n:
                    lines += [f'[peers."{url}"]', f'token_file = "{folder}/token-{other}"']
            (folder / f"settings-{n}.toml").write_text("\n".join(lines))
            served = serve("--config", str(folder / f"settings-{n}.toml"), "--listen", f"127.0.0.1:{port}")
            (folder / f"token-{n}").write_text(served.token)
            self.agents.append(served)
        self.urls = urls
        self.clients = [served.client() for served in self.agents]

    def new(self, at: int = 0, module: bytes | None = None, **spec: Any) -> str:
        """A job of one of them, which the others look after; its id."""
        client = self.clients[at]
        sha256 = client.upload(module or writes(ROUNDS)).sha256
        return client.create(JobSpec(
            module=sha256, neighbours=[url for n, url in enumerate(self.urls) if n != at],
            **{"checkpoint": {"every_seconds": 0.5}, **spec})).id

    def kept(self, job: str, number: int, at: int = 0) -> None:
        """Wait until all neighbours have an image with such a number."""
        wait(lambda: all((one.number or 0) >= number for one in self.clients[at].neighbours(job)), "images kept")

    def where(self, job: str) -> list[int]:
        """Agents at which it is not away."""
        found = []
        for n, client in enumerate(self.clients):
            try:
                if client.job(job).state is not State.MOVED:
                    found.append(n)
            except CheckpointError:
                pass
        return found

    def finished(self, job: str, output: bytes) -> int:
        """Wait until it has ended at one of them, with that output; gives which."""
        wait(lambda: any(_exited(client, job) for client in self.clients), "its end")
        (there,) = [n for n, client in enumerate(self.clients) if _exited(client, job)]
        assert self.clients[there].output(job) == output
        return there


def _exited(client: AgentClient, job: str) -> bool:
    try:
        info = client.job(job)
    except CheckpointError:
        return False
    assert info.state is not State.FAILED, info.problem
    return info.state is State.EXITED


def wait(until: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


@pytest.fixture
def fleet(serve: Serve, tmp_path: Path) -> Fleet:
    return Fleet(serve, tmp_path, 3)


def test_the_machine_is_lost(fleet: Fleet) -> None:
    """One of the two others takes it over, from its newest image, with what it had written."""
    job = fleet.new(name="precious")
    fleet.kept(job, 2)
    fleet.agents[0].kill()
    wait(lambda: len(fleet.where(job)) == 1, "a take-over")
    there = fleet.finished(job, writes_output(ROUNDS))
    assert there in (1, 2)
    info = fleet.clients[there].job(job)
    assert (info.name, info.epoch) == ("precious", 2 << 20)
    (told,) = [event for event in fleet.clients[there].events(job=job) if "taken over" in event.text]
    assert told.text.startswith(f"taken over from {fleet.urls[0]}, from image ")


def test_a_worker_stands_by(serve: Serve, tmp_path: Path) -> None:
    """It follows the images that come, is at most one behind, and the job goes on in that very process."""
    fleet = Fleet(serve, tmp_path, 3, standbys=2)
    job = fleet.new(module=writes(600))
    fleet.kept(job, 3)
    wait(lambda: all(client.replicas()[0].standby for client in fleet.clients[1:]), "workers that stand by")
    before = [_workers(fleet, n, job) for n in (1, 2)]
    assert all(len(workers) == 1 for workers in before)
    fleet.kept(job, (fleet.clients[0].job(job).checkpoint or 0) + 2)
    assert [_workers(fleet, n, job) for n in (1, 2)] == before, "they were made anew, and did not follow"
    fleet.agents[0].kill()
    wait(lambda: bool(others_at(fleet, job)), "a take-over")
    (there,) = others_at(fleet, job)
    wait(lambda: fleet.clients[there].job(job).state is not State.ARRIVING, "its going on")
    assert fleet.clients[there].job(job).pid in before[there - 1]
    assert any("a worker stood by" in event.text for event in fleet.clients[there].events(job=job))
    assert fleet.finished(job, writes_output(600)) == there
    wait(lambda: not any(_workers(fleet, n, job) for n in (1, 2)), "the end of those that stood by")


def _workers(fleet: Fleet, n: int, job: str) -> set[int]:
    """Processes of an agent that write to a job's log."""
    agent = fleet.agents[n]
    assert agent.process is not None
    return writers(agent.process.pid, agent.state / "logs" / job / "stdout")


def test_an_agent_that_hangs(fleet: Fleet) -> None:
    """Its worker is ended by the kernel before anybody takes the job over, and when it wakes it lets go."""
    job = fleet.new(module=writes(600))
    fleet.kept(job, 1)
    worker = fleet.clients[0].job(job).pid
    assert worker is not None
    process = fleet.agents[0].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    fleet.clients[0].close()
    wait(lambda: _is_gone(worker) or bool(others_at(fleet, job)), "its worker's end")
    assert _is_gone(worker), "another one runs it already"
    wait(lambda: bool(others_at(fleet, job)), "a take-over")
    process.send_signal(signal.SIGCONT)
    fleet.clients[0] = fleet.agents[0].client()
    wait(lambda: fleet.clients[0].job(job).state is State.MOVED, "its letting go")
    assert fleet.finished(job, writes_output(600)) != 0


def others_at(fleet: Fleet, job: str) -> list[int]:
    found = []
    for n in (1, 2):
        try:
            found += [n] if fleet.clients[n].job(job).state is not State.MOVED else []
        except CheckpointError:
            pass
    return found


def _is_gone(pid: int) -> bool:
    """Not even its parent, which is stopped, has to have noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_alone_it_stands_still(fleet: Fleet) -> None:
    """Without most of the voters the job is frozen, and nothing of it is lost; with one of them again it goes on."""
    job = fleet.new()
    fleet.kept(job, 1)
    for neighbour in fleet.agents[1:]:
        neighbour.kill()
    wait(lambda: fleet.clients[0].job(job).state is State.HIBERNATED, "its freezing")
    assert fleet.clients[0].job(job).why == "neighbours"
    time.sleep(2 * LEASE)
    assert fleet.clients[0].job(job).state is State.HIBERNATED
    fleet.agents[2].start()
    fleet.clients[2] = fleet.agents[2].client()
    assert fleet.finished(job, writes_output(ROUNDS)) == 0
    assert fleet.clients[0].job(job).restarts == 0


def test_it_moves_to_a_neighbour(fleet: Fleet) -> None:
    """While it runs; the others look after it from there, and take it over from there."""
    job = fleet.new(module=writes(600))
    fleet.kept(job, 3)
    move = fleet.clients[0].migrate(job, Migrate(to=fleet.urls[1], runtime="wasm3", downtime=1.0, most_downtime=60.0))
    wait(lambda: fleet.clients[0].migration(job, move.id).state not in ("moving", "calling-off"), "the move")
    assert fleet.clients[0].migration(job, move.id).state in ("telling", "moved")
    before = fleet.clients[1].job(job).checkpoint or 0
    assert before > (fleet.clients[0].job(job).checkpoint or 0), "older ones to those who have the others"
    fleet.kept(job, before + 1, at=1)
    assert fleet.where(job) == [1]
    assert fleet.clients[1].job(job).state is State.RUNNING
    fleet.agents[1].kill()
    assert fleet.finished(job, writes_output(600)) in (0, 2)


def test_it_ends(fleet: Fleet) -> None:
    """Then nothing is kept of it; one that is started again is looked after again; one that is deleted is forgotten."""
    job = fleet.new(module=writes(50))
    fleet.finished(job, writes_output(50))
    wait(lambda: not fleet.clients[1].replicas() and not fleet.clients[2].replicas(), "their letting go")
    fleet.clients[0].start(job)
    wait(lambda: [one.job for one in fleet.clients[1].replicas()] == [job], "their looking after it")
    fleet.finished(job, writes_output(50))
    other = fleet.new(module=writes(10_000))
    fleet.kept(other, 1)
    (kept,) = [one for one in fleet.clients[2].replicas() if one.job == other]
    assert (kept.site, kept.number or 0) >= (fleet.urls[0], 1)
    assert set(kept.voters) == set(fleet.urls)
    with pytest.raises(Conflict):
        fleet.clients[2].delete_module(fleet.clients[0].job(other).spec.module)
    fleet.clients[0].delete(other, force=True)
    wait(lambda: not fleet.clients[1].replicas() and not fleet.clients[2].replicas(), "their letting go")
    time.sleep(1.5 * LEASE)
    assert fleet.where(other) == []


def test_an_end_that_not_all_hear(fleet: Fleet) -> None:
    """A job that has ended runs nowhere again, though one of its neighbours cannot be told for long."""
    job = fleet.new(module=writes(100))
    fleet.kept(job, 1)
    fleet.agents[2].kill()
    assert fleet.finished(job, writes_output(100)) == 0
    time.sleep(3 * LEASE)
    assert fleet.where(job) == [0]
    assert fleet.clients[0].job(job).runs == 1
    fleet.agents[2].start()
    fleet.clients[2] = fleet.agents[2].client()
    wait(lambda: not fleet.clients[1].replicas() and not fleet.clients[2].replicas(), "their letting go")


@pytest.mark.soak
def test_what_was_in_memory_is_lost(fleet: Fleet, tmp_path: Path) -> None:
    """A neighbour whose machine started anew gets a whole image again, and can take over."""
    job = fleet.new(module=writes(600))
    fleet.kept(job, 1)
    for n in (1, 2):
        fleet.agents[n].kill()
        os.rename(tmp_path / f"replicas-{n}", tmp_path / f"gone-{n}")
        fleet.agents[n].start()
        fleet.clients[n] = fleet.agents[n].client()
        fleet.kept(job, (fleet.clients[0].job(job).checkpoint or 0) + 1)
    fleet.agents[0].kill()
    assert fleet.finished(job, writes_output(600)) in (1, 2)


def test_refusals(fleet: Fleet, serve: Serve, tmp_path: Path) -> None:
    client = fleet.clients[0]
    module = client.upload(writes(10_000)).sha256
    with pytest.raises(UsageError, match="do not have that neighbour"):
        client.create(JobSpec(module=module, neighbours=["http://127.0.0.1:9"]))
    stranger = serve()
    there = stranger.client().upload(writes(10_000)).sha256
    with pytest.raises(UsageError, match="settings do not have"):
        stranger.client().create(JobSpec(module=there, neighbours=[fleet.urls[0]]))
    settings = tmp_path / "stranger.toml"
    settings.write_text(f'[peers."{fleet.urls[0]}"]\ntoken_file = "{tmp_path}/token-0"')
    somewhere = serve("--config", str(settings)).client()
    with pytest.raises(UsageError, match="at one address"):
        somewhere.create(JobSpec(module=somewhere.upload(writes(10_000)).sha256, neighbours=[fleet.urls[0]]))
    with pytest.raises(ValueError, match="journal"):
        JobSpec(module=module, neighbours=fleet.urls[1:], checkpoint={"journal": True})
    job = fleet.new(module=writes(10_000))
    fleet.kept(job, 1)
    with pytest.raises(NotSupported, match="more than half"):
        fleet.clients[1].take_over(job)
    with pytest.raises(NotSupported, match="one of them only"):
        client.migrate(job, Migrate(to=stranger.url, runtime="wasm3", token=stranger.token))
    client.delete(job, force=True)
    fleet.agents[1].kill()
    with pytest.raises(CheckpointError):
        fleet.new()


def test_two_agents_and_a_person(serve: Serve, tmp_path: Path) -> None:
    """Neither of two can know that the other one is gone: a job runs on without its neighbour, and nobody takes it over
    but for a person who says so. The owner that comes back after all lets go."""
    fleet = Fleet(serve, tmp_path, 2)
    job = fleet.new(module=writes(600), name="precious")
    fleet.kept(job, 1)
    (kept,) = check("agent_replicas", command(fleet, 1, "neighbours", "--json"))
    assert (kept["name"], kept["site"]) == ("precious", fleet.urls[0])
    assert "precious" in command(fleet, 1, "neighbours")
    fleet.agents[1].kill()
    time.sleep(2 * LEASE)
    assert fleet.clients[0].job(job).state is State.RUNNING
    assert "cannot be reached" in command(fleet, 0, "neighbours", "precious")
    fleet.agents[1].start()
    fleet.clients[1] = fleet.agents[1].client()
    fleet.kept(job, (fleet.clients[0].job(job).checkpoint or 0) + 1)
    (one,) = check("agent_neighbours", command(fleet, 0, "neighbours", "precious", "--json"))
    assert (one["url"], one["problem"]) == (fleet.urls[1], "")
    fleet.agents[0].kill()
    time.sleep(2 * LEASE)
    assert fleet.where(job) == []
    assert command(fleet, 1, "takeover", "precious") == "precious goes on here\n"
    fleet.agents[0].start()
    fleet.clients[0] = fleet.agents[0].client()
    wait(lambda: fleet.clients[0].job(job).state is State.MOVED, "its letting go")
    with pytest.raises(Conflict):
        fleet.clients[1].take_over("precious")
    with pytest.raises(NotFound):
        fleet.clients[1].take_over("nobody")
    assert fleet.finished(job, writes_output(600)) == 1


def command(fleet: Fleet, at: int, *words: str) -> str:
    agent = fleet.agents[at]
    done = subprocess.run(
        [sys.executable, "-m", "wasmckpt.cli", "--agent", agent.url, "--agent-token-file", str(agent.state / "token"),
         *words], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
