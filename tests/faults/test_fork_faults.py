"""Snapshots by fork when the worker is killed, or the system refuses to fork."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wasmckpt import runtimes

from ..support.processes import children
from ..support.tiers import by_tier, missing
from ..unit.snapshot.fork_guests import TURNS, longer

pytestmark = pytest.mark.slow

TOP = Path(__file__).resolve().parents[2]
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(params=runtimes.names())
def runtime(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name not in runtimes.available():
        missing(name, f"{name} is not installed")
    return name


def command(task: str, runtime: str, *arguments: str) -> list[str]:
    return [*runtimes.loader(runtime), sys.executable, "-m", "tests.faults.fork_worker", task, runtime, *arguments]


@pytest.fixture
def reaper() -> Iterator[None]:
    """Whatever a killed worker leaves behind becomes our child, and can be found."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def orphans() -> list[int]:
    """Our children that are not zombies; zombies are reaped on the way."""
    found = []
    for pid in children():
        if (Path("/proc") / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z":
            os.waitpid(pid, 0)
        else:
            found.append(pid)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 2_000], ids=["by signal", "by itself"])
@pytest.mark.usefixtures("reaper")
def test_a_killed_worker_leaves_no_copy(runtime: str, every: int) -> None:
    """SIGKILL at random moments of back-to-back snapshots: a moment later no copy is left."""
    draw = random.Random(f"{runtime} {every}")
    kills = by_tier(check=4, test=12, soak=60)
    left = 0
    for _ in range(kills):
        worker = subprocess.Popen(command("loop", runtime, str(every)), cwd=TOP, stdout=subprocess.PIPE)
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        time.sleep(draw.random() * 0.15)
        worker.kill()
        worker.wait()
        worker.stdout.close()
        until = time.monotonic() + 30  # one that is left runs for ever; one that is dying takes its time
        while (running := orphans()) and time.monotonic() < until:
            time.sleep(0.01)
        for pid in running:
            left += 1
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert left == 0


REFUSED = ("refused EAGAIN", "refused unknown")
"""The second one where the program has made a system call of its own before errno could be read, on a busy machine."""


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("task", ["refused", "allowed"])
def test_an_unprivileged_user(runtime: str, task: str) -> None:
    """Without the right to fork the snapshots are taken in place, with it by fork; results are the same. A runtime that
    needs threads to resume gives none where there can be none, and the source goes on."""
    no_images = task == "refused" and runtimes.load(runtime).capabilities.compile_threads
    for turns in longer(TURNS[runtime]):
        done = subprocess.run(
            command(task, runtime, str(turns)), cwd=TOP, capture_output=True, text=True, check=False, timeout=250
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        if lines[0] != "ended" and (lines[1] or no_images):
            break
    if no_images:
        assert lines[0] in REFUSED
        assert lines[1:] == ["", "source True", "children 0"]
        return
    if task == "refused":
        assert lines[0] in REFUSED
        assert lines[1] == "in-place"
    else:
        assert lines[0] in ("entry", "signal")
        assert lines[1] == "fork"
    assert lines[2:4] == ["source True", "children 0"]
    assert len(lines) > 4
    assert set(lines[4:]) == {"image True"}
