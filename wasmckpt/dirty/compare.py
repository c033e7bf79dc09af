"""A kept copy of each memory, compared a mebibyte at a time: works everywhere, and alone sees that a page was written
with what it held before."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import ClassVar

from .runs import PAGE, Runs, merge
from .tracker import Extent, Tracker, everything

__all__ = ["Compare"]

_CHUNK = 1 << 20


class Compare(Tracker):
    """Takes as much memory as the guest has."""

    name: ClassVar[str] = "compare"
    needs_stop: ClassVar[bool] = True

    def __init__(self, memories: Sequence[Extent]) -> None:
        super().__init__(memories)
        self._kept: list[bytearray | None] = [None] * len(memories)
        self._memcmp = ctypes.CDLL(None).memcmp
        self._memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

    def collect(self) -> list[Runs]:
        return [self._look(n, *extent()) for n, extent in enumerate(self.memories)]

    def _look(self, n: int, base: int, length: int) -> Runs:
        kept = self._kept[n]
        if kept is None or len(kept) > length:
            self._kept[n] = bytearray((ctypes.c_char * length).from_address(base)) if length else bytearray()
            return everything(length)
        known = len(kept)
        runs = [(page, 1) for page in self._changed(kept, base)]
        if known < length:
            kept += (ctypes.c_char * (length - known)).from_address(base + known)  # pages of 64 KiB: on a boundary
            runs.append((known // PAGE, (length - known) // PAGE))
        return merge(runs)

    def _changed(self, kept: bytearray, base: int) -> list[int]:
        """Pages that differ from the kept ones, which are brought up to date."""
        if not kept:
            return []
        copy = ctypes.addressof(ctypes.c_char.from_buffer(kept))
        pages = []
        for start in range(0, len(kept), _CHUNK):
            size = min(_CHUNK, len(kept) - start)
            if not self._memcmp(base + start, copy + start, size):
                continue
            for at in range(start, start + size, PAGE):
                if self._memcmp(base + at, copy + at, PAGE):
                    ctypes.memmove(copy + at, base + at, PAGE)
                    pages.append(at // PAGE)
        return pages

    def forget(self) -> None:
        self._kept = [None] * len(self._kept)

    def close(self) -> None:
        self.forget()
