"""Runs of pages are sets of pages."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.dirty import count, merge, within

from .area import pages_of

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=20)


@given(PAIRS)
def test_merging_is_the_union_in_normal_form(runs: list[tuple[int, int]]) -> None:
    merged = merge(runs)
    assert pages_of(merged) == pages_of(tuple(runs))
    assert count(merged) == len(pages_of(merged))
    assert all(a + n < b for (a, n), (b, _) in pairwise(merged))
    assert all(n > 0 for _, n in merged)


@given(st.integers(0, 4095), st.lists(st.tuples(st.integers(0, 70), st.integers(1, 5)), max_size=10))
def test_regions_of_a_memory_that_begins_anywhere(skew: int, machine_pages: list[tuple[int, int]]) -> None:
    """Each byte of the memory that a region holds is in a page that is told, and each page told holds such a byte."""
    base, length = 10 * 4096 + skew, 32 * 4096
    regions = [(first * 4096, (first + n) * 4096) for first, n in machine_pages]
    told = pages_of(within(regions, base, length))
    touched = {
        page for page in range(32)
        if any(start < base + (page + 1) * 4096 and base + page * 4096 < end for start, end in regions)
    }
    assert told == touched
