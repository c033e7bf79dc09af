"""Memories as segments, and the place for records in them, against what is obvious and slow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.formats import PAGE_SIZE
from wasmckpt.interop.contents import MAX_SEGMENTS, Pages, segments, write
from wasmckpt.interop.window import choose_window

PIECES = st.lists(st.tuples(st.integers(0, 3 * 65536 - 200), st.binary(max_size=200)), max_size=12)


def made(pieces: list[tuple[int, bytes]]) -> tuple[Pages, bytes]:
    """The same memory of three pages of 64 KiB, both ways."""
    pages: Pages = {}
    plain = bytearray(3 * 65536)
    for at, data in pieces:
        write(pages, at, data)
        plain[at : at + len(data)] = data
    return pages, bytes(plain)


@given(PIECES)
def test_segments_make_the_same_memory(pieces: list[tuple[int, bytes]]) -> None:
    pages, plain = made(pieces)
    again = bytearray(len(plain))
    end = -1
    for offset, data in segments(pages):
        assert offset > end
        assert data.strip(b"\0") == data
        again[offset : offset + len(data)] = data
        end = offset + len(data)
    assert bytes(again) == plain
    assert set(pages) == {n for n in range(48) if any(plain[n * PAGE_SIZE : (n + 1) * PAGE_SIZE])}


def test_there_are_not_too_many() -> None:
    """A byte in every hundred: a segment each would be 41,000."""
    page = b"".join(b"\1" + bytes(99) for _ in range(41))[:PAGE_SIZE]
    found = segments({n: page.ljust(PAGE_SIZE, b"\0") for n in range(1000)})
    assert len(found) <= MAX_SEGMENTS
    assert sum(len(data) for _, data in found) <= 1000 * PAGE_SIZE


@given(PIECES, st.lists(st.binary(max_size=300), min_size=1, max_size=2000))
def test_records_lie_over_zeros_if_there_are_enough(pieces: list[tuple[int, bytes]], values: list[bytes]) -> None:
    pages, plain = made(pieces)
    window = choose_window(list(enumerate(values)), [len(plain)], pages)
    assert window.borrowed
    longest = max(map(len, window.pieces))
    assert len(window.kept) == -(-longest // 8) * 8
    assert plain[window.base :].startswith(window.kept)
    assert b"".join(window.pieces) == b"".join(n.to_bytes(4, "little") + v for n, v in enumerate(values))
    needed = -(-sum(4 + len(v) for v in values) // PAGE_SIZE)
    zeros = "".join("x" if n in pages else "." for n in range(48))
    if "." * needed in zeros:
        assert not any(window.kept)
        assert len(window.pieces) == 1
