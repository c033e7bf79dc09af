"""Snapshots of a program that goes on, whichever way is possible: by fork, else in place.

In place: the program is frozen and captured into RAM, and its frames are rebuilt by the same thread, with the same host
behind it, before anything is done with the image: in the same instance where that can go on from there, else in a new
one. The source stands still for as long as that takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

from ..errors import JobEnded, RetryLater, UsageError
from ..formats import Image
from .fork import ForkSnapshotter
from .fork_result import ForkRefused, Snapshot
from .patience import patiently
from .program import Outcome, Phase, Program, Status

__all__ = ["LiveProgram", "Way"]

Way = Literal["auto", "fork", "in-place"]
"""How to take a snapshot; "auto": by fork, and in place where the system refuses that."""


class _Request:
    """Somebody waits for an image that is taken in place."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.image: Image | None = None
        self.error: BaseException | None = None


class LiveProgram:
    """A program from which snapshots are taken while it goes on.

    Args:
        program: the program, not yet running.
        restore: makes a program that goes on from an image, on the same host, in the place of the present one
            (`Program.restored`).

    Attributes:
        program: the present one; each snapshot in place puts another in its stead.
    """

    def __init__(self, program: Program, restore: Callable[[Image, Program], Program]) -> None:
        self.program = program
        self._restore = restore
        self._thread = 0
        self._started = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._asking = threading.Lock()
        self._request: _Request | None = None
        self._ended = False
        self._forks: tuple[Program, ForkSnapshotter] | None = None

    def run(self) -> Outcome:
        """As `Program.run`, over all that is done in place meanwhile; ``FROZEN`` only if somebody else asked for it."""
        self._thread = threading.get_native_id()
        self._started.set()
        try:
            while True:
                outcome = self.program.run()
                with self._asking:
                    request, self._request = self._request, None
                    if outcome.status is not Status.FROZEN or request is None:
                        self._finish(request)
                        return outcome
                self._go_on(request)
        except BaseException:
            with self._asking:
                request, self._request = self._request, None
                self._finish(request)
            raise

    def _finish(self, request: _Request | None) -> None:
        self._ended = True
        if request is not None:
            request.error = JobEnded("the program ended before it could be frozen")
            request.answered.set()

    def _go_on(self, request: _Request) -> None:
        program = self.program
        try:
            request.image = program.capture()
            program.host.resume_calls()
            if not program.go_on_here():
                program.close()  # first: there may not be memory for two
                image = request.image
                self.program = patiently(lambda: self._restore(image, program))
        except BaseException as problem:
            request.error = problem
            raise
        finally:
            request.answered.set()

    def snapshot(self, timeout: float = 10.0, way: Way = "auto") -> Snapshot:
        """An image of the program as it is now; the program goes on. From any thread but the guest's.

        Args:
            timeout: seconds.

        Raises:
            JobEnded: the program ended meanwhile. RetryLater: it reached no safepoint in time, or was not stopped
                since it could not have gone on in place (no threads).
            ForkRefused: ``way`` is "fork", and the system refuses. UsageError: the program counts safepoints.
        """
        deadline = time.perf_counter() + timeout
        if self.program.out.options.count:
            raise UsageError("a program that counts its safepoints freezes at the one that was named only")
        if not self._started.wait(timeout) or not self._one_at_a_time.acquire(timeout=_left(deadline)):
            raise RetryLater("the program has not started, or another snapshot is being taken", hint="try again")
        try:
            if way != "in-place":
                try:
                    return self._fork_snapshotter().snapshot(_left(deadline))
                except ForkRefused:
                    if way == "fork":
                        raise
            return self._in_place(deadline)
        finally:
            self._one_at_a_time.release()

    def _fork_snapshotter(self) -> ForkSnapshotter:
        if self._forks is None or self._forks[0] is not self.program:
            self.close()
            program = self.program
            self._forks = program, ForkSnapshotter(program, self._thread)
        return self._forks[1]

    def close(self) -> None:
        """Give back what snapshots by fork need; the program is left alone. Not while a snapshot is being taken."""
        if self._forks is not None:
            self._forks[1].close()
            self._forks = None

    def _in_place(self, deadline: float) -> Snapshot:
        began = time.perf_counter()
        self.program.engine.require_means()
        self._wait_rebuilt(deadline)
        asked = time.perf_counter()
        with self._asking:
            if self._ended:
                raise JobEnded("the program has already ended")
            request = self._request
            if request is None:  # else somebody gave up waiting: the program will be frozen for that, and go on
                request = self._request = _Request()
                self.program.request_freeze()
        if not request.answered.wait(_left(deadline)):
            raise RetryLater("the program reached no safepoint in time", hint="it goes on; try again")
        if request.error is not None:
            raise request.error
        captured = time.perf_counter()
        self._wait_rebuilt(captured + 60)
        assert request.image is not None
        taken = (captured - began) * 1e3
        return Snapshot(request.image, "in-place", (time.perf_counter() - asked) * 1e3, copy_ms=taken, image_ms=taken)

    def _wait_rebuilt(self, deadline: float) -> None:
        while self.program.phase in (Phase.NEW, Phase.REBUILDING) and time.perf_counter() < deadline:
            time.sleep(0.0001)


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.perf_counter())
