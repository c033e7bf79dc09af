"""One live job: its worker, its images, its descriptors."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from functools import partial
from typing import Final

from ..planning import Pace
from ..snapshot.job import Checkpoint, Job
from ..snapshot.schedule import Schedule
from ..store import Entry, Series
from .records import Record

__all__ = ["Runner"]

_PATIENCE: Final = 60.0
"""Seconds that one image waits for another."""


class Runner:
    """Made by `start.begin`.

    Args:
        folders: descriptors of the folders that were given to the program, open as long as it lives here.
        freeze_time: seconds that it gets to reach a safepoint.

    Attributes:
        schedule: when its next image is due; None: nobody asked for that. scheduled: one is being taken.
    """

    def __init__(self, record: Record, job: Job, series: Series, folders: Sequence[int], freeze_time: float) -> None:
        self.id, self.name, self.job = record.id, record.name, job
        self.memory, self.log_bytes = record.spec.limits.memory_bytes, record.spec.limits.log_bytes
        self._series, self._folders = series, folders
        self._take = partial(job.checkpoint, patience=_PATIENCE, timeout=freeze_time)
        self.taking = threading.RLock()
        """Held while an image is taken, and until it is known that it is in the store."""
        policy = record.spec.checkpoint
        self.schedule = None if policy.every_seconds is None else Schedule(
            Pace(policy.overhead) if policy.every_seconds == "auto" else policy.every_seconds)
        self.scheduled = False

    def take(self) -> tuple[Entry, Checkpoint]:
        """An image, into the store; the program goes on. Raises as `Job.checkpoint` and `Store.add`."""
        with self.taking:
            entry, taken = self._series.take(self._take)
            self.job.cut_journal(taken)
            return entry, taken

    def take_last(self) -> tuple[Entry, Checkpoint]:
        """An image with which the program ends; if it cannot be taken it goes on. Raises as `take`."""
        with self.taking:
            return self._series.take_last(partial(self._take, stop=True))

    def close(self) -> None:
        """Nothing is left of the process. Idempotent."""
        self.job.close()
        folders, self._folders = self._folders, ()
        for folder in folders:
            with contextlib.suppress(OSError):
                os.close(folder)
