"""Code made of pieces of another function's body, with a map back to that function's offsets."""

from __future__ import annotations

from bisect import bisect_right

from ..wasm.leb128 import read_s33

__all__ = ["Pieces", "block_type"]


class Pieces:
    """Collects code; `mark` says which offset of the source what follows stands for, up to the next mark."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._starts: list[int] = []
        self._sources: list[int] = []

    def emit(self, *codes: bytes) -> None:
        """Append code."""
        for code in codes:
            self._parts.append(code)
            self._size += len(code)

    def mark(self, source: int) -> None:
        """What is emitted next stands for offset ``source``."""
        if self._starts and self._starts[-1] == self._size:
            self._sources[-1] = source
        else:
            self._starts.append(self._size)
            self._sources.append(source)

    def code(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)

    def source_offset(self, here: int) -> int:
        """The source's offset for an offset in this code."""
        n = bisect_right(self._starts, here) - 1
        return self._sources[n] + here - self._starts[n]

    def __len__(self) -> int:
        return self._size


def block_type(raw: bytes, start: int) -> bytes:
    """The block type that begins at ``start``, in its binary form."""
    return raw[start : read_s33(raw, start)[1]]
