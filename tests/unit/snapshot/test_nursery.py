"""Workers that are forked from a process that stands by are like those that are started afresh, only sooner there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from wasmckpt import Checkpoint, Job, runtimes
from wasmckpt.errors import GuestTrap, WorkerDied
from wasmckpt.formats import read_image
from wasmckpt.snapshot.worker_process import StandBy
from wasmckpt.wasm.values import I32, Value

from ...cli.programs import COUNT, FOREVER, TRAPS, count_result, wat
from ...support.processes import children

PATIENCE = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@pytest.fixture
def stand_by() -> Iterator[StandBy]:
    before = children()
    kept = StandBy()
    yield kept
    kept.close()
    until(lambda: children() <= before, "they live on")


def ready(kept: StandBy, runtime: str) -> int:
    """The process that stands by for a runtime."""
    kept.prepare(runtime)
    until(lambda: runtime in kept.ready(), f"nobody stands by for {runtime}")
    return kept.ready()[runtime]


def _status(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/status").read_text().partition(f"{name}:")[2].split()[0]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", runtimes.available())
def test_a_life_on_each_runtime(runtime: str, stand_by: StandBy) -> None:
    """Start, an image while it runs, stop with one, restore, move: all from there; each worker a child of ours."""
    nursery = ready(stand_by, runtime)
    module = wat(FOREVER)
    with Job.start(module, runtime) as job:
        assert _status(job.pid, "PPid") == str(os.getpid())
        assert job.pid != nursery
        until(lambda: _counted(job.checkpoint()) > 0, "the program does not run")
        taken = job.checkpoint()
        assert taken.way != "in-place"
        assert job.migrate(runtime).frames == taken.frames
        stopped = job.checkpoint(stop=True)
    last = _counted(stopped)
    assert 0 < _counted(taken) < last
    assert stopped.data is not None
    with Job.restore(stopped.data, runtime, module=module) as job:
        assert _counted(job.checkpoint()) >= last
    with Job.start(wat(COUNT), runtime, invoke="run", arguments=(Value(I32, 1000),)) as job:
        assert job.wait().results == (Value(I32, count_result(1000) & 0xFFFFFFFF),)
    assert stand_by.counts() == (4, 0)


def _counted(taken: Checkpoint) -> int:
    """How far `FOREVER` has counted in an image."""
    assert taken.data is not None
    memory, = read_image(BytesIO(taken.data)).memories
    return int.from_bytes(memory.data[0][1][8:12], "little") if memory.data else 0


@pytest.mark.slow
def test_ends_are_told_as_ever(stand_by: StandBy) -> None:
    ready(stand_by, "wasmtime")
    with Job.start(wat(TRAPS)) as job, pytest.raises(GuestTrap):
        job.wait()
    with Job.start(wat(FOREVER)) as job:
        os.kill(job.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied) as died:
            job.wait()
    assert died.value.fields["signal"] == "SIGKILL"
    assert stand_by.counts() == (2, 0)


@pytest.mark.slow
def test_its_end_is_nobody_elses(stand_by: StandBy) -> None:
    """Workers live on; the next one is started afresh, and another process gets ready."""
    nursery = ready(stand_by, "wasmtime")
    with Job.start(wat(FOREVER)) as job:
        os.kill(nursery, signal.SIGKILL)
        with Job.start(wat(FOREVER)) as other:
            for running in (job, other):
                until(lambda running=running: running.checkpoint().frames == 1, "it does not run")  # type: ignore[misc]
        assert stand_by.counts() == (1, 1)
        assert ready(stand_by, "wasmtime") != nursery
        with Job.start(wat(FOREVER)):
            assert stand_by.counts() == (2, 1)
        assert not job.ended


@pytest.mark.slow
def test_another_environment(stand_by: StandBy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has this process's environment as it is now."""
    ready(stand_by, "wasmtime")
    monkeypatch.setenv("WASMCKPT_SNAPSHOT", "in-place")
    with Job.start(wat(FOREVER)) as job:
        assert job.checkpoint().way == "in-place"
    assert stand_by.counts() == (0, 1)


@pytest.mark.slow
def test_it_shares_its_memory(stand_by: StandBy) -> None:
    """Of what a worker takes by itself most is shared with all others."""
    with Job.start(wat(FOREVER)) as job:
        afresh = _private(job.pid)
    ready(stand_by, "wasmtime")
    with Job.start(wat(FOREVER)) as job:
        assert _private(job.pid) < 0.6 * afresh


def _private(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


_OWNER = """
import sys, time
from wasmckpt import Job
from wasmckpt.formats import read_image
from wasmckpt.snapshot.worker_process import StandBy
kept = StandBy()
kept.prepare("wasmtime")
while "wasmtime" not in kept.ready():
    time.sleep(0.01)
job = Job.start(open(sys.argv[1], "rb").read())
assert kept.counts() == (1, 0)
print(kept.ready()["wasmtime"], job.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_all_end_with_their_owner(tmp_path: Path) -> None:
    (tmp_path / "m.wasm").write_bytes(wat(FOREVER))
    with subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path / "m.wasm")], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        processes = [int(word) for word in owner.stdout.readline().split()]
        assert len(processes) == 2
        owner.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes), "they live on")


@pytest.mark.slow
def test_two_owners_of_the_same(stand_by: StandBy) -> None:
    """What stands by does so until the last one who wants it has gone."""
    nursery = ready(stand_by, "wasmtime")
    other = StandBy()
    assert other.ready() == {"wasmtime": nursery}
    other.close()
    other.close()
    assert stand_by.ready() == {"wasmtime": nursery}
    assert other.ready() == {}
