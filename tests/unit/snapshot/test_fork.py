"""Snapshots by fork: the source never notices, the images are right, nothing is done twice, no copy is left."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from wasmckpt.errors import GuestTrap, JobEnded, RetryLater
from wasmckpt.formats import Image
from wasmckpt.host import WasiConfig
from wasmckpt.runtimes import Engine
from wasmckpt.snapshot.fork import ForkSnapshotter
from wasmckpt.snapshot.fork_in_place import Way
from wasmckpt.snapshot.fork_result import Snapshot
from wasmckpt.snapshot.program import Phase, Program

from ...support.processes import children
from ...support.tiers import by_tier
from .fork_guests import (
    COMPILERS,
    DEEP,
    GROWING,
    HUGE,
    MIXER,
    READER,
    SLEEPER,
    TABLE_CALLER,
    TRAPPING,
    TURNS,
    Life,
    pipe_with,
    wait_until,
)


@pytest.mark.parametrize("every", [0, 1_000, 60_000], ids=["never", "often", "sometimes"])
def test_images_at_random_moments_end_as_the_source_does(engine: Engine, engines: list[Engine], every: int) -> None:
    """However often the guest calls out: the image's log goes on exactly where the image was taken."""
    wanted = by_tier(check=4, test=8, soak=50)
    turns = TURNS[engine.name]
    draw = random.Random(engine.name + str(every))
    undisturbed = Life(engine, MIXER, (turns, every))
    results = undisturbed.result()
    taken = 0
    while taken < wanted:
        source = Life(engine, MIXER, (turns, every))
        forks = ForkSnapshotter(source.live.program, source.thread_id)
        snapshots: list[tuple[Snapshot, int, int]] = []
        try:
            while len(snapshots) < 10:
                time.sleep(draw.random() * 0.02)
                before = len(source.log)
                snapshots.append((forks.snapshot(), before, len(source.log)))
        except JobEnded:
            pass
        assert source.result() == results
        assert source.log == undisturbed.log
        forks.close()
        for snapshot, before, after in draw.sample(snapshots, min(len(snapshots), by_tier(check=2, test=3, soak=4))):
            again = Life(draw.choice(engines), MIXER, image=snapshot.image)
            assert again.result() == results
            skipped = len(undisturbed.log) - len(again.log)
            assert again.log == undisturbed.log[skipped:]
            assert before <= skipped <= after
        taken += len(snapshots)
        assert children() == set()


@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_two_requests_at_once_are_both_served(engine: Engine, way: Way) -> None:
    """Four threads ask as fast as they can; every image is right."""
    # Long enough for a dozen copies of a process as big as a whole run of the tests is (30 ms each).
    turns = (10 if engine.name in COMPILERS else by_tier(check=1, test=2, soak=2)) * TURNS[engine.name]
    results = Life(engine, MIXER, (turns, 3_000)).result()
    source = Life(engine, MIXER, (turns, 3_000))
    taken: list[Snapshot] = []
    problems: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in range(3):
                taken.append(source.live.snapshot(60, way))
        except JobEnded:
            pass
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.result() == results
    assert problems == []
    assert len(taken) >= 4
    for snapshot in taken[: by_tier(check=2, test=4, soak=12)]:
        assert Life(engine, MIXER, image=snapshot.image).result() == results
    assert children() == set()


@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_a_sleeping_guest_sleeps_on_and_its_image_sleeps_the_rest(engine: Engine, way: Way) -> None:
    """The snapshot is there long before the sleep ends; neither life sleeps anew; each writes its output once."""
    out, in_ = os.pipe()
    began = time.perf_counter()
    source = Life(engine, SLEEPER, (2400,), config=WasiConfig(stdout=in_))
    wait_until(lambda: source.live.program.in_host and source.live.program.host_calls == 2)
    time.sleep(1.6)
    images = [source.live.snapshot(10, way).image for _ in range(2)]
    assert time.perf_counter() - began < 2.4
    assert source.result() == (1,)
    assert 2.4 <= time.perf_counter() - began < 4.0
    os.close(in_)
    assert os.read(out, 100) == b"ab"
    os.close(out)
    for image in images:
        out, in_ = os.pipe()
        began = time.perf_counter()
        again = Life(engine, SLEEPER, image=image, config=WasiConfig(stdout=in_))
        assert again.result() == (1,)
        assert time.perf_counter() - began < 2.4  # as long as a new sleep
        os.close(in_)
        assert os.read(out, 100) == b"b"
        os.close(out)
    assert children() == set()


@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_a_guest_that_waits_for_input_loses_and_doubles_nothing(engine: Engine, way: Way) -> None:
    """Snapshots while it waits in a read of a pipe, and while bytes arrive."""
    data = bytes(range(256)) * 3
    nowhere = os.open(os.devnull, os.O_WRONLY)
    want = Life(engine, READER, config=WasiConfig(stdin=pipe_with(data), stdout=nowhere)).result()
    reading, writing = os.pipe()
    out, in_ = os.pipe()
    source = Life(engine, READER, config=WasiConfig(stdin=reading, stdout=in_))
    snapshots: list[Snapshot] = []
    for start in range(0, len(data), 96):
        snapshots.append(source.live.snapshot(10, way))
        os.write(writing, data[start : start + 96])
        snapshots.append(source.live.snapshot(10, way))
    os.close(writing)
    assert source.result() == want
    os.close(in_)
    assert os.read(out, 10_000) == data
    for snapshot in snapshots:
        described = {d["number"]: d for d in snapshot.image.host["descriptors"]}  # type: ignore[attr-defined]
        consumed, produced = described[0]["consumed"], described[1]["produced"]
        out, in_ = os.pipe()
        again = Life(engine, READER, image=snapshot.image,
                     config=WasiConfig(stdin=pipe_with(data[consumed:]), stdout=in_))
        assert again.result() == want
        os.close(in_)
        assert os.read(out, 10_000) == data[produced:]
        os.close(out)
    assert children() == set()


def test_near_the_end_of_the_stack(engine: Engine, engines: list[Engine]) -> None:
    """At 98 % of the depth that the program reaches, the copy still unwinds and the source does not trap."""
    low, high = 100, 10_000_000
    while high - low > low // 200:
        middle = (low + high) // 2
        try:
            Life(engine, DEEP, (middle, 1)).result()
            low = middle
        except GuestTrap:
            high = middle
    depth = low * 98 // 100
    source = Life(engine, DEEP, (depth, TURNS[engine.name] * (140 if engine.name in COMPILERS else 20)))
    time.sleep(0.1)
    snapshots: list[Snapshot] = []
    try:
        while len(snapshots) < 5:
            snapshots.append(source.live.snapshot(20, "fork"))
    except JobEnded:
        pass  # a busy machine: fewer, then
    assert snapshots
    want = (depth * (depth + 1) // 2 & 0xFFFF_FFFF,)
    assert source.result() == want
    for snapshot in snapshots:
        assert len(snapshot.image.frames) == depth + 2
    assert children() == set()


@pytest.mark.slow
def test_during_growth(engine: Engine, engines: list[Engine]) -> None:
    """The image's memory is as large as at its moment, whatever the source has grown to meanwhile."""
    pages, turns = 200, TURNS[engine.name] // (2 if engine.name in COMPILERS else 20)
    source = Life(engine, GROWING, (pages, turns))
    snapshots: list[Snapshot] = []
    try:
        while len(snapshots) < 12:
            time.sleep(0.01)
            snapshots.append(source.live.snapshot(10, "fork"))
    except JobEnded:
        pass
    want = ((pages * (pages + 1) // 2 + 2 * pages) * (pages + 1) & 0xFFFF_FFFF,)
    assert source.result() == want
    assert len({s.image.memories[0].pages for s in snapshots}) > 1
    for number, snapshot in enumerate(snapshots[::3]):
        assert Life(engines[number % len(engines)], GROWING, image=snapshot.image).result() == want


@pytest.mark.slow
def test_a_gibibyte_with_few_pages(engine: Engine) -> None:
    """Only what is there is read; the image is small."""
    source = Life(engine, HUGE, (TURNS[engine.name] * 12,))
    snapshots: list[Snapshot] = []
    try:
        while len(snapshots) < 3:
            snapshots.append(source.live.snapshot(20, "fork"))
    except JobEnded:
        pass
    results = source.result()
    assert snapshots
    for snapshot in snapshots:
        assert sum(len(data) for _, data in snapshot.image.memories[0].data) <= 7 * 4096
    assert Life(engine, HUGE, image=snapshots[-1].image).result() == results


def test_a_guest_that_traps_traps_alone(engine: Engine) -> None:
    """Copies that run into the trap are nobody's business; the source meets it itself."""
    source = Life(engine, TRAPPING, (TURNS[engine.name] * 5,))
    with pytest.raises(JobEnded):  # noqa: PT012
        while True:
            source.live.snapshot(10, "fork")
    with pytest.raises(GuestTrap) as caught:
        source.result()
    assert caught.value.fields["kind"] == "unreachable"
    assert children() == set()


@pytest.mark.slow
def test_imports_called_through_a_table(engine: Engine) -> None:
    """Such a call cannot be repeated, so no image may say so; the snapshot is taken another way."""
    calls = 400_000
    source = Life(engine, TABLE_CALLER, (calls,))
    snapshots: list[Snapshot] = []
    try:
        while len(snapshots) < 5:
            snapshots.append(source.live.snapshot(20, "auto"))
    except JobEnded:
        pass
    assert source.result() == (calls,)
    assert source.log == list(range(calls))
    assert snapshots
    for snapshot in snapshots:
        again = Life(engine, TABLE_CALLER, image=snapshot.image)
        assert again.result() == (calls,)
        assert again.log == list(range(calls - len(again.log), calls))


def test_a_host_function_that_does_not_answer(engine: Engine) -> None:
    """Its body is never copied: the request ends in time with an error, and the program has not noticed."""
    release = threading.Event()
    log: list[int] = []

    def body(number: int) -> None:
        log.append(number)
        release.wait()

    source = Life(engine, MIXER, (3_000, 1_000), log=body)
    wait_until(lambda: log)
    with pytest.raises(RetryLater):
        source.live.snapshot(0.3, "fork")
    wait_until(lambda: children() == set())
    release.set()
    assert source.result() == Life(engine, MIXER, (3_000, 1_000)).result()
    assert log == [0, 1_000, 2_000]


def test_before_the_beginning_and_after_the_end(engine: Engine) -> None:
    """Each has its error."""
    source = Life(engine, MIXER, (1_000, 0), start=False)
    with pytest.raises(RetryLater):
        source.live.snapshot(0.05)
    source.start()
    wait_until(lambda: source.live.program.phase is Phase.ENDED)
    for way in ("fork", "in-place", "auto"):
        with pytest.raises(JobEnded):
            source.live.snapshot(1, way)
    source.result()


def test_in_place_again_and_again(engine: Engine) -> None:
    """Frozen and resumed in the same process: log and result as if undisturbed, every image right."""
    turns = TURNS[engine.name]
    undisturbed = Life(engine, MIXER, (turns, 10_000))
    results = undisturbed.result()
    source = Life(engine, MIXER, (turns, 10_000))
    snapshots: list[Snapshot] = []
    try:
        while len(snapshots) < by_tier(check=5, test=12, soak=40):
            snapshots.append(source.live.snapshot(20, "in-place"))
    except JobEnded:
        pass
    assert source.result() == results
    assert source.log == undisturbed.log
    assert len(snapshots) >= 3
    for snapshot in snapshots:
        again = Life(engine, MIXER, image=snapshot.image)
        assert again.result() == results
        assert again.log == undisturbed.log[len(undisturbed.log) - len(again.log):]


@pytest.mark.parametrize("problem", [RetryLater("no thread"), MemoryError("no memory"), OSError("no memory")])
def test_in_place_when_there_is_no_room_for_a_while(
    engine: Engine, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is needed to go on was there when it was stopped, and then is not: the program waits for it."""
    results = Life(engine, MIXER, (TURNS[engine.name], 10_000)).result()
    source = Life(engine, MIXER, (TURNS[engine.name], 10_000), start=False)
    real, tries = source.restore, iter(range(3))

    def restore(image: Image, before: Program | None = None) -> Program:
        if next(tries) < 2:
            raise problem
        return real(image, before)

    monkeypatch.setattr(Program, "go_on_here", lambda self: False)
    source.live._restore = restore  # what the adapter does then cannot be brought about at will
    source.start()
    snapshot = source.live.snapshot(20, "in-place")
    assert source.result() == results
    assert next(tries, None) is None
    assert Life(engine, MIXER, image=snapshot.image).result() == results
