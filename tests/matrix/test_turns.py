"""Turns of loops that are begun in their middle (`instrument.turns`): done everywhere it can be, where the tool does it
in large functions only, programs end as without, and images are those of copied loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from wasmtime import wat2wasm

from wasmckpt.formats import Image
from wasmckpt.instrument import continuations, emit, flow, function, turns
from wasmckpt.instrument.continuations import extend
from wasmckpt.instrument.options import Options
from wasmckpt.snapshot import program as program_module

from ..field.harness import SPIN, assemble, i32, moves
from ..support.moving import COUNTING, EVERYWHERE, move
from ..support.pairs import BASE, SEED
from ..support.tiers import by_tier
from . import test_reference
from .check import difference, runner, safepoints
from .generator import Shape, generate
from .test_identical import neutral

WAYS = f"""(import "env" "log" (func $log (param i32))) {SPIN} (memory (export "memory") 1)
  (global $mixed (mut i32) (i32.const 1))
  (func $mix (param $a i32) (param $b i64) (result i32)
    (global.set $mixed (i32.add (i32.mul (global.get $mixed) (i32.const 3)) (local.get $a)))
    (i32.xor (local.get $a) (i32.wrap_i64 (local.get $b))) (call $spin (i32.const 2)))
  (func $many (param $a i32) (result i32 i64) (call $spin (i32.const 1)) (local.get $a) (i64.const 5))
  (func (export "run") (param $n i32) (result i32) (local $i i32) (local $j i32) (local $s i32) (local $t i64)
    (loop $outer
      (local.set $t (i64.extend_i32_u (i32.mul (local.get $i) (i32.const 7))))
      (if (i32.and (local.get $i) (i32.const 1))
        (then
          (local.set $j (i32.const 3))
          (loop $inner
            (block $out
              (block $next
                (block $zero
                  (br_table $zero $next $out (i32.rem_u (i32.add (local.get $i) (local.get $j)) (i32.const 3))))
                (local.set $s (i32.add (local.get $s)
                  (call $mix (i32.mul (local.get $j) (i32.const 5)) (i64.add (local.get $t) (i64.const 9)))))
                (call $log (local.get $s)))
              (local.set $s (i32.sub (i32.const 1000) (call $mix (local.get $s) (local.get $t)))))
            (br_if $inner (local.tee $j (i32.sub (local.get $j) (i32.const 1))))))
        (else
          (if (i32.eqz (i32.rem_u (local.get $i) (i32.const 4)))
            (then (call $spin (i32.const 2)))
            (else
              (local.get $s) (call $many (local.get $i)) (local.set $t) (i32.add) (local.set $s)
              (call $log (i32.wrap_i64 (local.get $t)))))))
      (call $spin (i32.const 2))
      (br_if $outer (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n))))
    (local.get $s))"""
"""Both arms of an if, a switch, loops in loops, operands that wait in a call, calls with one and with two results."""


LEFT = f"""{SPIN}
  (func (export "run") (param $n i32) (result i32) (local $i i32) (local $s i32)
    (block $out
      (block $odd
        (loop $l
          (loop $inner
            (call $spin (i32.const 2))
            (local.set $s (i32.add (i32.mul (local.get $s) (i32.const 3)) (local.get $i)))
            (br_if $l (i32.and (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 3)))
            (br_if $out (i32.gt_u (local.get $i) (i32.mul (local.get $n) (i32.const 2))))
            (br_if $odd (i32.gt_u (local.get $i) (local.get $n)))
            (br $inner))
          (unreachable))
        (unreachable))
      (call $spin (i32.const 3))
      (local.set $s (i32.xor (local.get $s) (i32.const 0x1234))))
    (local.get $s))"""
"""Loops that are left by branches to blocks around them only."""


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Loops stay whole wherever they can; counts how often."""
    made: Counter[str] = Counter()
    real = turns.first_whole

    def counted(*args: object) -> int:
        first = real(*args)  # type: ignore[arg-type]
        path = args[1]
        assert isinstance(path, list)
        made["whole" if first < len(path) else "copied" if path else "no way"] += 1
        return first

    monkeypatch.setattr(turns, "LEAST_BYTES", 0)
    monkeypatch.setattr(turns, "MORE_THAN", 0)
    monkeypatch.setattr(continuations, "first_whole", counted)
    monkeypatch.setattr(program_module, "cached_extend", extend)  # kept ones may be of the other kind
    return made


def test_all_ways_to_a_place(whole: Counter[str]) -> None:
    undisturbed = runner(assemble(WAYS), COUNTING, invoke="run", arguments=[i32(9)])(["wasmtime"], 0)
    assert len(undisturbed.log) > 4
    moves(WAYS, None, arguments=[i32(9)], most=12, chains=(1, 2), log=undisturbed.log)
    assert whole["whole"] > by_tier(check=4, test=100, soak=100)


def test_loops_that_are_left_by_branches_only(whole: Counter[str]) -> None:
    moves(LEFT, None, arguments=[i32(9)], chains=(1, 2))
    assert whole["whole"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multi", "loopparams", "ifparams", "multivalue", "frames", "simd", "tables", *(
    f"generated-{seed}" for seed in range(SEED, SEED + by_tier(check=1, test=4, soak=60)))])
def test_from_any_instruction(name: str, whole: Counter[str]) -> None:
    test_reference.test_images_from_any_instruction_resume_everywhere(name)


@pytest.mark.slow
def test_generated_programs(whole: Counter[str]) -> None:
    for seed in (1, *range(SEED, SEED + by_tier(check=0, test=2, soak=60))):  # the first has loops that stay whole
        wasm = bytes(wat2wasm(generate(seed, Shape(fuel=40))))
        for plan in (COUNTING, EVERYWHERE):
            run = runner(wasm, plan, invoke="run", arguments=[i32(6)], most_hops=12)
            expected = run(["wasmtime"], 0)
            for n in (1, 3):
                assert not (wrong := difference(run, BASE, n, expected)), (seed, plan.plan, n, wrong)
    assert whole["whole"]


def images(options: Options) -> list[Image]:
    wasm = assemble(WAYS)
    count = safepoints(wasm, "wasmtime", options, invoke="run", arguments=[i32(9)])
    trace = move(wasm, BASE, max(1, count // 40), options=options, invoke="run", arguments=[i32(9)], most_hops=40,
                 keep_images=True)
    return [replace(neutral(raw), host={}) for raw in trace.images]  # clocks go on


@pytest.mark.parametrize("options", [COUNTING, EVERYWHERE], ids=["shipped", "all"])
def test_images_are_those_of_copied_loops(
    options: Options, whole: Counter[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the same locals live at each safepoint, the same loops are polled, and none counts twice."""
    ours = images(options)
    assert whole["whole"]
    monkeypatch.setattr(turns, "MORE_THAN", 1 << 40)
    assert len(ours) >= 20
    assert ours == images(options)


# It can fail

def wrong() -> bool:
    wasm = assemble(WAYS)
    for options in (COUNTING, EVERYWHERE):
        run = runner(wasm, options, invoke="run", arguments=[i32(9)], most_hops=30)
        expected = run(["wasmtime"], 0)
        if any(difference(run, BASE, n, expected) for n in (1, 2, 3, 5)):
            return True
    return False


def test_a_poll_before_the_branch(whole: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Safepoints that are none are passed while frames are rebuilt: the n-th is another one."""
    real = turns.skips_of
    monkeypatch.setattr(function, "skips_of", lambda code, skip: dict.fromkeys(real(code, skip), -1))
    ours = images(EVERYWHERE)
    monkeypatch.undo()
    assert ours != images(EVERYWHERE)


def test_the_branch_taken_for_one(whole: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """More lives at a header, and more loops are polled."""
    monkeypatch.setattr(function, "build_flow", lambda code, sites, skips: flow.build_flow(code, sites))
    ours = images(COUNTING), images(EVERYWHERE)
    monkeypatch.undo()
    assert ours != (images(COUNTING), images(EVERYWHERE))


def test_a_turn_that_is_skipped_twice(whole: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands before the place is passed by in the next turn, too."""
    real = continuations._Draft._begin_here
    set_ = emit.local_set

    def begin(self: continuations._Draft, *args: object) -> int:
        monkeypatch.setattr(emit, "local_set", lambda local: b"\x1a" if local == self.skip else set_(local))
        try:
            return real(self, *args)  # type: ignore[arg-type]
        finally:
            monkeypatch.setattr(emit, "local_set", set_)

    monkeypatch.setattr(continuations._Draft, "_begin_here", begin)
    assert wrong()
