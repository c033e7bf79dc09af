"""What a reader is ready to take in, so that a hostile image costs bounded memory and time."""

from __future__ import annotations

from typing import Final

from wasmckpt.errors import ImageError
from wasmckpt.formats.stream import Source
from wasmckpt.lazydata import dataclass

__all__ = ["BLOCK_SIZE", "DEFAULT_LIMITS", "MAX_DEPTH", "Budget", "Limits"]

BLOCK_SIZE: Final = 1 << 20
"""Bytes that a block holds at most, unpacked and packed. A rule of the format, not a limit of the reader."""

MAX_DEPTH: Final = 64
"""Nesting of arrays and maps that a writer puts out at most."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one read. What lies above is refused with `ImageError` before memory is spent on it.

    Attributes:
        memory: bytes of all pages together; the default is one full 32-bit memory.
        module: bytes of a module carried inside.
        frames: number of frames.
        frame_bytes: bytes of all frames' values together.
        table_slots: changed table slots together.
        runs: runs of pages together.
        host: bytes of the host state and, counted apart, of the table of points, both unpacked.
        header: bytes of strings in the header.
        nodes: msgpack values in header, points and host state together; one takes about 100 bytes of memory.
        depth: nesting of arrays and maps; above 64 it means 64, as decoding is recursive.
        chain: parents that an image rests on, one upon the other.
    """

    memory: int = 4 << 30
    module: int = 256 << 20
    frames: int = 1_000_000
    frame_bytes: int = 256 << 20
    table_slots: int = 2_000_000
    runs: int = 1_100_000
    host: int = 64 << 20
    header: int = 1 << 20
    nodes: int = 2_000_000
    depth: int = MAX_DEPTH
    chain: int = 100_000

    def check(self, name: str, amount: int, offset: int) -> None:
        """Raise `ImageError` if ``amount`` is above the limit called ``name``."""
        limit: int = getattr(self, name)
        if amount > limit:
            raise ImageError(f"the image holds more than the reader allows: {amount} above {limit}", limit=name,
                             offset=offset, hint="raise that limit if the image can be trusted")


DEFAULT_LIMITS: Final = Limits()


class Budget:
    """What is left of the msgpack values and string bytes that a reader will decode."""

    __slots__ = ("depth", "nodes", "text")

    def __init__(self, limits: Limits, text: int, nodes: int | None = None) -> None:
        self.nodes = limits.nodes if nodes is None else min(nodes, limits.nodes)
        self.depth = min(limits.depth, MAX_DEPTH)
        self.text = text

    def spend_nodes(self, count: int, source: Source) -> None:
        """Take ``count`` values from the budget; `ImageError` if so many are not left."""
        if count > self.nodes:
            raise source.error("the image holds more values than the reader allows", limit="nodes")
        self.nodes -= count

    def spend_text(self, length: int, source: Source) -> int:
        """Take a string of ``length`` bytes from the budget, and return ``length``."""
        if length > self.text:
            raise source.error(f"a string of {length} bytes is longer than the format or the reader allows")
        self.text -= length
        return length
