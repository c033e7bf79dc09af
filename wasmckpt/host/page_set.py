"""A set of 4 KiB pages, as ascending ranges that do not touch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from ..lazydata import dataclass

__all__ = ["PageSet"]

_MOST = 1 << 20
"""Pages of a 32-bit memory."""


@dataclass(frozen=True, slots=True)
class PageSet:
    """Immutable; ``ranges`` are (first page, page after the last)."""

    ranges: tuple[tuple[int, int], ...] = ()

    def with_pages(self, first: int, end: int) -> PageSet:
        """Also the pages from ``first`` up to ``end``, not included; none if that is empty."""
        if first >= end:
            return self
        apart = []
        for a, b in self.ranges:
            if b < first or a > end:
                apart.append((a, b))
            else:
                first, end = min(a, first), max(b, end)
        return PageSet(tuple(sorted([*apart, (first, end)])))

    def without_pages(self, first: int, end: int) -> PageSet:
        """Not the pages from ``first`` up to ``end``, not included."""
        if first >= end:
            return self
        left = [(a, min(b, first)) for a, b in self.ranges] + [(max(a, end), b) for a, b in self.ranges]
        return PageSet(tuple(sorted((a, b) for a, b in left if a < b)))

    def __contains__(self, page: int) -> bool:
        at = bisect_right(self.ranges, (page, _MOST + 1)) - 1
        return at >= 0 and page < self.ranges[at][1]

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[int]:
        return (page for a, b in self.ranges for page in range(a, b))

    def to_plain(self) -> list[list[int]]:
        """Lists for msgpack."""
        return [list(pair) for pair in self.ranges]

    @classmethod
    def from_plain(cls, data: Iterable[object]) -> PageSet:
        """The other direction. Raises ValueError unless they ascend and lie in a 32-bit memory."""
        ranges: list[tuple[int, int]] = []
        for pair in data:
            if not isinstance(pair, Sequence) or len(pair) != 2 or not all(type(number) is int for number in pair):
                raise ValueError("not a pair of numbers")
            first, end = pair
            if not (ranges[-1][1] if ranges else -1) < first < end <= _MOST:
                raise ValueError("pages do not ascend")
            ranges.append((first, end))
        return cls(tuple(ranges))
