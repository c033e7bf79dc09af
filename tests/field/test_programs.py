"""Indices and globals of whole modules, what is refused by name, deep stacks, requests that must be answered soon."""

from __future__ import annotations

import threading
import time

import pytest

from wasmckpt import formats, runtimes
from wasmckpt.errors import CheckpointError
from wasmckpt.runtimes import HostGlobal
from wasmckpt.snapshot.program import Host, Program, Status, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import I32, I64, Value

from ..matrix.check import ENGINES, PAIRS, PLANS, closing_world, difference, pairs_for, runner
from ..support.moving import COUNTING, World, move, run_program
from ..support.samples import sample
from ..support.tiers import by_tier
from .harness import SPIN, assemble, f64, i32, i64, moves

# A13: globals

@pytest.mark.parametrize("turns", [3, 20])
def test_every_mutable_global_of_every_type(turns: int) -> None:
    moves(f"""{SPIN} (global $a (mut i32) (i32.const 77)) (global $b (mut i64) (i64.const -5))
      (global $c (mut f32) (f32.const 0.5)) (global $d (mut f64) (f64.const 1e300)) (global $k i32 (i32.const 9))
      (func (export "run") (result i32 i64 i32 i64 i32) (local $i i32)
        loop $l
          (global.set $a (i32.add (global.get $a) (i32.const 1)))
          (global.set $b (i64.mul (global.get $b) (i64.const 3)))
          (global.set $c (f32.mul (global.get $c) (f32.const 1.5)))
          (global.set $d (f64.div (global.get $d) (f64.const 7)))
          (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const {turns})))
        end
        global.get $a global.get $b (i32.reinterpret_f32 (global.get $c)) (i64.reinterpret_f64 (global.get $d))
        global.get $k)""", None)


def test_vectors_in_globals() -> None:
    moves(f"""{SPIN} (global $v (mut v128) (v128.const i64x2 -1 7))
      (func (export "run") (result i64) (call $spin (i32.const 2))
        (global.set $v (i64x2.add (global.get $v) (global.get $v))) (call $spin (i32.const 2))
        (i64.add (i64x2.extract_lane 0 (global.get $v)) (i64x2.extract_lane 1 (global.get $v))))""",
          [i64(12)], pairs=pairs_for("simd"))


@pytest.mark.parametrize(("kind", "value"), [("i32", i32(77)), ("i64", i64(-77)), ("f64", f64(0xC059000000000000))])
def test_imported_constant_globals(kind: str, value: Value) -> None:
    """Also where they initialise others and place segments (Wasm3 alone would read zero)."""
    text = f"""(import "env" "k" (global $k {kind})) (import "env" "base" (global $base i32)) {SPIN} (memory 1)
      (global $copy (mut {kind}) (global.get $k)) (data (global.get $base) "\\2a")
      (func (export "run") (result {kind} {kind} i32) (call $spin (i32.const 3))
        global.get $k global.get $copy (i32.load8_u (global.get $base)))"""

    def world() -> World:
        return World(imported={("env", "k"): HostGlobal(value.type, False, value.bits),
                               ("env", "base"): HostGlobal(I32, False, 500)})

    moves(text, [value, value, i32(42)], world=world)


# A15: indices

def test_indices_in_every_place_that_names_one() -> None:
    text = """(module $shift
      (type $b (func (param i32 i32) (result i32)))
      (import "env" "log" (func $log (param i32))) (import "env" "base" (global $base i32))
      (memory (export "memory") 1) (global $copy i32 (global.get $base)) (global $acc (mut i32) (i32.const 0))
      (table 4 funcref) (elem (i32.const 1) $add $sub) (elem (i32.const 3) func $mul) (elem declare func $mul)
      (export "sub2" (func $sub)) (export "run" (func $run))
      (func $add (type $b) (i32.add (local.get 0) (local.get 1)))
      (func $sub (type $b) (i32.sub (local.get 0) (local.get 1)))
      (func $mul (type $b) (i32.mul (local.get 0) (local.get 1)))
      (func $boot (global.set $acc (global.get $copy))) (start $boot) (data (global.get $base) "\\07")
      (func $run (result i32) (local $i i32)
        loop $l
          (global.set $acc (call_indirect (type $b) (global.get $acc) (i32.const 3) (i32.const 1)))
          (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 10)))
        end
        (call $log (global.get $acc))
        (call_indirect (type $b) (call_indirect (type $b) (global.get $acc) (i32.load8_u (global.get $copy))
          (i32.const 3)) (i32.const 1) (i32.const 2))))"""

    def world() -> World:
        return World(imported={("env", "base"): HostGlobal(I32, False, 16)})

    moves(text, [i32(321)], log=[46], world=world)
    moves(text, [i32(5)], invoke="sub2", arguments=[i32(12), i32(7)], world=world, chains=())


def test_dropped_and_passive_segments() -> None:
    """memory.init from a segment before a move, its drop, and a trap by a second init after."""
    text = f"""{SPIN} (memory 1) (data $a "first") (data $b "second") (data (i32.const 50) "active")
      (func (export "run") (param i32) (result i64)
        (memory.init $a (i32.const 0) (i32.const 0) (i32.const 5)) (call $spin (i32.const 2)) (data.drop $a)
        (call $spin (i32.const 2)) (memory.init $b (i32.const 8) (i32.const 1) (i32.const 5)) (call $spin (i32.const 2))
        (if (local.get 0) (then (memory.init $a (i32.const 0) (i32.const 0) (i32.const 1))))
        (i64.add (i64.load (i32.const 0)) (i64.load (i32.const 8))))"""
    expected = int.from_bytes(b"first\0\0\0", "little") + int.from_bytes(b"econd\0\0\0", "little")
    pairs = pairs_for("bulk-memory")
    moves(text, [i64(expected)], arguments=[i32(0)], pairs=pairs)
    trapped = moves(text, None, arguments=[i32(1)], pairs=pairs)
    assert trapped.trap == "out of bounds memory access"


# A8: deep stacks

DEEP = f"""{SPIN}
  (func $f (param $d i32) (param $a i64) (result i64) (local $b i64) (local $c f64) (local $e i64)
    (local.set $b (i64.mul (local.get $a) (i64.const 3))) (local.set $c (f64.convert_i32_s (local.get $d)))
    (local.set $e (i64.extend_i32_u (local.get $d)))
    (if (i32.eqz (local.get $d)) (then (call $spin (i32.const 50)) (return (local.get $a))))
    (i64.add (i64.xor (local.get $b) (local.get $e))
      (i64.add (call $f (i32.sub (local.get $d) (i32.const 1)) (i64.add (local.get $a) (i64.const 1)))
               (i64.trunc_f64_s (local.get $c)))))
  (func (export "run") (param i32) (result i64) (call $f (local.get 0) (i64.const 7)))"""
EMPTY = """(func $f (param i32) (result i32)
    (if (i32.eqz (local.get 0)) (then (return (i32.const 0))))
    (i32.add (i32.const 1) (call $f (i32.sub (local.get 0) (i32.const 1)))))
  (func (export "run") (param i32) (result i32) (call $f (local.get 0)))"""


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize(("text", "depth", "result"), [
    (DEEP, 3, 90), (DEEP, 500, 541553), (DEEP, 3000, 18708411), (EMPTY, 1000, 1000),
    pytest.param(EMPTY, 10_000, 10_000, marks=pytest.mark.slow),
])
def test_deep_stacks(pair: tuple[str, str], text: str, depth: int, result: int) -> None:
    """Frozen at the bottom, and again on the way up, with the same frames."""
    kind = I64 if text is DEEP else I32
    world = World()
    with closing_world(world):
        trace = move(assemble(text), pair, max(2, depth // 2), world=world, invoke="run", arguments=[i32(depth)],
                     stack_bytes=8 << 20, keep_images=True, most_hops=by_tier(check=2, test=4, soak=20))
    assert (trace.results, trace.trap) == ((result & ((1 << (32 if kind == I32 else 64)) - 1),), "")
    assert len(formats.decode(trace.images[0]).frames) > depth // 3


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("depth", [600, 3000])
def test_more_frames_than_the_guest_has_memory(pair: tuple[str, str], depth: int) -> None:
    """Where the window is borrowed, records are handed over in pieces; what lay there is put back."""
    wasm = assemble('(memory (export "memory") 1 1) (data (i32.const 0) "what lay here") '
                    '(data (i32.const 65500) "and at the end")' + DEEP)
    run = runner(wasm, COUNTING, invoke="run", arguments=[i32(depth)], stack_bytes=8 << 20,
                 most_hops=by_tier(check=2, test=3, soak=20))
    expected = run([pair[0]], 0)
    assert not (wrong := difference(run, pair, depth // 3, expected)), wrong


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("sites", [4, 5, 12])
@pytest.mark.parametrize("results", ["i64", "i64 i32", ""])
def test_calls_that_have_many_different_frames_inside(pair: tuple[str, str], sites: int, results: str) -> None:
    """Recursion through many sites: a waiting frame has any of them inside, more than it can tell apart by itself."""
    zero = " ".join(f"({t}.const 1)" for t in results.split())
    use = {
        "i64": "i64.const 3 i64.mul i64.const {n} i64.add", "i64 i32": "i32.const {n} i32.add",
        "": "(global.set $g (i64.add (i64.mul (global.get $g) (i64.const 3)) (i64.const {n})))",
    }[results]
    ways = "".join(
        f"(if (i32.eq (i32.rem_u (local.get $n) (i32.const {sites})) (i32.const {n})) (then "
        f"(call $f (i32.sub (local.get $n) (i32.const 1))) {use.format(n=n)} return))" for n in range(sites))
    wasm = assemble(f"""(global $g (mut i64) (i64.const 1)) (func $f (param $n i32) (result {results})
      (if (i32.eqz (local.get $n)) (then {zero} return)) {ways} unreachable)
      (func (export "run") (result {results}) (call $f (i32.const 40)))""")
    run = runner(wasm, COUNTING, invoke="run", most_hops=by_tier(check=2, test=5, soak=40))
    expected = run(["wasmtime"], 0)
    for n in (2, 7):
        assert not (wrong := difference(run, pair, n, expected)), (n, wrong)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_target_with_less_stack_fails_with_a_trap_and_the_image_still_resumes(pair: tuple[str, str]) -> None:
    """Nothing is half done: the image, which stays, goes on where there is room."""
    wasm = assemble(EMPTY)
    engine = runtimes.load(pair[0])
    arguments = [i32(9000)]
    program = Program.fresh(engine, wasm, Host(), entry_for(decode(wasm), "run", arguments), options=COUNTING,
                            stack_bytes=8 << 20)
    program.freeze_at(1)
    assert run_program(engine, program).status is Status.FROZEN
    image = program.capture()
    program.close()
    target = runtimes.load(pair[1])
    small = Program.restored(target, wasm, Host(), image, options=COUNTING, stack_bytes=64 << 10)
    with pytest.raises(CheckpointError, match="stack"):
        run_program(target, small)
    small.close()
    large = Program.restored(target, wasm, Host(), image, options=COUNTING, stack_bytes=8 << 20)
    assert run_program(target, large).results == (9000,)
    large.close()


# A11: requests are answered soon

NESTS = {
    "br to the outer loop": "loop $o loop $i {work} br $o end end",
    "br_table": "loop $o loop $i {work} (br_table $o $i $o (i32.and (i32.load (i32.const 0)) (i32.const 3))) end end",
    "br_if": "loop $o loop $i {work} (br_if $i (i32.and (i32.load (i32.const 0)) (i32.const 7))) end br $o end",
    "tiny": "loop $o {work} br $o end",
    "counted inner": "loop $o (local.set $n (i32.const 9)) loop $i (br_if $i (local.tee $n (i32.sub (local.get $n) "
                     "(i32.const 1)))) end {work} br $o end",
    "short call": "loop $o {work} (call $short) br $o end",
    "recursion": "(loop $o {work} (drop (call $tree (i32.const 12))) br $o)",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("nest", NESTS)
def test_a_request_is_answered_soon_in_loops_of_all_forms(nest: str, engine: str) -> None:
    """No way back without a poll: an endless program stops, and the next one goes on from there."""
    work = "(i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))"
    wasm = assemble(f"""(memory 1) (func $short (i32.store (i32.const 8) (i32.load (i32.const 0))))
      (func $tree (param i32) (result i32) (if (i32.eqz (local.get 0)) (then (return (i32.const 1))))
        (i32.add (call $tree (i32.sub (local.get 0) (i32.const 1))) (call $tree (i32.sub (local.get 0) (i32.const 1)))))
      (func (export "run") (local $n i32) {NESTS[nest].format(work=work)})""")
    target = runtimes.load(engine)
    program = Program.fresh(target, wasm, Host(), entry_for(decode(wasm), "run"))
    for _ in range(3):
        answered: list[float] = []

        def run(program: Program = program, answered: list[float] = answered) -> None:
            run_program(target, program)
            answered.append(time.monotonic())

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.03)
        asked = time.monotonic()
        program.request_freeze()
        thread.join(60)
        assert answered, "it does not stop"
        assert answered[0] - asked < 5.0
        image = formats.decode(formats.encode(program.capture()))
        program.close()
        program = Program.restored(target, wasm, Host(), image)
    program.close()


# Also seen: reactors, call-backs

@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_reactor_moves_between_two_calls(pair: tuple[str, str]) -> None:
    """An image may hold no frame; ``_initialize`` does not run again."""
    wasm = assemble("""(memory (export "memory") 1) (global $n (mut i32) (i32.const 0))
      (func (export "_initialize") (global.set $n (i32.add (global.get $n) (i32.const 100))))
      (func (export "step") (param i32) (result i32)
        (global.set $n (i32.add (global.get $n) (local.get 0))) (i32.store (i32.const 8) (global.get $n))
        (global.get $n))""")
    engine = runtimes.load(pair[0])
    program = Program.fresh(engine, wasm, Host(), entry_for(decode(wasm), "step", [i32(5)]))
    assert run_program(engine, program).results == (105,)
    image = formats.decode(formats.encode(program.capture_idle()))
    program.close()
    assert not image.frames
    engine = runtimes.load(pair[1])
    program = Program.restored(engine, wasm, Host(), image)
    assert program.instance.call("step", [7]) == (112,)
    program.close()


@pytest.mark.parametrize("n", [50, 333, 2001])
def test_frozen_inside_a_comparison_call_back(n: int) -> None:
    """An indirect call under libc's qsort."""
    tiny = sample("callback", "tiny")
    for plan in PLANS:
        run = runner(tiny.wasm, plan, sample=tiny, most_hops=by_tier(check=3, test=12, soak=100))
        expected = run(["wasmtime"], 0)
        assert expected.stdout == tiny.stdout
        assert not (wrong := difference(run, ENGINES, n, expected)), wrong

