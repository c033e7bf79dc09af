"""Continuations in a module of their own: nothing that a program leaves behind tells it from one that was resumed by
compiling all of its module anew, and no image does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wasmtime import wat2wasm

from wasmckpt.errors import GuestTrap
from wasmckpt.instrument import side
from wasmckpt.instrument.continuations import extend
from wasmckpt.instrument.instrument import Instrumented, instrument
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import Instance, load, run_in_guest_thread
from wasmckpt.snapshot import program as program_module
from wasmckpt.snapshot.job import Job
from wasmckpt.snapshot.program import Host, Program, Status, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import I32, Value

from ..support.moving import COUNTING, EVERYWHERE, move
from ..support.pairs import BASE, SEED, runtimes_of
from ..support.samples import cases, names, sample
from ..support.tiers import by_tier
from .check import difference, runner
from .test_identical import SLEEPS, life
from .test_matrix import LARGE, count_of

SAMPLES = [name for name in names() if "wasmtime" in runtimes_of(name) and name not in LARGE]
WHOLE = "WASMCKPT_RESUME"


@pytest.fixture(params=["side", "whole"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(WHOLE, request.param)
    return str(request.param)


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The side modules that were added to instances."""
    seen: list[object] = []
    real: Callable[..., None] = Program._add_continuations

    def count(self: Program, added: side.Side) -> None:
        seen.append(added)
        real(self, added)

    monkeypatch.setattr(Program, "_add_continuations", count)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", by_tier(check=SAMPLES, test=SAMPLES[SEED % 4 :: 4], soak=SAMPLES))
def test_both_ways_lead_the_same_life(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extended: list[object],
) -> None:
    """Frozen again and again: all that is left behind, and each image, byte for byte."""
    program = sample(name, "tiny" if "tiny" in cases(name) else cases(name)[0])
    plan = EVERYWHERE if program.calls else COUNTING
    count = count_of(program, plan, program.calls[0] if program.calls else None, tmp_path)
    most = by_tier(check=4, test=6, soak=60)
    lives = []
    for way in ("side", "whole"):
        monkeypatch.setenv(WHOLE, way)
        lives.append(life(program, "wasmtime", plan, max(1, count // most), most, tmp_path))
        if way == "side":
            moved, images = len(extended), lives[0][0]
    assert len(extended) == moved, "the other way used one too"
    assert lives[0][1] == lives[1][1]
    if name != SLEEPS:
        assert lives[0][0] == lives[1][0]
    resumed = sum(bool(image.frames) for image in images)
    assert moved == resumed or (name in NAMES_SEGMENTS and moved < resumed)


NAMES_SEGMENTS = ("segments",)
"""Samples with functions that name segments."""

GUEST = """(module (import "env" "log" (func $log (param i32))) (memory (export "memory") 1 3) (memory 1)
  (table $t 2 funcref) (elem (table $t) (i32.const 0) func $fact $log2) (tag $e (param i32))
  (global $sum (mut i64) (i64.const 7)) (global $k i32 (i32.const 3)) (global $v (mut v128) (v128.const i64x2 1 2))
  (data $d "\\05\\06\\07")
  (func $log2 (param i32) (call $log (local.get 0)))
  (func $fact (param i32) (if (local.get 0) (then
    (global.set $sum (i64.add (global.get $sum) (i64.extend_i32_u (local.get 0))))
    (call $fact (i32.sub (local.get 0) (i32.const 1))))))
  (func $thrower (param i32) (call $fact (i32.const 2)) (if (i32.eq (local.get 0) (global.get $k)) (then
    (throw $e (i32.const 40)))))
  (func $tail (param $n i32) (param $at i32) (result i32)
    (if (i32.eqz (local.get $n)) (then (return (i32.load (local.get $at)))))
    (i32.store 1 (i32.const 8) (i32.add (i32.load 1 (i32.const 8)) (local.get $n)))
    (return_call $tail (i32.sub (local.get $n) (i32.const 1)) (local.get $at)))
  (func $trap (param i32) (result i32) (call $fact (i32.const 1)) (i32.div_u (i32.const 8) (local.get 0)))
  (func (export "run") (param $n i32) (result i32) (local $i i32) (local $got i32)
    loop $l
      (call_indirect (param i32) (local.get $i) (i32.and (local.get $i) (i32.const 1)))
      (local.set $got (i32.add (local.get $got) (block $c (result i32)
        (try_table (catch $e $c) (call $thrower (local.get $i)) (call $fact (i32.const 2))) (i32.const 1))))
      (if (i32.eq (local.get $i) (i32.const 4)) (then (drop (memory.grow (i32.const 1)))))
      (i32.store (i32.const 100) (i32.add (i32.load (i32.const 100)) (memory.size)))
      (global.set $v (i64x2.add (global.get $v) (i64x2.splat (global.get $sum))))
      (local.set $got (i32.add (local.get $got) (call $tail (local.get $i) (i32.const 100))))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    (call $log (i32.wrap_i64 (i64x2.extract_lane 1 (global.get $v))))
    (i32.add (local.get $got) (i32.load 1 (i32.const 8))))
  (func (export "trap") (param i32) (result i32) (local i32)
    (local.set 1 (call $fact (i32.const 3)) (i32.const 5)) (i32.add (local.get 1) (call $trap (local.get 0))))
  (func (export "init") (param i32) (result i32)
    (call $fact (local.get 0)) (memory.init 0 $d (i32.const 0) (i32.const 0) (i32.const 3)) (call $fact (i32.const 1))
    (i32.load8_u (i32.const 2))))"""
WASM = bytes(wat2wasm(GUEST))


def test_each_kind_of_thing_is_shared(way: str, extended: list[object]) -> None:
    """Memories, tables, globals, tags, imports, tail calls; frozen at each n-th safepoint, over and over."""
    run = runner(WASM, EVERYWHERE, invoke="run", arguments=(Value(I32, 9),))
    expected = run(["wasmtime"], 0)
    assert expected.log
    for nth in by_tier(check=(7,), test=(2, 5, 40), soak=range(1, 40)):
        assert difference(run, ["wasmtime"], nth, expected) == ""
    assert bool(extended) == (way == "side")


def test_a_trap_names_the_original_function(way: str, extended: list[object]) -> None:
    """In a continuation, and in a function that one calls."""
    engine, found = load("wasmtime"), []
    for at in (1, 4, 6):
        program = Program.fresh(engine, WASM, logging(), entry_for(decode(WASM), "trap", (Value(I32, 0),)),
                                options=EVERYWHERE)
        program.freeze_at(at)
        assert run(program).status is Status.FROZEN
        image = program.capture()
        program.close()
        again = Program.restored(engine, WASM, logging(), image, options=EVERYWHERE)
        with pytest.raises(GuestTrap) as caught:
            run(again)
        again.close()
        found.append((caught.value.fields["kind"], caught.value.fields["function"]))
    assert found == [("integer divide by zero", 5)] * 3
    assert bool(extended) == (way == "side")


def test_what_names_a_segment_is_compiled_with_its_module() -> None:
    """It is seen before anything is made, told, and just as right."""
    run_ = runner(WASM, EVERYWHERE, invoke="init", arguments=(Value(I32, 3),))
    expected = run_(["wasmtime"], 0)
    assert expected.results == (7,)
    for nth in (1, 3, 5):
        assert difference(run_, ["wasmtime"], nth, expected) == ""
    engine = load("wasmtime")
    program = Program.fresh(engine, WASM, logging(), entry_for(decode(WASM), "init", (Value(I32, 3),)),
                            options=EVERYWHERE)
    program.freeze_at(1)
    run(program)
    image = program.capture()
    program.close()
    again = Program.restored(engine, WASM, logging(), image, options=EVERYWHERE)
    where = again.continuations
    again.close()
    assert where is not None
    assert where[0] == "whole"
    assert "memory.init" in where[1]


def test_a_job_tells_where_its_continuations_are(way: str) -> None:
    program = sample("nbody", "tiny")
    with Job.start(program.wasm, "wasmtime", freeze_at=30) as job:
        job.frozen.wait(60)
        image = job.checkpoint(stop=True).data
        assert job.continuations is None
    assert image is not None
    with Job.restore(image, "wasmtime", module=program.wasm) as job:
        assert job.continuations is not None
        assert (job.continuations.module, job.continuations.why) == (way, "")
        assert job.wait().how in ("done", "exited")


def test_other_runtimes_have_none() -> None:
    for name in BASE:
        engine = load(name)
        with engine.instantiate(engine.compile(bytes(wat2wasm("(module)"))), {}) as instance:
            has = type(instance).extend is not Instance.extend
            assert has == engine.capabilities.side_modules == (name == "wasmtime")


def logging() -> Host:
    from wasmckpt.runtimes import HostFunction

    return Host({("env", "log"): HostFunction((I32,), (), lambda value: None)})


def run(program: Program) -> Any:
    return run_in_guest_thread(program.run, stack_bytes=program.engine.thread_stack_bytes(program.stack_bytes))


# Bugs planted into the writer of side modules are seen

def wrong_lives() -> Iterator[str]:
    run_ = runner(WASM, EVERYWHERE, invoke="run", arguments=(Value(I32, 6),), most_hops=8)
    expected = run_(["reference"], 0)
    for nth in (1, 2, 3, 5, 8):
        if wrong := difference(run_, ["wasmtime"], nth, expected):
            assert not wrong.startswith(("after 0", "AttributeError", "NameError", "TypeError")), "the plant is broken"
            yield wrong


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(module: Any, options: Options, *, imported: dict[int, int]) -> Instrumented:
        return instrument(module, options, imported)

    monkeypatch.setattr(program_module, "cached_instrument", made)


@pytest.mark.usefixtures("uncached")
def test_without_a_bug_nothing_is_seen() -> None:
    assert list(wrong_lives()) == []


@pytest.mark.usefixtures("uncached")
def test_a_function_taken_for_another_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a door of the main module two functions of one type are in each other's places."""
    real = side.needed_functions

    def swapped(linker: Any, codes: Any) -> tuple[int, ...]:
        found = list(real(linker, codes))
        one, other = found.index(2), found.index(3)  # $fact and $thrower
        found[one], found[other] = found[other], found[one]
        return tuple(found)

    monkeypatch.setattr("wasmckpt.instrument.instrument.needed_functions", swapped)
    monkeypatch.setattr(side._Writer, "__init__", _as_it_should_be(side._Writer.__init__))
    assert any(wrong_lives())


def _as_it_should_be(real: Any) -> Any:
    def init(self: Any, linker: Any, first: int, exports: Any) -> None:
        swapped = linker.reachable
        linker.reachable = tuple(sorted(swapped))
        real(self, linker, first, exports)
        linker.reachable = swapped

    return init


@pytest.mark.usefixtures("uncached")
def test_a_global_of_its_own_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of our globals of one type change places: where the window ends, and where the next frame lies."""
    real = side._Writer._global

    def other(self: Any, index: int) -> int:
        helpers = {self.linker.globals["sp"]: self.linker.globals["base"]}
        return real(self, helpers.get(index, index))

    monkeypatch.setattr(side._Writer, "_global", other)
    assert any(wrong_lives())


def test_numbers_are_those_of_the_whole() -> None:
    """Sites, numbers of continuations, functions: as if all were in one module, which is what images are made by."""
    made = []
    for wanted in (True, False):
        out = instrument(WASM, Options(side_modules=wanted, tail_calls=True))
        program = Program.fresh(load("wasmtime"), WASM, logging(), entry_for(decode(WASM), "run", (Value(I32, 9),)),
                                options=EVERYWHERE)
        program.freeze_at(3)
        run(program)
        places = [program_module._place(frame.point) for frame in program.capture().frames]
        program.close()
        before = len(out.sites)
        made.append((extend(out, places), list(out.sites)[before:], out.side is not None))
    assert made[0][:2] == made[1][:2]
    assert [has for _, _, has in made] == [True, False]


DOORS = 300
_MANY = f"""(module (import "env" "log" (func $log (param i32)))
  {"".join(f"(func $g{i} (param i32) (result i32) (i32.xor (local.get 0) (i32.const {i})))" for i in range(DOORS))}
  (func $alone (param f64 i64) (result f64) (f64.add (local.get 0) (f64.convert_i64_s (local.get 1))))
  (func (export "run") (param i32) (result i32 f64) (local i32)
    (loop $l (call $log (local.get 0))
      (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
    {"".join(f"(local.set 1 (i32.rotl (call $g{i} (local.get 1)) (i32.const 1)))" for i in range(DOORS))}
    (local.get 1) (call $alone (f64.const 1.5) (i64.const 40))))"""


def test_hundreds_of_functions_behind_doors(extended: list[object]) -> None:
    """Of one type more than stand behind one door, each called by the continuation; one alone; and an import."""
    wasm = bytes(wat2wasm(_MANY))
    out = instrument(wasm, Options(side_modules=True, tail_calls=True))
    doors = [index for name, index in out.linker.functions.items() if name.startswith("door ")]
    exported = {index for name, _, index in out.linker.exports if name.startswith("__wasmckpt_door")}
    assert len(doors) >= 2
    assert exported >= {*doors, DOORS + 1}, "the one alone goes out itself"
    assert not exported & set(range(1, DOORS + 1))
    expected = move(wasm, ["wasmtime"], 0, invoke="run", arguments=(Value(I32, 5),), options=COUNTING)
    for nth in (1, 3, 5):
        got = move(wasm, ["wasmtime"], nth, invoke="run", arguments=(Value(I32, 5),), options=COUNTING, most_hops=1)
        assert (got.results, got.hops) == (expected.results, 1)
    assert len(extended) == 3


def test_a_life_of_many_moves() -> None:
    """Side modules, one after the other."""
    hops = by_tier(check=5, test=40, soak=300)
    expected = move(WASM, ["wasmtime"], 0, invoke="run", arguments=(Value(I32, 60),), options=EVERYWHERE)
    got = move(WASM, ["wasmtime"], 5, invoke="run", arguments=(Value(I32, 60),), options=EVERYWHERE, most_hops=hops)
    assert got == expected
    assert got.hops == hops
