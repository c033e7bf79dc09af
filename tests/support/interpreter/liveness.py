"""Which locals are live: read on some path from here before they are written. One equation an instruction, iterated."""

from __future__ import annotations

from .code import (
    BR,
    BR_IF,
    BR_TABLE,
    DEAD,
    IF,
    JUMP,
    LOCAL_GET,
    LOCAL_SET,
    LOCAL_TEE,
    OUT,
    RETURN,
    RETURN_CALL,
    RETURN_CALL_INDIRECT,
    THROW,
    THROW_REF,
    UNREACHABLE,
    Code,
)

__all__ = ["live_locals", "successors"]


def successors(code: Code, index: int) -> list[int]:
    """Indices of the instructions that may run next in the same function."""
    kind, operand, _ = code.entries[index]
    if kind in (RETURN, RETURN_CALL, RETURN_CALL_INDIRECT, THROW, THROW_REF, UNREACHABLE, DEAD):
        return []
    if kind in (BR, JUMP):
        return [operand.target if kind == BR else operand]
    if kind == BR_IF:
        return [operand.target, index + 1]
    if kind == IF:
        return [operand, index + 1]
    if kind == BR_TABLE:
        return [branch.target for branch in operand if branch.target != OUT]
    return [index + 1]


def live_locals(code: Code) -> list[int]:
    """For each instruction the set of locals that are live before it, as a bit mask."""
    if code.live is None:
        code.live = _solve(code)
    return code.live


def _solve(code: Code) -> list[int]:
    entries = code.entries
    after = [successors(code, i) for i in range(len(entries))]
    thrown: list[set[int]] = [set() for _ in entries]  # where any instruction of the body of a try_table may go on
    for start, end, handlers in code.handlers:
        for i in range(start + 1, end + 1):
            thrown[i].update(handler.branch.target for handler in handlers if handler.branch.target != OUT)
    live = [0] * len(entries)
    changed = True
    while changed:
        changed = False
        for i in range(len(entries) - 1, -1, -1):
            mask = 0
            for following in after[i]:
                mask |= live[following]
            kind, operand, _ = entries[i]
            if kind == LOCAL_GET:
                mask |= 1 << operand
            elif kind in (LOCAL_SET, LOCAL_TEE):
                mask &= ~(1 << operand)
            for target in thrown[i]:
                mask |= live[target]
            if mask != live[i]:
                live[i] = mask
                changed = True
    return live
