"""Numbers on the command line are bits: what is shown reads back, and each text has one meaning."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wasmckpt.errors import UsageError
from wasmckpt.wasm.numbers import parse_value, show_value
from wasmckpt.wasm.values import EXTERNREF, F32, F64, FUNCREF, I32, I64, NULL, V128, WIDTH, Value


@pytest.mark.parametrize("type_", [I32, I64, F32, F64, V128])
@given(data=st.data())
def test_what_is_shown_reads_back(type_: int, data: st.DataObject) -> None:
    value = Value(type_, data.draw(st.integers(0, (1 << 8 * WIDTH[type_]) - 1)))
    assert parse_value(show_value(value).text, type_) == value


@given(st.integers(0, 0xFFFFFFFF))
@example(0x7F800001)
@example(0x00000001)
@example(0x7F7FFFFF)
@example(0x80000000)
def test_every_f32_reads_back(bits: int) -> None:
    assert parse_value(show_value(Value(F32, bits)).text, F32).bits == bits


TEXTS = [
    ("0", I32, 0), ("-1", I32, 0xFFFFFFFF), ("4294967295", I32, 0xFFFFFFFF), ("0x10", I32, 16), ("i32:7", I32, 7),
    ("010", I32, 10), ("-2147483648", I32, 0x80000000), ("1_000", I32, 1000),
    ("-9223372036854775808", I64, 1 << 63), ("18446744073709551615", I64, (1 << 64) - 1),
    ("1", F32, 0x3F800000), ("-0", F32, 0x80000000), ("-0.0", F64, 1 << 63), ("0.1", F32, 0x3DCCCCCD),
    ("0x1.8p3", F64, 0x4028000000000000), ("inf", F32, 0x7F800000), ("-inf", F64, 0xFFF0000000000000),
    ("nan", F32, 0x7FC00000), ("-nan", F64, 0xFFF8000000000000), ("nan:0x1", F32, 0x7F800001),
    ("-nan:0x200000", F32, 0xFFA00000), ("bits:0x7fa00000", F32, 0x7FA00000), ("1e-45", F32, 1),
    ("3.4028235e38", F32, 0x7F7FFFFF), ("null", FUNCREF, NULL), ("externref:null", EXTERNREF, NULL),
]


@pytest.mark.parametrize(("text", "type_", "bits"), TEXTS)
def test_texts(text: str, type_: int, bits: int) -> None:
    assert parse_value(text, type_) == Value(type_, bits)


@pytest.mark.parametrize(("text", "type_"), [
    ("", I32), ("1.5", I32), ("4294967296", I32), ("-2147483649", I32), ("i64:1", I32), ("x", I64), ("1e3", I64),
    ("", F32), ("infinity", F64), ("nan:0x0", F32), ("nan:0x800000", F32), ("1e39", F32), ("1e999", F64), ("0x", F64),
    ("bits:0x100000000", F32), ("f32:1", F64), ("0", FUNCREF), ("--1", I32), ("NaN", F32), ("1 2", F64),
])
def test_no_values(text: str, type_: int) -> None:
    with pytest.raises(UsageError):
        parse_value(text, type_)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(-3, 3))
def test_f32_is_rounded_once(near: float, steps: int) -> None:
    """A text between two f32 goes to the nearer one, also where a double in between would mislead."""
    middle = Fraction(near) + Fraction(steps, 7) * Fraction(math.ulp(near) if near else 5e-324)
    text = f"{middle.numerator}/{middle.denominator}"
    decimal = _decimal(middle)
    if Fraction(decimal) != middle and abs(Fraction(decimal) - middle) > abs(middle) / 10**40:
        return
    try:
        bits = parse_value(decimal, F32).bits
    except UsageError:
        return
    got = Fraction(struct.unpack("<f", bits.to_bytes(4, "little"))[0])
    for other in (bits - 1, bits + 1):
        if 0 <= other < 1 << 32 and (other >> 23) & 0xFF != 0xFF:
            there = Fraction(struct.unpack("<f", other.to_bytes(4, "little"))[0])
            assert abs(got - Fraction(decimal)) <= abs(there - Fraction(decimal)), text


def _decimal(value: Fraction) -> str:
    """60 significant digits."""
    if not value:
        return "0"
    exponent = math.floor(math.log10(abs(value))) if abs(value) > Fraction(1, 10**300) else -300
    return f"{round(value * Fraction(10) ** (60 - exponent))}e{exponent - 60}"


def test_double_rounding() -> None:
    """1 + 2**-24 + 2**-60: by way of a double it would be a tie, and go to even, downwards."""
    assert parse_value(str(2**60 + 2**36 + 1) + "e0", F32).bits == parse_value(str(2**60), F32).bits + 1
