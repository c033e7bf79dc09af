"""Frames in columns: a table of points, then for each frame the number of its point, then all values in one string.

A deep recursion stands at few points, so its frames cost four bytes and their values, which zstd then shrinks; and
both directions are slices of one string, not a msgpack value for each local.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from wasmckpt.errors import ImageError
from wasmckpt.formats.image import Frame, Point, StopKind
from wasmckpt.formats.limits import Budget
from wasmckpt.formats.node import Node
from wasmckpt.formats.packed import pack, unpack
from wasmckpt.formats.stream import BytesSource
from wasmckpt.wasm.values import WIDTH

__all__ = ["pack_frames", "pack_points", "point_numbers", "unpack_frames", "unpack_points"]

_POINT_ITEMS: Final = 6
_KINDS: Final = frozenset(int(kind) for kind in StopKind)


def point_numbers(frames: Sequence[Frame]) -> tuple[list[Point], list[int]]:
    """The distinct points in order of first use, and for each frame the number of its point.

    Raises:
        ImageError: a frame's bytes are not as many as its point's types take.
    """
    numbers: dict[Point, int] = {}
    known: dict[int, int] = {}  # by identity: hashing a point costs more than all the rest
    points: list[Point] = []
    widths: list[int] = []
    indices: list[int] = []
    for frame in frames:
        point = frame.point
        number = known.get(id(point))
        if number is None:
            number = numbers.setdefault(point, len(points))
            if number == len(points):
                points.append(point)
                widths.append(point.width)
            known[id(point)] = number
        if len(frame.values) != widths[number]:
            raise ImageError("a frame has more or fewer bytes than its types take", function=point.func)
        indices.append(number)
    return points, indices


def pack_points(points: Sequence[Point]) -> bytes:
    """The stream ``points``."""
    return b"".join([pack([
        point.func, point.offset, int(point.kind), [index for index, _ in point.live],
        bytes([type_ for _, type_ in point.live]), bytes(point.stack),
    ]) for point in points])


def unpack_points(data: bytes, start: int, budget: Budget) -> list[Point]:
    """Read the stream ``points``, which begins at ``start`` in the file."""
    source = BytesSource(data, "points", start)
    points: list[Point] = []
    while not source.at_end():
        row = Node(unpack(source, budget), f"points[{len(points)}]", start).row(_POINT_ITEMS)
        func, offset, kind, live, live_types, stack = row
        indices = live.uints()
        if kind.uint() not in _KINDS:
            raise kind.error("this kind of stop is unknown")
        # a type is one byte in the file, but then costs as much memory as other values do
        budget.spend_nodes(len(live_types.binary()) + len(stack.binary()), source)
        types = _types(live_types)
        if len(types) != len(indices):
            raise live_types.error("live locals and their types differ in number")
        points.append(Point(func.uint(), offset.uint(), StopKind(kind.uint()),
                            tuple(zip(indices, types, strict=True)), _types(stack)))
    return points


def _types(node: Node) -> tuple[int, ...]:
    types = node.binary()
    if not WIDTH.keys() >= set(types):
        raise node.error("a type code is not that of a value that images hold")
    return tuple(types)


def pack_frames(frames: Sequence[Frame], indices: Sequence[int]) -> bytes:
    """The stream ``frames``."""
    return struct.pack(f"<{len(indices)}I", *indices) + b"".join([frame.values for frame in frames])


def unpack_frames(data: bytes, start: int, count: int, points: Sequence[Point]) -> tuple[Frame, ...]:
    """Read the stream ``frames``: ``count`` frames at the given points."""
    head = 4 * count
    if len(data) < head:
        raise ImageError(f"the table of {count} frames is cut short", field="frames", offset=start)
    indices = struct.unpack_from(f"<{count}I", data)
    if indices and max(indices) >= len(points):
        raise ImageError("a frame names a point that is not in the table", field="frames", offset=start)
    widths = [point.width for point in points]
    if head + sum([widths[index] for index in indices]) != len(data):
        raise ImageError("the values of the frames have another length than their types take", field="frames",
                         offset=start)
    frames: list[Frame] = []
    at = head
    for index in indices:
        end = at + widths[index]
        frames.append(Frame(points[index], data[at:end]))
        at = end
    return tuple(frames)
