"""Control flow of one function, reduced to what liveness and the skip rule need.

A function is cut into events (control instructions and calls that are safepoints) with the locals read and written
between them as bit sets, so that repeated passes cost a fraction of the instructions.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from ..wasm.validate import Code

__all__ = ["Event", "Flow", "build_flow", "live_at", "loops_to_poll"]

BLOCK, LOOP, IF, ELSE, END, BR, BR_IF, BR_TABLE, LEAVE, SITE = range(10)
_CONTROL = {
    0x02: BLOCK, 0x03: LOOP, 0x04: IF, 0x05: ELSE, 0x0B: END, 0x0C: BR, 0x0D: BR_IF, 0x0E: BR_TABLE,
    0x0F: LEAVE, 0x00: LEAVE, 0x12: LEAVE, 0x13: LEAVE,
}


@dataclass(slots=True)
class Event:
    """``kind`` at instruction ``index``; ``read`` and ``written``: bit sets of the locals since the event before.

    ``read`` holds those read before they are written; ``arg`` the depth or depths of branches; ``nest`` how many
    blocks enclose the instruction (for block, loop and if: itself included).
    """

    kind: int
    index: int
    read: int
    written: int
    arg: int | tuple[int, ...]
    nest: int


@dataclass(slots=True)
class Flow:
    """Events in program order, and where each loop's ``end`` event stands."""

    events: list[Event] = field(default_factory=list)
    loop_ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Index of a loop instruction -> (its event's number, its end's event's number)."""
    parent: dict[int, int] = field(default_factory=dict)
    """Index of a loop instruction -> the enclosing loop's, for nested ones."""
    depth: dict[int, int] = field(default_factory=dict)
    """Index of a loop or of a call in ``sites`` -> how many blocks enclose what follows it."""


def build_flow(code: Code, sites: Container[int]) -> Flow:
    """Cut ``code`` into events; ``sites`` are the indices of the calls that are safepoints."""
    flow = Flow()
    events = flow.events
    read = written = 0
    openers: list[tuple[int, int]] = []  # (index if a loop else -1, event number)
    loops: list[int] = []
    imms = code.imms
    for i, op in enumerate(code.ops):
        if op == 0x20:
            bit = 1 << imms[i]  # type: ignore[operator]
            if not written & bit:
                read |= bit
        elif op == 0x21 or op == 0x22:
            written |= 1 << imms[i]  # type: ignore[operator]
        elif op in _CONTROL:
            kind = _CONTROL[op]
            arg: int | tuple[int, ...] = 0
            if kind <= IF:
                openers.append((i if kind == LOOP else -1, len(events)))
                if kind == LOOP:
                    if loops:
                        flow.parent[i] = loops[-1]
                    loops.append(i)
                    flow.depth[i] = len(openers)
            elif BR <= kind <= BR_TABLE:
                arg = imms[i]  # type: ignore[assignment]
            events.append(Event(kind, i, read, written, arg, len(openers)))
            if kind == END and openers:
                loop, number = openers.pop()
                if loop >= 0:
                    flow.loop_ends[loop] = (number, len(events) - 1)
                    loops.pop()
            read = written = 0
        elif i in sites:
            flow.depth[i] = len(openers)
            events.append(Event(SITE, i, read, written, 0, len(openers)))
            read = written = 0
    return flow


def live_at(flow: Flow) -> tuple[dict[int, int], int]:
    """Locals live after each loop header and each site, as bit sets, and those live at the function's entry.

    A local is live where some path from there reads it before it writes it. Backward passes over the events until the
    sets at the loop headers no longer change (in reducible code as many as loops are nested, plus one).
    """
    found: dict[int, int] = {}
    headers: dict[int, int] = dict.fromkeys(flow.loop_ends, 0)
    while True:
        changed = False
        live = 0
        labels: list[int] = []  # live at each enclosing label; a loop's is its header
        ends: list[tuple[int, int]] = []  # (live after the end, live at the else arm's start or -1)
        ends_of = {end: loop for loop, (_, end) in flow.loop_ends.items()}
        for number in range(len(flow.events) - 1, -1, -1):
            event = flow.events[number]
            kind = event.kind
            if kind == SITE:
                found[event.index] = live
            elif kind == BR_IF:
                live |= labels[-1 - event.arg]  # type: ignore[operator]
            elif kind == END:
                loop = ends_of.get(number, -1)
                labels.append(headers[loop] if loop >= 0 else live)
                ends.append((live, -1))
            elif kind == BLOCK:
                labels.pop()
                ends.pop()
            elif kind == LOOP:
                labels.pop()
                ends.pop()
                found[event.index] = live
                if headers[event.index] != live:
                    headers[event.index] = live
                    changed = True
            elif kind == ELSE:
                after, _ = ends[-1]
                ends[-1] = (after, live)
                live = after
            elif kind == IF:
                labels.pop()
                after, other = ends.pop()
                live |= after if other < 0 else other
            elif kind == BR:
                live = labels[-1 - event.arg]  # type: ignore[operator]
            elif kind == BR_TABLE:
                live = 0
                for depth in event.arg:  # type: ignore[union-attr]
                    live |= labels[-1 - depth]
            else:
                live = 0
            live = live & ~event.written | event.read
        if not changed:
            return found, live


def loops_to_poll(flow: Flow, ending: Container[int] = ()) -> set[int]:
    """Loops that need a poll of their own: some path from the header back to it passes no other safepoint.

    Loops in ``ending`` end by themselves and are not asked for.

    Inner loops are decided first, since the header of a polled inner loop is such a safepoint.
    """
    polled: set[int] = set()
    for loop in sorted(flow.loop_ends, reverse=True):  # an inner loop's instruction comes after the outer one's
        if loop not in ending and _unsafe_path(flow, loop, polled):
            polled.add(loop)
    return polled


def _unsafe_path(flow: Flow, loop: int, polled: set[int]) -> bool:
    """Whether a path leads from ``loop``'s header back to it without a safepoint; dead paths count as safe."""
    first, last = flow.loop_ends[loop]
    safe = False  # every path to here since the header has passed a safepoint
    arrivals = [True]  # all arrivals at each open label are safe; [0] is the loop itself
    other = [True]  # how the end is reached without the block's last instruction: an if without else, skipped
    kinds = [LOOP]
    for event in flow.events[first + 1 : last]:
        kind = event.kind
        if kind == SITE:
            safe = True
        elif BR <= kind <= BR_TABLE:
            for depth in event.arg if isinstance(event.arg, tuple) else (event.arg,):
                if depth == len(arrivals) - 1 and not safe:
                    return True
                if depth < len(arrivals):
                    arrivals[-1 - depth] &= safe
            safe = safe or kind != BR_IF
        elif kind <= IF:
            safe = safe or (kind == LOOP and event.index in polled)
            arrivals.append(True)
            other.append(safe if kind == IF else True)
            kinds.append(kind)
        elif kind == ELSE:
            arrivals[-1] &= safe
            safe = other[-1]
            other[-1] = True
        elif kind == END:
            arrived, skipped = arrivals.pop(), other.pop()
            was_loop = kinds.pop() == LOOP  # branches to a loop's label do not arrive at its end
            safe = safe and skipped and (arrived or was_loop)
        else:
            safe = True
    return False
