"""Every backend, every way in which a memory changes: no write is missed. What a backend cannot do here says why."""

from __future__ import annotations

import ctypes
import os
import random

import pytest

from wasmckpt.dirty import BACKENDS, SoftDirty, Tracker, TrackingLost, Uffd, choose, count, kernel, probe
from wasmckpt.errors import UsageError

from ...support.tiers import by_tier
from .area import Area, pages_of

VERDICTS = {name: probe(name) for name in BACKENDS}
WORKING = [name for name, verdict in VERDICTS.items() if verdict.works]


@pytest.fixture(params=WORKING)
def backend(request: pytest.FixtureRequest) -> type[Tracker]:
    return BACKENDS[request.param]


def test_something_works_and_the_choice_is_the_best_of_it() -> None:
    assert "compare" in WORKING
    with choose([]) as tracker:
        assert tracker.name == WORKING[0]
    for name, verdict in VERDICTS.items():
        if verdict.works:
            choose([], name).close()
        else:
            assert verdict.why
            with pytest.raises(TrackingLost, match=name):
                choose([], name)
    with pytest.raises(UsageError, match="uffd, soft-dirty, compare"):
        choose([], "guess")


@pytest.mark.parametrize("skew", [0, 16, 40, 4088], ids=lambda n: f"at byte {n} of a page")
def test_what_is_written_is_told_and_nothing_that_is_far_from_it(backend: type[Tracker], skew: int) -> None:
    draw = random.Random(skew)
    area = Area(300, skew=skew)
    with backend([area.extent]) as tracker:
        assert tracker.collect() == [((0, 300),)]
        assert tracker.collect() == [()]
        for _ in range(by_tier(check=20, test=100, soak=1000)):
            pages = set(draw.sample(range(300), draw.randrange(1, 40)))
            for page in pages:
                area.write(page)
            told = pages_of(tracker.collect()[0])
            assert told >= pages
            assert all({page - 1, page, page + 1} & pages for page in told)
            if not skew:
                assert told == pages


def test_growth_in_place(backend: type[Tracker]) -> None:
    """New pages count as written whether or not anybody wrote them; what was known of the others stays."""
    area = Area(32)
    with backend([area.extent]) as tracker:
        tracker.collect()
        area.write(3)
        area.grow(16)
        area.write(40)
        told = pages_of(tracker.collect()[0])
        assert told == {3, *range(32, 48)}
        area.write(47)
        assert tracker.collect() == [((47, 1),)]


@pytest.mark.parametrize("copy", [False, True], ids=["mremap", "copy"])
@pytest.mark.parametrize("occupy", [False, True], ids=["hole", "occupied"])
def test_a_memory_that_moves_counts_as_written(backend: type[Tracker], copy: bool, occupy: bool) -> None:
    """Its old place may be a hole, which no kernel reports, or something else's by now."""
    area = Area(64)
    with backend([area.extent]) as tracker:
        tracker.collect()
        area.write(5)
        area.move(occupy=occupy, copy=copy)
        area.write(9)
        told = pages_of(tracker.collect()[0])
        assert told == set(range(64)) if backend.name != "compare" else told == {5, 9}
        area.write(11)
        assert 11 in pages_of(tracker.collect()[0])
        assert tracker.collect() == [()]


def test_a_memory_that_moves_between_the_look_at_its_place_and_the_scan() -> None:
    """The scan of a hole says that nothing was written: the place is asked for again after it."""
    if "uffd" not in WORKING:
        pytest.skip(f"uffd: {VERDICTS['uffd'].why}")
    area = Area(64)
    moves = [False]

    def extent() -> tuple[int, int]:
        found = area.extent()
        if moves[0]:
            moves[0] = False
            area.write(7)
            area.move()
        return found

    with Uffd([extent]) as tracker:
        tracker.collect()
        moves[0] = True
        assert tracker.collect() == [((0, 64),)]


def test_a_memory_that_is_being_moved(backend: type[Tracker]) -> None:
    """The runtime has moved it and not stored yet where it is: nothing may be missed, and nobody may look there."""
    area = Area(64)
    stale: list[tuple[int, int]] = []
    with backend([lambda: stale[0] if stale else area.extent()]) as tracker:
        tracker.collect()
        area.write(7)
        stale.append(area.extent())
        area.move()
        assert tracker.collect() == [((0, 64),)]
        stale.clear()
        assert tracker.collect() == [((0, 64),)]
        area.write(9)
        assert tracker.collect() == [((9, 1),)]


def test_a_memory_that_shrinks_counts_as_written(backend: type[Tracker]) -> None:
    """No guest can do that; a new instance at the same place looks like it."""
    area = Area(64)
    with backend([area.extent]) as tracker:
        tracker.collect()
        area.pages = 32
        assert tracker.collect() == [((0, 32),)]


def test_pages_that_are_thrown_away(backend: type[Tracker]) -> None:
    """Soft-dirty misses them, as its page says: nothing of ours does that to a memory that is tracked."""
    area = Area(16)
    for page in range(16):
        area.write(page, 1)
    with backend([area.extent]) as tracker:
        tracker.collect()
        area.discard(4)
        assert pages_of(tracker.collect()[0]) == (set() if backend is SoftDirty else {4})


def test_what_the_kernel_writes_counts(backend: type[Tracker]) -> None:
    """A read into the guest's memory, and a write through /proc."""
    area = Area(16)
    reading, writing = os.pipe()
    with backend([area.extent]) as tracker, open("/proc/self/mem", "r+b", buffering=0) as memory:
        tracker.collect()
        base = area.extent()[0]
        os.write(writing, b"x")
        view = (ctypes.c_char * 1).from_address(base + 2 * 4096)
        assert os.readv(reading, [view]) == 1
        memory.seek(base + 7 * 4096)
        memory.write(b"y")
        assert pages_of(tracker.collect()[0]) == {2, 7}
    os.close(reading)
    os.close(writing)


def test_huge_pages(backend: type[Tracker]) -> None:
    """More may be told, nothing may be missed."""
    area = Area(1024, huge=True)
    for page in range(1024):
        area.write(page)
    with backend([area.extent]) as tracker:
        tracker.collect()
        for pages in ({3}, {511, 512}, {700, 701, 1023}):
            for page in pages:
                area.write(page)
            assert pages_of(tracker.collect()[0]) >= pages


def test_several_memories_and_an_empty_one(backend: type[Tracker]) -> None:
    areas = [Area(16), Area(0), Area(40, skew=8)]
    with backend([area.extent for area in areas]) as tracker:
        assert [count(runs) for runs in tracker.collect()] == [16, 0, 40]
        areas[2].write(39)
        areas[1].grow(16)
        told = [pages_of(runs) for runs in tracker.collect()]
        assert told[:2] == [set(), set(range(16))]
        assert told[2] >= {39}
        areas[0].write(1)
        assert [pages_of(runs) for runs in tracker.collect()] == [{1}, set(), set()]


def test_forgetting_tells_everything_again(backend: type[Tracker]) -> None:
    area = Area(16)
    with backend([area.extent]) as tracker:
        tracker.collect()
        tracker.forget()
        assert tracker.collect() == [((0, 16),)]
        assert tracker.collect() == [()]


def test_closing_leaves_the_memory_alone(backend: type[Tracker]) -> None:
    area = Area(16)
    tracker = backend([area.extent])
    tracker.collect()
    tracker.close()
    tracker.close()
    area.write(2)
    with backend([area.extent]) as again:
        assert again.collect() == [((0, 16),)]


@pytest.mark.parametrize("regions", [1, 2, 7])
def test_a_scan_that_ends_early_is_taken_up_again(monkeypatch: pytest.MonkeyPatch, regions: int) -> None:
    if "uffd" not in WORKING:
        pytest.skip(f"uffd: {VERDICTS['uffd'].why}")
    monkeypatch.setattr(kernel, "_REGIONS", regions)
    area = Area(64)
    with Uffd([area.extent]) as tracker:
        tracker.collect()
        for page in range(0, 64, 2):
            area.write(page)
        assert pages_of(tracker.collect()[0]) == set(range(0, 64, 2))


def test_somebody_else_follows_the_memory() -> None:
    if "uffd" not in WORKING:
        pytest.skip(f"uffd: {VERDICTS['uffd'].why}")
    area = Area(16)
    with Uffd([area.extent]) as first, Uffd([area.extent]) as second:
        first.collect()
        with pytest.raises(TrackingLost):
            second.collect()
        area.write(3)
        assert first.collect() == [((3, 1),)]


def test_bits_that_are_in_use() -> None:
    try:
        first = SoftDirty([])
    except TrackingLost as refusal:
        pytest.skip(str(refusal))
    with first, pytest.raises(TrackingLost, match="in use"):
        SoftDirty([])
    SoftDirty([]).close()


def test_a_kernel_that_takes_the_request_and_sets_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a write tells: no error, no version does."""
    monkeypatch.setattr(kernel, "soft_dirty", lambda *_: iter(()))
    verdict = probe("soft-dirty")
    assert not verdict.works
    assert "tells of no write" in verdict.why


def test_a_kernel_without_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_USERFAULTFD", {})
    assert not probe("uffd").works
    with choose([]) as tracker:
        assert tracker.name in ("soft-dirty", "compare")
