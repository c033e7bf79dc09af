"""Which locals are live before an instruction: read on some path from there before they are written.

The rule is that of the image format (SPEC.md, section 5), on the function's structured code: one pass backwards, in
which a label is known before the branches to it are met, but for a loop's, whose set grows from pass to pass until it
stays (as many passes as loops are nested, and one more). In the body of a ``try_table``, what is live at the label of
a clause is live throughout: any instruction there may throw, for all that this rule knows.

The rewriter has its own, faster one for its safepoints; this one answers for any instruction, and checks its images.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from .opcodes import BLOCKS
from .validate import Code

__all__ = ["live_before"]

_ENDING: Final = frozenset({0x00, 0x08, 0x0A, 0x0F, 0x12, 0x13})
"""unreachable, throw, throw_ref, return, return_call, return_call_indirect: the path ends."""
_RELEVANT: Final = _ENDING | BLOCKS | {0x05, 0x0B, 0x0C, 0x0D, 0x0E, 0x20, 0x21, 0x22}


def live_before(code: Code, places: Container[int]) -> dict[int, int]:
    """The locals that are live before each of the instructions ``places``, as bit sets (bit n: local n).

    Args:
        places: indices of instructions.
    """
    ops, imms = code.ops, code.imms
    steps = [i for i in range(len(ops) - 1, -1, -1) if ops[i] in _RELEVANT or i in places]
    opened_by = {end: start for start, end in code.match.items()}  # -1: the function itself
    headers = {i: 0 for i in steps if ops[i] == 0x03}
    while True:
        found: dict[int, int] = {}
        settled = True
        live = 0
        labels: list[int] = []
        after: list[int] = []  # for each open construct: live behind its end
        thrown: list[int] = [0]  # live at the labels of the clauses around, of all; one more for each open try_table
        second: list[int] = []  # for each open if: live at the beginning of what runs if the condition is false
        for i in steps:
            op = ops[i]
            if op == 0x20:
                live |= 1 << imms[i]  # type: ignore[operator]
            elif op == 0x21 or op == 0x22:
                live &= ~(1 << imms[i])  # type: ignore[operator]
            elif op == 0x0B:
                start = opened_by[i]
                if start in code.catches:
                    thrown.append(thrown[-1])
                    for clause in code.catches[start]:
                        thrown[-1] |= labels[-1 - clause.depth]
                labels.append(headers.get(start, live))
                after.append(live)
                second.append(live)
            elif op == 0x05:
                second[-1] = live
                live = after[-1]
            elif op in BLOCKS:
                if op == 0x1F:
                    thrown.pop()
                labels.pop()
                after.pop()
                other = second.pop()
                if op == 0x04:
                    live |= other
                elif op == 0x03 and headers[i] != live:
                    headers[i] = live
                    settled = False
            elif op == 0x0D:
                live |= labels[-1 - imms[i]]  # type: ignore[operator]
            elif op == 0x0C:
                live = labels[-1 - imms[i]]  # type: ignore[operator]
            elif op == 0x0E:
                live = 0
                for depth in imms[i]:  # type: ignore[attr-defined]
                    live |= labels[-1 - depth]
            elif op in _ENDING:
                live = 0
            live |= thrown[-1]
            if i in places:
                found[i] = live
        if settled:
            return found
