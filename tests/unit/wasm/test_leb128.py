"""LEB128: every value in its shortest form and in all longer ones that the specification allows, none beyond."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.errors import InvalidModule
from wasmckpt.wasm.leb128 import read_s32, read_s33, read_s64, read_u32, sleb, uleb

Reader = Callable[[bytes, int], tuple[int, int]]

SIGNED: dict[int, Reader] = {32: read_s32, 33: read_s33, 64: read_s64}


@given(st.integers(0, 2**32 - 1))
def test_unsigned_round_trip(value: int) -> None:
    assert read_u32(b"\xff" + uleb(value) + b"\xff", 1) == (value, 1 + len(uleb(value)))


@pytest.mark.parametrize("bits", SIGNED)
@given(data=st.data())
def test_signed_round_trip(bits: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
    assert SIGNED[bits](sleb(value), 0) == (value, len(sleb(value)))


@given(st.integers(0, 2**32 - 1))
def test_shortest_form(value: int) -> None:
    assert len(uleb(value)) == max(1, -(-value.bit_length() // 7))


@pytest.mark.parametrize("length", range(1, 6))
def test_padding_up_to_five_bytes(length: int) -> None:
    zero = b"\x80" * (length - 1) + b"\0"
    assert read_u32(zero, 0) == read_s32(zero, 0) == (0, length)
    minus_one = b"\xff" * (length - 1) + b"\x7f"
    assert read_s32(minus_one, 0) == (-1, length)


@pytest.mark.parametrize(("reader", "raw"), [
    (read_u32, b"\x80\x80\x80\x80\x80\x00"),  # six bytes
    (read_u32, b"\xff\xff\xff\xff\x1f"),  # bit 32
    (read_u32, b"\x80\x80\x80\x80\x70"),
    (read_s32, b"\x80\x80\x80\x80\x80\x00"),
    (read_s32, b"\xff\xff\xff\xff\x0f"),  # unused bits unlike the sign
    (read_s32, b"\x80\x80\x80\x80\x08"),
    (read_s32, b"\x80\x80\x80\x80\x70"),
    (read_s33, b"\x80\x80\x80\x80\x80\x00"),
    (read_s33, b"\x80\x80\x80\x80\x10"),
    (read_s33, b"\xff\xff\xff\xff\x2f"),
    (read_s64, b"\x80" * 10 + b"\x00"),
    (read_s64, b"\x80" * 9 + b"\x01"),
    (read_s64, b"\xff" * 9 + b"\x7e"),
])
def test_too_long_or_too_large(reader: Reader, raw: bytes) -> None:
    with pytest.raises(InvalidModule, match="integer"):
        reader(raw, 0)


@pytest.mark.parametrize(("reader", "raw", "value"), [
    (read_u32, b"\xff\xff\xff\xff\x0f", 2**32 - 1),
    (read_s32, b"\xff\xff\xff\xff\x07", 2**31 - 1),
    (read_s32, b"\x80\x80\x80\x80\x78", -(2**31)),
    (read_s33, b"\xff\xff\xff\xff\x0f", 2**32 - 1),
    (read_s33, b"\x80\x80\x80\x80\x70", -(2**32)),
    (read_s64, b"\xff" * 9 + b"\x00", 2**63 - 1),
    (read_s64, b"\x80" * 9 + b"\x7f", -(2**63)),
])
def test_the_extremes(reader: Reader, raw: bytes, value: int) -> None:
    assert reader(raw, 0) == (value, len(raw))


@pytest.mark.parametrize("reader", [read_u32, *SIGNED.values()])
@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xff\xff"])
def test_cut_short(reader: Reader, raw: bytes) -> None:
    with pytest.raises(InvalidModule, match="unexpected end"):
        reader(raw, 0)
