"""Loops with a small constant trip count: they end by themselves, so they need no poll.

Only the plainest form is recognized, the one that compilers write for ``for (i = k; i != n; i += c)``: a counter that
is set to a constant just before the loop, changed once a turn by a constant, and compared with a constant at the only
branch back. The trips are then counted by running the counter. Such a loop is no safepoint, so it does not make an
enclosing loop's poll unnecessary either.
"""

from __future__ import annotations

from collections.abc import Callable

from ..wasm.leb128 import read_s32
from ..wasm.module import Module
from ..wasm.opcodes import BLOCKS
from ..wasm.validate import Code

__all__ = ["MOST_STEPS", "constant_trips"]

MOST_TRIPS = 64
MOST_STEPS = 2_000
"""Instructions that all turns of such a loop may take together."""

_GET, _SET, _TEE, _CONST, _ADD, _SUB = 0x20, 0x21, 0x22, 0x41, 0x6A, 0x6B
_CONTINUES: dict[int, Callable[[int, int], bool]] = {  # comparison -> does the loop go on? (unsigned numbers)
    0x47: lambda i, n: i != n,
    0x48: lambda i, n: _signed(i) < _signed(n),
    0x49: lambda i, n: i < n,
    0x4A: lambda i, n: _signed(i) > _signed(n),
    0x4B: lambda i, n: i > n,
    0x4C: lambda i, n: _signed(i) <= _signed(n),
    0x4D: lambda i, n: i <= n,
    0x4E: lambda i, n: _signed(i) >= _signed(n),
    0x4F: lambda i, n: i >= n,
}
_CONTROL = BLOCKS | {0x05, 0x08, 0x0A, *range(0x0B, 0x14)}


def _signed(bits: int) -> int:
    return bits - (1 << 32) if bits >> 31 else bits


def constant_trips(module: Module, code: Code) -> dict[int, int]:
    """Innermost loops that provably end -> their trips."""
    found = {}
    for loop in code.loops:
        trips = _trips(module, code, loop, code.match[loop])
        if trips is not None and trips * (code.match[loop] - loop) <= MOST_STEPS:
            found[loop] = trips
    return found


def _trips(module: Module, code: Code, loop: int, end: int) -> int | None:
    ops, imms = code.ops, code.imms
    back = _only_branch_back(code, loop, end)
    if back is None or end - loop > MOST_STEPS:
        return None

    def constant(i: int) -> int:
        return read_s32(module.data, module.body(code.func).expr + code.pos[i] + 1)[0] & 0xFFFFFFFF

    # The condition: [get or tee of the counter] [const n] [comparison] br_if, or the counter itself against zero.
    at, limit, goes_on = back - 1, 0, _CONTINUES[0x47]
    if ops[at] in _CONTINUES and ops[at - 1] == _CONST:
        limit, goes_on, at = constant(at - 1), _CONTINUES[ops[at]], at - 2
    if ops[at] not in (_GET, _TEE):
        return None
    counter = imms[at]
    sets = [i for i in range(loop, end) if ops[i] in (_SET, _TEE) and imms[i] == counter]
    if len(sets) != 1 or sets[0] > at or not _at_top_level(code, loop, sets[0]):
        return None
    step_at = sets[0] - 1
    if ops[step_at] not in (_ADD, _SUB) or ops[step_at - 1] != _CONST or ops[step_at - 2] != _GET:
        return None
    if imms[step_at - 2] != counter:
        return None
    step = constant(step_at - 1) if ops[step_at] == _ADD else -constant(step_at - 1)
    before = loop - 1
    while before > 0 and ops[before] not in _CONTROL:
        if ops[before] in (_SET, _TEE) and imms[before] == counter:
            break
        before -= 1
    if ops[before] not in (_SET, _TEE) or imms[before] != counter or ops[before - 1] != _CONST:
        return None
    value, trips = constant(before - 1), 0
    while trips < MOST_TRIPS:
        value = (value + step) & 0xFFFFFFFF
        trips += 1
        if not goes_on(value, limit):
            return trips
    return None


def _only_branch_back(code: Code, loop: int, end: int) -> int | None:
    """The one ``br_if`` directly in the loop that leads back to it; None for any other loop, for outer loops, and for
    those with a try_table, whose clauses may lead back as well."""
    nest, back = 0, None
    for i in range(loop + 1, end):
        op = code.ops[i]
        if op in (0x03, 0x1F) or 0x10 <= op <= 0x13:
            return None
        if op in (0x02, 0x04):
            nest += 1
        elif op == 0x0B:
            nest -= 1
        elif op in (0x0C, 0x0D, 0x0E):
            imm = code.imms[i]
            if nest in (imm if isinstance(imm, tuple) else (imm,)):
                if op != 0x0D or nest or back is not None:
                    return None
                back = i
    return back


def _at_top_level(code: Code, loop: int, at: int) -> bool:
    """Whether an instruction is executed in every turn that reaches it: it lies in no block within the loop."""
    nest = 0
    for i in range(loop + 1, at):
        op = code.ops[i]
        nest += (0x02 <= op <= 0x04) - (op == 0x0B)
    return nest == 0
