"""A program that is held stands still where it is, with all its frames, and goes on as if nothing had been."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

import pytest

from wasmckpt.errors import JobEnded
from wasmckpt.host import WasiConfig
from wasmckpt.runtimes import Engine
from wasmckpt.snapshot import fork
from wasmckpt.snapshot.fork import ForkRefused, ForkSnapshotter
from wasmckpt.snapshot.fork_copy import Copy
from wasmckpt.snapshot.fork_stub import TICK, Stub
from wasmckpt.snapshot.proc import ForkHandler, ThreadFiles
from wasmckpt.snapshot.program import Phase

from ...support.processes import children
from ...support.tiers import by_tier
from .fork_guests import MIXER, READER, SLEEPER, TURNS, Life, longer, wait_until

LEASE = 60.0
"""Seconds; longer than anything is waited for."""
pytestmark = pytest.mark.skipif(not ForkHandler().stub.can_hold, reason="no handler that stands still on this machine")


def moved_bytes(life: Life, seconds: float) -> bool:
    """Whether the guest writes to its memory in this time."""
    base, _ = life.live.program.view.memory_pages(0)
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        seen = []
        for _ in range(2):
            memory.seek(base)
            seen.append(memory.read(1 << 20))
            time.sleep(seconds)
    return seen[0] != seen[1]


def moves(life: Life, seconds: float = 0.01) -> bool:
    """Wait until the guest goes on. False: it was soon over, and nobody has seen it."""
    found = False

    def went_on() -> bool:
        nonlocal found
        found = moved_bytes(life, seconds)
        return found or life.live.program.phase is Phase.ENDED

    wait_until(went_on)
    return found


@pytest.mark.parametrize("every", [0, 1_000, 60_000], ids=["never", "often", "sometimes"])
def test_it_stands_still_until_it_is_let_go(engine: Engine, engines: list[Engine], every: int) -> None:
    """At random moments, in guest code and in host functions: neither life misses or doubles anything."""
    wanted = by_tier(check=4, test=4, soak=50)
    draw = random.Random(engine.name + str(every))
    undisturbed = Life(engine, MIXER, (TURNS[engine.name], every))
    results = undisturbed.result()
    ways = set()
    held = 0
    while held < wanted:
        source = Life(engine, MIXER, (TURNS[engine.name], every))
        images = []
        with suppress(JobEnded), closing(ForkSnapshotter(source.live.program, source.thread_id)) as forks:
            while held < wanted:
                time.sleep(draw.random() * 0.02)
                snapshot = forks.hold()
                at = len(source.log)
                assert forks.keep()
                assert not moved_bytes(source, 0.01)
                assert len(source.log) == at
                ways.add(snapshot.way)
                assert snapshot.way != "signal" or forks._handler.stub.was_in_guest
                images.append((snapshot.image, at))
                held += 1
                forks.let_go()
        assert source.result() == results
        assert source.log == undisturbed.log
        for image, at in draw.sample(images, min(3, len(images))):
            again = Life(draw.choice(engines), MIXER, image=image)
            assert again.result() == results
            assert again.log == undisturbed.log[at:]
    assert ways <= {"signal", "entry"}
    assert "signal" in ways or every
    assert children() == set()


def test_it_is_not_held_where_locks_may_be_on_their_way_to_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another try is made; in the end the program goes on, and can be held in place."""
    answers = iter([False, False])
    monkeypatch.setattr(Stub, "was_in_guest", property(lambda stub: next(answers, True)))
    source = Life(engine, MIXER, (TURNS[engine.name], 0))
    with closing(ForkSnapshotter(source.live.program, source.thread_id)) as forks:
        assert forks.hold().tries > 2
        forks.let_go()
        monkeypatch.setattr(Stub, "was_in_guest", False)
        with suppress(JobEnded), pytest.raises(ForkRefused, match="none of 8 copies"):
            forks.hold()
        source.result()
    assert children() == set()


def test_where_a_thread_stood() -> None:
    """One that waits for a lock is in the C library."""
    handler, woken, asleep = ForkHandler(), threading.Event(), threading.Event()

    def wait() -> None:
        asleep.set()
        woken.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    asleep.wait()
    time.sleep(0.05)
    assert thread.native_id is not None
    files = ThreadFiles(thread.native_id)
    handler.arm()
    try:
        handler.stub.let_go()
        assert thread.ident is not None
        signal.pthread_kill(thread.ident, handler.number)
        wait_until(lambda: bool(files.children()))
        (copy,) = files.children()
        Copy(copy).close()
    finally:
        handler.disarm()
        woken.set()
        thread.join()
        files.close()
    assert not handler.stub.was_in_guest


def test_it_is_held_in_a_wait(engine: Engine) -> None:
    """The sleep ends while the program is held: it stands still all the same, and then finds that it has slept."""
    out, in_ = os.pipe()
    began = time.perf_counter()
    source = Life(engine, SLEEPER, (3000,), config=WasiConfig(stdout=in_))
    wait_until(lambda: source.live.program.in_host and source.live.program.host_calls == 2)
    forks = ForkSnapshotter(source.live.program, source.thread_id)
    assert forks.hold().way == "wait"
    assert forks.keep()
    time.sleep(max(0.0, began + 3.4 - time.perf_counter()))
    assert os.read(out, 100) == b"a"
    began = time.perf_counter()
    forks.let_go()
    assert source.result() == (1,)
    assert time.perf_counter() - began < 3.0  # as long as a new sleep
    forks.close()
    os.close(in_)
    assert os.read(out, 100) == b"b"
    os.close(out)
    assert children() == set()


def test_a_lease_that_runs_out_in_a_wait(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody keeps it, so it waits on by itself; who comes later is told."""
    monkeypatch.setattr(fork, "_LEASE_FOR_IMAGE", 0.05)
    reading, writing = os.pipe()
    source = Life(engine, READER, config=WasiConfig(stdin=reading, stdout=os.open(os.devnull, os.O_WRONLY)))
    wait_until(lambda: source.live.program.in_host and source.live.program.host_calls == 1)
    forks = ForkSnapshotter(source.live.program, source.thread_id)
    assert forks.hold().way == "wait"
    os.write(writing, b"a")
    os.close(writing)
    assert source.result() == (ord("a"),)
    assert not forks.keep()
    forks.let_go()
    forks.close()
    assert children() == set()


def test_a_lease_that_runs_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever hung meanwhile, the program goes on by itself, and nobody takes it for held."""
    monkeypatch.setattr(fork, "_LEASE_FOR_IMAGE", 3 * TICK)
    for turns in longer(2 * TURNS[engine.name]):
        source = Life(engine, MIXER, (turns, 0))
        moved = False
        with suppress(JobEnded), closing(ForkSnapshotter(source.live.program, source.thread_id)) as forks:
            forks.hold()
            moved = moves(source)
            assert not forks.keep()
            forks.let_go()
        assert source.result() == Life(engine, MIXER, (turns, 0)).result()
        if moved:
            break
    assert moved
    assert children() == set()


def test_a_copy_that_fails_does_not_keep_the_source(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try that comes to nothing lets the program go on before the next."""
    monkeypatch.setattr(fork, "_LEASE", 60.0)
    tries: list[bool] = []
    real = ForkSnapshotter._read_out

    def read_out(self: ForkSnapshotter, *args: object) -> object:
        tries.append(moved_bytes(source, 0.005))
        return "not this time" if len(tries) < 4 else real(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(ForkSnapshotter, "_read_out", read_out)
    for turns in longer(2 * TURNS[engine.name]):
        source = Life(engine, MIXER, (turns, 0))
        moved = False
        tries.clear()
        with suppress(JobEnded), closing(ForkSnapshotter(source.live.program, source.thread_id)) as forks:
            assert forks.hold().tries >= 4  # more, if a copy was of no use by itself
            assert tries == [False] * len(tries)
            forks.let_go()
            moved = moves(source)
        assert source.result() == Life(engine, MIXER, (turns, 0)).result()
        if moved:
            break
    assert moved
    assert children() == set()


def test_a_wish_that_comes_while_it_forks_is_for_the_next_one() -> None:
    """The copy may have been seen, read and killed before its parent has got as far as to stand still."""
    wishes: list[Callable[[], None]] = []

    def fork() -> int:
        wishes.pop()()
        return 1  # as in the parent

    native = ctypes.CFUNCTYPE(ctypes.c_int)(fork)
    stub = Stub(ctypes.cast(native, ctypes.c_void_p).value or 0, os.getpid())
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(stub.address)

    def handled(wish: Callable[[], None]) -> threading.Thread:
        wishes.append(wish)
        thread = threading.Thread(target=handler, args=(0,), daemon=True)
        thread.start()
        return thread

    def another() -> None:
        stub.let_go()
        stub.hold(LEASE)

    stub.hold(LEASE)
    thread = handled(another)
    thread.join(LEASE / 2)
    assert not thread.is_alive(), "it stands there for the next one"
    thread = handled(lambda: None)
    thread.join(0.2)
    assert thread.is_alive(), "it does not stand still at all"
    stub.let_go()
    thread.join(LEASE / 2)
    assert not thread.is_alive()


@pytest.mark.parametrize("tries", [by_tier(check=2, test=10, soak=100)])
def test_one_that_is_let_go_is_not_held_by_the_next_wish(engine: Engine, tries: int) -> None:
    """It may not even have woken up by then. It would stand there until the lease is over, deaf to the next signal."""
    for turns in longer(4 * TURNS[engine.name]):
        source = Life(engine, MIXER, (turns, 0))
        done = 0
        with suppress(JobEnded), closing(ForkSnapshotter(source.live.program, source.thread_id)) as forks:
            while done < tries:
                assert forks.hold().way == "signal"
                assert forks.keep()
                stub = forks._handler.stub
                stub.let_go()
                stub.hold(LEASE)
                moved = moves(source, 0.001)
                assert stub.prolong(), "it went on when the lease was over"
                forks.let_go()
                done += moved
        assert source.result() == Life(engine, MIXER, (turns, 0)).result()
        if done == tries:
            break
    assert done == tries
    assert children() == set()
