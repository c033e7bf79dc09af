"""Each runtime crashes, hangs, or has no memory: one clear error in the parent; a program beside it does not notice."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wasmckpt import runtimes
from wasmckpt.errors import CheckpointError, GuestTrap, JobEnded, NotSupported, RetryLater, WorkerDied
from wasmckpt.formats import decode
from wasmckpt.snapshot import worker_process
from wasmckpt.snapshot.job import Job, check

from ..cli.conftest import alive
from ..cli.programs import FOREVER, wat
from ..support.pairs import BASE
from ..support.tiers import by_tier
from .test_worker import before_request, nothing_left, spawned

__all__ = ["nothing_left"]

pytestmark = pytest.mark.slow

MIB = 1 << 20

ENDLESS = """(module
  (func $f (param i32) (result i32) (i32.add (local.get 0) (call $f (i32.add (local.get 0) (i32.const 1)))))
  (func (export "_start") (drop (call $f (i32.const 0)))))"""
"""Recursion without an end."""

GROWS = """(module
  (memory (export "memory") 1 4096)
  (func (export "run") (result i32) (local $page i32)
    (loop $next
      (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then (return (memory.size))))
      (local.set $page (memory.size))
      (i32.store (i32.sub (i32.shl (local.get $page) (i32.const 16)) (i32.const 4)) (local.get $page))
      (br_if $next (i32.lt_u (local.get $page) (i32.const 4000))))
    (memory.size)))"""
"""Takes up to 250 MiB, as long as it gets some; gives the number of its pages."""

HOLDS = """(module
  (memory (export "memory") 1024)
  (func (export "_start") (local $i i32)
    (loop $fill
      (i64.store (local.get $i) (i64.mul (i64.extend_i32_u (local.get $i)) (i64.const 0x9e3779b97f4a7c15)))
      (br_if $fill (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 8))) (i32.const 0x4000000))))
    (loop $next
      (i32.store (i32.const 8) (local.tee $i (i32.add (local.get $i) (i32.const 1))))
      (br $next))))"""
"""Fills 64 MiB with what no compressor makes small, then runs until it is stopped."""


@pytest.fixture(params=[
    pytest.param(name, marks=[] if name == BASE[0] else pytest.mark.slow) for name in runtimes.available()
])
def runtime(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each runtime, with another program on it, which runs on and can be frozen at the end."""
    name: str = request.param
    with Job.start(wat(FOREVER), name) as beside:
        worker = beside.pid
        yield name
        assert (beside.status(), beside.pid) == ("running", worker)
        assert decode(beside.checkpoint().data or b"").frames


def limit_memory(pid: int, more: int) -> None:
    """A worker may have ``more`` bytes of addresses more than it has, if it has not ended."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_is_killed(runtime: str, number: signal.Signals) -> None:
    with Job.start(wat(FOREVER), runtime) as job:
        while alive(job.pid) and not job.ended:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(job.pid, number)  # a runtime's handler may take the first SIGSEGV for something of its own
            time.sleep(0.02)
        with pytest.raises(WorkerDied, match="killed by SIGKILL" if number == signal.SIGKILL else "killed by SIG"):
            job.wait(60)
        with pytest.raises(JobEnded):
            job.checkpoint()


@pytest.mark.parametrize("stack", by_tier(check=[64 * MIB], test=[64 * MIB], soak=[256 << 10, 64 * MIB]))
def test_recursion_without_end_is_a_trap(runtime: str, stack: int) -> None:
    with Job.start(wat(ENDLESS), runtime, stack_bytes=stack) as job, pytest.raises(GuestTrap) as caught:
        job.wait(60)
    assert caught.value.fields["kind"] == "stack overflow"


def test_recursion_without_end_and_without_memory(runtime: str) -> None:
    """Where frames lie on the heap the runtime aborts when there is none left; it is a trap or the worker's death."""
    with Job.start(wat(ENDLESS), runtime, stack_bytes=256 * MIB) as job:
        limit_memory(job.pid, 64 * MIB)
        with pytest.raises((GuestTrap, WorkerDied)) as caught:
            job.wait(60)
    assert caught.value.fields.get("kind", "stack overflow") == "stack overflow"
    assert isinstance(caught.value, GuestTrap) or caught.value.fields["signal"] in ("SIGABRT", "SIGSEGV")


def test_a_guest_that_takes_more_memory_than_there_is(runtime: str) -> None:
    """It is told so, or has reserved it all before; or the runtime gives up, and the error says that."""
    with Job.start(wat(GROWS), runtime, invoke="run") as job:
        limit_memory(job.pid, 100 * MIB)
        try:
            pages = job.wait(60).results[0].bits
        except (GuestTrap, WorkerDied):
            return
    assert pages % 16 in (0, 1)


def test_no_memory_for_a_checkpoint(runtime: str) -> None:
    """An image, or an error; whichever, the program goes on, and there is an image when there is memory again."""
    with Job.start(wat(HOLDS), runtime) as job:
        time.sleep(0.2)
        limit_memory(job.pid, 6 * MIB)
        with contextlib.suppress(CheckpointError):
            assert decode(job.checkpoint().data or b"").frames
        assert job.status() == "running"
        resource.prlimit(job.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert decode(job.checkpoint().data or b"").frames


def test_a_worker_that_hangs(runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests end in time; once the worker goes on, so does the program."""
    with Job.start(wat(FOREVER), runtime) as job:
        monkeypatch.setattr(worker_process, "SILENCE", 0.5)
        os.kill(job.pid, signal.SIGSTOP)
        for ask in (job.checkpoint, lambda: job.migrate(runtime)):
            with pytest.raises(RetryLater, match="no sign of life"):
                ask()
        os.kill(job.pid, signal.SIGCONT)
        monkeypatch.undo()
        for _ in range(100):  # what was asked for may still be under way
            with contextlib.suppress(RetryLater):
                assert decode(job.checkpoint().data or b"").frames
                break
            time.sleep(0.1)
        assert job.status() == "running"
        os.kill(job.pid, signal.SIGSTOP)  # and ends, even so, with the job


def test_a_target_that_hangs(runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The move is called off; the program goes on where it is, and moves later."""
    workers = spawned(monkeypatch)
    with Job.start(wat(FOREVER)) as job:
        before_request(monkeypatch, "restore", lambda _: os.kill(workers[1].pid, signal.SIGSTOP))
        with monkeypatch.context() as hasty:
            hasty.setattr("wasmckpt.snapshot.job._REBUILDING", 2.0)
            with pytest.raises(CheckpointError):
                job.migrate(runtime)
        assert job.runtime == BASE[0]
        assert job.status() == "running"
        assert not alive(workers[1].pid)
        assert job.migrate(runtime).target == runtime


@pytest.mark.slow
@pytest.mark.parametrize("name", runtimes.available())
def test_nesting_at_the_limit(name: str) -> None:
    """Deeper than Wasm3's compiler goes on an ordinary stack: taken, or refused by name."""
    depth = 48_000
    nested = wat(f'(module (func (export "_start") {"block " * depth} nop {"end " * depth}))')
    with contextlib.suppress(NotSupported):
        check(nested, name)
    check(wat(FOREVER), name)


SIGNALS = """
import ctypes, os, signal, sys
from wasmckpt import runtimes
from wasmckpt.runtimes import run_in_guest_thread

def handlers():
    found = {}
    for number in signal.valid_signals() - {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}:
        buffer = ctypes.create_string_buffer(256)
        ctypes.CDLL(None).sigaction(number, None, buffer)
        found[number] = buffer.raw[:8]
    return found

before = handlers()
engine = runtimes.load(sys.argv[1])
with engine.instantiate(engine.compile(bytes.fromhex(sys.argv[2])), {}) as instance:
    assert instance.call("run") == (7,)
after = handlers()
print([int(number) for number in before if before[number] != after[number]])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", runtimes.available())
def test_signals_that_are_no_faults_are_left_alone(name: str) -> None:
    """Ours and the user's: also by a compiler that is used for the first time (no cache knows the module)."""
    text = f'(module (func (export "run") (result i32) (drop (i64.const {time.time_ns()})) (i32.const 7)))'
    command = [*runtimes.loader(name), sys.executable, "-c", SIGNALS, name, wat(text).hex()]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip() == "[]"
