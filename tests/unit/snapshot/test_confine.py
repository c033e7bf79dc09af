"""Limits of a worker's process: the program is told where it can be, and goes on within them after a move."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from wasmckpt import Job, ResourceLimits, Value, runtimes
from wasmckpt.errors import UsageError, WorkerDied
from wasmckpt.wasm.values import I32

from ...cli.programs import FOREVER, wat

GROWS = """(module (memory (export "memory") 1)
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))"""
TOLD = [name for name in ("wasmtime", "wasm3", "wamr", "wasmer") if name in runtimes.available()]
"""Those on which a program is told; WasmEdge ends its process."""


@pytest.mark.slow
@pytest.mark.parametrize("runtime", TOLD)
def test_a_program_is_told_that_there_is_no_more_memory(runtime: str) -> None:
    for pages, result in ((16, 1), (3200, 0xFFFFFFFF)):
        with Job.start(wat(GROWS), runtime, invoke="grow", arguments=(Value(I32, pages),),
                       limits=ResourceLimits(memory=192 << 20)) as job:
            assert job.wait().results == (Value(I32, result),)


@pytest.mark.slow
def test_limits_go_along() -> None:
    """With a move and a restore; a worker without limits has its parent's, and no new privileges either."""
    limits = ResourceLimits(memory=1 << 30, cpu_seconds=3600, open_files=100)
    with Job.start(wat(FOREVER), limits=limits) as job:
        _has(job, limits=True)
        image = job.checkpoint().data
        assert image is not None
        job.migrate("wasmtime")
        _has(job, limits=True)
    with Job.restore(image, module=wat(FOREVER), limits=limits) as job:
        _has(job, limits=True)
    with Job.restore(image, module=wat(FOREVER)) as job:
        _has(job, limits=False)


def _has(job: Job, *, limits: bool) -> None:
    process = Path("/proc", str(job.pid))
    assert "NoNewPrivs:\t1" in (process / "status").read_text()
    lines = (process / "limits").read_text().splitlines()
    found = {line[:25].strip(): line[25:].split()[0] for line in lines}
    wanted = {"Max data size": str(1 << 30), "Max cpu time": "3600", "Max open files": "100", "Max core file size": "0"}
    assert ({name: found[name] for name in wanted} == wanted) is limits


@pytest.mark.slow
def test_processor_time() -> None:
    with Job.start(wat(FOREVER), limits=ResourceLimits(cpu_seconds=1)) as job, pytest.raises(WorkerDied) as died:
        job.wait()
    assert died.value.fields["signal"] == "SIGXCPU"


@pytest.mark.slow
def test_the_program_steps_back() -> None:
    """Its own thread, in each worker, and no other thread of that."""
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    nice = min(19, ours + 4)
    with Job.start(wat(FOREVER), limits=ResourceLimits(nice=nice)) as job:
        for _ in range(2):
            until(lambda: max(_priorities(job.pid)) == nice)
            assert sorted(_priorities(job.pid))[-2] == ours
            job.migrate("wasmtime")
    with pytest.raises(UsageError):
        ResourceLimits(nice=20)


def _priorities(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # the thread ended meanwhile
            found.append(os.getpriority(os.PRIO_PROCESS, int(task.name)))
    return found


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_limits_that_are_none() -> None:
    for name in ("memory", "cpu_seconds", "open_files"):
        with pytest.raises(UsageError):
            ResourceLimits(**{name: 0})
