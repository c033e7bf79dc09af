"""Sets of pages as runs: (first page, number of pages), ascending, neither overlapping nor touching."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["PAGE", "Runs", "count", "merge", "within"]

PAGE = 4096
"""Bytes of a page, here as in images."""
Runs = tuple[tuple[int, int], ...]


def merge(runs: Iterable[tuple[int, int]]) -> Runs:
    """The union of runs in any order."""
    out: list[list[int]] = []
    for first, number in sorted(runs):
        if out and first <= out[-1][0] + out[-1][1]:
            out[-1][1] = max(out[-1][1], first + number - out[-1][0])
        elif number > 0:
            out.append([first, number])
    return tuple((first, number) for first, number in out)


def count(runs: Runs) -> int:
    """Number of pages."""
    return sum([number for _, number in runs])


def within(regions: Iterable[tuple[int, int]], base: int, length: int) -> Runs:
    """Pages of a memory that regions of native addresses (start, end) touch.

    The memory need not begin at a page of the machine: then one of those touches two of the memory's.
    """
    runs = []
    for start, end in regions:
        low, high = max(start - base, 0), min(end - base, length)
        if low < high:
            first = low // PAGE
            runs.append((first, -(-high // PAGE) - first))
    return merge(runs)
