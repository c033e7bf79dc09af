"""Waits let a checkpoint through at once, and no byte is lost, doubled or waited for twice."""

from __future__ import annotations

import contextlib
import os
import pty
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from wasmckpt.host import Errno, RepeatCall
from wasmckpt.host.abi import EVENT_CLOCK, EVENT_FD_READ, EVENT_FD_WRITE, FDFLAG_NONBLOCK

from .conftest import Maker
from .guests import BUFFER, OurGuest

SLACK = 0.05
"""Seconds from the interrupt until the call has left (the switch interval of the GIL and two busy cores included)."""
MS = 1_000_000


@contextmanager
def interrupted_after(guest: OurGuest, delay: float) -> Iterator[list[float]]:
    """Interrupts from another thread; gives the moment."""
    moment: list[float] = []

    def run() -> None:
        time.sleep(delay)
        moment.append(time.monotonic())
        guest.wasi.interrupt()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield moment
    finally:
        thread.join()


def assert_repeat(guest: OurGuest, call: Callable[[], object]) -> None:
    """The call is to be repeated, and has left within the bound; a busy machine may need more tries for that."""
    took = []
    for _ in range(20):
        guest.wasi.clear_interrupt()
        with interrupted_after(guest, 0.03) as moment:
            with pytest.raises(RepeatCall):
                call()
            left = time.monotonic()
        took.append(left - moment[0])
        if took[-1] < SLACK:
            return
    raise AssertionError(f"seconds from interrupt to return: {took}")


def interrupted_write(guest: OurGuest, data: bytes) -> tuple[int, int]:
    """A write that waits for room and is interrupted: errno, and the bytes that it wrote before."""
    while True:
        guest.wasi.clear_interrupt()
        with interrupted_after(guest, 0.05) as moment:
            try:
                errno, done = guest.write(1, data)
            except RepeatCall:
                continue  # on a busy machine the interrupt came first: nothing was done
            left = time.monotonic()
        assert left - moment[0] < 5
        return errno, done


def test_a_read_of_an_empty_pipe(make: Maker, pipe: tuple[int, int]) -> None:
    guest = make(stdin=pipe[0])
    assert_repeat(guest, lambda: guest.read(0, 10))
    with pytest.raises(RepeatCall):
        guest.read(0, 10)
    os.write(pipe[1], b"abc")
    assert guest.read(0, 2) == (0, b"ab"), "what need not wait runs, interrupted or not"
    guest.wasi.clear_interrupt()
    assert guest.read(0, 10) == (0, b"c")
    os.close(pipe[1])
    assert guest.read(0, 10) == (0, b"")


def test_a_read_waits_again_after_the_interrupt_is_cleared(make: Maker, pipe: tuple[int, int]) -> None:
    guest = make(stdin=pipe[0])
    for _ in range(3):
        guest.wasi.interrupt()
        guest.wasi.interrupt()
        guest.wasi.clear_interrupt()
        guest.wasi.clear_interrupt()
    timer = threading.Timer(0.05, os.write, (pipe[1], b"late"))
    timer.start()
    assert guest.read(0, 10) == (0, b"late")
    timer.join()


def test_a_terminal(make: Maker) -> None:
    master, slave = pty.openpty()
    try:
        guest = make(stdin=slave, stdout=slave)
        assert guest.fdstat(0)[1][0] == 2
        assert_repeat(guest, lambda: guest.read(0, 10))
        os.write(master, b"line\n")
        assert guest.read(0, 10) == (0, b"line\n")
        assert guest.write(1, b"out") == (0, 3)
        # Nobody reads the terminal: the write stops in the middle, and is finished as done.
        errno, done = interrupted_write(guest, b"x" * 100_000)
        assert errno == 0
        assert 0 < done < 100_000
        with pytest.raises(RepeatCall):
            guest.write(1, b"y")
    finally:
        os.close(master)
        os.close(slave)


def test_a_write_to_a_full_pipe_is_done_in_part(make: Maker, pipe: tuple[int, int]) -> None:
    guest = make(stdout=pipe[1])
    data = os.urandom(120_000)
    errno, done = interrupted_write(guest, data)
    assert errno == 0
    assert 4096 <= done < len(data)
    with pytest.raises(RepeatCall):
        guest.write(1, data[done:])
    guest.wasi.clear_interrupt()
    received = bytearray()

    def drain() -> None:
        while len(received) < len(data):
            received.extend(os.read(pipe[0], 5000))

    reader = threading.Thread(target=drain)
    reader.start()
    assert guest.write(1, data[done:]) == (0, len(data) - done)
    reader.join()
    assert bytes(received) == data, "exactly once"


def test_interrupts_at_random_moments_lose_and_double_nothing(make: Maker, pipe: tuple[int, int]) -> None:
    """A guest copies standard input to standard output and repeats what it is told to; thousands of interrupts."""
    out_read, out_write = os.pipe()
    guest = make(stdin=pipe[0], stdout=out_write)
    data = os.urandom(300_000)
    received = bytearray()
    stop = threading.Event()

    def feed() -> None:
        for start in range(0, len(data), 7001):
            os.write(pipe[1], data[start : start + 7001])
            time.sleep(0.001)
        os.close(pipe[1])

    def drain() -> None:
        while piece := os.read(out_read, 3000):
            received.extend(piece)

    def disturb() -> None:
        while not stop.is_set():
            guest.wasi.interrupt()
            time.sleep(0.0001)
            guest.wasi.clear_interrupt()

    threads = [threading.Thread(target=run) for run in (feed, drain, disturb)]
    for thread in threads:
        thread.start()
    repeats = 0

    def until_done(call: Callable[[], tuple[int, object]]) -> object:
        nonlocal repeats
        while True:
            try:
                errno, result = call()
            except RepeatCall:
                repeats += 1
                continue
            assert errno == 0
            return result

    while True:
        piece = until_done(lambda: guest.read(0, 5003))
        assert isinstance(piece, bytes)
        if not piece:
            break
        while piece:
            done = until_done(lambda rest=piece: guest.write(1, rest))  # type: ignore[misc]
            assert isinstance(done, int)
            piece = piece[done:]
    stop.set()
    os.close(out_write)
    for thread in threads:
        thread.join()
    os.close(out_read)
    assert bytes(received) == data
    assert repeats > 0
    positions = {record["kind"]: record for record in guest.wasi.state()["descriptors"]}  # type: ignore[attr-defined]
    assert positions["stdin"]["consumed"] == positions["stdout"]["produced"] == len(data)


def test_a_sleep_is_interrupted(guest: OurGuest) -> None:
    assert_repeat(guest, lambda: guest.poll((7, EVENT_CLOCK, 1, 1000_000 * MS)))


def test_a_sleep_goes_on_with_what_remained(guest: OurGuest) -> None:
    for seconds in (0.4, 1.6, 6.4):  # longer where the machine was too busy to tell
        call = (7, EVENT_CLOCK, 1, int(seconds * 1000) * MS)
        begin = time.monotonic()
        with interrupted_after(guest, 0.03), contextlib.suppress(RepeatCall):
            guest.poll(call)
        guest.wasi.clear_interrupt()
        time.sleep(seconds / 2)
        assert guest.poll(call) == (0, [(7, 0, EVENT_CLOCK, 0, 0)])
        took = time.monotonic() - begin
        assert took >= seconds
        if took < seconds * 3 / 2:
            break
    assert took < seconds * 3 / 2, "not the whole sleep once more"
    begin = time.monotonic()
    guest.poll(call)
    assert time.monotonic() - begin >= seconds, "the next sleep is a whole one"


def test_another_call_does_not_inherit_the_rest(guest: OurGuest) -> None:
    guest.wasi.interrupt()
    with pytest.raises(RepeatCall):
        guest.poll((7, EVENT_CLOCK, 1, 100 * MS))
    time.sleep(0.03)
    guest.wasi.clear_interrupt()
    begin = time.monotonic()
    guest.poll((7, EVENT_CLOCK, 1, 101 * MS))
    assert time.monotonic() - begin >= 0.101


@pytest.mark.parametrize(
    "call",
    [(1, EVENT_CLOCK, 1, 0), (1, EVENT_CLOCK, 0, 0), (1, EVENT_CLOCK, 1, 5, 0, 1), (1, EVENT_CLOCK, 0, 5, 0, 1)],
)
def test_no_time_returns_at_once_even_when_interrupted(guest: OurGuest, call: tuple[int, ...]) -> None:
    guest.wasi.interrupt()
    assert guest.poll(call) == (0, [(1, 0, EVENT_CLOCK, 0, 0)])


@pytest.mark.parametrize("clock", [0, 1])
def test_sleeps_take_as_long_as_they_should(guest: OurGuest, clock: int) -> None:
    for nanoseconds in (100_000, 3 * MS, 20 * MS):
        begin = time.monotonic_ns()
        guest.poll((1, EVENT_CLOCK, clock, nanoseconds))
        assert nanoseconds <= time.monotonic_ns() - begin < nanoseconds + 5e9
    now = guest.clock(clock)[1]
    begin = time.monotonic_ns()
    guest.poll((1, EVENT_CLOCK, clock, now + 20 * MS, 0, 1))
    assert time.monotonic_ns() - begin >= 15 * MS
    assert guest.clock(clock)[1] >= now + 20 * MS


def test_polling_descriptors(make: Maker, pipe: tuple[int, int]) -> None:
    guest = make(stdin=pipe[0], stdout=pipe[1])
    (make.folder / "f").write_bytes(b"abcde")
    _, fd = guest.open("f")
    guest.read(fd, 2)
    assert guest.poll((1, EVENT_FD_WRITE, 1), (2, EVENT_FD_READ, 0))[1] == [(1, 0, EVENT_FD_WRITE, 4096, 0)]
    os.write(pipe[1], b"xyz")
    errno, events = guest.poll(
        (1, EVENT_FD_READ, 0), (2, EVENT_FD_READ, fd), (3, EVENT_FD_READ, 77), (4, EVENT_CLOCK, 1, 1 << 60),
        (5, EVENT_CLOCK, 9, 1),
    )
    assert (errno, sorted(events)) == (0, [
        (1, 0, EVENT_FD_READ, 3, 0), (2, 0, EVENT_FD_READ, 3, 0), (3, Errno.BADF, EVENT_FD_READ, 0, 0),
        (5, Errno.INVAL, EVENT_CLOCK, 0, 0),
    ])
    guest.read(0, 3)
    assert guest.poll((1, EVENT_FD_READ, 0), (2, EVENT_CLOCK, 1, 10 * MS)) == (0, [(2, 0, EVENT_CLOCK, 0, 0)])
    os.close(pipe[1])
    assert guest.poll((1, EVENT_FD_READ, 0)) == (0, [(1, 0, EVENT_FD_READ, 0, 1)])
    assert guest.poll()[0] == guest.poll((1, 3, 0))[0] == Errno.INVAL


def test_a_poll_of_descriptors_is_interrupted(make: Maker, pipe: tuple[int, int]) -> None:
    guest = make(stdin=pipe[0])
    assert_repeat(guest, lambda: guest.poll((1, EVENT_FD_READ, 0)))
    os.write(pipe[1], b"x")
    assert guest.poll((1, EVENT_FD_READ, 0))[1] == [(1, 0, EVENT_FD_READ, 1, 0)]


def test_non_blocking_streams(make: Maker, pipe: tuple[int, int]) -> None:
    guest = make(stdin=pipe[0], stdout=pipe[1])
    for fd in (0, 1):
        assert guest.call("fd_fdstat_set_flags", fd, FDFLAG_NONBLOCK) == 0
    assert guest.read(0, 1)[0] == Errno.AGAIN
    errno, done = guest.write(1, b"x" * 100_000)
    assert (errno, done) == (0, 65536)
    assert guest.write(1, b"x")[0] == Errno.AGAIN
    assert os.get_blocking(pipe[0]), "the flag is the guest's, not that of whoever shares the pipe"
    assert os.get_blocking(pipe[1])


def test_a_descriptor_that_the_host_made_non_blocking(make: Maker, pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[0], False)
    guest = make(stdin=pipe[0])
    timer = threading.Timer(0.03, os.write, (pipe[1], b"late"))
    timer.start()
    assert guest.read(0, 10) == (0, b"late")
    timer.join()


def test_a_socket_as_standard_output(make: Maker) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        guest = make(stdout=ours.fileno())
        guest.memory.buffer = bytearray(2 << 20)
        assert guest.fdstat(1)[1][0] == 6
        errno, done = interrupted_write(guest, b"x" * 1_000_000)
        assert (errno, 0 < done < 1_000_000) == (0, True)
        with pytest.raises(RepeatCall):
            guest.write(1, b"y" * 10)
        assert guest.call("sock_shutdown", 1, 1) == Errno.NOTSUP


def test_nobody_reads_any_more(make: Maker, pipe: tuple[int, int]) -> None:
    guest = make(stdout=pipe[1])
    os.close(pipe[0])
    assert guest.write(1, b"x") == (Errno.PIPE, 0)


def test_standard_streams_that_are_closed(make: Maker) -> None:
    fd = os.open("/dev/null", os.O_RDWR)
    os.close(fd)
    guest = make(stdin=fd, stdout=fd)
    assert guest.read(0, 1)[0] == guest.write(1, b"x")[0] == guest.fstat(0)[0] == Errno.BADF


def test_nothing_to_read_or_write_does_not_wait(make: Maker, pipe: tuple[int, int]) -> None:
    guest = make(stdin=pipe[0])
    assert guest.read(0, 0) == guest.read(0) == (0, b"")
    assert guest.load(BUFFER, 1) == b"\0"
