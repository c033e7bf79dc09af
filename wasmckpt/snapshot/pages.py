"""Memories as differences: which 4 KiB pages differ from the module's own initial memory."""

from __future__ import annotations

from collections.abc import Mapping

from ..formats import PAGE_SIZE, MemoryState
from ..wasm.constants import constant_offset
from ..wasm.module import Module
from .view import Read

__all__ = ["CHUNK", "ZERO_CHUNK", "diff_memory", "initial_pages"]

CHUNK = 1 << 20
"""Bytes that are read and compared at a time."""
_ZERO_PAGE = bytes(PAGE_SIZE)
ZERO_CHUNK = bytes(CHUNK)
"""A chunk of zeros; who gives this very object as a chunk saves the comparison."""


def initial_pages(module: Module, memory: int, imported: Mapping[int, int]) -> dict[int, bytes]:
    """The pages of a memory that active data segments make other than zero: page number -> 4096 bytes."""
    pages: dict[int, bytearray] = {}
    for segment in module.datas:
        if not segment.active or segment.memory != memory:
            continue
        at = constant_offset(module, segment.offset, imported)
        data = segment.data
        while data:
            page, inside = divmod(at, PAGE_SIZE)
            part = data[: PAGE_SIZE - inside]
            if part.count(0) != len(part) or page in pages:
                pages.setdefault(page, bytearray(PAGE_SIZE))[inside : inside + len(part)] = part
            data = data[len(part) :]
            at += len(part)
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


def _extend(zero: list[list[int]], page: int) -> None:
    if zero and sum(zero[-1]) == page:
        zero[-1][1] += 1
    else:
        zero.append([page, 1])
