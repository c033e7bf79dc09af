"""A memory whole: what the module makes of it and what the image changes; and as few data segments as make sense."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..formats import PAGE_SIZE, MemoryState
from ..instrument.emit import END, i32_const
from ..snapshot.pages import initial_pages
from ..wasm.leb128 import uleb
from ..wasm.module import Module

__all__ = ["MAX_SEGMENTS", "Pages", "contents", "data_segment", "segments", "write"]

MAX_SEGMENTS = 10_000
"""Of one memory; web engines take 100,000 in all."""
_GAP = 32
"""Zeros that are worth a segment of their own left out: one has up to 13 bytes beside its data."""
_ZERO = bytes(PAGE_SIZE)

Pages = dict[int, bytes]
"""The pages of 4 KiB that are not zero, by number."""


def contents(module: Module, state: MemoryState) -> Pages:
    """A memory as it was frozen, of a module without imported constants."""
    pages = initial_pages(module, state.index, {})
    for first, count in state.zero:
        for page in range(first, first + count):
            pages.pop(page, None)
    for first, data in state.data:
        for n in range(len(data) // PAGE_SIZE):
            content = data[n * PAGE_SIZE : (n + 1) * PAGE_SIZE]
            if content == _ZERO:
                pages.pop(first + n, None)
            else:
                pages[first + n] = content
    return pages


def write(pages: Pages, at: int, data: bytes) -> None:
    """Put bytes into a memory."""
    done = 0
    while done < len(data):
        page, inside = divmod(at + done, PAGE_SIZE)
        part = data[done : done + PAGE_SIZE - inside]
        before = pages.get(page, _ZERO)
        after = before[:inside] + part + before[inside + len(part) :]
        if after == _ZERO:
            pages.pop(page, None)
        else:
            pages[page] = after
        done += len(part)


def segments(pages: Mapping[int, bytes]) -> list[tuple[int, bytes]]:
    """(offset, bytes) of all that is not zero, ascending; short stretches of zeros are not worth a gap."""
    gap = _GAP
    while True:
        found: list[tuple[int, bytes]] = []
        for start, run in _runs(pages):
            found += _split(start, run, gap)
            if len(found) > MAX_SEGMENTS and gap < PAGE_SIZE:
                break
        else:
            return found
        gap *= 4


def data_segment(memory: int, offset: int, data: bytes) -> bytes:
    """An active data segment, as an entry of the data section."""
    head = b"\2" + uleb(memory) if memory else b"\0"
    return head + i32_const(offset) + END + uleb(len(data)) + data


def _runs(pages: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
    """Consecutive pages, with the first one's offset."""
    numbers = sorted(pages)
    since = 0
    for n in range(1, len(numbers) + 1):
        if n == len(numbers) or numbers[n] != numbers[n - 1] + 1:
            yield numbers[since] * PAGE_SIZE, b"".join([pages[page] for page in numbers[since:n]])
            since = n


def _split(start: int, run: bytes, gap: int) -> Iterator[tuple[int, bytes]]:
    at = 0
    for zeros in [*re.finditer(rb"\0{%d,}" % gap, run), None]:
        end = len(run) if zeros is None else zeros.start()
        data = run[at:end].lstrip(b"\0")  # zeros at the edges that are too few to be a gap
        if data:
            yield start + end - len(data), data.rstrip(b"\0")
        at = end if zeros is None else zeros.end()
