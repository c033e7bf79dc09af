"""Reading plain data that came from outside: each value is checked, each fault names the field."""

from __future__ import annotations

from collections.abc import Mapping

from wasmckpt.errors import ImageError

__all__ = ["Fields"]

_LARGEST = (1 << 64) - 1


class Fields:
    """A mapping from a decoded image.

    Args:
        data: the mapping.
        where: its own place, for messages.

    Raises:
        ImageError: from the constructor and all methods, with field ``field``.
    """

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, Mapping):
            raise ImageError("host state is damaged: not a mapping", field=where)
        self._data = data
        self._where = where

    def __contains__(self, name: str) -> bool:
        return self._data.get(name) is not None

    def bad(self, name: str, why: str) -> ImageError:
        """The error for a bad field, to be raised."""
        return ImageError(f"host state is damaged: {why}", field=f"{self._where}.{name}")

    def integer(self, name: str, largest: int = _LARGEST) -> int:
        """From 0 to ``largest``."""
        value = self._data.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
            raise self.bad(name, f"not a number from 0 to {largest}")
        return value

    def boolean(self, name: str) -> bool:
        value = self._data.get(name)
        if not isinstance(value, bool):
            raise self.bad(name, "not true or false")
        return value

    def text(self, name: str) -> str:
        value = self._data.get(name)
        if not isinstance(value, str):
            raise self.bad(name, "not text")
        return value

    def octets(self, name: str) -> bytes:
        value = self._data.get(name)
        if not isinstance(value, bytes):
            raise self.bad(name, "not bytes")
        return value

    def items(self, name: str) -> list[object]:
        value = self._data.get(name)
        if not isinstance(value, list | tuple):
            raise self.bad(name, "not a list")
        return list(value)

    def sub(self, name: str) -> Fields:
        return Fields(self._data.get(name), f"{self._where}.{name}")

    def octets_list(self, name: str) -> list[bytes]:
        values = self.items(name)
        if not all(isinstance(value, bytes) for value in values):
            raise self.bad(name, "not a list of bytes")
        return [value for value in values if isinstance(value, bytes)]

    def integer_list(self, name: str) -> list[int]:
        values = self.items(name)
        found = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
        if len(found) != len(values) or any(value < 0 for value in found):
            raise self.bad(name, "not a list of numbers")
        return found

    def records(self, name: str) -> list[Fields]:
        return [Fields(value, f"{self._where}.{name}[{number}]") for number, value in enumerate(self.items(name))]
