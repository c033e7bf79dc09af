"""The reference interpreter as third partner: the same frames at the same safepoint, images from any instruction.

Everywhere-plan and interpreter count the same safepoints, so the n-th of one is the n-th of the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from wasmtime import wat2wasm

from wasmckpt import formats, runtimes
from wasmckpt.errors import GuestTrap
from wasmckpt.formats import Image
from wasmckpt.formats.check import check
from wasmckpt.snapshot.program import Program, Status, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import FuncType
from wasmckpt.wasm.values import I32, Value

from ..support.interpreter import HostFunction, Import, Machine
from ..support.moving import EVERYWHERE, Trace, World, finish, run_program
from ..support.pairs import SEED
from ..support.samples import cases, sample
from ..support.tiers import by_tier
from .check import closing_world, positions, runner, safepoints
from .generator import Shape, generate

SAMPLES = ["multi", "start", "dead", "hostlog", "depth", "frames", "loopparams", "ifparams", "latency", "globals",
           "memgrow", "dirty", "heapbase", "multivalue", "v128", "simd", "memories", "banks", "segments",
           "elements", "tables", "funcref", "tailcall", "threaded"]
ALONE = ("v128", "simd", "memories", "banks", "segments", "elements", "tables", "funcref", "tailcall", "threaded")
"""Not for Wasm3."""
GENERATED = [f"generated-{seed}" for seed in range(SEED, SEED + by_tier(check=2, test=14, soak=100))]


def program_of(name: str) -> tuple[bytes, str, Sequence[Value]]:
    """Module, export and arguments."""
    if name.startswith("generated"):
        seed = int(name.rpartition("-")[2])
        return bytes(wat2wasm(generate(seed, Shape(fuel=25)))), "run", [Value(I32, 5)]
    found = sample(name, "tiny" if "tiny" in cases(name) else "default")
    return found.wasm, found.calls[0].export, found.calls[0].args


def imports(log: list[int]) -> dict[tuple[str, str], Import]:
    return {
        ("env", "log"): HostFunction(FuncType((I32,), ()), lambda _, value: log.append(value)),
        ("env", "hook"): HostFunction(FuncType((), ()), lambda _: None),
    }


def begun(wasm: bytes, export: str, arguments: Sequence[Value], log: list[int]) -> Machine:
    machine = Machine(wasm, imports(log))
    machine.start(export, *[value.bits for value in arguments])
    return machine


def finished(machine: Machine, log: list[int], **limits: int) -> Trace:
    """Run to the end and see what is left, in the words of `moving.finish`."""
    trap = ""
    try:
        while machine.run(10_000_000, **limits) == "stopped":
            pass
    except GuestTrap as error:
        trap = str(error.fields["kind"])
        machine.frames.clear()
    image = machine.image()
    memory = hashlib.sha256()
    for state in image.memories:
        memory.update(repr((state.index, state.pages, state.zero)).encode())
        for page, data in state.data:
            memory.update(page.to_bytes(4, "little") + data)
    return Trace(() if trap else tuple(machine.results), trap, log=tuple(log), memory=memory.hexdigest(),
                 globals=tuple((g.index, g.bits) for g in image.globals), tables=image.tables)


def ours_at(wasm: bytes, export: str, arguments: Sequence[Value], engine: str, n: int, log: list[int]) -> Image:
    """Our image at the n-th safepoint."""
    world = World()
    world.log = log
    loaded = runtimes.load(engine)
    with closing_world(world):
        program = Program.fresh(loaded, wasm, world.host(), entry_for(decode(wasm), export, arguments),
                                options=EVERYWHERE)
        try:
            program.freeze_at(n)
            assert run_program(loaded, program).status is Status.FROZEN
            return formats.decode(formats.encode(program.capture()))
        finally:
            program.close()


def resumed(wasm: bytes, image: Image, engine: str, log: list[int]) -> Trace:
    """Finish an image on a runtime."""
    world = World()
    world.log = log
    loaded = runtimes.load(engine)
    with closing_world(world):
        program = Program.restored(loaded, wasm, world.host(), image, options=EVERYWHERE)
        try:
            try:
                outcome = run_program(loaded, program)
            except GuestTrap as trap:
                return finish(program, None, str(trap.fields.get("kind", trap)), world, 1, [])
            return finish(program, outcome, "", world, 1, [])
        finally:
            program.close()


@pytest.mark.parametrize("name", [*(name for name in SAMPLES if name not in ("tailcall", "threaded")), *GENERATED])
def test_at_the_nth_safepoint_the_interpreter_has_the_same_frames(name: str) -> None:
    """Same functions, offsets, kinds, live locals, operands and bits; same globals, pages and host calls.

    Not for tail calls: functions on a cycle through one poll at their entry, which the interpreter does not count.
    """
    wasm, export, arguments = program_of(name)
    run = runner(wasm, EVERYWHERE, invoke=export, arguments=arguments)
    log: list[int] = []
    machine = begun(wasm, export, arguments, log)
    assert finished(machine, log) == run(["wasmtime"], 0)
    count = safepoints(wasm, "wasmtime", EVERYWHERE, invoke=export, arguments=arguments)
    assert count == machine.safepoints
    engines = ["wasmtime"] if name in ALONE else ["wasmtime", "wasm3"]
    for k, n in enumerate(positions(count, by_tier(check=2, test=8, soak=300), SEED)):
        theirs_log: list[int] = []
        reference = begun(wasm, export, arguments, theirs_log)
        assert reference.run(stop_at_safepoint=n) == "stopped"
        theirs = reference.image()
        ours_log: list[int] = []
        ours = ours_at(wasm, export, arguments, engines[k % len(engines)], n, ours_log)
        where = (name, n, engines[k % len(engines)])
        for mine, its in zip(ours.frames, theirs.frames, strict=True):
            assert mine.point == its.point, where
            assert mine.values == its.values, where
        assert (ours.globals, ours.tables, ours.memories, ours.entry) == (
            theirs.globals, theirs.tables, theirs.memories, theirs.entry), where
        assert ours_log == theirs_log, where


@pytest.mark.parametrize("name", [*SAMPLES, *GENERATED])
def test_images_from_any_instruction_resume_everywhere(name: str) -> None:
    """The interpreter stops between any two instructions: both runtimes go on from there, and so does it."""
    wasm, export, arguments = program_of(name)
    module = decode(wasm)
    log: list[int] = []
    whole = begun(wasm, export, arguments, log)
    expected = finished(whole, log)
    places = positions(whole.instructions - 1, by_tier(check=3, test=12, soak=200), SEED)
    engines = ["wasmtime"] if name in ALONE else ["wasmtime", "wasm3"]
    for k, place in enumerate(places):
        before: list[int] = []
        machine = begun(wasm, export, arguments, before)
        try:
            if machine.run(place) == "done":
                continue
        except GuestTrap:
            continue
        image = formats.decode(formats.encode(machine.image()))
        check(image, module)
        engine = engines[k % len(engines)]
        where = (name, place, engine, [frame.point for frame in image.frames])
        again = list(before)
        assert finished(Machine.from_image(wasm, image, imports(again)), again) == expected, where
        assert resumed(wasm, image, engine, before) == expected, where


@pytest.mark.parametrize("name", [*SAMPLES, *GENERATED])
def test_our_images_resume_in_the_interpreter(name: str) -> None:
    wasm, export, arguments = program_of(name)
    log: list[int] = []
    expected = finished(begun(wasm, export, arguments, log), log)
    count = safepoints(wasm, "wasmtime", EVERYWHERE, invoke=export, arguments=arguments)
    for n in positions(count, by_tier(check=1, test=5, soak=150), SEED) if count else []:
        log = []
        image = ours_at(wasm, export, arguments, "wasmtime", n, log)
        check(image, decode(wasm))
        assert finished(Machine.from_image(wasm, image, imports(log)), log) == expected, (name, n)
