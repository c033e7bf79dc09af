"""A program that may run until a time only is ended then by the kernel: whatever its worker does, and wherever it has
moved."""

from __future__ import annotations

import os
import signal
import time

import pytest

from wasmckpt import Job
from wasmckpt.errors import WorkerDied
from wasmckpt.snapshot.deadline import CLOCK

from ...cli.programs import FOREVER, wat

pytestmark = pytest.mark.slow


def now() -> float:
    return time.clock_gettime(CLOCK)


def ends(job: Job) -> float:
    """When it was killed."""
    with pytest.raises(WorkerDied) as caught:
        job.wait(60)
    assert caught.value.fields["signal"] == "SIGKILL"
    return now()


def test_from_before_it_runs() -> None:
    until = now() + 3
    with Job.start(wat(FOREVER), end_at=until) as job:
        assert until <= ends(job) < until + 30


def test_put_off_and_over() -> None:
    with Job.start(wat(FOREVER), end_at=now() + 2) as job:
        job.end_at(now() + 1000)
        job.end_at(now() + 500, wait=False)
        time.sleep(3)
        assert job.status() == "running"
        job.end_at(float("-inf"), wait=False)
        ends(job)


def test_a_worker_that_is_stopped() -> None:
    """A process that does nothing any more ends all the same, and what was forked from it for an image is gone."""
    with Job.start(wat(FOREVER)) as job:
        assert job.checkpoint().way != "in-place"
        until = now() + 1
        job.end_at(until)
        os.kill(job.pid, signal.SIGSTOP)
        assert until <= ends(job)


def test_it_moves_along() -> None:
    with Job.start(wat(FOREVER), "wasm3") as job:
        until = now() + 5
        job.end_at(until)
        job.migrate("wasmtime")
        assert until <= ends(job)
