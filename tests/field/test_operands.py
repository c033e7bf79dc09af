"""Values under calls and blocks, dead code, shapes that runtimes got wrong, limits of functions."""

from __future__ import annotations

from itertools import product

import pytest

from wasmckpt import runtimes
from wasmckpt.errors import NotSupported
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import Capabilities
from wasmckpt.wasm.values import Value

from ..matrix.check import ENGINES, PAIRS, pairs_for
from ..support.tiers import by_tier
from .harness import SPIN, assemble, f32, f64, i32, i64, moves


def _capabilities(name: str) -> Capabilities:
    return runtimes.load(name).capabilities


KEEP_NANS = [pair for pair in PAIRS if not any(_capabilities(name).nan_f32_quieted for name in pair)]

CONSTANTS = {
    "i32": (("-7", i32(-7)), ("0x7fffffff", i32(0x7FFFFFFF))),
    "i64": (("-1", i64(-1)), ("0x123456789abcdef0", i64(0x123456789ABCDEF0)), ("-9223372036854775808", i64(1 << 63))),
    "f32": (("-0", f32(0x80000000)), ("1.5", f32(0x3FC00000)), ("-inf", f32(0xFF800000))),
    "f64": (("-0", f64(1 << 63)), ("nan:0x4000000000001", f64(0x7FF4000000000001)), ("1e300", f64(0x7E37E43C8800759C))),
}


# A1: operands waiting under a call

@pytest.mark.parametrize("kind", CONSTANTS)
@pytest.mark.parametrize("made", ["constant", "local", "changed local", "global", "call", "block"])
def test_operands_of_all_types_made_in_all_ways_wait_under_a_call(kind: str, made: str) -> None:
    for text, value in CONSTANTS[kind][:by_tier(check=1, test=3, soak=3)]:
        code = {
            "constant": f"{kind}.const {text}",
            "local": "local.get $v",
            "changed local": f"local.get $v ({kind}.const 3) local.set $v",
            "global": "global.get $g",
            "call": "call $same",
            "block": f"block (result {kind}) local.get $v end",
        }[made]
        moves(f"""{SPIN}
          (global $g {kind} ({kind}.const {text}))
          (func $same (result {kind}) (call $spin (i32.const 2)) ({kind}.const {text}))
          (func (export "run") (result {kind}) (local $v {kind})
            (local.set $v ({kind}.const {text}))
            {code} i32.const 5 (call $spin (i32.const 3)) (call $spin (i32.const 2)) drop)""",
              [value], chains=(2,), most=3, pairs=KEEP_NANS if kind == "f32" and "nan" in text else PAIRS)


def test_operands_become_results_of_several_types() -> None:
    moves(f"""{SPIN}
      (func $sum (param $n i32) (result i32) (local $s i32)
        loop $l
          (local.set $s (i32.add (local.get $s) (local.get $n)))
          (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))
        end
        local.get $s)
      (func (export "run") (result i32 i64 f32 f64 i32)
        i32.const 11 i64.const 0x123456789abcdef0 f32.const 1.5 f64.const -2.25 i32.const 6 call $sum)""",
          [i32(11), i64(0x123456789ABCDEF0), f32(0x3FC00000), f64(0xC002000000000000), i32(21)])


@pytest.mark.parametrize("depth", [2, 5, by_tier(check=9, test=40, soak=300)])
def test_nested_waiting_operands(depth: int) -> None:
    """depth - (depth-1 - (... spin)): each waits under all calls that follow."""
    body = "".join(f"(call $id (i32.const {n * n}))" for n in range(depth))
    expected = 0
    for n in reversed(range(depth)):
        expected = n * n - expected if n < depth - 1 else n * n
    moves(f"""{SPIN} (func $id (param i32) (result i32) (call $spin (i32.const 1)) local.get 0)
      (func (export "run") (result i32) {body} {"i32.sub " * (depth - 1)})""", [i32(expected)], chains=(3,))


def test_several_results_wait_under_a_call_and_go_to_locals_in_order() -> None:
    moves(f"""{SPIN} (global $n (mut i32) (i32.const 0))
      (func $next (result i32 i64 i32)
        (global.set $n (i32.add (global.get $n) (i32.const 1))) (call $spin (i32.const 1))
        global.get $n (i64.extend_i32_u (global.get $n)) (i32.mul (global.get $n) (i32.const 10)))
      (func (export "run") (result i32) (local $a i32) (local $b i64) (local $c i32)
        call $next call $next local.set $c local.set $b local.set $a
        drop drop
        (i32.add (local.get $a) (i32.add (local.get $c) (i32.wrap_i64 (local.get $b)))) i32.add)""", [i32(25)])


@pytest.mark.parametrize("set_first", [False, True])
def test_a_result_that_goes_to_a_local_that_also_waits(set_first: bool) -> None:
    """``local.get x`` waits with the old value while the call's result replaces it."""
    use = "local.tee $x" if not set_first else "local.set $x local.get $x"
    moves(f"""{SPIN} (func $two (result i32) (call $spin (i32.const 2)) i32.const 2)
      (func (export "run") (result i32) (local $x i32)
        (local.set $x (i32.const 40))
        local.get $x call $two {use} (i32.add (i32.mul (i32.const 100)))
        i32.add (call $spin (i32.const 2)) local.get $x i32.add)""".replace(
            "(i32.add (i32.mul (i32.const 100)))", "i32.const 100 i32.mul"), [i32(242)])


# A5: dead code and the polymorphic stack

def test_dead_code_of_all_kinds() -> None:
    moves("""(module
      (func $dead (param $x i32) (result i32)
        block (result i32)
          local.get $x br 0 select if (result f64) f64.const 1 else f64.const 2 end drop
          i32.const 5 loop (param i32) (result i32) br 1 end
        end)
      (func $dead2 (param $x i32) (result i32)
        (if (local.get $x) (then (return (i32.const 4))) (else unreachable))
        (i32.add (unreachable) (drop (i64.const 1))))
      (func $never (param $x i32) (result i64)
        local.get $x if (return (i64.const 77)) end loop (result i64) br 0 end)
      (func $brif (param $x i32) (result i32) block (result i32) unreachable br_if 0 i32.eqz end)
      (func (export "run") (result i32) (local $i i32) (local $s i32)
        loop $l
          (local.set $s (i32.add (local.get $s) (call $dead (local.get $i))))
          (local.set $s (i32.add (local.get $s) (call $dead2 (i32.const 1))))
          (local.set $s (i32.add (local.get $s) (i32.wrap_i64 (call $never (i32.const 1)))))
          (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 10)))
        end
        local.get $s))""", [i32(855)])


@pytest.mark.parametrize("leave", ["return", "br 0", "unreachable", "br_table 0 0 (i32.const 1)"])
@pytest.mark.parametrize("rest", [
    "call $spin", "loop i32.const 1 call $spin end", "loop (result i32) i32.const 1 call $spin br 0 end drop",
    "block i32.const 1 call $spin end", "loop (param i32) call $spin end",
    "if (param i32) call $spin else call $spin end",
    "drop drop i32.add drop",
])
def test_dead_calls_and_loops_are_no_safepoints(leave: str, rest: str) -> None:
    """Nothing is spilled where the operands' types are unknown; what lives behind goes on."""
    guard = "" if leave != "unreachable" else "(br_if 1 (i32.const 1))"
    code = leave if "(" not in leave else "i32.const 1 br_table 0 0"
    moves(f"""{SPIN} (func $f (param i32) block block {guard} {code} {rest} end end)
      (func (export "run") (result i32) (call $f (i32.const 1)) (call $spin (i32.const 2)) i32.const 9)""",
          [i32(9)], chains=(2,), most=2)


# A9: shapes that runtimes got wrong

@pytest.mark.parametrize("kinds", [("i32", "i32"), ("i64", "i32"), ("f64", "i32"), ("f32", "i64")], ids="-".join)
def test_loop_parameters_with_an_unconditional_branch(kinds: tuple[str, str]) -> None:
    p, n = kinds
    zero = f"{n}.eqz"
    moves(f"""{SPIN} (func (export "run") (param $n {n}) (result {p}) (local $p {p})
      block $done (result {p})
        {p}.const 1 local.get $n
        loop $l (param {p} {n})
          local.set $n local.set $p (call $spin (i32.const 1))
          local.get $p local.get $n {zero} br_if $done
          {p}.const 2 {p}.mul local.get $n {n}.const 1 {n}.sub br $l
        end unreachable
      end)""", [{"i32": i32(1024), "i64": i64(1024), "f64": f64(0x4090000000000000), "f32": f32(0x44800000)}[p]],
          arguments=[i32(10) if n == "i32" else i64(10)])


@pytest.mark.parametrize(("c", "result"), [(0, 120), (1, 126)])
def test_if_with_parameters_and_no_else(c: int, result: int) -> None:
    moves(f"""{SPIN} (func $two (result i32 i64) (call $spin (i32.const 1)) i32.const 3 i64.const 40)
      (func (export "run") (param $c i32) (result i64) (local i64)
        call $two local.get $c
        if (param i32 i64) (result i32 i64) (call $spin (i32.const 2)) i64.const 2 i64.add end
        local.set 1 i64.extend_i32_s local.get 1 i64.mul)""", [i64(result)], arguments=[i32(c)])


@pytest.mark.parametrize(("way", "result"), [(0, 11), (1, 20), (2, 33), (9, 33)])
def test_br_table_that_carries_values_out_of_loops_and_blocks(way: int, result: int) -> None:
    moves(f"""{SPIN} (func (export "run") (param $w i32) (result i32) (local $n i32)
      block $c (result i32)
        block $b (result i32)
          block $a (result i32)
            i32.const 10 (call $spin (i32.const 2)) local.get $w br_table $a $b $c
          end
          i32.const 1 (call $spin (i32.const 1)) i32.add br $c
        end
        i32.const 10 i32.add (call $spin (i32.const 1)) br $c
      end
      (call $spin (i32.const 1))
      local.get $w i32.const 1 i32.gt_u if (param i32) (result i32) i32.const 23 i32.add end)""",
          [i32(result)], arguments=[i32(way)])


def test_a_branch_out_of_an_if_with_parameters() -> None:
    """Wasm3 loses the value (78 instead of 155)."""
    moves(f"""{SPIN} (func (export "run") (param $n i32) (result i32)
      block $out (result i32)
        i32.const 77 local.get $n
        if (param i32) (result i32) (call $spin (i32.const 2)) i32.const 78 i32.add br $out end
        i32.const 1 i32.add
      end)""", [i32(155)], arguments=[i32(1)])


# A12: limits

def _many_locals(n: int) -> tuple[str, int]:
    step = max(n // 50, 1)
    picked = range(0, n, step)
    sets = "".join(f"(local.set {i} (i64.const {i + 1}))" for i in picked)
    total = "i64.const 0 " + "".join(f"local.get {i} i64.add " for i in picked)
    return (f'{SPIN} (func (export "run") (result i64) (local {"i64 " * n}) {sets} (call $spin (i32.const 3)) {total})',
            sum(i + 1 for i in picked))


@pytest.mark.parametrize("n", [100, 500, pytest.param(1500, marks=pytest.mark.slow), 1850])
def test_many_locals(n: int) -> None:
    text, result = _many_locals(n)
    moves(text, [i64(result)], chains=(2,), most=2)


@pytest.mark.slow
@pytest.mark.parametrize("n", [5000, 49_000])
def test_more_locals_than_wasm3_holds(n: int) -> None:
    """Up to what wasmtime itself takes, on those that hold as many; a refusal says what is lacking."""
    text, result = _many_locals(n)
    holding = [pair for pair in PAIRS if not any(n > (_capabilities(name).max_slots or n) for name in pair)]
    moves(text, [i64(result)], chains=(2,), most=2, pairs=holding)
    with pytest.raises(NotSupported):
        moves(text, [i64(result)], pairs=[("wasm3", "wasm3")])


@pytest.mark.parametrize("n", [8, 9, by_tier(check=20, test=60, soak=900)])
@pytest.mark.parametrize("kind", ["i32", "i64"])
def test_many_operands_wait(n: int, kind: str) -> None:
    """More than one spill helper takes; each made by a call, so that none is a constant."""
    moves(f"""{SPIN} (func $v (param {kind}) (result {kind}) local.get 0)
      (func (export "run") (result {kind})
        {"".join(f"({kind}.const {i}) call $v " for i in range(n))} (call $spin (i32.const 2))
        {f"{kind}.add " * (n - 1)})""", [Value(0x7F if kind == "i32" else 0x7E, n * (n - 1) // 2)],
          chains=(2,), most=2)


@pytest.mark.parametrize("calls", [by_tier(check=400, test=1000, soak=5000)])
def test_thousands_of_calls_in_one_function(calls: int) -> None:
    """Each call is a site; frozen at a few of them, far apart."""
    text = f"""{SPIN} (global $n (mut i32) (i32.const 0))
      (func $f (global.set $n (i32.add (global.get $n) (i32.const 1))) (call $spin (i32.const 1)))
      (func (export "run") (result i32) {"call $f " * calls} global.get $n)"""
    around = list(zip(ENGINES, (*ENGINES[1:], ENGINES[0]), strict=True))
    moves(text, [i32(calls)], chains=(calls // 2,), most=2, pairs=around)


@pytest.mark.parametrize("out_of_line", [0, 3, 300])
@pytest.mark.parametrize("depth", [by_tier(check=20, test=30, soak=150)])
def test_deep_nesting(out_of_line: int, depth: int) -> None:
    """A call inside many blocks, and the way out. The copies of loops grow with the square of the depth."""
    text = f"""{SPIN} (func (export "run") (param $d i32) (result i32) (local $n i32)
      {"block loop " * depth} (call $spin (i32.const 2)) (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br_if 0 (i32.lt_u (local.get $n) (i32.const 3))) {"end end " * depth} local.get $n)"""
    moves(text, [i32(3)], arguments=[i32(0)], chains=(3,), most=2)
    assert instrument(assemble(text), Options(out_of_line=out_of_line)).wasm


# v128, and the few other values

@pytest.mark.parametrize(("where", "padding"), list(product(["local", "stack"], [0, 5, 300])))
def test_vectors_in_locals_and_on_the_stack(where: str, padding: int) -> None:
    """Also beyond 256 slots."""
    value = "v128.const i64x2 0x1122334455667788 0x99aabbccddeeff00"
    keep = f"{value} local.set $v" if where == "local" else value
    get = "local.get $v" if where == "local" else ""
    moves(f"""{SPIN} (func (export "run") (result i64) (local {"i64 " * padding}) (local $v v128) (local $w v128)
      v128.const i32x4 1 2 3 4 {keep} (call $spin (i32.const 3)) {get} i64x2.add local.tee $w
      i64x2.extract_lane 0 (i64x2.extract_lane 1 (local.get $w)) i64.xor)""",
          [i64((0x1122334455667788 + (2 << 32 | 1) & (1 << 64) - 1) ^ (0x99AABBCCDDEEFF00 + (4 << 32 | 3)))],
          pairs=pairs_for("simd"))


# A17: tail calls

@pytest.mark.parametrize(("n", "result"), [(10, 969), (30, 0)])
def test_a_tail_call_leaves_no_frame(n: int, result: int) -> None:
    """The caller is gone; a poll at the entry catches tail recursion without any loop."""
    text = """(module
      (func $even (param $n i32) (param $acc i64) (result i64)
        (if (i32.eqz (local.get $n)) (then (return (local.get $acc))))
        (return_call $odd (i32.sub (local.get $n) (i32.const 1)) (i64.add (local.get $acc) (i64.const 2))))
      (func $odd (param $n i32) (param $acc i64) (result i64)
        (if (i32.eqz (local.get $n)) (then (return (i64.const -1))))
        (return_call $even (i32.sub (local.get $n) (i32.const 1)) (i64.mul (local.get $acc) (i64.const 3))))
      (func (export "run") (param i32) (result i64) (call $even (local.get 0) (i64.const 1))))"""
    acc = 1
    for _ in range(n // 2):
        acc = (acc + 2) * 3
    assert result in (0, acc)
    moves(text, [i64(acc)], arguments=[i32(n)], pairs=pairs_for("tail-call"))


def test_tail_calls_run_in_a_bounded_stack_while_moving() -> None:
    text = """(module (type $t (func (param i32 i64) (result i64))) (table 2 funcref) (elem (i32.const 0) $a $b)
      (func $a (type $t)
        (if (i32.eqz (local.get 0)) (then (return (local.get 1))))
        (return_call_indirect (type $t)
          (i32.sub (local.get 0) (i32.const 1)) (i64.add (local.get 1) (i64.const 2)) (i32.const 1)))
      (func $b (type $t)
        (if (i32.eqz (local.get 0)) (then (return (i64.const -1))))
        (return_call $a (i32.sub (local.get 0) (i32.const 1)) (i64.mul (local.get 1) (i64.const 3))))
      (func (export "run") (param i32) (result i64) (call $a (local.get 0) (i64.const 1))))"""
    moves(text, [i64(2502887472138471937)], arguments=[i32(1_000_000)], pairs=pairs_for("tail-call"),
          chains=(100_001,), most=2)
