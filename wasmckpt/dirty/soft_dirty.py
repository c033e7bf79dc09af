"""Soft-dirty bits: set by the kernel at the first write after they were cleared, for the whole process at once.

Reading and clearing are two steps, so the guest stands still from before `SoftDirty.collect` until what it told has
been copied. Two users in one process take each other's bits: there may be only one (`SoftDirty` refuses a second).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import ClassVar

from . import kernel
from .runs import Runs, within
from .tracker import Extent, Tracker, TrackingLost, everything

__all__ = ["SoftDirty"]

_the_only_one = threading.Lock()


class SoftDirty(Tracker):
    """Raises `TrackingLost`: the files cannot be opened, or there is one already."""

    name: ClassVar[str] = "soft-dirty"
    needs_stop: ClassVar[bool] = True

    def __init__(self, memories: Sequence[Extent]) -> None:
        super().__init__(memories)
        self._known: list[tuple[int, int] | None] = [None] * len(memories)
        self._pagemap: int | None = None
        if not _the_only_one.acquire(blocking=False):
            raise TrackingLost("soft-dirty bits of this process are in use")
        self._open = True
        try:
            self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            kernel.clear_soft_dirty()
        except OSError as problem:
            self.close()
            raise TrackingLost(f"soft-dirty bits cannot be had: {problem.strerror}") from problem

    def collect(self) -> list[Runs]:
        out: list[Runs] = []
        try:
            for n, extent in enumerate(self.memories):
                out.append(self._look(n, *extent()))
            kernel.clear_soft_dirty()  # after all were read: it clears them for all
        except OSError as problem:
            raise TrackingLost(f"soft-dirty bits cannot be read: {problem.strerror}") from problem
        return out

    def _look(self, n: int, base: int, length: int) -> Runs:
        known, self._known[n] = self._known[n], (base, length)
        if not length:
            return ()
        if known is None or known[0] != base or known[1] > length:
            return everything(length)
        page = kernel.MACHINE_PAGE
        end = -(-(base + length) // page) * page
        assert self._pagemap is not None
        if not kernel.is_mapped(base - base % page, end):  # it is being moved, and nobody has stored yet where it is
            self._known[n] = None
            return everything(length)
        runs = within(kernel.soft_dirty(self._pagemap, base - base % page, end), base, length)
        if known[1] < length:  # pages that nobody has written may have no bits
            runs = within([(base + first * 4096, base + (first + n) * 4096) for first, n in runs]
                          + [(base + known[1], base + length)], base, length)
        return runs

    def forget(self) -> None:
        self._known = [None] * len(self._known)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._pagemap is not None:
            os.close(self._pagemap)
            self._pagemap = None
        _the_only_one.release()
