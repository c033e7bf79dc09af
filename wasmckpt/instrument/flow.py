"""Control flow of one function, reduced to what liveness and the skip rule need.

A function is cut into events (control instructions and calls that are safepoints) with the locals read and written
between them as bit sets, so that repeated passes cost a fraction of the instructions.
"""

from __future__ import annotations

from collections.abc import Collection, Container

from ..lazydata import dataclass, field
from ..wasm.validate import Code

__all__ = ["Event", "Flow", "build_flow", "live_at", "loops_to_poll"]

BLOCK, TRY, LOOP, IF, ELSE, END, BR, BR_IF, BR_TABLE, LEAVE, SITE = range(11)
_CONTROL = {
    0x02: BLOCK, 0x03: LOOP, 0x04: IF, 0x1F: TRY, 0x05: ELSE, 0x0B: END, 0x0C: BR, 0x0D: BR_IF, 0x0E: BR_TABLE,
    0x0F: LEAVE, 0x00: LEAVE, 0x08: LEAVE, 0x0A: LEAVE, 0x12: LEAVE, 0x13: LEAVE,
}


@dataclass(slots=True)
class Event:
    """``kind`` at instruction ``index``; ``read`` and ``written``: bit sets of the locals since the event before.

    ``read`` holds those read before they are written; ``arg`` the depth or depths of branches and of the
    clauses of a try_table; ``nest`` how many blocks enclose the instruction (for block, loop, if, try_table: itself
    included).
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
    tries: dict[int, int] = field(default_factory=dict)
    """Number of the event that ends a try_table -> number of its event."""
    parent: dict[int, int] = field(default_factory=dict)
    """Index of a loop instruction -> the enclosing loop's, for nested ones."""
    depth: dict[int, int] = field(default_factory=dict)
    """Index of a loop or of a call in ``sites`` -> how many blocks enclose what follows it."""


def build_flow(code: Code, sites: Container[int]) -> Flow:
    """Cut ``code`` into events; ``sites`` are the indices of the calls that are safepoints."""
    flow = Flow()
    events = flow.events
    read = written = 0
    openers: list[tuple[int, int, int]] = []  # (kind, index, event number)
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
                openers.append((kind, i, len(events)))
                if kind == LOOP:
                    if loops:
                        flow.parent[i] = loops[-1]
                    loops.append(i)
                    flow.depth[i] = len(openers)
                elif kind == TRY:
                    arg = tuple([clause.depth for clause in code.catches[i]])
            elif BR <= kind <= BR_TABLE:
                arg = imms[i]  # type: ignore[assignment]
            events.append(Event(kind, i, read, written, arg, len(openers)))
            if kind == END and openers:
                opened, index, number = openers.pop()
                if opened == LOOP:
                    flow.loop_ends[index] = (number, len(events) - 1)
                    loops.pop()
                elif opened == TRY:
                    flow.tries[len(events) - 1] = number
            read = written = 0
        elif i in sites:
            flow.depth[i] = len(openers)
            events.append(Event(SITE, i, read, written, 0, len(openers)))
            read = written = 0
    return flow


def live_at(flow: Flow) -> tuple[dict[int, int], int]:
    """Locals live after each loop header and each site, as bit sets, and those live at the function's entry.

    A local is live where some path from there reads it before it writes it; in the body of a try_table also where it
    is live at the label of a clause. Backward passes over the events until the
    sets at the loop headers no longer change (in reducible code as many as loops are nested, plus one).
    """
    found: dict[int, int] = {}
    headers: dict[int, int] = dict.fromkeys(flow.loop_ends, 0)
    while True:
        changed = False
        live = 0
        labels: list[int] = []  # live at each enclosing label; a loop's is its header
        thrown: list[int] = [0]  # live at the labels of all clauses around; one more for each open try_table
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
                if number in flow.tries:
                    thrown.append(thrown[-1])
                    for depth in flow.events[flow.tries[number]].arg:  # type: ignore[union-attr]
                        thrown[-1] |= labels[-1 - depth]
                loop = ends_of.get(number, -1)
                labels.append(headers[loop] if loop >= 0 else live)
                ends.append((live, -1))
            elif kind <= TRY:
                labels.pop()
                ends.pop()
                if kind == TRY:
                    thrown.pop()
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
            live = live & ~event.written | event.read | thrown[-1]
        if not changed:
            return found, live


def loops_to_poll(flow: Flow, ending: Container[int] = ()) -> set[int]:
    """Loops that need a poll of their own: some path from the header back to it passes no other safepoint.

    Loops in ``ending`` end by themselves and are not asked for.

    Inner loops are decided first, since the header of a polled inner loop is such a safepoint.
    """
    polled: set[int] = set()
    passed: dict[int, _Ways] = {}
    for loop in sorted(flow.loop_ends, reverse=True):  # an inner loop's instruction comes after the outer one's
        ways = passed[loop] = _unsafe_ways(flow, loop, polled, passed)
        if ways.back and loop not in ending:
            polled.add(loop)
    return polled


@dataclass(slots=True)
class _Ways:
    """Where one comes from a loop's header without a safepoint: back to it, to its end, and to which labels outside
    (depths there). An outer loop need not look inside again."""

    back: bool = False
    end: bool = False
    out: set[int] = field(default_factory=set)


def _unsafe_ways(flow: Flow, loop: int, polled: set[int], passed: dict[int, _Ways]) -> _Ways:
    """The ways of a loop, from those of the loops inside; dead paths count as safe."""
    first, last = flow.loop_ends[loop]
    ways = _Ways()
    safe = False  # every path to here since the header has passed a safepoint
    arrivals = [True]  # all arrivals at each open label are safe; [0] is the loop itself
    other = [True]  # how the end is reached without the block's last instruction: an if without else, skipped
    number = first
    while (number := number + 1) < last:
        event = flow.events[number]
        kind = event.kind
        if kind == LOOP and (safe or event.index in polled):
            number = flow.loop_ends[event.index][1]
            safe = True
        elif kind == SITE:
            safe = True
        elif kind in (TRY, LOOP) or BR <= kind <= BR_TABLE:
            # Whoever comes to a clause's label came by the try_table: if that is safe, so is the label.
            targets: Collection[int] = event.arg if isinstance(event.arg, tuple) else (event.arg,)
            if kind == LOOP:
                targets = passed[event.index].out
            if not safe:
                for depth in targets:
                    if depth == len(arrivals) - 1:
                        ways.back = True
                    elif depth < len(arrivals):
                        arrivals[-1 - depth] = False
                    else:
                        ways.out.add(depth - len(arrivals))
            if kind == LOOP:
                safe = not passed[event.index].end
                number = flow.loop_ends[event.index][1]
            elif kind == TRY:
                arrivals.append(True)
                other.append(True)
            else:
                safe = safe or kind != BR_IF
        elif kind <= IF:
            arrivals.append(True)
            other.append(safe if kind == IF else True)
        elif kind == ELSE:
            arrivals[-1] &= safe
            safe = other[-1]
            other[-1] = True
        elif kind == END:
            safe = all((safe, arrivals.pop(), other.pop()))
        else:
            safe = True
    ways.end = not safe
    return ways
