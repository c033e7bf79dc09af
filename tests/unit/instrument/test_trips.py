"""Loops that end by themselves are recognized, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from wasmtime import wat2wasm

from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.instrument.trips import constant_trips
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.validate import analyze

STEP = "(local.tee $i (i32.add (local.get $i) (i32.const {step})))"


def _trips(before: str, body: str) -> list[int]:
    module = decode(bytes(wat2wasm(
        f"(module (memory 1) (func $g) (func (export \"run\") (param $n i32) (local $i i32) {before} (loop $l {body})))"
    )))
    return list(constant_trips(module, analyze(module, 1)).values())


@pytest.mark.parametrize(("start", "step", "condition", "trips"), [
    (0, 1, "i32.ne (i32.const 10)", 10), (0, 1, "i32.lt_s (i32.const 10)", 10), (0, 4, "i32.lt_u (i32.const 10)", 3),
    (10, -1, "i32.ne (i32.const 0)", 10), (-5, 1, "i32.lt_s (i32.const 5)", 10), (0, 1, "i32.le_u (i32.const 3)", 4),
    (0, 3, "i32.ne (i32.const 64)", None), (0, 1, "i32.ne (i32.const 65)", None), (5, 1, "i32.lt_s (i32.const 0)", 1),
])
def test_counted_by_running_the_counter(start: int, step: int, condition: str, trips: int | None) -> None:
    op, _, bound = condition.partition(" ")
    found = _trips(f"(local.set $i (i32.const {start}))",
                   f"(i32.store (i32.const 0) (local.get $i)) (br_if $l ({op} {STEP.format(step=step)} {bound}))")
    assert found == ([] if trips is None else [trips])


BEFORE = "(local.set $i (i32.const 0))"
TURN = f"(br_if $l (i32.ne {STEP.format(step=1)} (i32.const 10)))"


@pytest.mark.parametrize(("before", "body"), [
    ("(local.set $i (local.get $n))", TURN),                                    # no constant to begin with
    (BEFORE + "(block (br_if 0 (local.get $n)) (local.set $i (i32.const 5)))", TURN),   # a block between
    (BEFORE, "(if (local.get $n) (then (local.set $i (i32.const 0))))" + TURN),  # set twice
    (BEFORE, f"(br_if $l (local.get $n)) {TURN}"),                               # a second way back
    (BEFORE, "(call $g)" + TURN),                                                # a call, which may do anything
    (BEFORE, f"(loop (br_if 0 (local.get $n))) {TURN}"),                         # not the innermost loop
    (BEFORE, "(br_if $l (i32.ne (local.tee $i (i32.add (local.get $i) (local.get $n))) (i32.const 10)))"),
    (BEFORE, "(br_if $l (i32.ne (local.tee $i (i32.add (local.get $n) (i32.const 1))) (i32.const 10)))"),
])
def test_anything_else_keeps_its_poll(before: str, body: str) -> None:
    assert _trips(before, body) == []
    assert _trips(BEFORE, TURN) == [10]


def test_it_takes_the_poll_away_and_is_no_safepoint_for_an_outer_loop() -> None:
    wasm = bytes(wat2wasm(f"""(module (func (export "run") (param $n i32) (local $i i32)
        (loop $o {BEFORE} (loop $l {TURN}) (br_if $o (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))))"""))
    assert len(instrument(wasm, Options()).sites) == 1
    assert len(instrument(wasm, Options(plan="all")).sites) == 2
