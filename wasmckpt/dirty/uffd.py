"""userfaultfd, asynchronous write-protection, and PAGEMAP_SCAN: the kernel keeps the set and hands it over in one step.

Nobody answers faults: the kernel takes the protection away at the first write to a page, in 1.5 microseconds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

from . import kernel
from .runs import Runs, within
from .tracker import Extent, Tracker, TrackingLost, everything

__all__ = ["Uffd"]

_MOVES = 8
"""Looks at a memory that is somewhere else each time; then everything of it counts as written."""


class Uffd(Tracker):
    """Raises `TrackingLost` where the kernel does not offer it."""

    name: ClassVar[str] = "uffd"
    needs_stop: ClassVar[bool] = False

    def __init__(self, memories: Sequence[Extent]) -> None:
        super().__init__(memories)
        self._known: list[tuple[int, int] | None] = [None] * len(memories)
        """Where each memory was registered last."""
        self._fd = self._pagemap = -1
        try:
            self._fd = kernel.open_userfaultfd(kernel.ASYNC_WP)
            self._pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as problem:
            self.close()
            raise TrackingLost(f"this kernel does not count writes for us: {problem.strerror}") from problem
        self._scanner = kernel.PagemapScanner(self._pagemap)

    def collect(self) -> list[Runs]:
        return [self._look(n, extent) for n, extent in enumerate(self.memories)]

    def _look(self, n: int, extent: Extent) -> Runs:
        for _ in range(_MOVES):
            base, length = extent()
            known = self._known[n]
            start, end = _pages(base, length)
            try:
                if not kernel.is_mapped(start, end):  # the runtime has moved it, and has not stored yet where it is
                    self._known[n] = None
                    continue
                if known != (base, length):
                    if length:
                        kernel.register(self._fd, start, end - start)
                    self._known[n] = base, length
                regions = self._scanner.written(start, end) if length else []
            except PermissionError:  # something else is mapped there since
                self._known[n] = None
                continue
            except OSError as problem:
                raise TrackingLost(f"the kernel does not follow this memory: {problem.strerror}",
                                   address=base, length=length) from problem
            # An address that is not mapped any more is no error for the kernel, and never written.
            if extent() != (base, length) or not kernel.is_mapped(start, end):
                self._known[n] = None
                continue
            if known is None or known[0] != base or known[1] > length:
                return everything(length)
            return within(regions, base, length)
        return everything(extent()[1])

    def forget(self) -> None:
        self._known = [None] * len(self._known)

    def close(self) -> None:
        for fd in (self._fd, self._pagemap):
            if fd >= 0:
                os.close(fd)
        self._fd = self._pagemap = -1


def _pages(base: int, length: int) -> tuple[int, int]:
    """The machine's pages that a memory touches."""
    page = kernel.MACHINE_PAGE
    return base - base % page, -(-(base + length) // page) * page
