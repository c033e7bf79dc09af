"""Spilled records to frames, and frames to the records that continuations read.

A frame here is a `Place` (where it stands and the types of its values, shared by all frames that stand there) and the
values' bytes: live locals by ascending index, then operands, each little-endian in natural width.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import CheckpointError
from ..wasm.values import WIDTH
from .sites import Site, Sites

__all__ = ["AT_SAFEPOINT", "IN_CALL", "REPEAT_CALL", "Place", "pack_frames", "read_frames", "read_globals"]

AT_SAFEPOINT, IN_CALL, REPEAT_CALL = 0, 1, 2
"""How a frame stands: before the instruction at the offset; in the call there; before the call, to be repeated."""


class Place(NamedTuple):
    """Where a frame stands: function and relative offset in the original module, kind of stop, live (local, type) by
    index, types of the operands."""

    func: int
    offset: int
    kind: int
    live: tuple[tuple[int, int], ...]
    stack: tuple[int, ...]


def read_frames(window: bytes, sites: Sites, *, repeat: bool) -> list[tuple[Place, bytes]]:
    """Decode the frames' part of the window, outermost frame first.

    Args:
        window: records, innermost first. repeat: the host says that the innermost call did nothing and is to be
            repeated.

    Raises:
        CheckpointError: the records contradict the sites, which would be a bug of the rewriter or of the runtime.
    """
    frames: list[tuple[Place, bytes]] = []
    readers: dict[tuple[int, int], _Reader] = {}
    at = 0
    kind = REPEAT_CALL if repeat else AT_SAFEPOINT
    try:
        while at < len(window):
            number = int.from_bytes(window[at : at + 4], "little")
            reader = readers.get((number, kind))
            if reader is None:
                reader = readers[number, kind] = _Reader(sites[number], kind)
            frames.append((reader.place, reader.values(window, at)))
            at += reader.size
            kind = IN_CALL
    except IndexError:
        raise CheckpointError(f"spilled record at {at} is not of a known site") from None
    if at != len(window):
        raise CheckpointError("spilled records do not fill the window")
    frames.reverse()
    return frames


class _Reader:
    """How to cut a frame out of a record of one site."""

    def __init__(self, site: Site, kind: int) -> None:
        if (kind == IN_CALL and not site.is_call) or (kind == REPEAT_CALL and not site.is_import):
            raise CheckpointError("a frame waits, but not in a call", function=site.func, offset=site.offset)
        stack = site.stack
        offset = site.offset
        if kind == AT_SAFEPOINT:
            stack, offset = stack + site.results, site.after
        elif kind == REPEAT_CALL:
            stack = stack + site.args
        self.place = Place(site.func, offset, kind, tuple((local, t) for local, t, _ in site.locals),
                           tuple(t for t, _ in stack))
        starts = [4]
        for t in site.slots:
            starts.append(starts[-1] + WIDTH[t])
        self.size = starts[-1]
        self._parts: list[tuple[int, int] | bytes] = []
        for t, source in [(t, s) for _, t, s in site.locals] + list(stack):
            if source < 0:
                self._parts.append((-1 - source).to_bytes(WIDTH[t], "little"))
            elif self._parts and isinstance(last := self._parts[-1], tuple) and last[1] == starts[source]:
                self._parts[-1] = (last[0], starts[source] + WIDTH[t])
            else:
                self._parts.append((starts[source], starts[source] + WIDTH[t]))

    def values(self, window: bytes, at: int) -> bytes:
        if at + self.size > len(window):
            raise IndexError
        parts = self._parts
        return b"".join([p if isinstance(p, bytes) else window[at + p[0] : at + p[1]] for p in parts])


def read_globals(
    window: bytes, kinds: Sequence[tuple[int, int]], dropped: Sequence[tuple[str, int]]
) -> tuple[list[tuple[int, int, int]], list[tuple[str, int]]]:
    """Decode what follows the frames: (index, type, bits) of each mutable global, and the dropped segments."""
    at = 0
    values = []
    for index, kind in kinds:
        end = at + WIDTH[kind]
        values.append((index, kind, int.from_bytes(window[at:end], "little")))
        at = end
    gone = [key for n, key in enumerate(dropped) if window[at + 4 * n]]
    return values, gone


def pack_frames(frames: Sequence[tuple[int, bytes]], room: int, deliver: Callable[[bytes], None]) -> None:
    """Pack (continuation, values) records, outermost first, into pieces of at most ``room`` bytes."""
    piece = bytearray()
    for number, values in frames:
        if piece and len(piece) + 4 + len(values) > room:
            deliver(bytes(piece))
            piece.clear()
        piece += struct.pack("<I", number) + values
    deliver(bytes(piece))
