"""Snapshots by fork: the source never notices, the images are right, nothing is done twice, no copy is left."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

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
    longer,
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
        snapshots: list[tuple[Snapshot, int, int]] = []
        with suppress(JobEnded), closing(ForkSnapshotter(source.live.program, source.thread_id)) as forks:
            while len(snapshots) < 10:
                time.sleep(draw.random() * 0.02)
                before = len(source.log)
                snapshots.append((forks.snapshot(), before, len(source.log)))
        assert source.result() == results
        assert source.log == undisturbed.log
        for snapshot, before, after in draw.sample(snapshots, min(len(snapshots), by_tier(check=2, test=3, soak=4))):
            again = Life(draw.choice(engines), MIXER, image=snapshot.image)
            assert again.result() == results
            skipped = len(undisturbed.log) - len(again.log)
            assert again.log == undisturbed.log[skipped:]
            assert before <= skipped <= after
        taken += len(snapshots)
        assert children() == set()


def _ask(source: Life, way: Way, taken: list[Snapshot], problems: list[BaseException]) -> None:
    """For three images, one after the other."""
    try:
        for _ in range(3):
            taken.append(source.live.snapshot(60, way))
    except JobEnded:
        pass
    except BaseException as problem:
        problems.append(problem)


@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_two_requests_at_once_are_both_served(engine: Engine, way: Way) -> None:
    """Four threads ask as fast as they can; every image is right."""
    # Long enough for a dozen copies of a process as big as a whole run of the tests is (30 ms each).
    for turns in longer((10 if engine.name in COMPILERS else by_tier(check=1, test=2, soak=2)) * TURNS[engine.name]):
        results = Life(engine, MIXER, (turns, 3_000)).result()
        source = Life(engine, MIXER, (turns, 3_000))
        taken: list[Snapshot] = []
        problems: list[BaseException] = []
        threads = [threading.Thread(target=_ask, args=(source, way, taken, problems)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert source.result() == results
        assert problems == []
        if len(taken) >= 4:
            break
    assert len(taken) >= 4
    for snapshot in taken[: by_tier(check=2, test=4, soak=12)]:
        assert Life(engine, MIXER, image=snapshot.image).result() == results
    assert children() == set()


def _asleep(engine: Engine, way: Way, seconds: float) -> str:
    """Images of a sleep when two thirds of it have passed; says what took longer than it should."""
    sleep = (int(seconds * 1000),)
    out, in_ = os.pipe()
    began = time.perf_counter()
    source = Life(engine, SLEEPER, sleep, config=WasiConfig(stdout=in_))
    program = source.live.program
    wait_until(lambda: (program.in_host and program.host_calls == 2) or program.phase is Phase.ENDED)
    time.sleep(seconds * 2 / 3)
    images: list[Image] = []
    late = "the images"
    with suppress(JobEnded):
        images += [source.live.snapshot(60, way).image for _ in range(2)]
        late = "" if time.perf_counter() - began < seconds else late
    assert source.result() == (1,)
    took = time.perf_counter() - began
    assert took >= seconds
    if took >= seconds * 5 / 3:
        late = late or "the source"
    os.close(in_)
    assert os.read(out, 100) == b"ab"
    os.close(out)
    for image in images:
        out, in_ = os.pipe()
        began = time.perf_counter()
        again = Life(engine, SLEEPER, image=image, config=WasiConfig(stdout=in_))
        assert again.result() == (1,)
        if time.perf_counter() - began >= seconds:  # as long as a new sleep
            late = late or "an image"
        os.close(in_)
        assert os.read(out, 100) == b"b"
        os.close(out)
    return late


@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_a_sleeping_guest_sleeps_on_and_its_image_sleeps_the_rest(engine: Engine, way: Way) -> None:
    """The snapshot is there long before the sleep ends; neither life sleeps anew; each writes its output once."""
    for seconds in (2.4, 4.8, 9.6):  # longer where the machine was too busy to tell
        late = _asleep(engine, way, seconds)
        if not late:
            break
    assert not late
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
        snapshots.append(source.live.snapshot(60, way))
        os.write(writing, data[start : start + 96])
        snapshots.append(source.live.snapshot(60, way))
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
    deep = 0
    with suppress(JobEnded):  # a busy machine: fewer, then
        while deep < 5:
            frames = source.live.snapshot(60, "fork").image.frames
            assert len(frames) <= depth + 2
            deep += len(frames) == depth + 2  # else it is on its way
    assert deep
    want = (depth * (depth + 1) // 2 & 0xFFFF_FFFF,)
    assert source.result() == want
    assert children() == set()


@pytest.mark.slow
def test_during_growth(engine: Engine, engines: list[Engine]) -> None:
    """The image's memory is as large as at its moment, whatever the source has grown to meanwhile."""
    pages = 200
    want = ((pages * (pages + 1) // 2 + 2 * pages) * (pages + 1) & 0xFFFF_FFFF,)
    for turns in longer(TURNS[engine.name] // (2 if engine.name in COMPILERS else 20)):
        source = Life(engine, GROWING, (pages, turns))
        snapshots: list[Snapshot] = []
        with suppress(JobEnded):
            while len(snapshots) < 12:
                time.sleep(0.01)
                snapshots.append(source.live.snapshot(60, "fork"))
        assert source.result() == want
        if len({s.image.memories[0].pages for s in snapshots}) > 1:
            break
    assert len({s.image.memories[0].pages for s in snapshots}) > 1
    for number, snapshot in enumerate(snapshots[::3]):
        assert Life(engines[number % len(engines)], GROWING, image=snapshot.image).result() == want


@pytest.mark.slow
def test_a_gibibyte_with_few_pages(engine: Engine) -> None:
    """Only what is there is read; the image is small."""
    for turns in longer(TURNS[engine.name] * 12):
        source = Life(engine, HUGE, (turns,))
        snapshots: list[Snapshot] = []
        with suppress(JobEnded):
            while len(snapshots) < 3:
                snapshots.append(source.live.snapshot(60, "fork"))
        results = source.result()
        if snapshots:
            break
    assert snapshots
    for snapshot in snapshots:
        assert sum(len(data) for _, data in snapshot.image.memories[0].data) <= 7 * 4096
    assert Life(engine, HUGE, image=snapshots[-1].image).result() == results


def test_a_guest_that_traps_traps_alone(engine: Engine) -> None:
    """Copies that run into the trap are nobody's business; the source meets it itself."""
    source = Life(engine, TRAPPING, (TURNS[engine.name] * 5,))
    with pytest.raises(JobEnded):  # noqa: PT012
        while True:
            source.live.snapshot(60, "fork")
    with pytest.raises(GuestTrap) as caught:
        source.result()
    assert caught.value.fields["kind"] == "unreachable"
    assert children() == set()


def test_a_copy_of_a_thread_that_has_ended(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program ended right after the fork, before anybody got a processor to see the copy: it is not left behind."""
    seen: list[bool] = []

    def await_child(self: ForkSnapshotter, before: frozenset[int], sent: float) -> int:
        seen.append(True)
        wait_until(lambda: not Path(f"/proc/self/task/{self._thread}").exists())
        return 0

    monkeypatch.setattr(ForkSnapshotter, "_await_child", await_child)
    for turns in longer(TURNS[engine.name]):
        source = Life(engine, MIXER, (turns, 0))
        with suppress(JobEnded):
            source.live.snapshot(60, "fork")
        source.result()
        assert children() == set()
        if seen:
            break
    assert seen


@pytest.mark.slow
def test_imports_called_through_a_table(engine: Engine) -> None:
    """Such a call cannot be repeated, so no image may say so; the snapshot is taken another way."""
    for calls in longer(400_000):
        source = Life(engine, TABLE_CALLER, (calls,))
        snapshots: list[Snapshot] = []
        with suppress(JobEnded):
            while len(snapshots) < 5:
                snapshots.append(source.live.snapshot(60, "auto"))
        assert source.result() == (calls,)
        assert source.log == list(range(calls))
        if snapshots:
            break
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
    for turns in longer(TURNS[engine.name]):
        undisturbed = Life(engine, MIXER, (turns, 10_000))
        results = undisturbed.result()
        source = Life(engine, MIXER, (turns, 10_000))
        snapshots: list[Snapshot] = []
        with suppress(JobEnded):
            while len(snapshots) < by_tier(check=5, test=12, soak=40):
                snapshots.append(source.live.snapshot(60, "in-place"))
        assert source.result() == results
        assert source.log == undisturbed.log
        if len(snapshots) >= 3:
            break
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
    monkeypatch.setattr(Program, "go_on_here", lambda self: False)
    images: list[Image] = []
    for turns in longer(TURNS[engine.name]):
        results = Life(engine, MIXER, (turns, 10_000)).result()
        source = Life(engine, MIXER, (turns, 10_000), start=False)
        real, tries = source.restore, iter(range(3))

        def restore(
            image: Image, before: Program | None = None, *, tries: Iterator[int] = tries,
            real: Callable[..., Program] = real,
        ) -> Program:
            if next(tries) < 2:
                raise problem
            return real(image, before)

        source.live._restore = restore  # what the adapter does then cannot be brought about at will
        source.start()
        with suppress(JobEnded):
            images.append(source.live.snapshot(60, "in-place").image)
        assert source.result() == results
        if images:
            break
    assert next(tries, None) is None
    assert Life(engine, MIXER, image=images[0]).result() == results
