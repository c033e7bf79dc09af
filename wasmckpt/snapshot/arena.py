"""Memory for what is read out of a program: taken from the system and given back to it at once.

A forked copy costs the source a page copy for each page that it writes while both live, so it has to be read at the
speed of memory. Into ordinary fresh memory that is a third of it (64 MiB: 90 ms as pieces from malloc, 70 into 4 KiB
pages, 26 into huge pages, as much as into memory that has been used before). And what malloc keeps for later is copied
with the next fork's page tables; an arena is not, nor does a copy get to see it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Callable, Sequence

from ..errors import CheckpointError
from .pages import CHUNK, ZERO_CHUNK

__all__ = ["Arena", "Kept", "ReadInto"]

ReadInto = Callable[[int, memoryview], None]
"""Fills the buffer from native memory at an address. Raises OSError."""

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_HUGE = 2 << 20
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, which Python has no name for."""


class Arena:
    """So many bytes of memory of the system's own. Freed with the object, or sooner by `give_back`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._area = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for name in ("MADV_HUGEPAGE", "MADV_DONTFORK"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self._area.madvise(getattr(mmap, name))
        self._given_back = 0

    def prepare(self) -> None:
        """Have the system give the pages now, so that writing to them will be quick."""
        try:
            self._area.madvise(_POPULATE_WRITE)
        except OSError:  # a kernel before 5.14
            ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(self._area)), 0, self.size)

    def part(self, start: int, end: int) -> memoryview:
        """A part to be filled."""
        return memoryview(self._area)[start:end]

    def read(self, start: int, end: int) -> bytes:
        """A part's bytes. Raises `CheckpointError`: it was given back."""
        if start < self._given_back:
            raise CheckpointError("a part of the program's memory was read twice", offset=start)
        return self._area[start:end]

    def give_back(self, end: int) -> None:
        """What lies before ``end`` is not needed any more."""
        end -= end % _HUGE
        if end > self._given_back:
            self._area.madvise(mmap.MADV_DONTNEED, self._given_back, end - self._given_back)
            self._given_back = end


class Kept:
    """What was copied of one memory: some stretches of it; the rest is zero, or not asked for.

    To be read once, in ascending order: the arena's memory is given back as that goes on.
    """

    def __init__(self, base: int, length: int, stretches: Sequence[tuple[int, int]], arena: Arena, at: int = 0) -> None:
        """``stretches``: (offset in the memory, bytes), ascending; packed in the arena from ``at`` on."""
        self.base, self.length = base, length
        self._arena = arena
        self._stretches = stretches
        self._places = [at]
        self._next = 0

    def fill(self, read_into: ReadInto) -> int:
        """Copy it all; gives where the arena is free from then on. Raises OSError.

        A chunk of zeros (a runtime may have written a gigabyte of them) takes no room: its place goes to the next one.
        """
        kept: list[tuple[int, int]] = []
        end = self._places.pop()
        for offset, size in self._stretches:
            for start in range(0, size, CHUNK):
                length = min(CHUNK, size - start)
                part = self._arena.part(end, end + length)
                read_into(self.base + offset + start, part)
                if not _compare(ctypes.addressof(ctypes.c_char.from_buffer(part)), ZERO_CHUNK, length):
                    continue
                if kept and sum(kept[-1]) == offset + start:
                    kept[-1] = kept[-1][0], kept[-1][1] + length
                else:
                    kept.append((offset + start, length))
                    self._places.append(end)
                end += length
        self._stretches = kept
        return end

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the memory from offset ``start`` on."""
        end = start + length
        while self._next < len(self._stretches) and sum(self._stretches[self._next]) <= start:
            self._next += 1
        found: list[tuple[int, bytes]] = []
        n = self._next
        while n < len(self._stretches) and self._stretches[n][0] < end:
            offset, size = self._stretches[n]
            low, high = max(start, offset), min(end, offset + size)
            place = self._places[n] - offset
            found.append((low - start, self._arena.read(place + low, place + high)))
            self._arena.give_back(place + high)
            n += 1
        if not found:
            return ZERO_CHUNK if length == CHUNK else bytes(length)
        if len(found[0][1]) == length:
            return found[0][1]
        whole = bytearray(length)
        for at, piece in found:
            whole[at:at + len(piece)] = piece
        return bytes(whole)
