"""Copying what an image needs out of a forked process, fast: it costs the source a page copy for each page that it
writes while both live, so nothing is looked at before all is here and the copy is dead.

Memories are mostly untouched. ``/proc/PID/pagemap`` says which pages are there; one that is not, in memory that belongs
to no file, is zero and need not be read (reading would make a page table for it).
"""

from __future__ import annotations

import os
from bisect import bisect_right

from ..errors import CheckpointError
from .pages import CHUNK, ZERO_CHUNK
from .view import Read, View

__all__ = ["Copied", "copy_state"]

_PAGE = 4096
_SUB = 16
"""Pages that are read or left out together."""
_ABSENT = (bytes(8 * _SUB), (1 << 55).to_bytes(8, "little") * _SUB)
"""Entries of pages that are neither present nor swapped out, without and with the soft-dirty bit."""


class Copied:
    """A `Read` of what was copied, after the process is gone: words by exact address and length, memories by part."""

    def __init__(self) -> None:
        self._words: dict[tuple[int, int], bytes] = {}
        self._starts: list[int] = []
        self._memories: list[tuple[int, int, list[bytes]]] = []

    def recording(self, read: Read) -> Read:
        """``read``, with each answer kept."""

        def recorded(address: int, length: int) -> bytes:
            found = self._words[address, length] = read(address, length)
            return found

        return recorded

    def add_memory(self, base: int, length: int, chunks: list[bytes]) -> None:
        """A memory of ``length`` bytes at ``base``, in chunks of `CHUNK` bytes; the last may be shorter."""
        at = bisect_right(self._starts, base)
        self._starts.insert(at, base)
        self._memories.insert(at, (base, length, chunks))

    def read(self, address: int, length: int) -> bytes:
        """What lay there. Raises `CheckpointError`: nobody copied that."""
        found = self._words.get((address, length))
        if found is not None:
            return found
        at = bisect_right(self._starts, address) - 1
        if at >= 0:
            base, size, chunks = self._memories[at]
            start = address - base
            if start + length <= size:
                number, inside = divmod(start, CHUNK)
                if not inside and length == len(chunks[number]):
                    return chunks[number]
                last = (start + length - 1) // CHUNK
                return b"".join(chunks[number : last + 1])[inside : inside + length]
        raise CheckpointError("a part of the forked copy was not read", offset=address, length=length)


def copy_state(view: View, read: Read, pid: int) -> Copied:
    """Copy control words, window and memories of a forked process that has spilled.

    Args:
        read: its memory. pid: the process.

    Raises:
        OSError: it is gone, or may not be looked at.
    """
    copied = Copied()
    recorded = copied.recording(read)
    view.window(recorded)
    view.word("done", recorded)
    for index in range(len(view.memories)):
        base, pages = view.memory_pages(index, recorded)
        length = pages << 16
        if length:
            copied.add_memory(base, length, _copy_memory(read, pid, base, length))
    return copied


def _copy_memory(read: Read, pid: int, base: int, length: int) -> list[bytes]:
    first = base // _PAGE
    count = (base + length + _PAGE - 1) // _PAGE - first
    files = _file_ranges(pid, base, base + length)
    fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = _pread_all(fd, 8 * count, 8 * first)
    finally:
        os.close(fd)
    chunks = []
    for start in range(0, length, CHUNK):
        size = min(CHUNK, length - start)
        if any(low < base + start + size and high > base + start for low, high in files):
            chunks.append(read(base + start, size))
        else:
            chunks.append(_copy_chunk(read, base + start, size, there, first))
    return chunks


def _copy_chunk(read: Read, address: int, size: int, there: bytes, first: int) -> bytes:
    """One chunk of private memory; ``there``: pagemap entries from page ``first`` on."""
    spans: list[list[int]] = []
    at = address
    end = address + size
    while at < end:
        page = at // _PAGE
        stop = min((page + _SUB) * _PAGE, end)
        entries = there[8 * (page - first) : 8 * (page - first + _SUB)]
        if entries not in _ABSENT:  # a short piece at the end counts as there
            if spans and spans[-1][1] == at:
                spans[-1][1] = stop
            else:
                spans.append([at, stop])
        at = stop
    if not spans:
        return ZERO_CHUNK if size == CHUNK else bytes(size)
    if spans == [[address, end]]:
        return read(address, size)
    parts = []
    at = address
    for low, high in spans:
        parts += [bytes(low - at), read(low, high - low)]
        at = high
    return b"".join([*parts, bytes(end - at)])


def _pread_all(fd: int, length: int, offset: int) -> bytes:
    parts = []
    while length:
        part = os.pread(fd, length, offset)
        if not part:
            raise OSError("the forked copy is gone")
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)


def _file_ranges(pid: int, low: int, high: int) -> list[tuple[int, int]]:
    """Parts of an address range that are mapped from a file: there a page that is not present is not zero."""
    found = []
    with open(f"/proc/{pid}/maps", "rb", buffering=1 << 16) as maps:
        for line in maps:
            fields = line.split(None, 5)
            start, _, end = fields[0].partition(b"-")
            if int(start, 16) < high and int(end, 16) > low and fields[4] != b"0":
                found.append((int(start, 16), int(end, 16)))
    return found
