"""``poll_oneoff``: sleeping, and waiting for several things at once.

A sleep that was interrupted for a checkpoint is called again with the same arguments. Its relative time-outs must then
not start anew: the deadlines of the call under way are kept (on the guest's monotonic clock, which goes on over a move)
until a call ends, and a call with the same arguments takes them over.
"""

from __future__ import annotations

import hashlib
import os
import select
import stat

from ..lazydata import dataclass
from .abi import (
    CLOCK_MONOTONIC,
    CLOCK_PROCESS_CPUTIME,
    CLOCK_REALTIME,
    CLOCK_THREAD_CPUTIME,
    EVENT,
    EVENT_CLOCK,
    EVENT_FD_READ,
    EVENT_FD_WRITE,
    EVENT_HANGUP,
    SUBSCRIPTION,
    SUBSCRIPTION_ABSTIME,
    U32,
    U64_MAX,
    Errno,
    Rights,
    WasiError,
)
from .calls import signature
from .clocks import GuestClocks
from .descriptors import Descriptor, DescriptorTable, File, Stream
from .memory import GuestMemory, check_range
from .signals import RepeatCall
from .streams import bytes_waiting
from .waiting import Waiter

__all__ = ["PendingSleep", "PollCalls"]

_FOREVER = 1 << 62
_REALTIME_LOOK = 500_000_000
"""The real-time clock may be set while we wait for one of its times: look again this often (ns)."""


@dataclass(frozen=True, slots=True)
class PendingSleep:
    """The call that is waiting, or was interrupted.

    Attributes:
        call: digest of its arguments and subscriptions.
        deadlines: of each relative time-out, in order, on the guest's monotonic clock, in nanoseconds.
    """

    call: bytes
    deadlines: tuple[int, ...]


@dataclass(slots=True)
class _Timer:
    userdata: int
    clock: int
    deadline: int


@dataclass(slots=True)
class _Watch:
    userdata: int
    kind: int
    stream: Stream


class PollCalls:
    """The waiting call.

    Attributes:
        pending: deadlines of the call under way or interrupted.
    """

    def __init__(self, table: DescriptorTable, clocks: GuestClocks, waiter: Waiter) -> None:
        self._table = table
        self._clocks = clocks
        self._waiter = waiter
        self.pending: PendingSleep | None = None

    @signature("iiii")
    def poll_oneoff(self, memory: GuestMemory, source: int, target: int, count: int, result: int) -> int:
        if count == 0:
            return int(Errno.INVAL)
        raw = memory.read(source, count * SUBSCRIPTION.size)
        check_range(memory, target, count * EVENT.size)
        check_range(memory, result, 4)
        events: list[bytes] = []
        timers: list[_Timer] = []
        watches: list[_Watch] = []
        relative: list[_Timer] = []
        for userdata, kind, what, timeout, _precision, flags in SUBSCRIPTION.iter_unpack(raw):
            if kind == EVENT_CLOCK:
                timer = self._timer(userdata, what, timeout, flags, events)
                if timer is not None:
                    timers.append(timer)
                    if not flags & SUBSCRIPTION_ABSTIME:
                        relative.append(timer)
            elif kind in (EVENT_FD_READ, EVENT_FD_WRITE):
                stream = self._ready_descriptor(userdata, kind, what, events)
                if stream is not None:
                    watches.append(_Watch(userdata, kind, stream))
            else:
                return int(Errno.INVAL)
        if relative:
            self._take_over_deadlines(raw, source, target, relative)
        self._wait(events, timers, watches)
        self.pending = None
        memory.write(target, b"".join(events))
        memory.write(result, U32.pack(len(events)))
        return 0

    def _timer(self, userdata: int, clock: int, timeout: int, flags: int, events: list[bytes]) -> _Timer | None:
        if clock in (CLOCK_REALTIME, CLOCK_MONOTONIC):
            if flags & SUBSCRIPTION_ABSTIME:
                return _Timer(userdata, clock, timeout)
            # A relative time-out is a length of time, whatever clock it names: setting the clock does not change it.
            return _Timer(userdata, CLOCK_MONOTONIC, min(self._clocks.monotonic() + timeout, U64_MAX))
        known = clock in (CLOCK_PROCESS_CPUTIME, CLOCK_THREAD_CPUTIME)
        events.append(EVENT.pack(userdata, Errno.NOTSUP if known else Errno.INVAL, EVENT_CLOCK, 0, 0))
        return None

    def _ready_descriptor(self, userdata: int, kind: int, number: int, events: list[bytes]) -> Stream | None:
        """The stream to wait for; None if there is an answer already, which is then among the events."""
        try:
            found = self._table.require(number, Rights.POLL_FD_READWRITE)
            if isinstance(found, Stream) and found.may_block:
                return found
            events.append(EVENT.pack(userdata, 0, kind, _available(found, kind), 0))
        except WasiError as error:
            events.append(EVENT.pack(userdata, error.errno, kind, 0, 0))
        return None

    def _take_over_deadlines(self, raw: bytes, source: int, target: int, relative: list[_Timer]) -> None:
        arguments = b"%d %d " % (source, target) + raw
        call = hashlib.blake2b(arguments, digest_size=16).digest()
        pending = self.pending
        if pending is not None and pending.call == call and len(pending.deadlines) == len(relative):
            for timer, deadline in zip(relative, pending.deadlines, strict=True):
                timer.deadline = min(timer.deadline, deadline)
        else:
            self.pending = PendingSleep(call, tuple(timer.deadline for timer in relative))

    def _wait(self, events: list[bytes], timers: list[_Timer], watches: list[_Watch]) -> None:
        """Fill ``events``: at least one when it returns. Raises `RepeatCall` if interrupted before that."""
        wanted = [
            (watch.stream.os_fd, select.POLLIN if watch.kind == EVENT_FD_READ else select.POLLOUT) for watch in watches
        ]
        while True:
            timeout = 0 if events else self._time_left(timers)
            ready = self._waiter.any_of(wanted, timeout) if wanted or timeout > 0 else {}
            for watch, (fd, mask) in zip(watches, wanted, strict=True):
                found = ready.get(fd, 0)
                if found & (mask | select.POLLERR | select.POLLHUP | select.POLLNVAL):
                    events.append(_stream_event(watch, found))
            monotonic, realtime = self._clocks.monotonic(), self._clocks.realtime()
            for timer in timers:
                if timer.deadline <= (monotonic if timer.clock == CLOCK_MONOTONIC else realtime):
                    events.append(EVENT.pack(timer.userdata, 0, EVENT_CLOCK, 0, 0))
            if events:
                return
            if self._waiter.interrupted:
                raise RepeatCall

    def _time_left(self, timers: list[_Timer]) -> int:
        left = _FOREVER
        for timer in timers:
            if timer.clock == CLOCK_MONOTONIC:
                left = min(left, timer.deadline - self._clocks.monotonic())
            else:
                left = min(left, timer.deadline - self._clocks.realtime(), _REALTIME_LOOK)
        return max(0, left)


def _available(found: Descriptor, kind: int) -> int:
    """Bytes that a read gives at once from what never blocks; 1 for a write, whose limit nobody knows."""
    if kind == EVENT_FD_WRITE:
        return 1
    try:
        info = os.fstat(found.os_fd)
    except OSError:
        raise WasiError(Errno.BADF) from None
    # At the end a read is ready too; libraries take 0 bytes for "not ready".
    if isinstance(found, File):
        return max(1, info.st_size - found.offset)
    if stat.S_ISREG(info.st_mode):
        return max(1, info.st_size - os.lseek(found.os_fd, 0, os.SEEK_CUR))
    return 1


def _stream_event(watch: _Watch, ready: int) -> bytes:
    error = Errno.BADF if ready & select.POLLNVAL else 0
    available = 0
    if ready & select.POLLIN:
        available = max(1, bytes_waiting(watch.stream.os_fd))
    elif ready & select.POLLOUT:
        available = watch.stream.piece or 1
    hangup = EVENT_HANGUP if ready & (select.POLLHUP | select.POLLERR) else 0
    return EVENT.pack(watch.userdata, error, watch.kind, available, hangup)
