"""Images made at random against modules: they are refused, or they go on without harm.

Three kinds. Any well-formed image: the check answers, with `ImageError` or nothing. Images built along a module's own
calls, mostly good ones: what passes is resumed on wasmtime, in a process of its own, frozen again a few safepoints
later, and the new image must pass, too. The same with one thing changed, so that what the check lets through by mistake
meets the code behind it: an invalid module or an exception of any class but the guest's own trap fails the test.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wasmtime import wat2wasm

from wasmckpt import runtimes
from wasmckpt.errors import GuestTrap, ImageError, NotSupported
from wasmckpt.formats import (
    Entry,
    Frame,
    GlobalState,
    Image,
    MemoryState,
    ModuleRef,
    Point,
    Producer,
    StopKind,
    TableState,
    decode,
    encode,
)
from wasmckpt.formats import check as module_of_check
from wasmckpt.formats.check import check
from wasmckpt.snapshot.program import Program, Status
from wasmckpt.wasm.decode import decode as decode_module
from wasmckpt.wasm.liveness import live_before
from wasmckpt.wasm.module import ExternKind, Module
from wasmckpt.wasm.validate import analyze
from wasmckpt.wasm.values import FUNCREF, NULL, WIDTH, Value

from ..support.moving import EVERYWHERE, World, run_program
from ..support.samples import SAMPLES
from ..support.tiers import by_tier
from ..unit.formats.strategies import images

TOP: Final = Path(__file__).parents[2]
CASES: Final = by_tier(check=150, test=600, soak=10_000)
"""Images that the process builds."""

MIXED: Final = """
(module
  (type $op (func (param i32 i64) (result i64)))
  (import "env" "log" (func $log (param i32)))
  (memory (export "memory") 1 3)
  (table 3 funcref)
  (elem (i32.const 0) func $sum $deep $twice)
  (global $g (mut i32) (i32.const 0)) (global $h (mut f64) (f64.const 0))
  (data "passive") (data (i32.const 100) "active") (elem func $sum)
  (func $sum (type $op) (local $i i32) (local $f f32)
    local.get 1
    loop $l (param i64) (result i64)
      i64.const 3
      i64.add
      local.tee 1
      block $b (param i64) (result i64)
        block $a (param i64) (result i64)
          (br_table $a $b $l $a (i32.and (local.get $i) (i32.const 3)))
        end
        i64.const 1
        i64.add
      end
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get 0)))
    end)
  (func $deep (type $op) (local $v v128) (local $d f64)
    (if (result i64) (i32.eqz (local.get 0))
      (then (call $log (i32.wrap_i64 (local.get 1))) (local.get 1))
      (else
        (local.set $d (f64.convert_i32_s (local.get 0)))
        i64.const 7
        (call $deep (i32.sub (local.get 0) (i32.const 1)) (i64.add (local.get 1) (i64.const 1)))
        (global.set $h (f64.add (global.get $h) (local.get $d)))
        i64.xor
        (call_indirect (type $op) (i32.const 2) (local.get 1) (i32.and (local.get 0) (i32.const 3)))
        i64.add)))
  (func $twice (type $op)
    (i64.mul
      (call $sum (local.get 0) (local.get 1))
      (call_indirect (type $op) (local.get 0) (local.get 1) (i32.const 0))))
  (func (export "run") (param i32) (result i64)
    (memory.init 0 (i32.const 0) (i32.const 0) (i32.const 4)) (data.drop 0) (elem.drop 1)
    (drop (memory.grow (i32.const 1)))
    (i64.add (i64.const 1) (call $deep (local.get 0) (i64.load (i32.const 96))))
    return
    (drop (call $twice (i32.const 1) (i64.const 2))))
  (func (export "_initialize") (global.set $g (i32.const 5)) (call $log (global.get $g))))
"""
REFERENCES: Final = """
(module
  (type $visit (func (param i32 funcref externref) (result i32)))
  (import "env" "log" (func $log (param i32)))
  (table $stack 1 9 funcref) (table $seen 1 externref) (table $fixed 2 funcref)
  (global $last (mut funcref) (ref.null func)) (global $what (mut externref) (ref.null extern))
  (elem (table $fixed) (i32.const 0) func $one $visit) (elem $more func $visit $one)
  (func $one (type $visit) (call $log (local.get 0)) (ref.is_null (local.get 1)))
  (func $visit (type $visit) (local $before funcref) (local $n i32)
    (if (i32.eqz (local.get 0)) (then (return (i32.const 2))))
    (local.set $before (global.get $last)) (global.set $last (local.get 1)) (global.set $what (local.get 2))
    (drop (table.grow $stack (ref.func $visit) (i32.const 1)))
    (table.set $seen (i32.const 0) (local.get 2))
    (local.get $before) (ref.func $one)
    (call_indirect $stack (type $visit) (i32.sub (local.get 0) (i32.const 1)) (local.get $before) (local.get 2)
      (i32.sub (table.size $stack) (i32.const 1)))
    (call_indirect $fixed (type $visit) (i32.const 3) (ref.null func) (global.get $what) (i32.const 0))
    i32.add (local.set $n)
    (loop $l (param funcref funcref) (result funcref funcref)
      (br_if $l (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const 9))))
    ref.is_null (local.set $n) (global.set $last) (local.get $n))
  (func (export "run") (param $n i32) (param $what externref) (result i32 externref)
    (table.init $stack $more (i32.const 0) (i32.const 0) (i32.const 1)) (elem.drop $more)
    (call $visit (i32.and (local.get $n) (i32.const 3)) (ref.func $one) (local.get $what))
    (table.get $seen (i32.const 0))))
"""
TEXTS: Final = ("multi", "ifparams", "loopparams", "tailcall", "dead", "depth", "hostlog", "start", "memories", "v128",
                "globals", "frames", "memgrow")
"""Samples that are written as text and need neither WASI nor imported globals."""
NAMES: Final = ("mixed", "references", *TEXTS)
OWN: Final = {"mixed": MIXED, "references": REFERENCES}


@cache
def place_table(name: str) -> Places:
    text = OWN.get(name) or (SAMPLES / f"{name}.wat").read_text()
    return Places(decode_module(bytes(wat2wasm(text))))


class Places:
    """A module, and where frames can stand in it: by function the live offsets with operands and live locals."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.all: dict[int, list[tuple[int, tuple[int, ...], int]]] = {}
        self.calls: dict[int, list[tuple[int, tuple[int, ...], int, list[int]]]] = {}
        self.repeats: dict[int, list[tuple[int, tuple[int, ...], int]]] = {}
        for func in range(module.imported_funcs, len(module.func_types)):
            code = analyze(module, func, range(1 << 20))
            live = live_before(code, range(len(code.ops)))
            self.all[func] = [
                (code.pos[i], types, live[i]) for i in range(len(code.ops))
                if (types := code.watched[code.pos[i]]) is not None
            ]
            self.calls[func], self.repeats[func] = [], []
            for i, (waiting, args) in code.calls.items():
                target = code.imms[i]
                held = tuple([entry & 0xFF for entry in waiting])
                if isinstance(target, tuple):
                    called = [f for f in module.declared_funcs if module.func_types[f] == target[0]]
                else:
                    called = [target]  # type: ignore[list-item]
                defined = [f for f in called if f >= module.imported_funcs]
                if defined:
                    self.calls[func].append((code.pos[i], held, live[i], defined))
                elif called:
                    self.repeats[func].append((code.pos[i], held + tuple([entry & 0xFF for entry in args]), live[i]))


class Maker:
    """Makes images of one module out of a source of chance."""

    def __init__(self, places: Places, chance: random.Random) -> None:
        self.places, self.module, self.chance = places, places.module, chance

    def bits(self, type_: int, *, good: bool = True) -> int:
        """Any bits; of a function reference good ones, if so wanted."""
        if type_ == FUNCREF and good:
            return self.chance.choice([NULL, *sorted(self.module.declared_funcs)])
        width = 8 * WIDTH[type_]
        wild = self.chance.choice((0, 1, 2, 3, 1 << width - 1, (1 << width) - 1, 1 << width - 2))
        return self.chance.choice((wild, self.chance.randrange(4), self.chance.getrandbits(width)))

    def frame(self, func: int, offset: int, kind: StopKind, stack: tuple[int, ...], live: int) -> Frame:
        """A frame with all live locals and some dead ones."""
        types = self.module.local_types(func)
        if self.chance.random() < 0.3:
            live |= self.chance.getrandbits(len(types)) if types else 0
        point = Point(func, offset, kind, tuple((i, t) for i, t in enumerate(types) if live >> i & 1), stack)
        return Frame.make(point, [self.bits(type_) for type_ in point.value_types])

    def stack(self, func: int) -> Iterator[Frame]:
        """Frames along the module's calls, the outermost of ``func``."""
        places, chance = self.places, self.chance
        while chance.random() < 0.7 and places.calls[func]:
            offset, stack, live, called = chance.choice(places.calls[func])
            yield self.frame(func, offset, StopKind.CALL, stack, live)
            func = chance.choice(called)
        if chance.random() < 0.3 and places.repeats[func]:
            offset, stack, live = chance.choice(places.repeats[func])
            yield self.frame(func, offset, StopKind.REPEAT, stack, live)
        else:
            offset, stack, live = chance.choice(places.all[func])
            yield self.frame(func, offset, StopKind.SAFEPOINT, stack, live)

    def image(self) -> Image:
        """An image that should pass."""
        module, chance = self.module, self.chance
        funcs = {e.name: e.index for e in module.exports if e.kind == ExternKind.FUNC}
        steps = ["(start)"] if module.start is not None else []
        steps += ["_initialize"] if "_initialize" in funcs else []
        last = chance.choice(sorted(funcs))
        steps += [last] if last not in steps else []
        current = chance.randrange(len(steps) + 1)
        frames: tuple[Frame, ...] = ()
        if current < len(steps) and chance.random() < 0.9:
            step = steps[current]
            frames = tuple(self.stack(module.start if step == "(start)" else funcs[step]))  # type: ignore[arg-type]
        memories = []
        for index, limits in enumerate(module.memories):
            pages = chance.randint(limits.minimum, min(limits.maximum or 4, limits.minimum + 2))
            runs = []
            if pages and chance.random() < 0.7:
                runs.append((chance.randrange(16 * pages), chance.randbytes(4096)))
            memories.append(MemoryState(index, pages, tuple(runs)))
        dropped = chance.random() < 0.5 and self.module.datas and not self.module.datas[0].active
        return Image(
            ModuleRef(module.sha256(), len(module.data)), Producer("fuzz", "", "", ""),
            Entry(tuple(steps), current,
                  tuple(Value(t, self.bits(t)) for t in module.signature(funcs[steps[-1]]).params)),
            frames,
            tuple(GlobalState(i, kind.type, self.bits(kind.type)) for i, kind in enumerate(module.globals)
                  if kind.mutable),
            memories=tuple(memories), dropped_data=(0,) if dropped else (), dropped_elem=(1,) if dropped else (),
        )

    def changed(self, image: Image) -> Image:
        """The same with one thing changed; often no longer good."""
        chance = self.chance
        if chance.random() < 0.1:
            return self.referring(image)
        if image.frames and chance.random() < 0.8:
            frames = list(image.frames)
            at = chance.randrange(len(frames))
            move = chance.choice(("point", "point", "point", "drop", "double", "swap", "other"))
            if move == "point":
                frames[at] = self.moved(frames[at].point)
            elif move == "drop":
                del frames[at]
            elif move == "double":
                frames.insert(at, frames[at])
            elif move == "swap":
                other = chance.randrange(len(frames))
                frames[at], frames[other] = frames[other], frames[at]
            else:
                frames[at:] = self.stack(chance.choice(sorted(self.places.all)))
            return replace(image, frames=tuple(frames))
        type_ = chance.choice(sorted(WIDTH))
        some = chance.randrange(4)
        few = [index for index in range(some) if chance.random() < 0.5]
        move = chance.choice(("globals", "steps", "current", "arguments", "memories", "tables", "data", "elem"))
        if move == "globals":
            return replace(image, globals=tuple(GlobalState(i, type_, self.bits(type_)) for i in few))
        if move == "steps":
            known = ["(start)", *[e.name for e in self.module.exports]]
            steps = tuple(chance.choice(known) for _ in range(1 + some))
            return replace(image, entry=replace(image.entry, steps=steps))
        if move == "current":
            return replace(image, entry=replace(image.entry, current=some))
        if move == "arguments":
            return replace(image, entry=replace(image.entry, arguments=tuple(Value(type_, 1) for _ in range(some))))
        if move == "memories":
            return replace(image, memories=tuple(MemoryState(i, chance.randrange(5)) for i in few))
        if move == "tables":
            slots = ((0, chance.choice((None, some))),) if some else ()
            return replace(image, tables=(TableState(chance.randrange(2), some, slots),))
        if move == "data":
            return replace(image, dropped_data=tuple(few))
        return replace(image, dropped_elem=tuple(few))

    def referring(self, image: Image) -> Image:
        """The same with other references in globals or in a frame, to functions that may not be there."""
        if image.frames and self.chance.random() < 0.7:
            frames = list(image.frames)
            at = self.chance.randrange(len(frames))
            values = [*frames[at].locals().values(), *frames[at].operands()]
            frames[at] = Frame.make(frames[at].point, [
                self.bits(t, good=False) if t == FUNCREF else bits for t, bits in values
            ])
            return replace(image, frames=tuple(frames))
        return replace(image, globals=tuple(
            replace(state, bits=self.bits(FUNCREF, good=False)) if state.type == FUNCREF else state
            for state in image.globals
        ))

    def moved(self, point: Point) -> Frame:
        """A frame at a place where one thing is another."""
        chance = self.chance
        move = chance.choice(("func", "offset", "offset", "kind", "stack", "live", "whole"))
        if move == "func":
            point = replace(point, func=chance.randrange(len(self.module.func_types) + 1))
        elif move == "offset":
            point = replace(point, offset=max(0, point.offset + chance.randint(-6, 6)))
        elif move == "kind":
            point = replace(point, kind=chance.choice(list(StopKind)))
        elif move == "stack":
            cut = chance.randrange(len(point.stack) + 1)
            point = replace(point, stack=point.stack[:cut] + (chance.choice(sorted(WIDTH)),) * chance.randrange(2))
        elif move == "live":
            live = dict(point.live)
            live[chance.randrange(6)] = chance.choice(sorted(WIDTH))
            live.pop(chance.randrange(6), None)
            point = replace(point, live=tuple(sorted(live.items())))
        elif point.func in self.places.all:
            offset, stack, live_mask = chance.choice(self.places.all[point.func])
            return self.frame(point.func, offset, point.kind, stack, live_mask)
        return Frame.make(point, [self.bits(type_) for type_ in point.value_types])


def named(error: ImageError) -> None:
    """The error says where."""
    assert "field" in error.fields
    assert "frame" not in error.fields or {"function", "offset"} <= error.fields.keys()


@given(images(), st.sampled_from(NAMES))
def test_any_image(image: Image, name: str) -> None:
    """Of any well-formed image the check says in time whether it fits a module, and never anything else."""
    module = place_table(name).module
    own = ModuleRef(module.sha256(), len(module.data))
    for held in (image, replace(image, module=own), replace(image, module=own, entry=Entry((), 0))):
        try:
            check(held, module)
        except ImageError as error:
            named(error)
        else:
            assert not held.frames, "chance does not find a place with its locals and operands"


@given(st.integers(0, 2**64), st.sampled_from(NAMES))
def test_built_along_the_calls(seed: int, name: str) -> None:
    """Frames that follow the module's own calls pass at any instruction; one change more, and the answer is clear."""
    maker = Maker(place_table(name), random.Random(seed))
    image = decode(encode(maker.image()))
    check(image, maker.module)
    for _ in range(5):
        try:
            check(maker.changed(image), maker.module)
        except ImageError as error:
            named(error)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_passes_goes_on(seed: int) -> None:
    """Whatever passes resumes: nothing but the guest's own traps, and its next image passes as well."""
    code, lines = in_a_process(str(seed), str(CASES // 2))
    assert code == 0, "\n".join(lines[-40:])
    counts = Counter(json.loads(lines[-1]))
    assert counts["passed"] > CASES // 8, counts
    assert counts["refused"] > CASES // 16, counts
    assert counts["frozen"] > CASES // 40, counts
    assert counts["trap"], counts


@pytest.mark.slow
@pytest.mark.parametrize("without", ["_check_point", "_check_locals", "_check_call", "_check_entry", "_check_globals",
                                     "_check_memories", "_check_dropped", "_check_reference"])
def test_it_is_needed(without: str) -> None:
    """With one part of the check left out, something breaks behind it: what the test above would find."""
    code, lines = in_a_process("1", "800", without)
    assert code != 0, lines[-1]
    assert lines[0] == "seed 1, case 0, mixed", "it broke before there was anything to find"


def in_a_process(*arguments: str) -> tuple[int, list[str]]:
    """Run `main`; returns its exit code and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.test_check_images", *arguments], cwd=TOP, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=280 if CASES < 10_000 else None,
    )
    return done.returncode, done.stdout.splitlines()


def go_on(image: Image, module: Module, counts: Counter[str]) -> None:
    """Resume up to three times; each new image is checked."""
    engine = runtimes.load("wasmtime")
    world = World()
    for _ in range(3):
        counts["resumed"] += 1
        try:
            program = Program.restored(engine, module.data, world.host(), image, options=EVERYWHERE)
        except NotSupported:
            counts["not supported"] += 1
            break
        try:
            program.freeze_at(60)
            outcome = run_program(engine, program)
            if outcome.status is not Status.FROZEN:
                counts["ended"] += 1
                break
            counts["frozen"] += 1
            image = decode(encode(program.capture()))
        except GuestTrap:
            counts["trap"] += 1
            break
        finally:
            program.close()
        check(image, module)
    world.leave()
    world.stdin.close()
    world.stdout.close()


def main(seed: int, cases: int, without: str = "") -> None:
    """What is run in a process of its own: if that dies, the last line names the case.

    Args:
        without: function of the check that is left out.
    """
    if without:
        assert callable(getattr(module_of_check, without))
        setattr(module_of_check, without, lambda *_: None)
    counts: Counter[str] = Counter()
    for number in range(cases):
        name = NAMES[number // 2 % len(NAMES)] if number % 2 else ("references" if number % 8 == 6 else "mixed")
        print(f"seed {seed}, case {number}, {name}", flush=True)
        maker = Maker(place_table(name), random.Random(f"{seed} {number}"))
        image = maker.image()
        if number % 3:
            image = maker.changed(image)
        try:
            image = decode(encode(image))
            check(image, maker.module)
        except ImageError:
            counts["refused"] += 1
            continue
        counts["passed"] += 1
        go_on(image, maker.module, counts)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
