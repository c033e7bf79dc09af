"""A memory as a picture: one character for so many pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..formats import PAGE_SIZE, MemoryState
from ..formats.cells import cells
from .output import amount

__all__ = ["LEGEND", "draw", "picture"]

LEGEND: Final = ". as the module made it   # changed   + changed in part   0 made zero"
_WIDTH: Final = 64
_ROWS: Final = 16


def picture(memory: MemoryState) -> list[str]:
    """What an image holds of a memory; see `LEGEND`."""
    return draw(memory.pages, [(first, len(raw) // PAGE_SIZE) for first, raw in memory.data], memory.zero, LEGEND)


def draw(
    size: int, marked: Iterable[tuple[int, int]], zero: Iterable[tuple[int, int]], legend: str,
) -> list[str]:
    """Lines of a picture, each with the address where it begins, below one that explains it.

    Args:
        size: of the memory, in pages of 64 KiB. marked, zero: runs of 4 KiB pages: (first, count).
    """
    if not size:
        return []
    each, drawn = cells(size, marked, zero, _WIDTH * _ROWS)
    starts = range(0, len(drawn), _WIDTH)
    lines = [f"{start * each * PAGE_SIZE:#010x}  {drawn[start : start + _WIDTH]}" for start in starts]
    return [f"each character is {amount(each * PAGE_SIZE)}; {legend}", *lines]
