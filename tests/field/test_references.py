"""References in every place that can hold one, every instruction on tables, and imports that are the program's own.

Each program is frozen at its safepoints and moved between the runtimes that can hold it and the reference interpreter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import wasmtime

from wasmckpt import formats, runtimes
from wasmckpt.errors import GuestTrap, NotSupported
from wasmckpt.formats import Image, StopKind, TableState
from wasmckpt.host import RepeatCall
from wasmckpt.runtimes import HostFunction, HostGlobal, MissingImport
from wasmckpt.snapshot.program import Host, Program, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import ExternKind
from wasmckpt.wasm.values import EXTERNREF, FUNCREF, I32, NULL, Value

from ..matrix.check import ENGINES as ALL
from ..matrix.check import difference, engines_for, pairs_for, positions, runner, safepoints
from ..support.moving import COUNTING, EVERYWHERE, Trace, World, run_program
from ..support.partner import REFERENCE, ReferenceProgram
from ..support.samples import SAMPLES, sample
from ..support.tiers import by_tier, missing
from ..support.toolchain import Unavailable, build_c
from .harness import SPIN, Life, assemble, i32, live, moves

FEATURES = ("reference-types", "multi-memory")  # tables that change lie in a memory of their own
PAIRS = [*pairs_for(*FEATURES), ("wasmtime", REFERENCE), (REFERENCE, "wasmtime")]
ENGINES = engines_for(*FEATURES)
TAIL_ENGINES = engines_for(*FEATURES, "tail-call")

HEAD = f"""{SPIN} (type $t (func (result i32))) (type $r (func (param funcref) (result i32)))
  (type $n (func (param i32) (result i32)))
  (table $a 4 40 funcref) (table $b 3 funcref) (table $x 2 20 externref) (table $real 2 funcref)
  (elem (table $a) (i32.const 0) func $f $g) (elem (table $real) (i32.const 0) func $g $f)
  (elem $p func $g $f $h) (elem $q funcref (ref.null func) (ref.func $f)) (elem declare func $h $takes $addone)
  (global $k funcref (ref.func $g)) (global $m (mut funcref) (ref.null func))
  (func $f (type $t) (call $spin (i32.const 2)) i32.const 7)
  (func $g (type $t) (call $spin (i32.const 1)) i32.const 11)
  (func $h (type $t) i32.const 13)
  (func $takes (type $r) (call $spin (i32.const 2)) (ref.is_null (local.get 0)))
  (func $addone (type $n) (i32.add (local.get 0) (i32.const 1)))
  (func $call (param $r funcref) (result i32)
    (call $spin (i32.const 2)) (table.set $b (i32.const 1) (local.get $r)) (call_indirect $b (type $t) (i32.const 1)))
  (func $pass (param funcref externref) (result externref funcref)
    (call $spin (i32.const 2)) local.get 1 local.get 0)"""

PROGRAMS = {
    "a local": (
        "(local $r funcref) (local.set $r (ref.func $f)) (call $spin (i32.const 3)) (call $call (local.get $r))", 7),
    "a dead local": (
        "(local $r funcref) (call $spin (i32.const 3)) (local.set $r (ref.func $f)) (call $call (local.get $r))", 7),
    "an operand under calls and loops": (
        "(ref.func $h) (ref.func $g) (call $spin (i32.const 3)) (call $call) loop (call $spin (i32.const 2)) end drop "
        "(call $call)", 13),
    "a null": ("(ref.null func) (call $spin (i32.const 2)) ref.is_null", 1),
    "a global": ("(global.set $m (global.get $k)) (call $spin (i32.const 2)) (call $call (global.get $m))", 11),
    "results of blocks": (
        "(block $l (result funcref) (ref.func $g) (call $spin (i32.const 2)) (br_if $l (i32.const 1)) drop "
        "(ref.func $h)) (call $spin (i32.const 2)) (call $call)", 11),
    "parameters of a loop": (
        "(local $i i32) (ref.func $f) (loop $l (param funcref) (result funcref) (call $spin (i32.const 1)) "
        "(br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 3)))) (call $call)",
        7),
    "an if": (
        "(if (result funcref) (i32.const 0) (then (ref.func $f)) (else (call $spin (i32.const 2)) (ref.func $h))) "
        "(call $call)", 13),
    "a br_table": (
        "(block $o (result funcref) (block $i (result funcref) (ref.func $g) (br_table $i $o (call $one))) drop "
        "(ref.func $h)) (call $call)", 11),
    "select": (
        "(select (result funcref) (ref.func $f) (ref.func $g) (call $one)) (call $spin (i32.const 1)) (call $call)", 7),
    "parameters and results": (
        "(call $pass (ref.func $f) (ref.null extern)) (call $call) (i32.mul (i32.const 10)) (local.set 0) "
        "(i32.add (ref.is_null) (local.get 0))", 71),
    "table.set": ("(table.set $a (i32.const 2) (ref.func $h)) (call $spin (i32.const 1)) "
                  "(call_indirect $a (type $t) (i32.const 2))", 13),
    "table.get": ("(call $call (table.get $a (i32.const 1)))", 11),
    "table.size": (
        "(call $spin (i32.const 2)) (i32.add (i32.mul (table.size $a) (i32.const 10)) (table.size $real))", 42),
    "table.grow": (
        "(table.grow $a (ref.func $g) (i32.const 30)) (call $spin (i32.const 2)) (i32.mul (i32.const 1000)) "
        "(i32.add (table.size $a)) (i32.add (call_indirect $a (type $t) (i32.const 33)))", 4045),
    "table.grow beyond its maximum": (
        "(call $spin (i32.const 2)) (table.grow $a (ref.func $g) (i32.const 37)) (i32.add (table.size $a))", 3),
    "table.fill": (
        "(table.fill $a (i32.const 1) (ref.func $h) (i32.const 3)) (call $spin (i32.const 2)) "
        "(i32.add (call_indirect $a (type $t) (i32.const 3)) (call_indirect $a (type $t) (i32.const 0)))", 20),
    "table.fill with null": (
        "(table.fill $a (i32.const 0) (ref.null func) (i32.const 4)) (call $spin (i32.const 2)) "
        "(ref.is_null (table.get $a (i32.const 0)))", 1),
    "table.copy within": (
        "(table.copy $a $a (i32.const 1) (i32.const 0) (i32.const 3)) (call $spin (i32.const 2)) "
        "(i32.add (call_indirect $a (type $t) (i32.const 1)) (call_indirect $a (type $t) (i32.const 2)))", 18),
    "table.copy between": (
        "(table.copy $b $a (i32.const 1) (i32.const 0) (i32.const 2)) (call $spin (i32.const 2)) "
        "(call_indirect $b (type $t) (i32.const 2))", 11),
    "table.init": (
        "(table.init $a $p (i32.const 1) (i32.const 1) (i32.const 2)) (call $spin (i32.const 2)) elem.drop $p "
        "(call $spin (i32.const 2)) (table.init $a $p (i32.const 4) (i32.const 0) (i32.const 0)) "
        "(i32.add (call_indirect $a (type $t) (i32.const 1)) (call_indirect $a (type $t) (i32.const 2)))", 20),
    "table.init with nulls": (
        "(table.init $b $q (i32.const 0) (i32.const 0) (i32.const 2)) (call $spin (i32.const 2)) "
        "(i32.add (ref.is_null (table.get $b (i32.const 0))) (call_indirect $b (type $t) (i32.const 1)))", 8),
    "elem.drop": ("elem.drop $q (call $spin (i32.const 2)) elem.drop $q elem.drop $p i32.const 1", 1),
    "a table that is only called through": (
        "(call $spin (i32.const 2)) (call_indirect $real (type $t) (i32.const 0))", 11),
    "a type that differs by a reference only": (
        "(table.set $b (i32.const 0) (ref.func $takes)) (table.set $b (i32.const 2) (ref.func $addone)) "
        "(i32.add (call_indirect $b (type $r) (ref.null func) (i32.const 0)) "
        "(call_indirect $b (type $n) (i32.const 5) (i32.const 2)))", 7),
    "external nulls": (
        "(local $e externref) (call $spin (i32.const 2)) (table.fill $x (i32.const 0) (local.get $e) (i32.const 2)) "
        "(i32.add (table.grow $x (ref.null extern) (i32.const 3)) (ref.is_null (table.get $x (i32.const 4))))", 3),
    "dead code": ("(call $spin (i32.const 2)) i32.const 5 return (call_indirect $a (type $t) (i32.const 0)) drop "
                  "(table.set $a (i32.const 0) (block (result funcref) (unreachable))) ref.is_null drop", 5),
}
QUICK = ("an operand under calls and loops", "table.init", "table.grow", "a type that differs by a reference only")


def program(code: str) -> str:
    """A module that runs the code; local 0 is an i32 to be used by it."""
    first, _, rest = code.partition(") ") if code.startswith("(local ") else ("", "", code)
    locals_ = f"{first}) (local i32)" if first else "(local i32)"
    return f"""{HEAD} (func $one (result i32) (call $spin (i32.const 1)) i32.const 1)
      (func (export "run") (result i32) {locals_} {rest})"""


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in PROGRAMS
])
def test_moved_at_its_safepoints(name: str) -> None:
    code, result = PROGRAMS[name]
    moves(program(code), [i32(result)], pairs=PAIRS)


TREE = f"""{SPIN} (type $visit (func (param i32 funcref externref) (result i32)))
  (table $stack 0 funcref) (table $seen 1 externref) (global $last (mut funcref) (ref.null func))
  (elem declare func $odd $even)
  (func $odd (type $visit) (i32.add (i32.const 1)
    (call $visit (i32.sub (local.get 0) (i32.const 1)) (ref.func $even) (local.get 2))))
  (func $even (type $visit) (i32.mul (i32.const 3)
    (call $visit (i32.sub (local.get 0) (i32.const 1)) (ref.func $odd) (local.get 2))))
  (func $visit (param $n i32) (param $next funcref) (param $what externref) (result i32) (local $before funcref)
    (if (i32.eqz (local.get $n)) (then (return (i32.const 2))))
    (local.set $before (global.get $last)) (global.set $last (local.get $next))
    (drop (table.grow $stack (local.get $next) (i32.const 1)))
    (drop (table.grow $seen (local.get $what) (i32.const 2)))
    (call_indirect $stack (type $visit) (local.get $n) (local.get $before) (local.get $what)
      (i32.sub (table.size $stack) (i32.const 1)))
    (call $spin (i32.const 2))
    (global.set $last (local.get $before)))
  (func (export "run") (param $n i32) (param $what externref) (result i32 i32 externref)
    (call $visit (local.get $n) (ref.func $odd) (local.get $what)) (table.size $seen)
    (table.get $seen (local.get $n)))"""


def test_recursion_with_references_in_every_frame() -> None:
    """Frames, globals and two tables hold references; a handle of the host goes in as an argument and comes out."""
    moves(TREE, None, arguments=[i32(6), Value(EXTERNREF, 41)], pairs=PAIRS)
    assert runner(assemble(TREE), invoke="run", arguments=[i32(6), Value(EXTERNREF, 41)])(
        ["wasmtime"], 0).results[1:] == (13, 41)


@pytest.mark.parametrize("text", [
    pytest.param(TREE, id="tree"),
    *(pytest.param(program(PROGRAMS[name][0]), id=name, marks=[] if name in QUICK else [pytest.mark.slow])
      for name in PROGRAMS),
])
def test_images_are_those_of_the_interpreter(text: str) -> None:
    """At each safepoint the image, which was taken of a module without references, is bit for bit the one that the
    interpreter of the original takes there."""
    wasm = assemble(text)
    module = decode(wasm)
    arguments = [i32(3), Value(EXTERNREF, 9)] if text is TREE else []
    entry = entry_for(module, "run", arguments)
    for n in range(1, by_tier(check=12, test=40, soak=400)):
        engine = runtimes.load(ENGINES[n % len(ENGINES)])
        program_ = Program.fresh(engine, wasm, Host(), entry, options=EVERYWHERE)
        other = ReferenceProgram(wasm, Host(), entry)
        program_.freeze_at(n)
        other.freeze_at(n)
        with contextlib.closing(program_):
            stopped = run_program(engine, program_).status, other.run().status
            assert stopped[0] is stopped[1], n
            if not program_.view.word("done"):
                assert n > 3
                return
            assert neutral(program_.capture()) == neutral(other.capture()), n


@pytest.mark.parametrize("text", [
    pytest.param(TREE, id="tree"),
    *(pytest.param(program(PROGRAMS[name][0]), id=name, marks=[] if name in QUICK else [pytest.mark.slow])
      for name in PROGRAMS),
])
def test_images_of_any_instruction_go_on(text: str) -> None:
    """Stopped by the interpreter before any instruction, one that becomes several included: the image passes the check
    and ends on a runtime as the undisturbed run, frozen and moved once more on its way or not."""
    wasm = assemble(text)
    arguments = [i32(3), Value(EXTERNREF, 9)] if text is TREE else []
    entry = entry_for(decode(wasm), "run", arguments)
    whole = ReferenceProgram(wasm, Host(), entry)
    expected = whole.run().results
    for at in positions(whole.machine.instructions, by_tier(check=8, test=25, soak=500), 7):
        engine = runtimes.load(ENGINES[at % len(ENGINES)])
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
        assert results == expected, at


def neutral(image: Image) -> Image:
    """Without who made it."""
    return replace(formats.decode(formats.encode(image)), producer=formats.Producer("", "", "", ""))


# Traps

TRAPS = {
    "table.get": "(drop (table.get $a (i32.const 4)))",
    "table.get, far": "(drop (table.get $a (i32.const -1)))",
    "table.set": "(table.set $a (i32.const 4) (ref.null func))",
    "table.fill": "(table.fill $a (i32.const 2) (ref.null func) (i32.const 3))",
    "table.fill of nothing": "(table.fill $a (i32.const 5) (ref.null func) (i32.const 0))",
    "table.fill, overflow": "(table.fill $a (i32.const 2) (ref.null func) (i32.const -1))",
    "table.copy from": "(table.copy $a $b (i32.const 0) (i32.const 2) (i32.const 2))",
    "table.copy to": "(table.copy $b $a (i32.const 1) (i32.const 0) (i32.const 3))",
    "table.init from": "(table.init $a $p (i32.const 0) (i32.const 2) (i32.const 2))",
    "table.init to": "(table.init $a $p (i32.const 2) (i32.const 0) (i32.const 3))",
    "table.init of a dropped one": "elem.drop $p (table.init $a $p (i32.const 0) (i32.const 0) (i32.const 1))",
    "table.init of an active one": "(table.init $a 0 (i32.const 0) (i32.const 0) (i32.const 1))",
    "a call beyond": "(drop (call_indirect $a (type $t) (i32.const 4)))",
    "a call far beyond": "(drop (call_indirect $a (type $t) (i32.const -1)))",
    "a call of null": "(drop (call_indirect $a (type $t) (i32.const 3)))",
    "a call of another type": "(drop (call_indirect $a (type $n) (i32.const 0) (i32.const 0)))",
    "a call of a type with a reference": "(table.set $a (i32.const 0) (ref.func $takes)) "
                                         "(drop (call_indirect $a (type $n) (i32.const 0) (i32.const 0)))",
    "a call of null, two such types": "(drop (call_indirect $a (type $n) (i32.const 0) (i32.const 3)))",
    "a call beyond, two such types": "(drop (call_indirect $a (type $n) (i32.const 0) (i32.const 4)))",
}


@pytest.mark.parametrize("name", TRAPS)
def test_traps_as_the_original(name: str) -> None:
    """The same trap as wasmtime's own for the original module, also after a move; what was done before stays done."""
    code = f"(table.set $a (i32.const 2) (ref.func $h)) (call $spin (i32.const 2)) {TRAPS[name]} i32.const 0"
    wasm = assemble(program(code))
    store = wasmtime.Store()
    instance = wasmtime.Instance(store, wasmtime.Module(store.engine, wasm), [])
    run = instance.exports(store)["run"]
    assert isinstance(run, wasmtime.Func)
    with pytest.raises(wasmtime.Trap) as caught:
        run(store)
    assert caught.value.trap_code is not None
    wanted = {
        wasmtime.TrapCode.TABLE_OUT_OF_BOUNDS: ("undefined element", "out of bounds table access"),
        wasmtime.TrapCode.INDIRECT_CALL_TO_NULL: ("uninitialized element",),
        wasmtime.TrapCode.BAD_SIGNATURE: ("indirect call type mismatch",),
    }[caught.value.trap_code]
    moved = runner(wasm, COUNTING, invoke="run")(["wasmtime", REFERENCE], 1)
    assert moved.trap in wanted
    assert moved.tables
    for name in ENGINES:
        plain = runner(wasm, COUNTING, invoke="run")([name], 0)
        assert plain.trap in wanted, name
        assert (plain.tables, plain.globals) == (moved.tables, moved.globals), name


def test_a_trap_names_the_function_of_the_original() -> None:
    """Neither what stands for the instruction nor a continuation."""
    wasm = assemble(program(f"(call $spin (i32.const 2)) {TRAPS['table.set']} i32.const 0"))
    engine, module = runtimes.load("wasmtime"), decode(wasm)
    with contextlib.closing(Program.fresh(engine, wasm, Host(), entry_for(module, "run"), options=COUNTING)) as plain:
        with pytest.raises(GuestTrap) as caught:
            run_program(engine, plain)
        assert caught.value.fields["function"] == module.export("run")
    image = frozen(wasm, 1)
    with contextlib.closing(Program.restored(engine, wasm, Host(), image, options=EVERYWHERE)) as moved:
        with pytest.raises(GuestTrap) as caught:
            run_program(engine, moved)
        assert caught.value.fields["function"] == module.export("run")


def test_a_segment_that_does_not_fit_its_table() -> None:
    """Instantiation traps, as it does for the original: the array's memory would have had room."""
    text = """(table $a 2 funcref) (elem (table $a) (i32.const {}) func $f)
      (func $f (export "run") (drop (table.get $a (i32.const 0))))"""
    with pytest.raises(GuestTrap, match="out of bounds table access"):
        runner(assemble(text.format(2)), invoke="run")(["wasmtime"], 0)
    assert not runner(assemble(text.format(1)), invoke="run")(["wasmtime"], 0).trap


# Images

def test_an_image_speaks_of_the_original() -> None:
    """Functions by their index, tables as differences, types of references where they stand."""
    wasm = assemble(program("(ref.func $h) (ref.null extern) (table.set $a (i32.const 1) (ref.func $f)) "
                            "(drop (table.grow $a (ref.func $g) (i32.const 2))) (global.set $m (ref.func $takes)) "
                            "elem.drop $q (call $spin (i32.const 2)) drop drop i32.const 1"))
    image = frozen(wasm, 1)
    f, g, h, takes = 1, 2, 3, 4
    run, spin = image.frames
    assert run.point.stack == (FUNCREF, EXTERNREF)
    assert [value.bits for value in run.operands()] == [h, NULL]
    assert spin.point.kind is StopKind.SAFEPOINT
    assert [(state.index, state.type, state.bits) for state in image.globals] == [(1, FUNCREF, takes)]
    assert image.tables == (TableState(0, 6, ((1, f), (4, g), (5, g))),)
    assert image.dropped_elem == (3,)
    assert image.memories == ()
    assert b"references" in formats.encode(image)[:600]


def frozen(wasm: bytes, n: int) -> Image:
    engine = runtimes.load("wasmtime")
    with contextlib.closing(
        Program.fresh(engine, wasm, Host(), entry_for(decode(wasm), "run"), options=EVERYWHERE)
    ) as program_:
        program_.freeze_at(n)
        run_program(engine, program_)
        return formats.decode(formats.encode(program_.capture()))


@pytest.mark.parametrize("pair", PAIRS[:1])
def test_a_call_through_a_table_that_is_repeated(pair: tuple[str, str]) -> None:
    """Frozen while it waits in an import that was called through a changed table: the image has arguments and slot."""
    text = """(import "env" "take" (func $take (param i32 externref) (result i32)))
      (type $t (func (param i32 externref) (result i32))) (table $a 3 funcref) (elem declare func $take)
      (func (export "run") (result i32)
        (table.set $a (i32.const 2) (ref.func $take))
        (i32.add (i32.const 100) (call_indirect $a (type $t) (i32.const 5) (ref.null extern) (i32.const 2))))"""
    life, seen = Life(), []

    def take(number: int, what: int) -> int:
        seen.append((number, what))
        if len(seen) == 1:
            life.freeze()
            raise RepeatCall
        return number * 2

    function = HostFunction((I32, EXTERNREF), (I32,), take)
    live(assemble(text), pair, life, {("env", "take"): function})
    assert (life.results, seen) == ((110,), [(5, NULL), (5, NULL)])
    frame, = formats.decode(life.images[0]).frames
    assert frame.point.kind is StopKind.REPEAT
    assert [(v.type, v.bits) for v in frame.operands()] == [(I32, 100), (I32, 5), (EXTERNREF, NULL), (I32, 2)]


def test_references_to_and_from_the_host() -> None:
    """A host function gets a function as its index and its own handle as it gave it, before and after moves."""
    text = f"""(import "env" "swap" (func $swap (param funcref externref) (result externref funcref)))
      {SPIN} (elem declare func $f) (global $h (mut externref) (ref.null extern)) (table $t 1 funcref)
      (func $f (result i32) i32.const 9)
      (func (export "run") (param $e externref) (result i32 externref)
        (local $r funcref)
        (call $swap (ref.func $f) (local.get $e)) (local.set $r) (global.set $h) (call $spin (i32.const 2))
        (table.set $t (i32.const 0) (local.get $r))
        (call $spin (i32.const 3)) (call_indirect $t (result i32) (i32.const 0)) (global.get $h))"""
    f = decode(assemble(text)).imported_funcs + 1
    for handle in (0, 7, NULL - 1, NULL):
        log: list[tuple[int, int]] = []

        def swap(func: int, what: int, log: list[tuple[int, int]] = log) -> tuple[int, int]:
            log.append((func, what))
            return what, func

        life = live_frozen(assemble(text), HostFunction((FUNCREF, EXTERNREF), (EXTERNREF, FUNCREF), swap),
                           [Value(EXTERNREF, handle)])
        assert life == (9, handle)
        assert log == [(f, handle)]


def live_frozen(wasm: bytes, swap: HostFunction, arguments: list[Value]) -> tuple[int, ...]:
    """Frozen at its second safepoint and gone on in the other two partners."""
    engine, host = runtimes.load("wasmtime"), Host({("env", "swap"): swap})
    entry = entry_for(decode(wasm), "run", arguments)
    with contextlib.closing(Program.fresh(engine, wasm, host, entry, options=COUNTING)) as first:
        first.freeze_at(2)
        run_program(engine, first)
        image = first.capture()
    second = ReferenceProgram(wasm, host, entry, image)
    second.freeze_at(1)
    second.run()
    image = formats.decode(formats.encode(second.capture()))
    with contextlib.closing(Program.restored(engine, wasm, host, image, options=COUNTING)) as third:
        return run_program(engine, third).results


# Imports that are the program's own

IMPORTS = f"""(module (import "env" "memory" (memory 1 4)) (import "env" "table" (table 3 funcref))
  (import "env" "sp" (global $sp (mut i32))) (import "env" "base" (global $base i32))
  (import "env" "w" (global $w (mut i64))) {SPIN}
  (global $copy i32 (global.get $base)) (global $own (mut i32) (i32.const 5))
  (elem (offset (global.get $base)) func $f) (data (offset (global.get $base)) "abc")
  (func $f (result i32) (call $spin (i32.const 2)) (i32.load8_u (i32.add (global.get $base) (i32.const 1))))
  (func (export "run") (result i32 i64 i32)
    (global.set $sp (i32.sub (global.get $sp) (i32.const 16))) (i32.store (global.get $sp) (i32.const 3))
    (drop (memory.grow (i32.const 1))) (i32.store (i32.const 70000) (i32.const 1)) (call $spin (i32.const 3))
    (global.set $w (i64.add (global.get $w) (i64.const 1)))
    (i32.add (i32.add (call_indirect (result i32) (global.get $copy)) (i32.load (global.get $sp))) (memory.size))
    (global.get $w) (global.get $own)))"""


def imports(base: int = 2) -> World:
    return World(imported={("env", "sp"): HostGlobal(I32, True, 4096), ("env", "base"): HostGlobal(I32, False, base),
                           ("env", "w"): HostGlobal(0x7E, True, 2**63)})


def test_imported_memory_table_and_globals_are_the_programs_own() -> None:
    """Wasm3, too: nothing is left that it would have to import."""
    both = [*pairs_for(), *PAIRS[-2:]]
    expected = [i32(ord("b") + 3 + 2), Value(0x7E, 2**63 + 1), i32(5)]
    moves(IMPORTS, expected, pairs=both, world=imports)


def test_segments_are_dropped_where_only_a_memory_becomes_the_programs_own() -> None:
    """Without references element segments stay what they are, and so does the record of those that were dropped."""
    text = f"""(module (import "env" "memory" (memory 1)) (table 2 funcref) {SPIN} (elem func $spin) (elem func $spin)
      (elem (i32.const 1) func $spin) (data "abc") (data "def")
      (func (export "run") (result i32) (elem.drop 1) (data.drop 0) (call $spin (i32.const 3))
        (memory.init 1 (i32.const 0) (i32.const 0) (i32.const 3)) (i32.load8_u (i32.const 2))))"""
    moves(text, [i32(ord("f"))], pairs=PAIRS)
    image = frozen(assemble(text), 2)
    assert (image.dropped_elem, image.dropped_data) == ((1,), (0,))


def test_a_missing_or_wrong_imported_global_is_named() -> None:
    wasm = assemble(IMPORTS)

    def run(change: Callable[[World], object]) -> Trace:
        def world() -> World:
            made = imports()
            change(made)
            return made
        return runner(wasm, COUNTING, invoke="run", world=world)(["wasmtime"], 0)

    assert run(lambda world: None).results
    with pytest.raises(MissingImport, match="sp"):
        run(lambda world: world.imported.pop(("env", "sp")))
    with pytest.raises(MissingImport, match="mut i32"):
        run(lambda world: world.imported.update({("env", "sp"): HostGlobal(I32, False, 0)}))


@pytest.mark.parametrize(("text", "twin", "word"), [
    ('(import "env" "r" (global funcref)) (func (export "run"))',
     '(import "env" "r" (global i32)) (func (export "run"))', "env.r"),
    ('(table 20000000 funcref) (func (export "run") (drop (table.get 0 (i32.const 0))))',
     '(table 10000000 funcref) (func (export "run") (drop (table.get 0 (i32.const 0))))', "20000000"),
])
def test_refused_by_name(text: str, twin: str, word: str) -> None:
    def world() -> World:
        return World(imported={("env", "r"): HostGlobal(I32, False, 0)})

    with pytest.raises(NotSupported, match=word):
        runner(assemble(text), COUNTING, invoke="run", world=world)(["wasmtime"], 0)
    assert not runner(assemble(twin), COUNTING, invoke="run", world=world)(["wasmtime"], 0).trap


def test_wasm3_is_told_what_it_lacks_in_terms_of_the_original() -> None:
    wasm = assemble(program(PROGRAMS["table.set"][0]))
    with pytest.raises(NotSupported) as caught:
        runner(wasm, COUNTING, invoke="run")(["wasm3"], 0)
    assert caught.value.fields["runtime"] == "wasm3"
    assert caught.value.fields["need"] == "reference-types"


# Tail calls of imports

TAILS = {
    "direct": "(return_call $take (local.get 0) (local.get 1))",
    "indirect": "(return_call_indirect (type $t) (local.get 0) (local.get 1) (i32.const 0))",
    "indirect, a function": "(return_call_indirect (type $t) (local.get 0) (local.get 1) (i32.const 1))",
    "with operands below": "i64.const 7 (return_call $take (local.get 0) (local.get 1))",
}


def tail(name: str, entry: str = "") -> bytes:
    """Exports: ``run`` adds up what a function gives that ends in a tail call; ``last`` is that function."""
    return assemble(f"""(type $t (func (param i32 externref) (result i32)))
      (import "env" "take" (func $take (type $t))) {SPIN}
      (table 2 funcref) (elem (i32.const 0) $take $own)
      (func $own (type $t) (call $take (local.get 0) (local.get 1)) (call $spin (i32.const 2)))
      (func $tail (export "last") (type $t) (call $spin (i32.const 2)) {TAILS[name]})
      (func (export "run") (result i32) (local $i i32) (local $s i32)
        loop $l
          (i32.mul (local.get $s) (i32.const 3)) (call $tail (local.get $i) (ref.null extern)) i32.add local.set $s
          (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 4)))
        end local.get $s) {entry}""")


SUM = ((10 * 3 + 11) * 3 + 12) * 3 + 13


@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("repeats", [False, True], ids=["done", "repeated"])
def test_tail_calls_of_imports(name: str, repeats: bool) -> None:
    """A freeze is asked for in each call: it is made once, or made again; its result is in the image of the caller."""
    life, log = Life(), []

    def take(number: int, what: int) -> int:
        assert what == NULL
        log.append(number)
        if log.count(number) == 1:
            life.freeze()
            if repeats:
                raise RepeatCall
        return 10 + number

    live(tail(name), TAIL_ENGINES, life, {("env", "take"): HostFunction((I32, EXTERNREF), (I32,), take)})
    assert (life.results, life.hops) == ((SUM,), 4)
    assert log == ([0, 0, 1, 1, 2, 2, 3, 3] if repeats else [0, 1, 2, 3])
    for raw in life.images if name != "indirect, a function" else ():
        image = formats.decode(raw)
        assert len(image.frames) == (2 if repeats else 1)
        assert image.frames[-1].point.kind is StopKind.SAFEPOINT


@pytest.mark.parametrize("name", TAILS)
def test_tail_calls_of_imports_at_all_safepoints(name: str) -> None:
    """Moved to the interpreter and back: each call is made once."""
    log: list[int] = []
    wasm = tail(name)

    def take(number: int, what: int) -> int:
        log.append(number)
        return 10 + number

    host = Host({("env", "take"): HostFunction((I32, EXTERNREF), (I32,), take)})
    entry = entry_for(decode(wasm), "run")
    for n in range(1, by_tier(check=6, test=20, soak=40)):
        engine = runtimes.load(TAIL_ENGINES[n % len(TAIL_ENGINES)])
        for options in (COUNTING, EVERYWHERE):
            log.clear()
            with contextlib.closing(Program.fresh(engine, wasm, host, entry, options=options)) as first:
                first.freeze_at(n)
                results = run_program(engine, first).results
                image = None if not first.view.word("done") else formats.decode(formats.encode(first.capture()))
            if image is not None:
                second = ReferenceProgram(wasm, host, entry, image)
                second.freeze_at(2)
                results = second.run().results
                if second.machine.frames:
                    image = formats.decode(formats.encode(second.capture()))
                    with contextlib.closing(Program.restored(engine, wasm, host, image, options=options)) as third:
                        results = run_program(engine, third).results
            assert (results, log) == ((SUM,), [0, 1, 2, 3]), (n, options.plan)


@pytest.mark.parametrize("name", TAILS)
def test_a_tail_call_that_ends_the_program(name: str) -> None:
    """Nothing is left to be frozen once the import has returned: the program has ended, with its result."""
    life = Life()

    def take(number: int, what: int) -> int:
        life.freeze()
        return number + 1

    functions = {("env", "take"): HostFunction((I32, EXTERNREF), (I32,), take)}
    live(tail(name), ["wasmtime"], life, functions, invoke="last", arguments=[i32(5), Value(EXTERNREF, NULL)])
    assert life.results == (6,)
    assert life.hops == (1 if name == "indirect, a function" else 0)


def test_a_tail_call_that_ends_a_step() -> None:
    """The start function ends so: the freeze takes place at the next safepoint, in the step after it."""
    life = Life()
    log: list[int] = []

    def take() -> None:
        log.append(len(log))
        life.freeze()

    wasm = assemble(f"""(import "env" "take" (func $take)) {SPIN} (func $s (return_call $take)) (start $s)
      (func (export "run") (result i32) (call $spin (i32.const 4)) (i32.const 3))""")
    live(wasm, ["wasmtime"], life, {("env", "take"): HostFunction((), (), take)})
    assert (life.results, life.hops, log) == ((3,), 1, [0])
    assert formats.decode(life.images[0]).entry.current == 1


def test_wasm3_refuses_tail_calls_of_imports_by_name() -> None:
    twin = '(import "env" "take" (func $take)) (memory 1) (func (export "run") ({} $take))'
    functions = {("env", "take"): HostFunction((), (), lambda: None)}
    with pytest.raises(NotSupported, match="tail"):
        live(assemble(twin.format("return_call")), ["wasm3"], Life(), functions)
    live(assemble(twin.format("call")), ["wasm3"], Life(), functions)


@pytest.mark.slow
def test_a_program_linked_with_an_imported_memory(tmp_path: Path) -> None:
    """``wasm-ld --import-memory``: the host would give the memory, now the program has it; WASI's calls find it."""
    name = "wordcount"
    kept = sample(name, "tiny")
    try:
        path = build_c(f"{name}-imported", [SAMPLES / f"{name}.c"], ["-Wl,--import-memory"],
                       watched=[SAMPLES / "common.h"])
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    wasm = path.read_bytes()
    assert any(item.kind is ExternKind.MEMORY for item in decode(wasm).imports)
    folders = iter(range(1000))

    def world() -> World:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        return World(kept, folder=folder)

    run = runner(wasm, COUNTING, world=world, most_hops=6)
    expected = run(["wasmtime"], 0)
    assert expected.stdout == kept.stdout + kept.stderr
    count = safepoints(wasm, "wasmtime", COUNTING, world=world)
    for order in (ALL, ALL[::-1]):
        assert not (wrong := difference(run, order, max(1, count // 6), expected)), wrong
