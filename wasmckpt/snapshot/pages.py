"""Memories as differences: which 4 KiB pages differ from the module's own initial memory, or from an earlier image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..formats import PAGE_SIZE, MemoryState
from ..wasm.constants import constant_offset
from ..wasm.module import Module
from .view import Read

__all__ = ["CHUNK", "ZERO_CHUNK", "changed_memory", "diff_memory", "initial_pages", "pieces"]

CHUNK = 1 << 20
"""Bytes that are read and compared at a time."""
_ZERO_PAGE = bytes(PAGE_SIZE)
ZERO_CHUNK = bytes(CHUNK)
"""A chunk of zeros; who gives this very object as a chunk saves the comparison."""


def initial_pages(module: Module, memory: int, imported: Mapping[int, int]) -> dict[int, bytes]:
    """The pages of a memory that active data segments make other than zero: page number -> 4096 bytes."""
    pages: dict[int, bytearray] = {}
    values = dict(imported)
    for segment in module.datas:
        if not segment.active or segment.memory != memory:
            continue
        at = constant_offset(module, segment.offset, values)
        data, done = segment.data, 0  # never cut off what is done: that copies the rest, megabytes of it, for each page
        while done < len(data):
            page, inside = divmod(at + done, PAGE_SIZE)
            part = data[done : done + PAGE_SIZE - inside]
            if part.count(0) != len(part) or page in pages:
                pages.setdefault(page, bytearray(PAGE_SIZE))[inside : inside + len(part)] = part
            done += len(part)
    return {page: bytes(content) for page, content in pages.items() if content != _ZERO_PAGE}


def diff_memory(index: int, pages64k: int, base: int, read: Read, initial: Mapping[int, bytes]) -> MemoryState:
    """Compare a memory with its initial contents, a mebibyte at a time; zero stretches cost one comparison.

    Args:
        base: native address of the memory, read through ``read``. initial: see `initial_pages`.
    """
    runs: list[tuple[int, bytes]] = []
    zero: list[list[int]] = []
    total = pages64k << 16
    for start in range(0, total, CHUNK):
        chunk = read(base + start, min(CHUNK, total - start))
        first = start // PAGE_SIZE
        count = len(chunk) // PAGE_SIZE
        if chunk == (ZERO_CHUNK if len(chunk) == CHUNK else bytes(len(chunk))):
            for page in range(first, first + count):
                if page in initial:
                    _extend(zero, page)
            continue
        since = -1  # where the present run of changed pages begins; one slice for each run
        for n in range(count):
            at = n * PAGE_SIZE
            before = initial.get(first + n)
            changed = not chunk.startswith(before or _ZERO_PAGE, at)
            if changed and before and chunk.startswith(_ZERO_PAGE, at):
                _extend(zero, first + n)
                changed = False
            if changed:
                since = n if since < 0 else since
            elif since >= 0:
                runs.append((first + since, chunk[since * PAGE_SIZE : at]))
                since = -1
        if since >= 0:
            runs.append((first + since, chunk[since * PAGE_SIZE :] if since else chunk))
    return MemoryState(index, pages64k, tuple(runs), tuple((a, n) for a, n in zero))


def pieces(runs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Offset and length in bytes of all runs of pages, a mebibyte at a time: what `changed_memory` reads."""
    for first, count in runs:
        for page in range(first, first + count, CHUNK // PAGE_SIZE):
            yield page * PAGE_SIZE, min(CHUNK, (first + count - page) * PAGE_SIZE)


def changed_memory(
    index: int, pages64k: int, base: int, read: Read, runs: Sequence[tuple[int, int]], before: int,
) -> MemoryState:
    """A memory as the difference to an earlier image: the pages of ``runs``, and no others, may have changed.

    Args:
        before: its size in that image, in pages of 64 KiB; what lies beyond is zero as long as nobody says otherwise.
    """
    data: list[tuple[int, bytes]] = []
    zero: list[list[int]] = []
    known = before * (65536 // PAGE_SIZE)
    for start, length in pieces(runs):
        chunk = read(base + start, length)
        first = start // PAGE_SIZE
        since = 0  # where the present run of pages with contents begins
        for at in range(0, length, PAGE_SIZE):
            if chunk.startswith(_ZERO_PAGE, at):
                if at > since:
                    data.append((first + since // PAGE_SIZE, chunk[since:at]))
                since = at + PAGE_SIZE
                if first + at // PAGE_SIZE < known:
                    _extend(zero, first + at // PAGE_SIZE)
        if length > since:
            data.append((first + since // PAGE_SIZE, chunk[since:] if since else chunk))
    return MemoryState(index, pages64k, tuple(data), tuple((a, n) for a, n in zero))


def _extend(zero: list[list[int]], page: int) -> None:
    if zero and sum(zero[-1]) == page:
        zero[-1][1] += 1
    else:
        zero.append([page, 1])
