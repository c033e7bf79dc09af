"""Control flow of one function, reduced to what liveness and the skip rule need.

A function is cut into events (control instructions and calls that are safepoints) with the locals read and written
between them as bit sets, so that repeated passes cost a fraction of the instructions.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import Final

from ..lazydata import dataclass, field
from ..wasm.limits import MAX_LIVE_BITS, MAX_STEPS, within
from ..wasm.validate import Code

__all__ = ["Flow", "build_flow", "live_at", "loops_to_poll"]

BLOCK: Final = 0
TRY: Final = 1
LOOP: Final = 2
IF: Final = 3
ELSE: Final = 4
END: Final = 5
BR: Final = 6
BR_IF: Final = 7
BR_TABLE: Final = 8
LEAVE: Final = 9
SITE: Final = 10
_WIDE: Final = 1 << 512
"""Sets of locals from here on count for the limit of all."""
_BITS: Final = "bits of sets of locals"
_STEPS: Final = "steps of the analysis of loops and of live locals"
_CONTROL: Final = {
    0x02: BLOCK, 0x03: LOOP, 0x04: IF, 0x1F: TRY, 0x05: ELSE, 0x0B: END, 0x0C: BR, 0x0D: BR_IF, 0x0E: BR_TABLE,
    0x0F: LEAVE, 0x00: LEAVE, 0x08: LEAVE, 0x0A: LEAVE, 0x12: LEAVE, 0x13: LEAVE,
}


@dataclass(slots=True)
class Flow:
    """Events in program order, as arrays: ``kinds`` at instructions ``indices``.

    ``read`` and ``written`` are bit sets of the locals since the event before, ``read`` those read before they are
    written; ``args`` the depth or depths of branches and of the clauses of a try_table; ``nests`` how many blocks
    enclose the instruction (for block, loop, if, try_table: itself included).
    """

    kinds: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    args: list[int | tuple[int, ...]] = field(default_factory=list)
    nests: list[int] = field(default_factory=list)
    loop_ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Index of a loop instruction -> (its event's number, its end's event's number)."""
    tries: dict[int, int] = field(default_factory=dict)
    """Number of the event that ends a try_table -> number of its event."""
    parent: dict[int, int] = field(default_factory=dict)
    """Index of a loop instruction -> the enclosing loop's, for nested ones."""
    depth: dict[int, int] = field(default_factory=dict)
    """Index of a loop or of a call in ``sites`` -> how many blocks enclose what follows it."""


def build_flow(code: Code, sites: Container[int], skips: Container[int] = ()) -> Flow:
    """Cut ``code`` into events; ``sites`` are the indices of the calls that are safepoints, ``skips`` those of branches
    that are as if they were not there (see `turns`)."""
    flow = Flow()
    kinds, indices, reads, writes, args, nests = (
        flow.kinds, flow.indices, flow.read, flow.written, flow.args, flow.nests
    )
    read = written = bits = 0
    openers: list[tuple[int, int, int]] = []  # (kind, index, event number)
    loops: list[int] = []
    imms = code.imms
    local: int
    for i, op in enumerate(code.ops):
        if op == 0x20:
            local = imms[i]  # type: ignore[assignment]
            bit = 1 << local
            if not written & bit:
                read |= bit
        elif op == 0x21 or op == 0x22:
            local = imms[i]  # type: ignore[assignment]
            written |= 1 << local
        elif op <= 0x1F and (op in _CONTROL or i in sites) and i not in skips:
            kind = _CONTROL.get(op, SITE)
            arg: int | tuple[int, ...] = 0
            if kind <= IF:
                openers.append((kind, i, len(kinds)))
                if kind == LOOP:
                    if loops:
                        flow.parent[i] = loops[-1]
                    loops.append(i)
                    flow.depth[i] = len(openers)
                elif kind == TRY:
                    arg = tuple([clause.depth for clause in code.catches[i]])
            elif BR <= kind <= BR_TABLE:
                arg = imms[i]  # type: ignore[assignment]
            elif kind == SITE:
                flow.depth[i] = len(openers)
            if read > _WIDE or written > _WIDE:
                bits += read.bit_length() + written.bit_length()
                within(bits, MAX_LIVE_BITS, _BITS, function=code.func)
            kinds.append(kind)
            indices.append(i)
            reads.append(read)
            writes.append(written)
            args.append(arg)
            nests.append(len(openers))
            if kind == END and openers:
                opened, index, number = openers.pop()
                if opened == LOOP:
                    flow.loop_ends[index] = (number, len(kinds) - 1)
                    loops.pop()
                elif opened == TRY:
                    flow.tries[len(kinds) - 1] = number
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
    kinds, indices, args, read, written, tries = (
        flow.kinds, flow.indices, flow.args, flow.read, flow.written, flow.tries
    )
    ends_of = {end: loop for loop, (_, end) in flow.loop_ends.items()}
    size = len(kinds) + sum(len(arg) for arg in args if isinstance(arg, tuple))
    steps = 0
    while True:
        steps += size
        within(steps, MAX_STEPS, _STEPS)
        changed = False
        bits = live = 0
        labels: list[int] = []  # live at each enclosing label; a loop's is its header
        thrown: list[int] = [0]  # live at the labels of all clauses around; one more for each open try_table
        ends: list[tuple[int, int]] = []  # (live after the end, live at the else arm's start or -1)
        for number in range(len(kinds) - 1, -1, -1):
            kind, arg = kinds[number], args[number]
            if live > _WIDE:
                bits += live.bit_length() if kind in (SITE, LOOP) else 0
                within(bits, MAX_LIVE_BITS, _BITS)
            if kind == SITE:
                found[indices[number]] = live
            elif kind == BR_IF:
                live |= labels[-1 - arg]  # type: ignore[operator]
            elif kind == END:
                if number in tries:
                    thrown.append(thrown[-1])
                    for depth in args[tries[number]]:  # type: ignore[union-attr]
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
                index = indices[number]
                found[index] = live
                if headers[index] != live:
                    headers[index] = live
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
                live = labels[-1 - arg]  # type: ignore[operator]
            elif kind == BR_TABLE:
                live = 0
                for depth in arg:  # type: ignore[union-attr]
                    live |= labels[-1 - depth]
            else:
                live = 0
            # A set that does not change stays the same object: a label for each of a million nested blocks may hold it.
            if written[number]:
                live &= ~written[number]
            if read[number]:
                live |= read[number]
            if thrown[-1]:
                live |= thrown[-1]
        if not changed:
            return found, live


def loops_to_poll(flow: Flow, ending: Container[int] = ()) -> set[int]:
    """Loops that need a poll of their own: some path from the header back to it passes no other safepoint.

    Loops in ``ending`` end by themselves and are not asked for.

    Inner loops are decided first, since the header of a polled inner loop is such a safepoint.
    """
    polled: set[int] = set()
    passed: dict[int, _Ways] = {}
    steps = 0
    for loop in sorted(flow.loop_ends, reverse=True):  # an inner loop's instruction comes after the outer one's
        ways = passed[loop] = _unsafe_ways(flow, loop, polled, passed)
        steps += len(ways.out)
        within(steps, MAX_STEPS, _STEPS)
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
    kinds, indices, args = flow.kinds, flow.indices, flow.args
    number = first
    while (number := number + 1) < last:
        kind, index, arg = kinds[number], indices[number], args[number]
        if kind == LOOP and (safe or index in polled):
            number = flow.loop_ends[index][1]
            safe = True
        elif kind == SITE:
            safe = True
        elif kind in (TRY, LOOP) or BR <= kind <= BR_TABLE:
            # Whoever comes to a clause's label came by the try_table: if that is safe, so is the label.
            targets: Collection[int] = arg if isinstance(arg, tuple) else (arg,)
            if kind == LOOP:
                targets = passed[index].out
            if not safe:
                for depth in targets:
                    if depth == len(arrivals) - 1:
                        ways.back = True
                    elif depth < len(arrivals):
                        arrivals[-1 - depth] = False
                    else:
                        ways.out.add(depth - len(arrivals))
            if kind == LOOP:
                safe = not passed[index].end
                number = flow.loop_ends[index][1]
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
