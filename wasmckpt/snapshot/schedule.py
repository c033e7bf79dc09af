"""When the next image of a running program is due, for whoever takes them one after the other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..planning import Pace
from .cost import crowded

if TYPE_CHECKING:
    from .job import Checkpoint

__all__ = ["Schedule"]


class Schedule:
    """A `Pace`, which learns what images cost, or a number of seconds after each of them. The clock is the monotonic
    one of this process."""

    def __init__(self, pace: Pace | float) -> None:
        self._pace = pace if isinstance(pace, Pace) else None
        self._every = 0.0 if isinstance(pace, Pace) else pace
        now = time.monotonic()
        if self._pace is not None:
            self._pace.start(now)
        self._due = now + self._every
        self._began = now
        self._work = 0.0

    def wait(self) -> float:
        """Seconds until the next one."""
        due = self._due if self._pace is None else self._pace.due
        return max(0.0, due - time.monotonic())

    def begin(self) -> None:
        """It begins."""
        self._began, self._work = time.monotonic(), time.process_time()

    def took(self, taken: Checkpoint | None) -> None:
        """It is there; None: it failed, so what it cost is not known."""
        now = time.monotonic()
        self._due = now + self._every
        if self._pace is not None:
            ours = time.process_time() - self._work if taken is not None and crowded() else 0.0
            cost = self._pace.expected if taken is None else taken.cost + ours
            self._pace.took(cost, began=self._began, now=now)
