"""Copying what an image needs out of a forked process, fast: it costs the source a page copy for each page that it
writes while both live, so nothing is looked at before all is here and the copy is dead.

Memories are mostly untouched. ``/proc/PID/pagemap`` says which pages are there; one that is not, in memory that belongs
to no file, is zero and need not be read (reading would make a page table for it).
"""

from __future__ import annotations

import os
from bisect import bisect_right

from ..errors import CheckpointError
from .fork_copy import Copy
from .pages import CHUNK, ZERO_CHUNK, pieces
from .program import Increment
from .view import Read, View

__all__ = ["Copied", "copy_state"]

_PAGE = 4096
_SUB = 16
"""Pages that are read or left out together."""
_MOST = CHUNK // _PAGE + 1
_ABSENT = (bytes(8 * _MOST), (1 << 55).to_bytes(8, "little") * _MOST)
"""Entries of pages that are neither present nor swapped out, without and with the soft-dirty bit."""
_ABSENT_SUB = tuple(entries[: 8 * _SUB] for entries in _ABSENT)


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


def copy_state(view: View, copy: Copy, *, memories: bool = True, increment: Increment | None = None) -> Copied:
    """Copy control words, window and (unless they are not asked for) memories of a forked process that has spilled; of
    memories that an increment is about, only the pages that it names.

    Raises:
        OSError: it is gone, or may not be looked at.
    """
    copied = Copied()
    recorded = copied.recording(copy.read)
    view.window(recorded)
    view.word("done", recorded)
    for index in range(len(view.memories) if memories else 0):
        base, pages = view.memory_pages(index, recorded)
        if increment is not None and index < len(increment.runs):
            for offset, length in pieces(increment.runs[index]):
                recorded(base + offset, length)
        elif pages:
            copied.add_memory(base, pages << 16, _copy_memory(copy, base, pages << 16))
    return copied


def _copy_memory(copy: Copy, base: int, length: int) -> list[bytes]:
    first = base // _PAGE
    count = (base + length + _PAGE - 1) // _PAGE - first
    files = _file_ranges(copy.pid, base, base + length)
    fd = os.open(f"/proc/{copy.pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = _pread_all(fd, 8 * count, 8 * first)
    finally:
        os.close(fd)
    # One buffer for all: memory that was never used costs ten times what reading into it costs.
    buffer = bytearray(CHUNK)
    whole = memoryview(buffer)
    chunks = []
    for start in range(0, length, CHUNK):
        low = base + start
        part = whole[: min(CHUNK, length - start)]
        high = low + len(part)
        entries = there[8 * (low // _PAGE - first) : 8 * ((high + _PAGE - 1) // _PAGE - first)]
        if files and any(begin < high and end > low for begin, end in files):
            copy.read_into(low, part)
        elif entries in (_ABSENT[0][: len(entries)], _ABSENT[1][: len(entries)]):
            chunks.append(_zeros(len(part)))
            continue
        else:
            _copy_present(copy, low, part, entries)
        # (A memoryview compares element by element, a hundred times slower.)
        chunks.append(ZERO_CHUNK if len(part) == CHUNK and buffer == ZERO_CHUNK else bytes(part))
    return chunks


def _zeros(length: int) -> bytes:
    return ZERO_CHUNK if length == CHUNK else bytes(length)


def _copy_present(copy: Copy, address: int, part: memoryview, entries: bytes) -> None:
    """Fill ``part`` from private memory at ``address``; ``entries`` of the pagemap begin with the page it lies in."""
    first = address // _PAGE
    end = address + len(part)
    at = address
    begin = -1
    while at < end:
        page = at // _PAGE
        stop = min((page + _SUB) * _PAGE, end)
        absent = entries[8 * (page - first) : 8 * (page - first + _SUB)] in _ABSENT_SUB  # a short piece counts as there
        if begin >= 0 and absent:
            copy.read_into(begin, part[begin - address : at - address])
            begin = -1
        if absent:
            part[at - address : stop - address] = ZERO_CHUNK[: stop - at]
        elif begin < 0:
            begin = at
        at = stop
    if begin >= 0:
        copy.read_into(begin, part[begin - address :])


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
