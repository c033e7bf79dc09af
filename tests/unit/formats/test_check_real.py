"""Real images pass, whoever made them, and each of their fields is held to the module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from wasmckpt import formats
from wasmckpt.errors import GuestTrap, ImageError, NotSupported
from wasmckpt.formats import Frame, Image, Point, StopKind
from wasmckpt.formats.check import check
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.liveness import live_before
from wasmckpt.wasm.module import FuncType, Module
from wasmckpt.wasm.validate import analyze
from wasmckpt.wasm.values import F64, I32, I64, V128, Value

from ...support.interpreter import HostFunction, Import, Instance, Machine, WasmFunction
from ...support.interpreter.liveness import live_locals
from ...support.moving import COUNTING, EVERYWHERE, World, move
from ...support.samples import cases, sample
from ...support.tiers import by_tier

MODULES = ("depth", "frames", "multi", "tailcall", "dead", "hostlog", "start", "memories", "memgrow", "v128", "globals",
           "loopparams", "ifparams")
PROGRAMS = ("fib", "callback")
STEPS = by_tier(check=60, test=400, soak=2000)


def case_of(name: str) -> str:
    return "tiny" if "tiny" in cases(name) else "default"


def images(name: str, everywhere: bool = True) -> Iterator[bytes]:
    """Images of a sample, frozen again and again on its way."""
    one = sample(name, case_of(name))
    small = name in MODULES
    hops = by_tier(check=8, test=40 if small else 8, soak=400 if small else 40)
    step = 1 if small else by_tier(check=97, test=97, soak=29)
    for call in one.calls or (None,):
        world = World(one)
        with world.stdin, world.stdout:
            trace = move(
                one.wasm, ["wasmtime"], step, world=world, most_hops=hops,
                options=EVERYWHERE if everywhere else COUNTING, keep_images=True,
                invoke=call.export if call else None, arguments=call.args if call else (),
            )
        yield from trace.images


@pytest.mark.parametrize("name", [*MODULES, *PROGRAMS])
@pytest.mark.parametrize("everywhere", [False, True])
def test_images_of_the_tool_pass(name: str, everywhere: bool) -> None:
    """What the tool writes, it takes: exact types and all live locals, of programs that were resumed many times too."""
    module = decode(sample(name, case_of(name)).wasm)
    for raw in images(name, everywhere):
        check(formats.decode(raw), module)


@pytest.mark.parametrize("all_locals", [False, True])
@pytest.mark.parametrize("name", [*MODULES, "tables"])
def test_images_at_any_instruction_pass(name: str, all_locals: bool) -> None:
    """Images of the reference interpreter, stopped before each instruction, with live locals alone or with all."""
    one = sample(name, case_of(name))
    module = decode(one.wasm)
    log: dict[tuple[str, str], Import] = {("env", "log"): HostFunction(FuncType((I32,), ()), lambda *_: ())}
    checked = 0
    for call in one.calls:
        machine = Machine(module, log)
        machine.start(call.export, *[value.bits for value in call.args])
        for _ in range(STEPS):
            try:
                if machine.run(1) == "done":
                    break
            except GuestTrap:
                break
            try:
                image = machine.image(all_locals=all_locals)
            except NotSupported:
                continue  # a reference is held
            check(formats.decode(formats.encode(image)), module)
            checked += 1
    assert checked


@pytest.mark.parametrize("name", [*MODULES, *PROGRAMS])
def test_liveness(name: str) -> None:
    """Before every instruction that can be reached, the locals that the equations of the format's page give."""
    module = decode(sample(name, case_of(name)).wasm)
    log: dict[tuple[str, str], Import] = {}
    for item in module.imports:
        log[item.module, item.name] = HostFunction(module.types[item.type], lambda *_: ())  # type: ignore[index]
    instance = Instance(module, log, "canonical")
    compared = 0
    for function in instance.functions:
        if isinstance(function, WasmFunction):
            own = analyze(module, function.index)
            found = live_before(own, range(len(own.ops)))
            code = function.code
            assert code.offsets == own.pos[:-1]
            for index, mask in enumerate(live_locals(code)):
                if code.types[index] is not None:
                    assert found[index] == mask, (function.index, code.offsets[index])
                    compared += 1
    assert compared


def with_point(image: Image, at: int, point: Point) -> Image:
    frames = list(image.frames)
    frames[at] = Frame(point, bytes(point.width))
    return replace(image, frames=tuple(frames))


def other_type(type_: int) -> int:
    return {I32: I64, I64: F64, F64: V128}.get(type_, I32)


def broken(image: Image, module: Module) -> Iterator[tuple[str, Image]]:
    """The image with each field of it changed, so that it cannot be right any more."""
    for at in {0, len(image.frames) // 2, len(image.frames) - 1} if image.frames else ():
        point = image.frames[at].point

        def changed(at: int = at, point: Point = point, **fields: object) -> Image:
            return with_point(image, at, replace(point, **fields))  # type: ignore[arg-type]

        types = module.local_types(point.func)
        yield "func", changed(func=len(module.func_types))
        yield "func", changed(func=module.imported_funcs - 1 if module.imported_funcs else 2**32 - 1)
        size = module.body(point.func).end - module.body(point.func).expr
        yield "offset", changed(offset=size)
        yield "stack", changed(stack=(*point.stack, I32))
        if point.stack:
            yield "stack", changed(stack=point.stack[1:])
            yield "stack", changed(stack=(other_type(point.stack[0]), *point.stack[1:]))
        for n, (local, kind) in enumerate(point.live):
            yield "live", changed(live=point.live[:n] + point.live[n + 1 :])
            yield "live", changed(live=(*point.live[:n], (local, other_type(kind)), *point.live[n + 1 :]))
        yield "live", changed(live=(*point.live, (len(types), I32)))
        if point.kind is not StopKind.CALL:
            yield "kind", changed(kind=StopKind.CALL)
        else:
            yield "kind", changed(kind=StopKind.SAFEPOINT)
    if len(image.frames) > 1:
        yield "frames", replace(image, frames=image.frames[:-1])
    if image.frames:
        yield "entry", replace(image, entry=replace(image.entry, current=len(image.entry.steps)))
    yield "entry", replace(image, entry=replace(image.entry, steps=(*image.entry.steps[:-1], "no such export")))
    yield "entry", replace(image, entry=replace(image.entry, steps=("(start)", "(start)", *image.entry.steps)))
    yield "arguments", replace(image, entry=replace(
        image.entry, arguments=(*image.entry.arguments, Value(I32, 0))))
    for n, state in enumerate(image.globals):
        yield "globals", replace(image, globals=image.globals[:n] + image.globals[n + 1 :])
        yield "globals", replace(image, globals=(
            *image.globals[:n], replace(state, type=other_type(state.type), bits=0), *image.globals[n + 1 :]))
        yield "globals", replace(image, globals=(*image.globals[:n], replace(state, index=10**6)))
    for n, memory in enumerate(image.memories):
        yield "memories", replace(image, memories=image.memories[:n] + image.memories[n + 1 :])
        yield "memories", replace(image, memories=(
            *image.memories[:n], replace(memory, pages=65537), *image.memories[n + 1 :]))
        yield "memories", replace(image, memories=(*image.memories, replace(memory, index=10**6)))
    yield "tables", replace(image, tables=(formats.TableState(len(module.tables), 0),))
    yield "dropped_data", replace(image, dropped_data=(len(module.datas),))
    yield "dropped_elem", replace(image, dropped_elem=(len(module.elems),))
    yield "module", replace(image, module=replace(image.module, sha256=bytes(32)))
    yield "module", replace(image, module=replace(image.module, size=image.module.size + 1))


@pytest.mark.parametrize("name", [*MODULES, *PROGRAMS])
def test_each_field(name: str) -> None:
    """An image with one field changed so that it fits no more is refused, and says where."""
    module = decode(sample(name, case_of(name)).wasm)
    seen = set()
    for raw in list(images(name))[:: by_tier(check=4, test=3, soak=1)]:
        image = formats.decode(raw)
        check(image, module)
        for field, other in broken(image, module):
            seen.add(field)
            with pytest.raises(ImageError) as caught:
                check(other, module)
            assert caught.value.fields["field"]
    assert len(seen) > 6
