"""One thread that has things done at their time: starts, sleepers, images, tidying up. It does nothing long itself."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from ..errors import CheckpointError, Conflict, NotFound
from .jobs import Jobs
from .logs import STREAMS
from .runner import Runner

__all__ = ["Timers"]

_LOGS_EVERY: Final = 1.0
_LONGEST: Final = 5.0
"""Seconds after which it looks in any case."""
_AFTER_ERROR: Final = 1.0


class Timers:
    """``tidy``: called every ``tidy_every`` seconds, in another thread."""

    def __init__(self, jobs: Jobs, tidy: Callable[[], object], tidy_every: float) -> None:
        self._jobs, self._tidy, self._tidy_every = jobs, tidy, tidy_every
        self._changed = threading.Event()
        self._over = threading.Event()
        self._next_logs = 0.0
        self._next_tidy = time.monotonic() + tidy_every
        self._tidying: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="timers", daemon=True)

    def start(self) -> None:
        """From now on."""
        self._thread.start()

    def wake(self) -> None:
        """Something may have become due."""
        self._changed.set()

    def close(self) -> None:
        """Nothing more is begun. Idempotent."""
        self._over.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._tidying is not None:
            self._tidying.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                wait = self._turn()
            except CheckpointError:  # the disk is full, say
                wait = _AFTER_ERROR
            except Exception as problem:  # a bug; without this thread nothing would be started any more
                self._jobs.internal_error(problem)
                wait = _AFTER_ERROR
            self._changed.wait(max(0.001, wait))
            self._changed.clear()

    def _turn(self) -> float:
        """Do what is due; gives the seconds until there will be more."""
        jobs, now = self._jobs, time.time()
        if not jobs.draining:
            for job in jobs.records.sleepers_due(now):
                with contextlib.suppress(Conflict, NotFound):
                    jobs.wake(job)
        jobs.start_due()
        wait = _LONGEST
        runners = jobs.runners()
        for runner in runners:
            if runner.schedule is not None and not runner.scheduled:
                due = runner.schedule.wait()
                if due <= 0:
                    jobs.take_due(runner)
                else:
                    wait = min(wait, due)
        if runners and time.monotonic() >= self._next_logs:
            self._next_logs = time.monotonic() + _LOGS_EVERY
            for runner in runners:
                self._shorten(runner)
        if runners:
            wait = min(wait, _LOGS_EVERY)
        if time.monotonic() >= self._next_tidy and (self._tidying is None or not self._tidying.is_alive()):
            self._next_tidy = time.monotonic() + self._tidy_every
            self._tidying = threading.Thread(target=self._tidy, name="tidy", daemon=True)
            self._tidying.start()
        following = jobs.records.next_time()
        return wait if following is None else min(wait, following - time.time())

    def _shorten(self, runner: Runner) -> None:
        record = None
        for stream in STREAMS:
            logs = self._jobs.around.logs(runner.id)
            if logs.size(stream) <= runner.log_bytes:
                continue
            with contextlib.suppress(NotFound):
                record = record or self._jobs.records.get(runner.id)
                begins = record.begins[stream]
                new = logs.shorten(stream, begins, runner.log_bytes)
                if new != begins:
                    self._jobs.records.update(
                        runner.id, ("log-shortened", f"{stream} begins at byte {new}", {"stream": stream, "from": new}),
                        **{f"{stream}_from": new})
