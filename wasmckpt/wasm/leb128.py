"""LEB128 integers: total decoding with the specification's length bounds, minimal encoding."""

from __future__ import annotations

from typing import Final

from ..errors import InvalidModule

__all__ = ["read_s32", "read_s33", "read_s64", "read_u32", "sleb", "uleb"]


def uleb(value: int) -> bytes:
    """Encode an unsigned integer in as few bytes as possible."""
    if value < 0x80:
        return _ONE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sleb(value: int) -> bytes:
    """Encode a signed integer in as few bytes as possible."""
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        if value == (-1 if byte & 0x40 else 0):
            out.append(byte)
            return bytes(out)
        out.append(byte | 0x80)


_ONE: Final = [bytes([i]) for i in range(128)]


def read_u32(data: bytes, at: int) -> tuple[int, int]:
    """Read a u32: (value, offset after it). Raises `InvalidModule` at the end of data or above 32 bits."""
    return _unsigned(data, at, 32)


def _unsigned(data: bytes, at: int, bits: int) -> tuple[int, int]:
    result = shift = 0
    start = at
    try:
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                if result >> bits:
                    raise InvalidModule("integer too large", offset=start)
                return result, at
            shift += 7
            if shift >= bits:
                raise InvalidModule("integer representation too long", offset=start)
    except IndexError:
        raise InvalidModule("unexpected end", offset=len(data)) from None


def _signed(data: bytes, at: int, bits: int) -> tuple[int, int]:
    result = shift = 0
    start = at
    try:
        while True:
            byte = data[at]
            at += 1
            result |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if byte & 0x40:
                    result -= 1 << shift
                if not -(1 << bits - 1) <= result < 1 << bits - 1:
                    raise InvalidModule("integer too large", offset=start)
                return result, at
            if shift >= bits:
                raise InvalidModule("integer representation too long", offset=start)
    except IndexError:
        raise InvalidModule("unexpected end", offset=len(data)) from None


def read_s32(data: bytes, at: int) -> tuple[int, int]:
    """Read an s32: (value, offset after it)."""
    return _signed(data, at, 32)


def read_s33(data: bytes, at: int) -> tuple[int, int]:
    """Read an s33, the form of a block type's index."""
    return _signed(data, at, 33)


def read_s64(data: bytes, at: int) -> tuple[int, int]:
    """Read an s64: (value, offset after it)."""
    return _signed(data, at, 64)
