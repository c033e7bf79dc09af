"""Copying what an image needs out of a process that has spilled, fast: of a forked one, which costs the source a page
copy for each page that it writes while both live, or of this one, whose program stands still meanwhile. So nothing is
looked at before all is here.

Memories are mostly untouched. ``/proc/PID/pagemap`` says which pages are there; one that is not, in memory that belongs
to no file, is zero and need not be read (reading would make a page table for it).
"""

from __future__ import annotations

import ctypes
import os
from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

from ..dirty import kernel
from ..errors import CheckpointError
from .arena import Arena, Kept
from .pages import pieces
from .program import Increment
from .view import Read, View

__all__ = ["Copied", "Here", "Source", "copy_state", "room_for"]

_PAGE = kernel.MACHINE_PAGE
_GAP = 16 * _PAGE
"""Bytes that nobody has touched and that are read all the same, if they lie between others."""


class Source(Protocol):
    """A process whose memory is copied."""

    pid: int

    def read(self, address: int, length: int) -> bytes: ...
    def read_into(self, address: int, target: memoryview) -> None: ...


class Here:
    """This process; nobody may unmap what is read."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def read(self, address: int, length: int) -> bytes:
        return ctypes.string_at(address, length)

    def read_into(self, address: int, target: memoryview) -> None:
        ctypes.memmove(ctypes.addressof(ctypes.c_char.from_buffer(target)), address, len(target))


class Copied:
    """A `Read` of what was copied: words by exact address and length, memories by part, once and in order."""

    def __init__(self) -> None:
        self._words: dict[tuple[int, int], bytes] = {}
        self._starts: list[int] = []
        self._memories: list[Kept] = []

    def recording(self, read: Read) -> Read:
        """``read``, with each answer kept."""

        def recorded(address: int, length: int) -> bytes:
            found = self._words[address, length] = read(address, length)
            return found

        return recorded

    def add_memory(self, memory: Kept) -> None:
        """What was copied of a memory."""
        at = bisect_right(self._starts, memory.base)
        self._starts.insert(at, memory.base)
        self._memories.insert(at, memory)

    def read(self, address: int, length: int) -> bytes:
        """What lay there. Raises `CheckpointError`: nobody copied that."""
        found = self._words.get((address, length))
        if found is not None:
            return found
        at = bisect_right(self._starts, address) - 1
        if at >= 0:
            memory = self._memories[at]
            if address - memory.base + length <= memory.length:
                return memory.read(address - memory.base, length)
        raise CheckpointError("a part of the program was not copied", offset=address, length=length)


def copy_state(
    view: View, source: Source, *, memories: bool = True, increment: Increment | None = None,
    prepared: Arena | None = None,
) -> Copied:
    """Copy control words, window and (unless they are not asked for) memories of a process that has spilled; of
    memories that an increment is about, only the pages that it names.

    Args:
        prepared: memory to copy to, if it is enough.

    Raises:
        OSError: the process is gone, or may not be looked at.
    """
    copied = Copied()
    recorded = copied.recording(source.read)
    view.window(recorded)
    view.word("done", recorded)
    wanted: list[tuple[int, int, list[tuple[int, int]]]] = []
    for index in range(len(view.memories) if memories else 0):
        base, pages = view.memory_pages(index, recorded)
        if increment is not None and index < len(increment.runs):
            stretches = list(_joined(pieces(increment.runs[index]), 0))
        else:
            stretches = list(_present(source.pid, base, pages << 16))
        wanted.append((base, pages << 16, stretches))
    total = sum(size for _, _, stretches in wanted for _, size in stretches)
    arena = prepared if prepared is not None and prepared.size >= total else Arena(total)
    at = 0
    for base, length, stretches in wanted:
        memory = Kept(base, length, stretches, arena, at)
        at = memory.fill(source.read_into)
        copied.add_memory(memory)
    return copied


def room_for(view: View) -> int:
    """Bytes that `copy_state` would need now for all memories of this process."""
    total = 0
    for index in range(len(view.memories)):
        base, pages = view.memory_pages(index)
        total += sum(size for _, size in _present(os.getpid(), base, pages << 16))
    return total


def _present(pid: int, base: int, length: int) -> Iterator[tuple[int, int]]:
    """The stretches of a memory, as (offset, bytes), outside of which all is zero."""
    if not length:
        return
    low, high = base - base % _PAGE, -(-(base + length) // _PAGE) * _PAGE
    files = _file_ranges(pid, low, high)
    fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = sorted([*kernel.present(fd, low, high), *files])
    finally:
        os.close(fd)
    inside = ((max(start, base) - base, min(end, base + length) - base) for start, end in found)
    yield from _joined(((start, end - start) for start, end in inside if end > start), _GAP)


def _joined(stretches: Iterator[tuple[int, int]], gap: int) -> Iterator[tuple[int, int]]:
    """Stretches, ascending, that lie no further apart than ``gap`` made one."""
    first = end = -1
    for start, size in stretches:
        if first >= 0 and start <= end + gap:
            end = max(end, start + size)
            continue
        if first >= 0:
            yield first, end - first
        first, end = start, start + size
    if first >= 0:
        yield first, end - first


def _file_ranges(pid: int, low: int, high: int) -> list[tuple[int, int]]:
    """Parts of an address range that are mapped from a file: there a page that is not present is not zero."""
    found = []
    with open(f"/proc/{pid}/maps", "rb", buffering=1 << 16) as maps:
        for line in maps:
            fields = line.split(None, 5)
            start, _, end = fields[0].partition(b"-")
            if int(start, 16) < high and int(end, 16) > low and fields[4] != b"0":
                found.append((max(int(start, 16), low), min(int(end, 16), high)))
    return found
