"""How often: the account of what images cost, and watching for moments in which the program waits.

The attendant does what is to be done; here stands when. What other threads find out comes to it as an event.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, JobEnded, RetryLater, WorkerDied
from ..snapshot.job import IDLE_AFTER, Checkpoint, Job
from .output import count, duration, say

if TYPE_CHECKING:
    from ..planning import Pace

__all__ = ["Often"]


class Often:
    """Of one job.

    Args:
        pace: the account. auto: whether it alone says when images are due. tell: takes an event: "cost" (for `charge`),
            "idle" (the program waits: take an image, and tell the future whether there is one) or "unwatched" (an error
            ends the watching).
    """

    def __init__(self, pace: Pace, auto: bool, tell: Callable[[tuple[str, Any]], object]) -> None:
        self._pace, self._auto, self._tell = pace, auto, tell
        self._over = threading.Event()

    def begin(self) -> None:
        """The program runs."""
        self._pace.start(time.monotonic())

    def wait(self) -> float:
        """Seconds until the next image is due; 0 or less: now."""
        return self._pace.due - time.monotonic()

    def timed(self, take: Callable[..., Checkpoint]) -> Callable[..., Checkpoint]:
        """The same, and what the image cost is told."""
        def timed(*args: Any, **kwargs: Any) -> Checkpoint:
            from ..snapshot.cost import crowded

            began, work = time.monotonic(), time.process_time()
            taken = take(*args, **kwargs)
            ours = time.process_time() - work if crowded() else 0.0
            self._tell(("cost", (taken.cost + ours, began, time.monotonic())))
            return taken

        return timed

    def charge(self, cost: float, began: float, now: float) -> None:
        """An image has cost so much."""
        pace = self._pace
        was_over = pace.over_bound
        pace.took(cost, began=began, now=now)
        if self._auto and pace.over_bound and not was_over:
            say(f"a checkpoint costs {duration(cost)}: more than the overhead allows in the longest interval")

    def after(self, then: Callable[[], None] | None) -> Callable[[], None]:
        """Call this when an image that was due is there or has failed: nobody knows then what it cost, and the next one
        comes in time all the same."""
        def after() -> None:
            now = time.monotonic()
            if self._pace.due <= now:
                self._pace.took(self._pace.expected, began=now, now=now)
            if then is not None:
                then()

        return after

    def watch(self, job: Job) -> None:
        """From now on, whenever the program waits, its state is a new one, and it is time."""
        job.on_end(self._over.set)
        threading.Thread(target=self._watch, args=(job,), name="idle", daemon=True).start()

    def _watch(self, job: Job) -> None:
        state = None
        while not self._over.wait(max(0.0, self.wait())):
            try:
                found = job.idle(state)
            except RetryLater:
                continue
            except (JobEnded, WorkerDied):  # or it has moved
                self._over.wait(IDLE_AFTER)
                continue
            except CheckpointError as problem:
                self._tell(("unwatched", problem))
                return
            if self.wait() > 0:
                continue  # others have taken one meanwhile
            taken: Future[bool] = Future()
            self._tell(("idle", taken))
            if taken.result():
                state = found

    def overhead(self) -> dict[str, float]:
        """For the JSON of how the program ended."""
        return {"overhead": self._pace.overhead(time.monotonic())} if self._auto else {}

    def say_cost(self) -> None:
        """For people."""
        pace = self._pace
        if self._auto and pace.taken:
            say(f"{count(pace.taken, 'checkpoint')} cost {100 * pace.overhead(time.monotonic()):.2g} % of the time")
