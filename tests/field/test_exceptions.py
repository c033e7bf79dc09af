"""Exceptions in every place: frames inside of try_tables, exceptions that wait as values, what is thrown out of frames
that were moved.

Each program is frozen at its safepoints and moved between the runtimes that have exceptions and the interpreter.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from wasmckpt import formats, runtimes
from wasmckpt.errors import ImageError, NotSupported
from wasmckpt.formats import GlobalState, Image
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import HostFunction
from wasmckpt.snapshot.program import Host, Program, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import EXNREF

from ..matrix.check import positions
from ..support.moving import COUNTING, EVERYWHERE, move, run_program
from ..support.pairs import drawn, runtimes_for
from ..support.partner import REFERENCE, ReferenceProgram
from ..support.tiers import by_tier
from .harness import SPIN, Life, assemble, i32, live, moves

PAIRS = [("wasmtime", "wasmtime"), ("wasmtime", REFERENCE), (REFERENCE, "wasmtime")]

HEAD = f"""{SPIN}
  (tag $e (param i32)) (tag $f (param f32)) (tag $none) (tag $large (param f64 i32))
  (global $kept (mut exnref) (ref.null exn)) (table 2 funcref) (elem (i32.const 0) $thrower $fine)
  (type $t (func (param i32) (result i32)))
  (func $thrower (type $t) (call $spin (i32.const 2)) (throw $e (local.get 0)))
  (func $fine (type $t) (call $spin (i32.const 2)) (i32.add (local.get 0) (i32.const 1)))
  (func $deep (param i32 i32)
    (if (local.get 0) (then (call $deep (i32.sub (local.get 0) (i32.const 1)) (local.get 1))
      (call $spin (i32.const 1))))
    (call $spin (i32.const 1)) (throw $e (i32.add (local.get 0) (local.get 1))))
  (func $take (param i32) (result exnref) (block $l (result exnref)
    (try_table (catch_all_ref $l) (drop (call $thrower (local.get 0)))) unreachable))
  (func $again (param exnref) (result i32) (call $spin (i32.const 1)) (block $l (result i32)
    (try_table (catch $e $l) (call $spin (i32.const 2)) (throw_ref (local.get 0))) unreachable))"""

PLAIN = {  # programs without exceptions as values: they are not changed before they are rewritten
    "caught": ("(block $l (result i32) (try_table (catch $e $l) (return (call $thrower (i32.const 7)))) unreachable) "
               "(call $spin (i32.const 2)) (i32.add (i32.const 100))", 107),
    "not thrown": ("(block $l (result i32) (try_table (result i32) (catch $e $l) (call $fine (i32.const 7))))", 8),
    "out of deep calls": (
        "(block $l (result i32) (try_table (catch $e $l) (call $deep (i32.const 5) (i32.const 30))) unreachable)", 30),
    "a local that the handler reads": (
        "(local $x i32) (local.set $x (i32.const 3)) (block $l (try_table (catch_all $l) (call $spin (i32.const 2)) "
        "(local.set $x (i32.const 4)) (drop (call $thrower (i32.const 1))) (local.set $x (i32.const 5)))) "
        "(local.get $x)", 4),
    "a local that only the handler reads": (
        "(local $x i32) (local.set $x (call $fine (i32.const 9))) (block $l (try_table (catch_all $l) "
        "(drop (call $fine (i32.const 2))) (drop (call $thrower (i32.const 1)))) (return (i32.const 0))) "
        "(local.get $x)", 10),
    "operands under it": (
        "(i32.const 1000) (call $fine (i32.const 1)) (block $l (result i32) (call $fine (i32.const 10)) "
        "(try_table (param i32) (catch $e $l) (drop) (drop (call $thrower (i32.const 5)))) unreachable) "
        "(i32.mul) (i32.add)", 1010),
    "parameters and results": (
        "(call $fine (i32.const 4)) (block $l (param i32) (result i32) (try_table (type $t) (catch $e $l) "
        "(call $fine)))", 6),
    "no matching clause": (
        "(block $out (result i32) (try_table (catch $e $out) (block $l (try_table (catch $none $l) "
        "(drop (call $thrower (i32.const 6))))) (return (i32.const 1))) unreachable)", 6),
    "the first clause that matches": (
        "(block $b (block $a (result i32) (try_table (catch $none $b) (catch $e $a) (catch_all $b) (catch $e $a) "
        "(drop (call $thrower (i32.const 6)))) (return (i32.const 1))) (return (i32.add (i32.const 20)))) "
        "(i32.const 2)", 26),
    "thrown in a handler": (
        "(block $out (result i32) (try_table (catch $e $out) (block $l (result i32) (try_table (catch $e $l) "
        "(drop (call $thrower (i32.const 6)))) unreachable) (call $spin (i32.const 2)) (i32.add (i32.const 1)) "
        "(drop (call $thrower)) ) unreachable) (call $fine)", 8),
    "to a loop": (
        "(local $i i32) (loop $l (local.set $i (i32.add (local.get $i) (i32.const 1))) (if (i32.lt_u (local.get $i) "
        "(i32.const 4)) (then (try_table (catch_all $l) (drop (call $thrower (local.get $i))))))) (local.get $i)", 4),
    "to a loop with parameters": (
        "(local $i i32) (i32.const 1) (loop $l (param i32) (result i32) (local.set $i) "
        "(try_table (catch $e $l) (call $spin (i32.const 1)) (if (i32.lt_u (local.get $i) (i32.const 40)) "
        "(then (throw $e (i32.mul (local.get $i) (i32.const 3)))))) (local.get $i))", 81),
    "to the function": ("(try_table (catch $e 0) (drop (call $thrower (i32.const 9)))) (i32.const 1)", 9),
    "in a loop": (
        "(local $i i32) (local $s i32) (loop $l (block $c (result i32) (try_table (result i32) (catch $e $c) "
        "(call_indirect (type $t) (local.get $i) (i32.and (local.get $i) (i32.const 1))))) (local.get $s) (i32.add) "
        "(local.set $s) (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 5)))) "
        "(local.get $s)", 12),
    "a loop in it": (
        "(local $i i32) (block $c (result i32) (try_table (catch $e $c) (loop $l (call $spin (i32.const 1)) (if "
        "(i32.eq (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 6)) (then (throw $e (local.get $i)"
        "))) (br $l))) unreachable)", 6),
    "a small loop that throws": (
        "(local $i i32) (block $c (result i32) (try_table (catch $e $c) (loop $l (if (i32.eq (local.tee $i (i32.add "
        "(local.get $i) (i32.const 1))) (i32.const 23)) (then (throw $e (local.get $i)))) (br $l))) unreachable)", 23),
    "a small loop around it": (
        "(local $i i32) (loop $l (block $c (try_table (catch_all $c) (if (i32.and (local.get $i) (i32.const 1)) (then "
        "(throw $none))) (local.set $i (i32.add (local.get $i) (i32.const 2))))) (br_if $l (i32.lt_u "
        "(local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 20)))) (local.get $i)", 20),
    "branches out of it": (
        "(block $b (block $a (try_table (catch_all $a) (call $spin (i32.const 2)) (br_table $a $b 0 (call $fine "
        "(i32.const 0))))) (return (i32.const 1))) (call $spin (i32.const 2)) (i32.const 2)", 2),
    "in an if": (
        "(if (result i32) (call $fine (i32.const 0)) (then (block $c (result i32) (try_table (catch $e $c) "
        "(drop (call $thrower (i32.const 5)))) unreachable)) (else (try_table (result i32) (call $fine (i32.const 3))))"
        ")", 5),
    "three of them": (
        "(block $c (result i32) (try_table (catch $e $c) (block $b (try_table (catch $none $b) (block $d "
        "(try_table (catch $none $d) (call $spin (i32.const 2)) (drop (call $thrower (i32.const 5)))))))) "
        "unreachable)", 5),
    "no payload, a float": (
        "(block $f (result f32) (block $n (try_table (catch $none $n) (call $spin (i32.const 2)) (throw $none))) "
        "(try_table (catch $f $f) (call $spin (i32.const 2)) (throw $f (f32.const nan:0x200001))) unreachable) "
        "(i32.reinterpret_f32)", 0x7FA00001),
}
VALUES = {
    "a local": ("(local $x exnref) (local.set $x (call $take (i32.const 8))) (call $spin (i32.const 2)) "
                "(call $again (local.get $x))", 8),
    "an operand": ("(call $take (i32.const 8)) (call $spin (i32.const 2)) (call $again)", 8),
    "a global": ("(global.set $kept (call $take (i32.const 8))) (call $spin (i32.const 2)) "
                 "(call $again (global.get $kept))", 8),
    "with its payload": (
        "(local $x exnref) (block $l (result i32 exnref) (try_table (catch_ref $e $l) (drop (call $thrower "
        "(i32.const 8)))) unreachable) (call $spin (i32.const 2)) (local.set $x) "
        "(i32.add (call $again (local.get $x)))", 16),
    "a float and nothing": (
        "(local $x exnref) (block $a (result exnref) (try_table (catch_all_ref $a) (throw $none)) unreachable) "
        "(local.set $x) (block $n (block $l (result f32 exnref) (try_table (catch_ref $f $l) (catch_all $n) "
        "(call $spin (i32.const 2)) (throw $f (f32.const 1.5))) unreachable) (call $spin (i32.const 2)) (drop) (drop) "
        "(try_table (catch $none $n) (call $spin (i32.const 1)) (throw_ref (local.get $x))) (return (i32.const 0))) "
        "(i32.const 9)", 9),
    "a double and an integer": (
        "(local $x exnref) (local $d f64) (local $n i32) (block $l (result f64 i32 exnref) "
        "(try_table (catch_ref $large $l) (call $spin (i32.const 2)) (throw $large (f64.const nan:0x4000000000123) "
        "(i32.const -7))) unreachable) (local.set $x) "
        "(call $spin (i32.const 2)) (drop) (local.set $d) (block $m (result f64 i32) (try_table (catch $large $m) "
        "(call $spin (i32.const 1)) (throw_ref (local.get $x))) unreachable) (local.set $n) (i64.reinterpret_f64) "
        "(i64.xor (i64.reinterpret_f64 (local.get $d))) (i64.const 1) (i64.add) (i32.wrap_i64) "
        "(i32.mul (local.get $n))",
        0xFFFFFFF9),
    "cleaning up": (  # as compilers clean up behind calls, frame by frame
        "(local $x exnref) (block $c (result i32) (try_table (catch $e $c) (block $l (result exnref) (try_table "
        "(catch_all_ref $l) (drop (call $thrower (i32.const 5)))) unreachable) (local.set $x) (call $spin "
        "(i32.const 3)) (throw_ref (local.get $x))) unreachable)", 5),
    "several clauses": (
        "(local $x exnref) (block $r (result exnref) (block $e (result i32 exnref) (block $n (try_table "
        "(catch $none $n) (catch_ref $e $e) (catch_all_ref $r) (call $spin (i32.const 2)) (throw $f (f32.const 2))) "
        "(return (i32.const 1))) (return (i32.const 2))) (drop) (return)) (call $spin (i32.const 1)) (local.set $x) "
        "(block $f (result f32) (try_table (catch $f $f) (throw_ref (local.get $x))) (return (i32.const 3))) "
        "(i32.trunc_f32_s)", 2),
    "branches in a wrapped one": (
        "(local $i i32) (block $o (block $r (result exnref) (loop $l (try_table (catch_all_ref $r) (call $spin "
        "(i32.const 1)) (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 3))) "
        "(block $in (br_table $in $o (local.get $i))) ) (return (i32.const 1))) unreachable) (return (i32.const 2))) "
        "(local.get $i)", 3),
    "a loop that catches": (
        "(local $i i32) (ref.null exn) (loop $l (param exnref) (drop) (local.set $i (i32.add (local.get $i) "
        "(i32.const 1))) (if (i32.lt_u (local.get $i) (i32.const 4)) (then (try_table (catch_all_ref $l) "
        "(drop (call $thrower (local.get $i)))) unreachable))) (local.get $i)", 4),
    "parameters": (
        "(call $fine (i32.const 4)) (block $l (param i32) (result i32 exnref) (try_table (type $t) (catch_ref $e $l) "
        "(call $spin (i32.const 1)) (call $thrower)) (ref.null exn)) (drop)", 5),
    "nested": (
        "(block $r (result exnref) (try_table (catch_all_ref $r) (block $q (result exnref) (try_table "
        "(catch_all_ref $q) (drop (call $thrower (i32.const 3)))) (return (i32.const 1))) (call $spin (i32.const 2)) "
        "(throw_ref)) (return (i32.const 2))) (call $spin (i32.const 2)) (call $again)", 3),
    "an imported tag": ("(block $l (result i32) (try_table (catch $e $l) (catch $in $l) (call $spin (i32.const 2)) "
                        "(throw $in (i32.const 5))) unreachable)", 5),
    "nulls": ("(local $x exnref) (call $spin (i32.const 2)) (i32.add (ref.is_null (local.get $x)) "
              "(i32.mul (i32.const 2) "
              "(ref.is_null (select (result exnref) (call $take (i32.const 1)) (local.get $x) (i32.const 1)))))", 1),
    "in dead code": ("(call $spin (i32.const 2)) (i32.const 5) (return) (block $l (result exnref) (try_table "
                     "(catch_all_ref $l) unreachable (throw_ref)) unreachable) (ref.is_null) (drop) (throw_ref)", 5),
}
PROGRAMS = PLAIN | VALUES


def program(code: str) -> str:
    """A module that runs the code."""
    first, _, rest = code.partition(") ") if code.startswith("(local ") else ("", "", code)
    more = ""
    while rest.startswith("(local $"):
        more += rest[:rest.index(")") + 1]
        rest = rest[rest.index(")") + 2:]
    tag = '(import "env" "tag" (tag $in (param i32)))' if "$in " in code else ""
    return f'{tag} {HEAD} (func (export "run") (result i32) {first + ")" if first else ""} {more} {rest})'


@pytest.mark.parametrize("name", PROGRAMS)
def test_moved_at_its_safepoints(name: str) -> None:
    code, result = PROGRAMS[name]
    pairs = [*PAIRS, *drawn(runtimes_for({"exceptions"}), name, 2)]
    moves(program(code), [i32(result)], pairs=pairs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_images_are_those_of_the_interpreter(name: str) -> None:
    """At each safepoint, bit for bit: what is live in a try_table, and exceptions among the values."""
    wasm = assemble(program(PROGRAMS[name][0]))
    engine = runtimes.load("wasmtime")
    for n in range(1, by_tier(check=12, test=40, soak=400)):
        entry = entry_for(decode(wasm), "run")
        with contextlib.closing(Program.fresh(engine, wasm, Host(), entry, options=EVERYWHERE)) as program_:
            other = ReferenceProgram(wasm, Host(), entry)
            program_.freeze_at(n)
            other.freeze_at(n)
            stopped = run_program(engine, program_).status, other.run().status
            assert stopped[0] is stopped[1], n
            if not program_.view.word("done"):
                assert n > 2
                return
            assert neutral(program_.capture()) == neutral(other.capture()), n


@pytest.mark.parametrize("name", PROGRAMS)
def test_images_of_any_instruction_go_on(name: str) -> None:
    """Stopped by the interpreter before any instruction, and once more on the way or not."""
    wasm = assemble(program(PROGRAMS[name][0]))
    engine = runtimes.load("wasmtime")
    entry = entry_for(decode(wasm), "run")
    whole = ReferenceProgram(wasm, Host(), entry)
    assert whole.run().results == (PROGRAMS[name][1],)
    for at in positions(whole.machine.instructions, by_tier(check=8, test=12, soak=500), 7):
        stopped = ReferenceProgram(wasm, Host(), entry)
        if stopped.machine.run(at) == "done":
            continue
        image = formats.decode(formats.encode(stopped.capture()))
        with contextlib.closing(Program.restored(engine, wasm, Host(), image, options=COUNTING)) as resumed:
            if at % 2:
                resumed.freeze_at(1)
            results = run_program(engine, resumed).results
            if resumed.view.word("done"):
                again = formats.decode(formats.encode(resumed.capture()))
                results = ReferenceProgram(wasm, Host(), entry, again).run().results
        assert results == (PROGRAMS[name][1],), at


def neutral(image: Image) -> Image:
    """Without who made it."""
    return replace(formats.decode(formats.encode(image)), producer=formats.Producer("", "", "", ""))


# What ends a program

@pytest.mark.parametrize("code", ["(drop (call $deep_throw))", "(drop (call $again (call $take (i32.const 5))))"])
def test_an_exception_that_nobody_catches_ends_the_program(code: str) -> None:
    """Under its own name, on each runtime and after each move."""
    helper = ("(func $deep_throw (result i32) (block $l (try_table (catch $none $l) (call $deep (i32.const 3) "
              "(i32.const 1)))) (i32.const 1))")
    wasm = assemble(program(f"(call $spin (i32.const 2)) {code} (throw $none)") + helper)
    names = [*runtimes_for({"exceptions"}), REFERENCE]
    expected = {move(wasm, [name], 0, options=EVERYWHERE, invoke="run").trap for name in names}
    assert expected == {"uncaught exception"}
    for n in (1, 3):
        for name in names:
            assert move(wasm, ["wasmtime", name], n, options=EVERYWHERE, invoke="run").trap == "uncaught exception"


def test_throwing_null_is_a_trap() -> None:
    wasm = assemble(program("(call $spin (i32.const 2)) (throw_ref (global.get $kept))"))
    for name in runtimes_for({"exceptions"}):
        for n in (0, 2):
            assert move(wasm, [name], n, options=EVERYWHERE, invoke="run").trap == "null reference"


def test_no_clause_is_for_what_a_host_function_raises() -> None:
    """Nor for its request to be frozen, inside of a try_table."""
    life = Life()
    calls: list[int] = []

    def host() -> None:
        calls.append(len(calls))
        life.freeze()
        if len(calls) > 2:
            raise ZeroDivisionError

    wasm = assemble('(import "env" "host" (func $host)) (tag $e) (func (export "run") (block $l (try_table '
                    "(catch_all $l) (catch $e $l) (loop $m (call $host) (br $m)))))")
    with pytest.raises(ZeroDivisionError):
        live(wasm, ["wasmtime", *runtimes_for({"exceptions"})], life, {("env", "host"): HostFunction((), (), host)})
    assert calls == [0, 1, 2]
    assert life.hops == 2


def test_a_tail_call_out_of_a_try_table() -> None:
    """It leaves the handlers behind, those of a continuation as well."""
    text = (f"{SPIN} (tag $e (param i32)) (func $thrower (param i32) (result i32) (call $spin (i32.const 2)) "
            "(throw $e (local.get 0))) (func $tail (param i32) (result i32) (local $i i32) (block $l (result i32) "
            "(try_table (catch $e $l) (loop $m (call $spin (i32.const 1)) (br_if $m (i32.lt_u (local.tee $i (i32.add "
            "(local.get $i) (i32.const 1))) (i32.const 3)))) (return_call $thrower (local.get 0))) unreachable) "
            '(i32.add (i32.const 100))) (func (export "run") (result i32) (block $l (result i32) (try_table '
            "(catch $e $l) (return (call $tail (i32.const 5)))) unreachable))")
    names = [*runtimes_for({"exceptions", "tail-call"}), REFERENCE]
    moves(text, [i32(5)], pairs=[("wasmtime", name) for name in names] + [(REFERENCE, "wasmtime")])


def test_thrown_through_thousands_of_frames_that_were_moved() -> None:
    depth = by_tier(check=500, test=3000, soak=3000)
    text = f"""{SPIN} (tag $e (param i64))
      (func $down (param i32) (result i32) (if (local.get 0) (then (return (i32.add (i32.const 1)
        (call $down (i32.sub (local.get 0) (i32.const 1))))))) (call $spin (i32.const 5)) (throw $e (i64.const 77)))
      (func (export "run") (result i64) (block $l (result i64) (try_table (catch $e $l)
        (drop (call $down (i32.const {depth})))) unreachable))"""
    wasm = assemble(text)
    for name in (*runtimes_for({"exceptions"}), REFERENCE):
        for engines in (["wasmtime", name], [name, "wasmtime"]):
            trace = move(wasm, engines, 3, options=EVERYWHERE, invoke="run", most_hops=1)
            assert (trace.results, trace.hops) == ((77,), 1), engines


def test_whoever_only_catches_can_be_frozen() -> None:
    """No call here ever returns, nor is there a loop: functions that recurse and catch are polled at their entry."""
    text = """(tag $e) (global $n (mut i32) (i32.const 0)) (func $tree (param i32)
      (global.set $n (i32.add (global.get $n) (i32.const 1)))
      (if (local.get 0) (then
        (block $a (try_table (catch $e $a) (call $tree (i32.sub (local.get 0) (i32.const 1)))))
        (block $b (try_table (catch $e $b) (call $tree (i32.sub (local.get 0) (i32.const 1)))))))
      (throw $e))
      (func (export "run") (param i32) (result i32) (block $l (try_table (catch $e $l) (call $tree (local.get 0))))
        (global.get $n))"""
    wasm = assemble(text)
    for name in runtimes_for({"exceptions"}):
        trace = move(wasm, ["wasmtime", name], 37, invoke="run", arguments=[i32(7)])
        assert trace.results == (255,)
        assert trace.hops > 5
    engine = runtimes.load("wasmtime")
    entry = entry_for(decode(wasm), "run", [i32(60)])  # 2^61 calls
    with contextlib.closing(Program.fresh(engine, wasm, Host(), entry, options=COUNTING)) as program_:
        program_.freeze_at(1000)
        run_program(engine, program_)
        assert 50 < len(program_.capture().frames) < 70


# What is refused, by name

REFUSED = {
    "a table of exceptions": (
        "(table 1 exnref)", "(table 1 funcref)", ""),
    "an exception to the host": (
        '(import "env" "f" (func (param exnref)))', '(import "env" "f" (func (param externref)))', ""),
    "a tag under two indices": (
        '(import "a" "t" (tag)) (import "a" "t" (tag))', '(import "a" "t" (tag)) (import "a" "u" (tag))', ""),
    "a large payload of what is taken": (
        "(tag $t (param i64 i64))", "(tag $t (param f32 f64))",
        "(block $l (result exnref) (try_table (catch_all_ref $l)) unreachable) throw_ref"),
    "a large payload of what may be taken": (
        "(tag $t (param externref))", "(tag $t (param i32 i32 i32))",
        "(block $m (result exnref) (block $l (try_table (catch_all $l) (catch_all_ref $m)) unreachable) return) "
        "throw_ref"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    wrong, right, body = REFUSED[name]
    text = "{} (func (export \"run\") {} )"
    instrument(assemble(text.format(right, body)), Options())
    with pytest.raises(NotSupported) as caught:
        instrument(assemble(text.format(wrong, body)), Options())
    assert caught.value.fields["need"] == "exceptions"
    if body:
        assert caught.value.fields["function"] == 0
        assert assemble(text.format(wrong, body))[int(str(caught.value.fields["offset"]))] == 0x1F


def test_a_large_payload_is_no_matter_where_the_exception_is_not_taken() -> None:
    text = """(tag $e (param i64 f64 i32)) (func $thrower (call $spin (i32.const 2))
      (throw $e (i64.const 1) (f64.const 2) (i32.const 3)))
      (func (export "run") (result i64 f64 i32) (block $l (result i64 f64 i32) (block $all (try_table (catch_all $all)
        (call $thrower)) unreachable) (try_table (catch $e $l) (call $thrower)) unreachable))"""
    moves(SPIN + text, None, pairs=PAIRS)


def test_a_runtime_without_exceptions_says_so() -> None:
    """Where the first use is, before the runtime sees the module."""
    wasm = assemble(program(PLAIN["caught"][0]))
    entry = entry_for(decode(wasm), "run")
    for name in ("wasm3", *runtimes_for()):
        engine = runtimes.load(name)
        if "exceptions" in engine.capabilities.features:
            Program.fresh(engine, wasm, Host(), entry).close()
            continue
        with pytest.raises(NotSupported) as caught:
            Program.fresh(engine, wasm, Host(), entry)
        assert (caught.value.fields["need"], caught.value.fields["runtime"]) == ("exceptions", name)


@pytest.mark.parametrize(("bits", "good"), [
    (0, True), (77 << 32 | 1, True), (3, True), (0x7FC00000 << 32 | 2, True), ((1 << 96) - 1 << 32 | 4, True),
    (77 << 32, False), (1 << 32 | 3, False), (5, False), (1 << 64 | 1, False), (1 << 127, False), (0xFFFFFFFF, False),
])
def test_an_image_has_exceptions_of_its_module_only(bits: int, good: bool) -> None:
    """Tags that there are, no more than their payload."""
    wasm = assemble(program("(call $spin (i32.const 2)) (ref.is_null (global.get $kept))"))
    engine = runtimes.load("wasmtime")
    entry = entry_for(decode(wasm), "run")
    with contextlib.closing(Program.fresh(engine, wasm, Host(), entry, options=EVERYWHERE)) as program_:
        program_.freeze_at(1)
        run_program(engine, program_)
        image = program_.capture()
    image = replace(image, globals=(GlobalState(0, EXNREF, bits),))
    if not good:
        with pytest.raises(ImageError):
            Program.restored(engine, wasm, Host(), image, options=EVERYWHERE)
        return
    with contextlib.closing(Program.restored(engine, wasm, Host(), image, options=EVERYWHERE)) as resumed:
        assert run_program(engine, resumed).results == (int(not bits),)
