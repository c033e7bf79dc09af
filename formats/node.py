"""Typed access to decoded msgpack data: every step says what it expects and, if it is not there, where."""

from __future__ import annotations

from typing import Final

from wasmckpt.errors import ImageError
from wasmckpt.wasm.values import TYPE_NAMES, WIDTH, Value

__all__ = ["MAX_U32", "MAX_U64", "Node", "read_value"]

MAX_U32: Final = (1 << 32) - 1
MAX_U64: Final = (1 << 64) - 1


class Node:
    """A decoded value with its path (``globals[3]``) and the offset in the file of the part it stands in."""

    __slots__ = ("_offset", "_path", "_value")

    def __init__(self, value: object, path: str, offset: int) -> None:
        self._value = value
        self._path = path
        self._offset = offset

    def error(self, what: str) -> ImageError:
        """An error that names this value."""
        return ImageError(what, field=self._path or "header", offset=self._offset)

    def uint(self, limit: int = MAX_U32) -> int:
        """An integer from 0 to ``limit``."""
        value = self._value
        if type(value) is not int or not 0 <= value <= limit:
            raise self.error(f"an integer from 0 to {limit} belongs here")
        return value

    def text(self) -> str:
        """A text."""
        if not isinstance(self._value, str):
            raise self.error("a text belongs here")
        return self._value

    def binary(self, size: int | None = None) -> bytes:
        """A binary string, of ``size`` bytes if given."""
        if not isinstance(self._value, bytes) or size not in (None, len(self._value)):
            raise self.error("a binary string belongs here" if size is None else f"{size} bytes belong here")
        return self._value

    def items(self) -> list[Node]:
        """The elements of an array."""
        return [Node(item, f"{self._path}[{i}]", self._offset) for i, item in enumerate(self._list())]

    def row(self, count: int) -> list[Node]:
        """The elements of an array of exactly ``count``."""
        if len(self._list()) != count:
            raise self.error(f"an array of {count} belongs here")
        return self.items()

    def _list(self) -> list[object]:
        if not isinstance(self._value, list):
            raise self.error("an array belongs here")
        return self._value

    def uints(self, limit: int = MAX_U32) -> tuple[int, ...]:
        """An array of integers from 0 to ``limit``."""
        values = self._list()
        if not all(type(value) is int and 0 <= value <= limit for value in values):
            raise self.error(f"an array of integers from 0 to {limit} belongs here")
        return tuple(values)  # type: ignore[arg-type]  # checked one by one, without a Node for each

    def texts(self) -> tuple[str, ...]:
        """An array of texts."""
        return tuple([item.text() for item in self.items()])

    def plain_map(self) -> dict[str, object]:
        """A map whose keys are texts."""
        if not isinstance(self._value, dict) or not all(isinstance(key, str) for key in self._value):
            raise self.error("a map with text keys belongs here")
        return self._value

    def has(self, key: str) -> bool:
        """Whether the map has the key."""
        return key in self.plain_map()

    def __getitem__(self, key: str) -> Node:
        value = self.plain_map()
        path = f"{self._path}.{key}" if self._path else key
        if key not in value:
            raise ImageError("the image lacks a field", field=path, offset=self._offset)
        return Node(value[key], path, self._offset)

    def type(self) -> int:
        """The code of a value type that images hold."""
        code = self.uint()
        if code not in WIDTH:
            raise self.error(f"values of type {TYPE_NAMES.get(code, hex(code))} are not in images of this version")
        return code


def read_value(type_: Node, bits: Node) -> Value:
    """A typed value from its type code and its little-endian bytes."""
    code = type_.type()
    return Value(code, int.from_bytes(bits.binary(WIDTH[code]), "little"))
