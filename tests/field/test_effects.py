"""What must happen once: start functions, host calls, calls that were interrupted; and what may differ: randomness."""

from __future__ import annotations

import pytest

from wasmckpt import formats, runtimes
from wasmckpt.host import RepeatCall
from wasmckpt.runtimes import HostFunction
from wasmckpt.snapshot.program import Host, Program, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import I32, I64

from ..matrix.check import PAIRS, pairs_for
from ..support.moving import COUNTING, run_program
from .harness import SPIN, Life, assemble, i32, live, moves

# A3: start functions and segments only once

@pytest.mark.parametrize("form", ["start", "_initialize", "both"])
def test_start_functions_run_once(form: str) -> None:
    """Whatever the safepoint, also one inside the start function; segments do not come back over changed memory."""
    start = "(start $init)" if form != "_initialize" else ""
    initialize = '(export "_initialize" (func $init2))' if form != "start" else ""
    times = 1 + (form == "both")
    value, boots = 5, 0
    for _ in range(times):
        value, boots = value * 3, boots + 1
    moves(f"""(import "env" "log" (func $log (param i32))) {SPIN} (memory (export "memory") 1)
      (data (i32.const 0) "\\05\\00\\00\\00") (global $boot (mut i32) (i32.const 0))
      (func $init
        (global.set $boot (i32.add (global.get $boot) (i32.const 1))) (call $spin (i32.const 3))
        (i32.store (i32.const 0) (i32.mul (i32.load (i32.const 0)) (i32.const 3))) (call $log (i32.const 1)))
      (func $init2 (call $init)) {start} {initialize}
      (func (export "run") (result i32) (local $i i32)
        loop $l
          (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
          (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 4)))
        end
        (call $log (i32.const 2))
        (i32.add (i32.load (i32.const 0)) (i32.mul (global.get $boot) (i32.const 1000))))""",
          [i32(value + 4 + 1000 * boots)], log=[1] * times + [2], chains=(2, 3))


# A6: host calls exactly once

@pytest.mark.parametrize(("outer", "inner"), [(10, 3), (3, 1), (1, 8)])
def test_host_calls_are_not_repeated_and_not_lost(outer: int, inner: int) -> None:
    moves(f"""(import "env" "log" (func $log (param i32)))
      (func (export "run") (result i32) (local $i i32) (local $j i32)
        loop $l
          (call $log (local.get $i)) (local.set $j (i32.const {inner}))
          loop $m (br_if $m (local.tee $j (i32.sub (local.get $j) (i32.const 1)))) end
          (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const {outer})))
        end local.get $i)""", [i32(outer)], log=list(range(outer)))


CALLS = {
    "direct": "(call $take (local.get $i))",
    "waiting": "(i32.add (i32.mul (local.get $i) (i32.const 0)) (call $take (local.get $i)))",
    "computed": "(i32.sub (i32.const 5) (i32.sub (i32.const 5) (call $take (i32.sub (local.get $i) (i32.const 0)))))",
    "computed, two wait": "(i32.mul (i32.load (i32.const 0)) (i32.const 0)) (i32.add (i32.xor (local.get $i) "
                          "(local.get $i)) (call $take (i32.mul (local.get $i) (i32.const 1)))) i32.add",
    "indirect, computed": "(call_indirect (type $t) (i32.xor (local.get $i) (i32.const 0)) (i32.load (i32.const 0)))",
    "indirect": "(call_indirect (type $t) (local.get $i) (i32.const 0))",
    "below": "(call $below (local.get $i))",
    "below a tail call": "(call $tail (local.get $i))",
}


def _taking(call: str) -> bytes:
    tails = "(func $tail (param i32) (result i32) (return_call $below (local.get 0)))"
    return assemble(f"""(type $t (func (param i32) (result i32))) (import "env" "take" (func $take (type $t)))
      (table 1 funcref) (elem (i32.const 0) $take) (memory 1)
      (func $below (param i32) (result i32) (i32.add (i32.const 0) (call $take (local.get 0))))
      {tails if "tail" in call else ""}
      (func (export "run") (result i32) (local $i i32) (local $s i32)
        loop $l
          (i32.mul (local.get $s) (i32.const 3)) {CALLS[call]} i32.add local.set $s
          (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 6)))
        end local.get $s)""")


EXPECTED = 0
for _i in range(6):
    EXPECTED = (EXPECTED * 3 + 10 + _i) & 0xFFFFFFFF
CASES = [
    pytest.param(call, pair, id=f"{call}-{'-'.join(pair)}")
    for call in CALLS for pair in (pairs_for("tail-call") if "tail" in call else PAIRS)
]


@pytest.mark.parametrize(("call", "pair"), CASES)
def test_a_freeze_asked_for_during_a_host_call_keeps_its_result(call: str, pair: tuple[str, str]) -> None:
    """The call is finished, its result is in the image, and it does not happen again."""
    life = Life()
    log: list[int] = []

    def take(i: int) -> int:
        log.append(i)
        life.freeze()
        return 10 + i

    live(_taking(call), pair, life, {("env", "take"): HostFunction((I32,), (I32,), take)})
    assert (life.results, log) == ((EXPECTED,), list(range(6)))
    assert life.hops == 6


@pytest.mark.parametrize(("call", "pair"), CASES)
def test_a_host_call_that_was_interrupted_is_done_again_with_its_arguments(call: str, pair: tuple[str, str]) -> None:
    """It had no effect before; it has one after. However it was called, and wherever its arguments came from."""
    life = Life()
    log: list[int] = []
    tried: list[int] = []

    def take(i: int) -> int:
        if tried.count(i) == 0:
            tried.append(i)
            life.freeze()
            raise RepeatCall
        log.append(i)
        return 10 + i

    live(_taking(call), pair, life, {("env", "take"): HostFunction((I32,), (I32,), take)})
    assert (life.results, log, tried) == ((EXPECTED,), list(range(6)), list(range(6)))


# A24: clones and randomness

def test_two_restores_of_one_image_get_random_bytes_of_their_own() -> None:
    """Random results are not in the image: each life asks its own host."""
    wasm = assemble(f"""(import "env" "random" (func $random (result i64))) {SPIN}
      (func (export "run") (result i64) (call $spin (i32.const 5)) call $random)""")
    seen = []
    drawn = iter(range(100))
    functions = {("env", "random"): HostFunction((), (I64,), lambda: next(drawn))}
    engine = runtimes.load("wasmtime")
    program = Program.fresh(engine, wasm, Host(functions), entry_for(decode(wasm), "run"), options=COUNTING)
    program.freeze_at(3)
    run_program(engine, program)
    raw = formats.encode(program.capture())
    program.close()
    for name in ("wasmtime", "wasm3"):
        target = runtimes.load(name)
        clone = Program.restored(target, wasm, Host(functions), formats.decode(raw), options=COUNTING)
        seen.append(run_program(target, clone).results[0])
        clone.close()
    assert seen == [0, 1]
