"""A memory as a row of cells, each for so many pages: what an image holds of it, small enough to be looked at."""

from __future__ import annotations

from collections.abc import Iterable

from wasmckpt.formats.image import PAGE_SIZE, WASM_PAGE_SIZE

__all__ = ["cells"]


def cells(
    size: int, marked: Iterable[tuple[int, int]], zero: Iterable[tuple[int, int]], most: int,
) -> tuple[int, str]:
    """How many pages of 4 KiB a cell stands for (a power of two), and a character for each: ``.`` nothing is said about
    it, ``#`` all of it is marked, ``0`` all of it was made zero, ``+`` anything else.

    Args:
        size: of the memory, in pages of 64 KiB. marked, zero: runs of pages of 4 KiB: (first, count).
        most: cells, at most.
    """
    pages = size * (WASM_PAGE_SIZE // PAGE_SIZE)
    each = 1
    while pages > each * most:
        each *= 2
    number = -(-pages // each)
    changed, cleared = [0] * number, [0] * number
    for runs, counts in ((marked, changed), (zero, cleared)):
        for first, count in runs:
            for cell in range(first // each, min(-(-(first + count) // each), number)):
                counts[cell] += min(first + count, (cell + 1) * each) - max(first, cell * each)
    return each, "".join(
        "." if not c and not z else "+" if c + z < min(each, pages - i * each) or (c and z) else "#" if c else "0"
        for i, (c, z) in enumerate(zip(changed, cleared, strict=True))
    )
