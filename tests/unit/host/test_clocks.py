"""Time over a move: never backwards, whatever the other machine's clock says; sleeps go on with what remained."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from wasmckpt.host import HostClocks, RepeatCall
from wasmckpt.host.abi import EVENT_CLOCK

from .conftest import Maker
from .guests import OurGuest

SECOND = 1_000_000_000


@dataclass
class Machine:
    """A machine's clocks, under the test's control."""

    monotonic: int
    realtime: int = 1_700_000_000 * SECOND
    cpu: int = 5 * SECOND

    def clocks(self) -> HostClocks:
        return HostClocks(
            realtime=lambda: self.realtime, monotonic=lambda: self.monotonic, process_cpu=lambda: self.cpu
        )

    def pass_time(self, nanoseconds: int) -> None:
        self.monotonic += nanoseconds
        self.realtime += nanoseconds


ORIGINS = [0, 1, 10**6 * SECOND, (1 << 62)]


def monotonic(guest: OurGuest) -> int:
    errno, value = guest.clock(1)
    assert errno == 0
    return value


@pytest.mark.parametrize("clock", [2, 3])
def test_processor_time_goes_on_whichever_thread_resumes_and_takes_images(make: Maker, clock: int) -> None:
    """An image is taken by a thread that has hardly run, of a program that was resumed by one that has run long."""
    guest = make()
    readings: list[int] = []

    def hop() -> None:
        nonlocal guest
        until = time.thread_time_ns() + 20_000_000
        while time.thread_time_ns() < until:
            pass
        guest = make.move(guest)
        readings.append(guest.clock(clock)[1])

    for _ in range(3):
        apart = threading.Thread(target=hop)
        apart.start()
        apart.join()
        guest = make.move(guest)
        readings.append(guest.clock(clock)[1])
    assert len(readings) == 6
    assert readings == sorted(readings)
    assert readings[0] > 0


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("counts", [False, True])
def test_monotonic_time_goes_on(make: Maker, origin: int, counts: bool) -> None:
    source, target = Machine(1000 * SECOND), Machine(origin)
    guest = make(clocks=source.clocks())
    source.pass_time(3 * SECOND)
    before = monotonic(guest)
    target.realtime = source.realtime + 60 * SECOND
    moved = make.move(guest, clocks=target.clocks(), suspended_time_counts=counts)
    assert monotonic(moved) == before + (60 * SECOND if counts else 0)
    target.pass_time(SECOND)
    assert monotonic(moved) == before + (61 * SECOND if counts else SECOND)


def test_a_target_whose_real_time_is_behind(make: Maker) -> None:
    source, target = Machine(1000 * SECOND), Machine(5)
    guest = make(clocks=source.clocks())
    before = monotonic(guest)
    target.realtime = source.realtime - 3600 * SECOND
    moved = make.move(guest, clocks=target.clocks(), suspended_time_counts=True)
    assert monotonic(moved) == before
    assert moved.clock(0)[1] == target.realtime, "real time is the world's, not the guest's"


def test_a_thousand_moves_never_go_back(make: Maker) -> None:
    guest = make(clocks=Machine(0).clocks())
    last = monotonic(guest)
    for number in range(1000):
        machine = Machine(origin := number * 7919 % 1000 * SECOND)
        guest = make.move(guest, clocks=machine.clocks())
        machine.monotonic = origin + 10
        now = monotonic(guest)
        assert now == last + 10
        last = now


def test_processor_time_goes_on(make: Maker) -> None:
    source, target = Machine(0, cpu=100 * SECOND), Machine(0, cpu=SECOND)
    guest = make(clocks=source.clocks())
    moved = make.move(guest, clocks=target.clocks())
    assert moved.clock(2) == moved.clock(3) == (0, 100 * SECOND)
    target.cpu += 5
    assert moved.clock(2) == (0, 100 * SECOND + 5)


def interrupted_poll(guest: OurGuest, *subscriptions: tuple[int, ...]) -> None:
    guest.wasi.interrupt()
    with pytest.raises(RepeatCall):
        guest.poll(*subscriptions)


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_sleep_goes_on_with_what_remained(make: Maker, origin: int) -> None:
    """10 s of sleep, 4 passed before the freeze, an hour on a disk: 6 remain."""
    source, target = Machine(1000 * SECOND), Machine(origin)
    guest = make(clocks=source.clocks())
    sleep = (7, EVENT_CLOCK, 1, 10 * SECOND)
    interrupted_poll(guest, sleep)
    source.pass_time(4 * SECOND)
    target.realtime = source.realtime + 3600 * SECOND
    moved = make.move(guest, clocks=target.clocks())
    target.pass_time(6 * SECOND - 1)
    interrupted_poll(moved, sleep)
    again = make.move(moved, clocks=target.clocks())
    interrupted_poll(again, sleep)
    target.pass_time(1)
    assert again.poll(sleep) == (0, [(7, 0, EVENT_CLOCK, 0, 0)])
    state: Any = again.wasi.state()
    assert state["sleep"] is None


def test_a_sleep_that_is_over_when_restored_returns_at_once(make: Maker) -> None:
    source, target = Machine(1000 * SECOND), Machine(0)
    guest = make(clocks=source.clocks())
    sleep = (7, EVENT_CLOCK, 0, 10 * SECOND)
    interrupted_poll(guest, sleep)
    target.realtime = source.realtime + 3600 * SECOND
    moved = make.move(guest, clocks=target.clocks(), suspended_time_counts=True)
    assert moved.poll(sleep)[0] == 0


@pytest.mark.parametrize("origin", ORIGINS)
def test_an_absolute_deadline_is_meant_on_the_guests_clock(make: Maker, origin: int) -> None:
    source, target = Machine(1000 * SECOND), Machine(origin)
    guest = make(clocks=source.clocks())
    deadline = monotonic(guest) + 10 * SECOND
    call = (7, EVENT_CLOCK, 1, deadline, 0, 1)
    interrupted_poll(guest, call)
    source.pass_time(4 * SECOND)
    moved = make.move(guest, clocks=target.clocks())
    target.pass_time(6 * SECOND - 1)
    interrupted_poll(moved, call)
    target.pass_time(1)
    assert moved.poll(call)[1] == [(7, 0, EVENT_CLOCK, 0, 0)]


def test_a_sleep_without_end_can_be_frozen(make: Maker) -> None:
    guest = make(clocks=Machine(1000 * SECOND).clocks())
    forever = (7, EVENT_CLOCK, 1, (1 << 64) - 1)
    interrupted_poll(guest, forever)
    interrupted_poll(make.move(guest, clocks=Machine(0).clocks()), forever)


def test_a_clock_before_1970(make: Maker) -> None:
    guest = make(clocks=Machine(0, realtime=-SECOND).clocks())
    assert guest.clock(0) == (0, 0)
    assert make.move(guest, clocks=Machine(0, realtime=-5).clocks()).clock(0) == (0, 0)


def test_a_state_taken_while_the_guest_sleeps_knows_what_remains(make: Maker) -> None:
    """The source goes on sleeping, undisturbed; the copy sleeps for the rest."""
    for seconds in (0.4, 1.6, 6.4):  # longer where the machine was too busy to tell
        state, took, rest = _while_it_sleeps(make, seconds)
        assert took >= seconds
        in_time = state["sleep"] is not None and rest < seconds * 3 / 4 and took < seconds * 3 / 2
        if in_time:
            break
    assert in_time, (state["sleep"], took, rest)


def _while_it_sleeps(make: Maker, seconds: float) -> tuple[Any, float, float]:
    """The state in the middle of a sleep; how long it took, and how long the copy slept."""
    guest = make()
    sleep = (7, EVENT_CLOCK, 1, int(seconds * SECOND))
    took: list[float] = []
    asleep = threading.Event()

    def run() -> None:
        begin = time.monotonic()
        asleep.set()
        guest.poll(sleep)
        took.append(time.monotonic() - begin)

    thread = threading.Thread(target=run)
    thread.start()
    assert asleep.wait(60)
    time.sleep(seconds / 2)
    state: Any = guest.wasi.state()
    copy = make.restore(state)
    begin = time.monotonic()
    copy.poll(sleep)
    rest = time.monotonic() - begin
    thread.join()
    return state, took[0], rest


def test_several_sleeps_at_once_each_go_on(make: Maker) -> None:
    source, target = Machine(0), Machine(77 * SECOND)
    guest = make(clocks=source.clocks())
    calls = [(1, EVENT_CLOCK, 1, 10 * SECOND), (2, EVENT_CLOCK, 0, 5 * SECOND), (3, EVENT_CLOCK, 1, 90 * SECOND, 0, 1)]
    interrupted_poll(guest, *calls)
    source.pass_time(3 * SECOND)
    moved = make.move(guest, clocks=target.clocks())
    target.pass_time(2 * SECOND)
    assert moved.poll(*calls)[1] == [(2, 0, EVENT_CLOCK, 0, 0)]
