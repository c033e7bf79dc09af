"""msgpack, strictly: one form out, bounded and total in.

The reader is our own rather than the library's because it must name the offset of what is wrong, count the values
before it builds them, bound nesting, and refuse duplicate keys; the data it sees is small (the bulk is in blocks).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import msgpack  # type: ignore[import-untyped]

from wasmckpt.errors import ImageError
from wasmckpt.formats.limits import MAX_DEPTH, Budget
from wasmckpt.formats.stream import Source

__all__ = ["pack", "read_array_length", "read_binary_length", "unpack"]

_FIXED: Final[dict[int, struct.Struct]] = {
    0xCA: struct.Struct(">f"), 0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"), 0xCD: struct.Struct(">H"), 0xCE: struct.Struct(">I"), 0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"), 0xD1: struct.Struct(">h"), 0xD2: struct.Struct(">i"), 0xD3: struct.Struct(">q"),
}
_BINARY: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_TEXT: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAY: Final = {0xDC: 2, 0xDD: 4}
_MAP: Final = {0xDE: 2, 0xDF: 4}


def pack(value: object) -> bytes:
    """Pack plain data in its one form: shortest encodings, maps sorted by their packed keys.

    Raises:
        ImageError: the value is not plain data, is nested too deeply, or holds an int of more than 64 bits.
    """
    try:
        packed: bytes = msgpack.packb(_plain(value, MAX_DEPTH), use_bin_type=True)
    except (OverflowError, ValueError, UnicodeError) as reason:
        raise ImageError(f"a value does not go into an image: {reason}") from None
    return packed


def _plain(value: object, depth: int) -> object:
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if depth == 0:
        raise ImageError(f"data is nested more than {MAX_DEPTH} deep")
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, Mapping):
        pairs = []
        for key, item in value.items():
            if isinstance(key, bool) or not isinstance(key, (str, bytes, int)):
                raise ImageError(f"a map's key is of type {type(key).__name__}, not str, bytes or int")
            pairs.append((msgpack.packb(key, use_bin_type=True), key, _plain(item, depth - 1)))
        return {key: item for _, key, item in sorted(pairs, key=lambda pair: pair[0])}
    raise ImageError(f"a value of type {type(value).__name__} does not go into an image")


def unpack(source: Source, budget: Budget) -> object:
    """Read one value: None, bool, int, float, str, bytes, list or dict.

    Raises:
        ImageError: cut short, not msgpack, an extension type, duplicate keys, text that is not UTF-8, or more than
            the budget allows.
    """
    return _value(source, budget, budget.depth)


def _value(source: Source, budget: Budget, depth: int) -> object:
    budget.spend_nodes(1, source)
    tag = source.take(1)[0]
    if tag < 0x80:
        return tag
    if tag >= 0xE0:
        return tag - 0x100
    if tag < 0x90:
        return _map(source, budget, depth, tag & 0x0F)
    if tag < 0xA0:
        return _array(source, budget, depth, tag & 0x0F)
    if tag < 0xC0:
        return _text(source, budget, tag & 0x1F)
    if tag in _FIXED:
        fixed = _FIXED[tag]
        number: object = fixed.unpack(source.take(fixed.size))[0]
        return number
    if tag in _BINARY:
        return source.take(budget.spend_text(_length(source, _BINARY[tag]), source))
    if tag in _TEXT:
        return _text(source, budget, _length(source, _TEXT[tag]))
    if tag in _ARRAY:
        return _array(source, budget, depth, _length(source, _ARRAY[tag]))
    if tag in _MAP:
        return _map(source, budget, depth, _length(source, _MAP[tag]))
    if tag in (0xC2, 0xC3):
        return tag == 0xC3
    if tag == 0xC0:
        return None
    raise source.error(f"byte {tag:#x} begins no value that images hold")


def _length(source: Source, size: int) -> int:
    return int.from_bytes(source.take(size), "big")


def _text(source: Source, budget: Budget, length: int) -> str:
    raw = source.take(budget.spend_text(length, source))
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise source.error("a text is not UTF-8") from None


def _enter(source: Source, budget: Budget, depth: int, nodes: int) -> int:
    if depth == 0:
        raise source.error("data is nested too deeply", limit="depth")
    if nodes > budget.nodes:
        raise source.error(f"an array or map announces {nodes} values, more than the reader allows", limit="nodes")
    return depth - 1


def _array(source: Source, budget: Budget, depth: int, count: int) -> list[object]:
    depth = _enter(source, budget, depth, count)
    return [_value(source, budget, depth) for _ in range(count)]


def _map(source: Source, budget: Budget, depth: int, count: int) -> dict[object, object]:
    depth = _enter(source, budget, depth, 2 * count)
    result: dict[object, object] = {}
    for _ in range(count):
        key = _value(source, budget, depth)
        if isinstance(key, bool) or not isinstance(key, (str, bytes, int)):
            raise source.error("a map's key is neither text, bytes nor an integer")
        if key in result:
            raise source.error(f"a map has the key {key!r} twice")
        result[key] = _value(source, budget, depth)
    return result


def read_array_length(source: Source, tag: int) -> int:
    """The length of the array that begins with the byte ``tag``, which was taken already."""
    if 0x90 <= tag < 0xA0:
        return tag & 0x0F
    if tag in _ARRAY:
        return _length(source, _ARRAY[tag])
    raise source.error(f"byte {tag:#x} does not begin an array")


def read_binary_length(source: Source) -> int:
    """The length of the binary string that begins here."""
    tag = source.take(1)[0]
    if tag in _BINARY:
        return _length(source, _BINARY[tag])
    raise source.error(f"byte {tag:#x} does not begin a binary string")
