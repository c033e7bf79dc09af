"""Machines that are not as they should be: their clocks are wrong, their disks are full. Nothing is lost."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wasmckpt.api import JobSpec, Migrate, State
from wasmckpt.client import AgentClient
from wasmckpt.errors import CheckpointError

from ..migrate.programs import writes, writes_output
from ..support.ports import free_port
from ..support.tiers import missing
from .conftest import PATIENCE, Serve, Served
from .test_migrations import LONG, begun, finishes, over, started, steady
from .test_neighbours import LEASE, Fleet, wait

pytestmark = pytest.mark.slow
DAY = 86_400.0
_CLOCK = '''
import os, time
_ahead = float(os.environ["TEST_AHEAD"])
_ahead_ns = int(_ahead * 10**9)
def _shifted(of, by, only=None):
    def shifted(*args):
        return of(*args) + (by if only is None or args == only else 0)
    return shifted
time.time = _shifted(time.time, _ahead)
time.time_ns = _shifted(time.time_ns, _ahead_ns)
time.clock_gettime = _shifted(time.clock_gettime, _ahead, (time.CLOCK_REALTIME,))
time.clock_gettime_ns = _shifted(time.clock_gettime_ns, _ahead_ns, (time.CLOCK_REALTIME,))
'''
"""Of a process, and all that it starts: what time it is there, not how fast it goes by."""


@pytest.fixture
def wrong_clock(tmp_path: Path) -> Path:
    """A folder which, first in ``PYTHONPATH``, sets a process's clock by ``TEST_AHEAD`` seconds."""
    folder = tmp_path / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_CLOCK)
    return folder


@pytest.mark.parametrize("ahead", [DAY, pytest.param(-DAY, marks=pytest.mark.soak)])
def test_clocks_that_differ_by_a_day(serve: Serve, wrong_clock: Path, ahead: float) -> None:
    """A job moves there and back, and goes on from an image there after a crash."""
    a = steady(serve)
    b = steady(serve, PYTHONPATH=str(wrong_clock), TEST_AHEAD=str(ahead))
    here, there = a.client(), b.client()
    assert abs(there.events(0)[0].at - here.events(0)[0].at - ahead) < 3600
    job = started(here, checkpoint={"every_seconds": 0.3})
    move = begun(a, b, job)
    assert over(here, job, move).state == "moved"
    there.wait(job, until=lambda found: (found.checkpoint or 0) > 1, timeout=PATIENCE)
    b.kill()
    b.start(PYTHONPATH=str(wrong_clock), TEST_AHEAD=str(-ahead))  # and another one when it comes back
    there = b.client()
    there.wait(job, until=lambda found: found.state is State.RUNNING, timeout=PATIENCE)
    back = begun(b, a, job, "wasm3")
    assert over(there, job, back).state == "moved"
    finishes([here, there], job)


@pytest.mark.soak
def test_leases_know_no_time_of_day(
    serve: Serve, wrong_clock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three agents with three clocks: nobody takes a job over before its owner is lost, and then one does."""
    monkeypatch.setenv("PYTHONPATH", str(wrong_clock))
    days = iter([0.0, DAY, -DAY])

    def start(*arguments: str, **environment: str) -> Served:
        monkeypatch.setenv("TEST_AHEAD", str(next(days)))
        return serve(*arguments, **environment)

    fleet = Fleet(start, tmp_path, 3)
    job = fleet.new(module=writes(LONG))
    fleet.kept(job, 2)
    time.sleep(2 * LEASE)
    assert fleet.where(job) == [0]
    fleet.agents[0].kill()
    wait(lambda: len(fleet.where(job)) == 1, "a take-over")
    assert fleet.finished(job, writes_output(LONG)) in (1, 2)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own."""
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "wasmckpt-test", str(folder)], check=False).returncode:
        missing("mount", "only root makes a file system for a test")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> Path:
    """Not a byte is left."""
    path = folder / "filler"
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with open(path, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0")
    return path


@pytest.mark.parametrize("side", [pytest.param("source", marks=pytest.mark.soak), "target"])
def test_a_disk_that_is_full(serve: Serve, tmp_path: Path, side: str) -> None:
    """The move is off, with the reason, and the job goes on where it is; when there is room again it moves."""
    quiet = writes(1, pause=20_000)  # nothing is written to its log meanwhile: that would be its own loss
    with small_disk(tmp_path / "disk", 64) as disk:
        narrow = Served(disk / "agent" / "state", ("--listen", f"127.0.0.1:{free_port()}"))
        narrow.state.mkdir(parents=True)
        try:
            narrow.start()
            wide = serve()
            a, b = (narrow, wide) if side == "source" else (wide, narrow)
            agent = a.client()
            job = agent.create(JobSpec(module=agent.upload(quiet).sha256)).id
            agent.wait(job, until=lambda found: found.state is State.RUNNING, timeout=PATIENCE)
            if side == "target":
                b.client().upload(quiet)
            filler = fill(disk)
            said = _refused(agent, b, job)
            assert "space" in said or "full" in said, said
            assert agent.job(job).state is State.RUNNING
            filler.unlink()
            wait(lambda: all(one.state == "kept" for one in agent.migrations(job)), "both to know that it is off")
            move = begun(a, b, job)
            assert over(agent, job, move).state == "moved", agent.migration(job, move.id).problem
            other = b.client()
            assert other.wait(job, timeout=PATIENCE).exit_code == 0
            assert other.output(job) == writes_output(1)
        finally:
            narrow.close()


def _refused(agent: AgentClient, to: Served, job: str) -> str:
    """Why a move did not come about."""
    try:
        move = agent.migrate(job, Migrate(to=to.url, runtime="wasmtime", token=to.token, downtime=1.0,
                                          most_downtime=60.0))
    except CheckpointError as problem:
        return str(problem)
    end = time.monotonic() + PATIENCE
    # A target that cannot write down that the move is off says so again and again, until it can.
    while (found := agent.migration(job, move.id)).state not in ("kept", "moved", "calling-off"):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    assert found.state != "moved"
    assert found.problem is not None
    return f"{found.problem.title} {found.problem.detail}"
