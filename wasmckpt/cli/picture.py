"""A memory as a picture: one character for so many pages."""

from __future__ import annotations

from typing import Final

from ..formats import PAGE_SIZE, MemoryState
from .output import amount

__all__ = ["LEGEND", "picture"]

LEGEND: Final = ". as the module made it   # changed   + changed in part   0 made zero"
_WIDTH: Final = 64
_ROWS: Final = 16


def picture(memory: MemoryState) -> list[str]:
    """Lines of the picture, each with the address where it begins; see `LEGEND`."""
    pages = memory.pages * (65536 // PAGE_SIZE)
    if not pages:
        return []
    each = 1
    while pages > each * _WIDTH * _ROWS:
        each *= 2
    cells = -(-pages // each)
    changed, zero = [0] * cells, [0] * cells
    data = [(first, len(raw) // PAGE_SIZE) for first, raw in memory.data]
    for runs, counts in ((data, changed), (memory.zero, zero)):
        for first, count in runs:
            for cell in range(first // each, min(-(-(first + count) // each), cells)):
                counts[cell] += min(first + count, (cell + 1) * each) - max(first, cell * each)
    drawn = "".join(
        "." if not c and not z else "+" if c + z < min(each, pages - i * each) or (c and z) else "#" if c else "0"
        for i, (c, z) in enumerate(zip(changed, zero, strict=True))
    )
    lines = [f"{start * each * PAGE_SIZE:#010x}  {drawn[start : start + _WIDTH]}" for start in range(0, cells, _WIDTH)]
    return [f"each character is {amount(each * PAGE_SIZE)}; {LEGEND}", *lines]
