"""Frames of an image that others may have made, brought into the form that our own have."""

from __future__ import annotations

from collections.abc import Sequence

from ..formats import Frame, Point, StopKind
from ..instrument.continuations import index_of
from ..lazydata import replace
from ..wasm.liveness import live_before
from ..wasm.module import Module
from ..wasm.validate import analyze

__all__ = ["without_dead_values"]


def without_dead_values(module: Module, frames: Sequence[Frame]) -> Sequence[Frame]:
    """The frames without values of dead locals, where one place occurs with different sets of them.

    Readers must take such values, but each set would become a continuation of its own: thousands from a hostile image.
    The frames must have been checked against the module.
    """
    points = list(dict.fromkeys(frame.point for frame in frames))
    if len(points) == len({(p.func, p.offset, p.kind) for p in points}):
        return frames
    settled: dict[Point, Point] = {}
    for func in {point.func for point in points}:
        code = analyze(module, func)
        here = [point for point in points if point.func == func]
        # A waiting frame goes on behind its call.
        at = {p: index_of(code.pos, p.offset, func) + (p.kind == StopKind.CALL) for p in here}
        live = live_before(code, set(at.values()))
        for point in here:
            kept = tuple(entry for entry in point.live if live[at[point]] >> entry[0] & 1)
            settled[point] = replace(point, live=kept)
    return [_settle(frame, settled[frame.point]) for frame in frames]


def _settle(frame: Frame, point: Point) -> Frame:
    if frame.point == point:
        return Frame(point, frame.values)
    values = frame.locals()
    wanted = [values[index].bits for index, _ in point.live] + [operand.bits for operand in frame.operands()]
    return Frame.make(point, wanted)
