"""A kept copy of each memory, compared a mebibyte at a time: works everywhere, and alone sees that a page was written
with what it held before."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import ClassVar

from . import kernel
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
        self._now = bytearray(_CHUNK)
        """What is compared: looked at in place, memory that is being moved would end the process."""
        self._memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        self._memcmp = ctypes.CDLL(None).memcmp
        self._memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

    def collect(self) -> list[Runs]:
        return [self._look(n, *extent()) for n, extent in enumerate(self.memories)]

    def _look(self, n: int, base: int, length: int) -> Runs:
        kept = self._kept[n]
        try:
            if kept is None or len(kept) > length:
                self._kept[n] = None
                kept = bytearray(length)
                kernel.read_own(self._memory, base, memoryview(kept))
                self._kept[n] = kept
                return everything(length)
            known = len(kept)
            runs = [(page, 1) for page in self._changed(kept, base)]
            if known < length:
                new = bytearray(length - known)
                kernel.read_own(self._memory, base + known, memoryview(new))
                kept += new
                runs.append((known // PAGE, (length - known) // PAGE))  # pages of 64 KiB: on a boundary
            return merge(runs)
        except OSError:  # it is being moved, and nobody has stored yet where it is
            self._kept[n] = None
            return everything(length)

    def _changed(self, kept: bytearray, base: int) -> list[int]:
        """Pages that differ from the kept ones, which are brought up to date."""
        if not kept:
            return []
        copy = ctypes.addressof(ctypes.c_char.from_buffer(kept))
        now = ctypes.addressof(ctypes.c_char.from_buffer(self._now))
        pages = []
        for start in range(0, len(kept), _CHUNK):
            size = min(_CHUNK, len(kept) - start)
            kernel.read_own(self._memory, base + start, memoryview(self._now)[:size])
            if not self._memcmp(now, copy + start, size):
                continue
            for at in range(0, size, PAGE):
                if self._memcmp(now + at, copy + start + at, PAGE):
                    ctypes.memmove(copy + start + at, now + at, PAGE)
                    pages.append((start + at) // PAGE)
        return pages

    def forget(self) -> None:
        self._kept = [None] * len(self._kept)

    def close(self) -> None:
        self.forget()
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1
