"""Waiting that a checkpoint can interrupt.

A guest blocked in a read, a write or a sleep cannot reach a safepoint. Every wait therefore also watches a descriptor
of our own, which `Waiter.interrupt` makes readable: the wait ends within the time of a thread switch, and if nothing
was done yet the call ends in `RepeatCall`. Only waits are interrupted, never the transfer of bytes itself.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterable

from .signals import RepeatCall

__all__ = ["Waiter"]

_LONGEST_WAIT_NS = 3_600_000_000_000


class Waiter:
    """One guest's waits. `interrupt` and `clear` may be called from any thread, the rest from the guest's only."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._wake = self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:  # no eventfd outside Linux
            self._wake, self._signal = os.pipe()
            os.set_blocking(self._wake, False)
        self._lock = threading.Lock()
        self._pollers: dict[tuple[int, int], select.poll] = {}
        self._closed = False
        self.interrupted = False
        self.waits = 0
        """Waits begun and ended so far: odd while the guest's thread waits."""
        self.before_wait: Callable[[], None] | None = None
        """Called before a wait that may be long: what a journal still has in memory is written."""

    def interrupt(self) -> None:
        """Make the present wait, and each one to come, end in `RepeatCall` unless it is ready at once."""
        with self._lock:
            if not self.interrupted and not self._closed:
                self.interrupted = True
                os.write(self._signal, (1).to_bytes(8, "little"))

    def clear(self) -> None:
        """Waits wait again."""
        with self._lock:
            if self.interrupted and not self._closed:
                self.interrupted = False
                os.read(self._wake, 8)

    def until_ready(self, fd: int, events: int) -> None:
        """Wait until ``fd`` has one of the poll ``events``, an error or a hang-up. Raises `RepeatCall`."""
        poller = self._pollers.get((fd, events)) or self._new_poller(fd, events)
        if self.before_wait is not None:
            if any(ready == fd for ready, _ in poller.poll(0)):
                return
            self.before_wait()
        while True:
            self.waits += 1
            found = poller.poll()
            self.waits += 1
            for ready, _ in found:
                if ready == fd:
                    return
            if self.interrupted:
                raise RepeatCall

    def ready_now(self, fd: int, events: int) -> bool:
        """Whether ``fd`` has one of the poll ``events``, an error or a hang-up."""
        poller = self._pollers.get((fd, events)) or self._new_poller(fd, events)
        return any(ready == fd for ready, _ in poller.poll(0))

    def any_of(self, wanted: Iterable[tuple[int, int]], timeout_ns: int) -> dict[int, int]:
        """Poll several descriptors at most ``timeout_ns``; may return early and empty (time up, or interrupted)."""
        timeout_ns = min(max(timeout_ns, 0), _LONGEST_WAIT_NS)
        if timeout_ns and self.before_wait is not None:
            self.before_wait()
        masks: dict[int, int] = {}
        for fd, events in wanted:
            masks[fd] = masks.get(fd, 0) | events
        if not masks and self._wake < 1024:
            # select takes microseconds where poll takes milliseconds: short sleeps would be ten times too long.
            self.waits += 1
            select.select([self._wake], [], [], timeout_ns / 1e9)
            self.waits += 1
            return {}
        poller = select.poll()
        for fd, events in masks.items():
            poller.register(fd, events)
        poller.register(self._wake, select.POLLIN)
        self.waits += 1
        ready = dict(poller.poll(timeout_ns / 1e6))
        self.waits += 1
        ready.pop(self._wake, None)
        return ready

    def close(self) -> None:
        """Give the descriptors back; the waiter is unusable after."""
        with self._lock:
            self._closed = True
            for fd in {self._wake, self._signal}:
                os.close(fd)

    def _new_poller(self, fd: int, events: int) -> select.poll:
        poller = self._pollers[fd, events] = select.poll()
        poller.register(fd, events)
        poller.register(self._wake, select.POLLIN)
        return poller
