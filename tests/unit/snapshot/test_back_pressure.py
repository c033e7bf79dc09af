"""Storage that is slower than checkpoints are asked for: the newest wins, what is dropped is counted, and no image
waits in memory. What a checkpoint's time went into is told apart."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from wasmckpt.errors import CheckpointError, RetryLater, StorageError
from wasmckpt.formats import load
from wasmckpt.snapshot.job import Job, Times
from wasmckpt.snapshot.turn import Superseded, Turn
from wasmckpt.wasm.values import I32, Value

from ...support.tiers import by_tier
from .fork_guests import assemble

MIB = 1 << 20
COUNTS = """(module (memory (export "memory") 1024) (global $turn (mut i64) (i64.const 0))
  (func (export "run") (param $bytes i32) (result i32) (local $p i32) (local $x i64)
    (local.set $x (i64.const 0x9e3779b97f4a7c15))
    (loop $fill
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
      (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
      (i64.store (local.get $p) (local.get $x))
      (br_if $fill (i32.lt_u (local.tee $p (i32.add (local.get $p) (i32.const 8))) (local.get $bytes))))
    (loop $spin (global.set $turn (i64.add (global.get $turn) (i64.const 1))) (br $spin))
    (i32.const 0)))"""
"""Random bytes, then a global that tells how long it has run."""


def job(size: int) -> Job:
    return Job.start(assemble(COUNTS), invoke="run", arguments=(Value(I32, size),))


def turn_of(path: Path) -> int:
    """How far the program was."""
    return load(path).globals[0].bits


def until_it_turns(running: Job, path: Path) -> None:
    """All its bytes are there."""
    end = time.monotonic() + 60
    running.checkpoint(path)
    while not turn_of(path):
        assert time.monotonic() < end
        running.checkpoint(path)


def wait_until(done: object, what: str = "it") -> None:
    deadline = time.monotonic() + 60
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def test_the_newest_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests that wait while one is served only the last is, with the state of the moment of its turn."""
    monkeypatch.setenv("WASMCKPT_SLOW", "image.write:0.2")
    fates: dict[int, BaseException | None] = {}

    def take(number: int) -> None:
        try:
            running.checkpoint(tmp_path / f"{number}", patience=60, newest=True)
            fates[number] = None
        except CheckpointError as problem:
            fates[number] = problem

    with job(4096) as running:
        threads = []
        os.kill(running.pid, signal.SIGSTOP)  # until all have asked, in this order
        for number in range(6):
            before = running._turn._newest
            threads.append(threading.Thread(target=take, args=(number,)))
            threads[-1].start()
            wait_until(lambda before=before: running._turn._newest is not before and running._turn.busy)
        os.kill(running.pid, signal.SIGCONT)
        for thread in threads:
            thread.join()
    assert fates[0] is None
    assert fates[5] is None
    dropped = sorted(number for number, fate in fates.items() if isinstance(fate, Superseded))
    assert dropped == [1, 2, 3, 4]
    assert not any((tmp_path / f"{number}").exists() for number in dropped)
    assert turn_of(tmp_path / "5") > turn_of(tmp_path / "0")
    told = running.statistics
    assert (told.taken, told.dropped, told.failed) == (2, 4, 0)
    assert told.times.queued > 0.2
    assert told.times.writing > 0.4
    assert told.times.writing > told.times.stopped


def test_each_part_of_the_time_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with job(by_tier(check=2, test=8, soak=64) * MIB) as running:
        until_it_turns(running, tmp_path / "i")
        quick = running.checkpoint(tmp_path / "i").times
        monkeypatch.setenv("WASMCKPT_SLOW", "image.write:0.02")
    with job(by_tier(check=2, test=8, soak=64) * MIB) as running:
        until_it_turns(running, tmp_path / "i")
        before = running.statistics.times
        slow = running.checkpoint(tmp_path / "i").times
        assert running.statistics.times == before + slow
    assert all(part > 0 for part in (quick.stopped, quick.copying, quick.packing, quick.writing))
    assert slow.writing > 0.02 * 3
    assert slow.writing > slow.stopped, "the program stood still while its image was written"
    assert Times(1, 2, 3, 4, 5) + Times(1, 1, 1, 1, 1) == Times(2, 3, 4, 5, 6)


def test_a_failure_is_counted_and_is_not_dropped(tmp_path: Path) -> None:
    with job(4096) as running:
        with pytest.raises(StorageError):
            running.checkpoint(tmp_path / "missing" / "i", newest=True)
        running.checkpoint(tmp_path / "i", newest=True)
        assert (running.statistics.taken, running.statistics.failed, running.statistics.dropped) == (1, 1, 0)


@pytest.mark.slow
def test_no_image_waits_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are asked for meanwhile: a worker holds the image that is written, and no other."""
    monkeypatch.setenv("WASMCKPT_SLOW", "image.write:0.01")
    size = 32 * MIB
    with job(size) as running:
        until_it_turns(running, tmp_path / "i")
        before = psutil.Process(running.pid).memory_info().rss
        highest = 0
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                try:
                    running.checkpoint(tmp_path / f"{threading.get_ident()}", patience=60, newest=True)
                except Superseded:
                    pass

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + by_tier(check=2, test=3, soak=10)
        while time.monotonic() < deadline:
            highest = max(highest, psutil.Process(running.pid).memory_info().rss)
            time.sleep(0.005)
        over.set()
        for thread in threads:
            thread.join()
        assert running.statistics.dropped > running.statistics.taken
        # The copy as it is read, and what of it goes into the image, which replaces it piece by piece.
        assert highest - before < 2.2 * size
        assert not any(psutil.Process(running.pid).children())


def test_a_turn() -> None:
    turn = Turn()
    with turn.taken(0):
        with pytest.raises(RetryLater, match="under way"), turn.taken(0):
            pass
        with pytest.raises(RetryLater, match="under way"), turn.taken(0.01, newest=True):
            pass
    with pytest.raises(OSError), turn.taken(0, newest=True):
        raise OSError
    with turn.taken(0, newest=True):
        pass
    assert issubclass(Superseded, RetryLater)
