"""WebAssembly values as people write them: integers in decimal, floats exactly, NaNs with their payload.

Between text and bits no float is ever stored in a way that loses some: what is shown reads back as the same bits.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..errors import UsageError
from .decode import decode
from .values import EXNREF, F32, F64, FUNCREF, I32, I64, NULL, TYPE_NAMES, V128, WIDTH, Value

__all__ = ["Shown", "entry_of", "parse_value", "show_value"]

_MANTISSA: Final = {F32: 23, F64: 52}
_FORMAT: Final = {F32: "<f", F64: "<d"}


class Shown(NamedTuple):
    """A value's type name, its text, and its bits in hexadecimal."""

    type: str
    text: str
    bits: str


def show_value(value: Value) -> Shown:
    """A value for people."""
    width = WIDTH.get(value.type, 8)
    return Shown(TYPE_NAMES[value.type], _text(value), f"0x{value.bits:0{2 * width}x}")


def _text(value: Value) -> str:
    type_, bits = value
    if type_ in (I32, I64):
        size = 8 * WIDTH[type_]
        return str(bits - (1 << size) if bits >> (size - 1) else bits)
    if type_ in _MANTISSA:
        return _float_text(type_, bits)
    if type_ == V128:
        return f"0x{bits:032x}"
    if type_ == EXNREF:
        return f"exception with tag {(bits & NULL) - 1}, payload {bits >> 32:#x}" if bits else "null"
    return "null" if bits == NULL else f"function {bits}" if type_ == FUNCREF else f"handle {bits}"


def _float_text(type_: int, bits: int) -> str:
    mantissa = _MANTISSA[type_]
    size = 8 * WIDTH[type_]
    sign = "-" if bits >> (size - 1) else ""
    fraction = bits & ((1 << mantissa) - 1)
    if not ~(bits >> mantissa) & ((1 << (size - 1 - mantissa)) - 1):  # the exponent is all ones
        if not fraction:
            return sign + "inf"
        return sign + ("nan" if fraction == 1 << (mantissa - 1) else f"nan:{fraction:#x}")
    number: float
    (number,) = struct.unpack(_FORMAT[type_], bits.to_bytes(WIDTH[type_], "little"))
    if type_ == F64:
        return repr(number)
    for digits in range(1, 10):  # the shortest that reads back as the same f32
        rounded = float(f"{number:.{digits}g}")
        try:
            if struct.pack("<f", rounded) == bits.to_bytes(4, "little"):
                return repr(rounded)
        except OverflowError:
            continue  # rounded up, beyond the largest
    return number.hex()


def parse_value(text: str, type_: int) -> Value:
    """A value of the wanted type; the type may stand in front (``i32:5``), and must be that one then.

    Integers: decimal or 0x, signed or unsigned range. Floats: decimal, hexadecimal (0x1.8p3), ``inf``, ``nan``,
    ``nan:0x123`` (payload), or the bits themselves (``bits:0x7fc00000``). References: ``null`` only.

    Raises:
        UsageError: it is no such number, or does not fit.
    """
    name = TYPE_NAMES[type_]
    for prefix in TYPE_NAMES.values():
        if text.startswith(prefix + ":"):
            if prefix != name:
                raise UsageError(f"{text!r} is given where a value of type {name} is wanted")
            text = text[len(prefix) + 1 :]
            break
    try:
        if type_ in (I32, I64, V128):
            return Value(type_, _parse_integer(text, 8 * WIDTH[type_]))
        if type_ in _MANTISSA:
            return Value(type_, _parse_float(text, type_))
        if text == "null":
            return Value(type_, 0 if type_ == EXNREF else NULL)
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is not a value of type {name}") from None
    raise UsageError(f"a value of type {name} cannot be given on the command line")


def _parse_integer(text: str, size: int) -> int:
    number = int(text.replace("_", ""), 0) if not re.fullmatch(r"-?0[0-9]+", text) else int(text)
    if not -(1 << (size - 1)) <= number < 1 << size:
        raise OverflowError
    return number & ((1 << size) - 1)


def _parse_float(text: str, type_: int) -> int:
    size, mantissa = 8 * WIDTH[type_], _MANTISSA[type_]
    if text.startswith("bits:"):
        return _parse_integer(text[5:], size)
    found = re.fullmatch(r"([+-]?)(nan(?::0x([0-9a-fA-F]+))?|inf)", text)
    if found:
        sign = (found[1] == "-") << (size - 1)
        exponent = ((1 << (size - 1 - mantissa)) - 1) << mantissa
        if found[2] == "inf":
            return sign | exponent
        payload = int(found[3], 16) if found[3] else 1 << (mantissa - 1)
        if not 0 < payload < 1 << mantissa:
            raise OverflowError
        return sign | exponent | payload
    number = float.fromhex(text) if "0x" in text.lower() else float(text)
    if number != number or number in (float("inf"), float("-inf")):
        raise OverflowError  # "infinity", or a number too large
    if type_ == F32:
        return int.from_bytes(_to_f32(text, number), "little")
    return int.from_bytes(struct.pack("<d", number), "little")


def _to_f32(text: str, number: float) -> bytes:
    """Rounded once, from the text: by way of a double it would be rounded twice."""
    packed = struct.pack("<f", number)  # OverflowError where it does not fit
    if "0x" in text.lower():
        return packed
    from fractions import Fraction

    exact = Fraction(text)
    best = packed
    bits = int.from_bytes(packed, "little")
    for near in (bits - 1, bits + 1):
        if not 0 <= near < 1 << 32 or (near >> 23) & 0xFF == 0xFF:
            continue
        candidate = near.to_bytes(4, "little")
        here = abs(Fraction(struct.unpack("<f", best)[0]) - exact)
        there = abs(Fraction(struct.unpack("<f", candidate)[0]) - exact)
        if there < here or (there == here and not near & 1):
            best = candidate
    return best


def entry_of(module: bytes, invoke: str, arguments: Sequence[str]) -> tuple[Value, ...]:
    """The values of an export's arguments. Raises `UsageError`, `InvalidModule`, `NotSupported`."""
    decoded = decode(module)
    func = decoded.export(invoke)
    if func is None:
        known = ", ".join(sorted(e.name for e in decoded.exports if e.kind == 0)[:12]) or "none"
        raise UsageError(f"the module exports no function {invoke!r}", hint=f"its exports: {known}")
    params = decoded.signature(func).params
    if len(params) != len(arguments):
        raise UsageError(f"{invoke!r} takes {len(params)} arguments, {len(arguments)} are given")
    return tuple(parse_value(text, type_) for text, type_ in zip(arguments, params, strict=True))
