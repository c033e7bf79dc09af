"""What a continuation copies: all that is reached from a place, and not much more."""

from __future__ import annotations

import pytest
from wasmtime import wat2wasm

from wasmckpt.instrument.continuations import path_to
from wasmckpt.instrument.rest import rest_of
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.validate import analyze

MARK = 0x01  # nop: the place


def constants(body: str, *, exceptions: bool = False) -> tuple[int, int, set[int]]:
    """Of a function with a ``nop``: how many constants are copied, how many stand behind it, the loops that follow."""
    tag = "(tag $e)" if exceptions else ""
    module = decode(bytes(wat2wasm(f"(module {tag} (func (param i32) (local i32) {body}))")))
    code = analyze(module, 0)
    at = code.ops.index(MARK)
    found = rest_of(code, at, path_to(code, at))
    copied = [i for piece in found.ranges if piece for i in range(*piece)]
    return sum(code.ops[i] == 0x41 for i in copied), sum(op == 0x41 for op in code.ops[at:]), found.again


C = "(drop (i32.const 5))"


@pytest.mark.parametrize(("body", "kept", "of", "again"), [
    (f"nop {C} {C}", 2, 2, set()),
    (f"block nop {C} end {C}", 2, 2, set()),
    (f"block nop {C} br 0 {C} end {C}", 2, 3, set()),
    (f"block block nop {C} br 1 end {C} end {C}", 2, 3, set()),
    (f"block block nop {C} (br_if 0 (local.get 0)) br 1 end {C} end {C}", 3, 3, set()),
    (f"block block nop {C} return end {C} end {C}", 1, 3, set()),
    (f"block block nop block {C} return end {C} end {C} end {C}", 4, 4, set()),
    (f"loop nop {C} end {C}", 2, 2, set()),
    (f"loop nop {C} br 0 end {C}", 2, 2, {0}),
    (f"loop nop {C} (br_if 0 (local.get 0)) end {C}", 2, 2, {0}),
    (f"block loop block nop {C} br 1 end {C} br 0 end {C} end {C}", 3, 4, {1}),
    (f"block loop block nop {C} br 2 end {C} br 0 end {C} end {C}", 2, 4, set()),
    (f"loop (if (local.get 0) (then nop {C} return) (else {C})) {C} end {C}", 1, 4, set()),
    (f"loop (if (local.get 0) (then nop {C}) (else {C})) {C} end {C}", 3, 4, set()),
    (f"loop (if (local.get 0) (then {C}) (else nop {C} br 1)) {C} end {C}", 2, 3, {0}),
    (f"loop block block block (br_table 0 1 2 (local.get 0)) end nop {C} br 2 end {C} br 1 end {C} end {C}", 2, 4, {0}),
    (f"block block nop {C} (br_table 0 1 (local.get 0)) {C} end {C} end {C}", 3, 4, set()),
    (f"block block nop unreachable end {C} end {C}", 0, 2, set()),
], ids=str)
def test_what_is_reached(body: str, kept: int, of: int, again: set[int]) -> None:
    assert constants(body) == (kept, of, again)


def test_a_handler_is_reached_by_its_clause() -> None:
    """Though nothing that is copied branches there."""
    body = f"block block (try_table (catch $e 0) nop {C} (throw $e)) {C} br 1 end {C} end {C}"
    assert constants(body, exceptions=True) == (3, 4, set())
