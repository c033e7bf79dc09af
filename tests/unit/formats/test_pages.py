"""The difference to a base, and back."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.errors import ImageError
from wasmckpt.formats import PAGE_SIZE, WASM_PAGE_SIZE, MemoryState, apply, difference

KINDS = st.lists(st.sampled_from([0, 1, 2]), max_size=48)


def memory(kinds: list[int]) -> bytes:
    raw = b"".join([bytes([kind]) * PAGE_SIZE for kind in kinds])
    return raw + bytes(-len(raw) % WASM_PAGE_SIZE)


@given(KINDS, KINDS, st.integers(0, 5000))
def test_inverse(now: list[int], old: list[int], cut: int) -> None:
    """Base and difference give the memory back; the base may be shorter or longer and end anywhere."""
    base = memory(old)[cut:]
    state = difference(3, memory(now), base)
    assert state.index == 3
    assert apply(state, base) == memory(now)


@given(KINDS, KINDS)
def test_only_what_differs(now: list[int], old: list[int]) -> None:
    """Exactly the pages that differ are held, as zero runs where they are zero, in runs that cannot be joined."""
    new, base = memory(now), memory(old)
    state = difference(0, memoryview(new), bytearray(base))
    padded = base.ljust(len(new), b"\0")
    differ = {n for n in range(len(new) // PAGE_SIZE)
              if new[n * PAGE_SIZE:(n + 1) * PAGE_SIZE] != padded[n * PAGE_SIZE:(n + 1) * PAGE_SIZE]}
    zero = {n for n in differ if not any(new[n * PAGE_SIZE:(n + 1) * PAGE_SIZE])}
    runs = [(first, len(raw) // PAGE_SIZE) for first, raw in state.data]
    assert {n for first, count in runs for n in range(first, first + count)} == differ - zero
    assert {n for first, count in state.zero for n in range(first, first + count)} == zero
    for kind in (runs, list(state.zero)):
        assert all(a[0] + a[1] < b[0] for a, b in itertools.pairwise(kind))


def test_a_grown_memory() -> None:
    """Pages beyond the base count as zero: only what was written to them is held."""
    now = bytearray(3 * WASM_PAGE_SIZE)
    now[2 * WASM_PAGE_SIZE] = 1
    assert difference(0, now, bytes(WASM_PAGE_SIZE)) == MemoryState(
        0, 3, ((32, bytes(now[2 * WASM_PAGE_SIZE:2 * WASM_PAGE_SIZE + PAGE_SIZE])),))


def test_half_a_page() -> None:
    """A memory that is no whole number of pages is a mistake of the caller."""
    with pytest.raises(ImageError):
        difference(0, bytes(PAGE_SIZE), b"")
