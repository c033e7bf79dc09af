"""Dead stack is dead: overwritten with noise at each move, byte by byte, programs end as if nothing had happened.

Twins show that the test sees it where it is not: a red zone that is left out, and a program that reads what is dead.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from wasmckpt.errors import NotSupported
from wasmckpt.formats import Image, apply, difference
from wasmckpt.snapshot.pages import initial_pages
from wasmckpt.wasm import shadow_stack
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.shadow_stack import ShadowStack, prove
from wasmckpt.wasm.values import I32, Value

from ..support.dead_stack import STACK, built
from ..support.moving import Trace, World, move
from ..support.samples import SAMPLES, cases, names, sample, source_of
from ..support.tiers import by_tier
from .check import closing_world, safepoints

PAIR = ("wasmtime", "wasm3")
C_SAMPLES = [name for name in names(kind="command") if source_of(name, SAMPLES).suffix == ".c" and "simd" not in name]
SLOW = ("sqlite", "lua")


def noise(wasm: bytes, stack: ShadowStack, dead: list[int]) -> Callable[[Image], Image]:
    """Overwrites the dead stack of an image; ``dead`` gets how many bytes that was."""
    module = decode(wasm)
    base = bytearray(module.memories[0].minimum << 16)
    for page, content in initial_pages(module, 0, {}).items():
        base[page * 4096:(page + 1) * 4096] = content
    draw = random.Random(1)

    def touch(image: Image) -> Image:
        pointer = next(value.bits for value in image.globals if value.index == stack.pointer)
        end = stack.dead_until(pointer, {frame.point.func for frame in image.frames})
        dead.append(end - stack.low)
        memory = apply(image.memories[0], base)
        memory[stack.low:end] = draw.randbytes(end - stack.low)
        return replace(image, memories=(difference(0, memory, base), *image.memories[1:]))

    return touch


def _same(a: Trace, b: Trace) -> bool:
    return replace(a, memory="", wasi=()) == replace(b, memory="", wasi=())


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.soak) if name in SLOW else name for name in C_SAMPLES
])
def test_noise_in_the_dead_stack_of_real_programs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = sample(name, "tiny" if "tiny" in cases(name) else "default")
    monkeypatch.setattr(shadow_stack, "_lowest", lambda module, high: high - STACK)
    stack = prove(decode(program.wasm))

    def world() -> World:
        return World(program, folder=Path(tempfile.mkdtemp(dir=tmp_path)), repeatable=True)

    def run(nth: int, touch: Callable[[Image], Image]) -> Trace:
        place = world()
        with closing_world(place):
            return move(program.wasm, PAIR, nth, world=place, touch=touch)

    expected = run(0, lambda image: image)
    count = safepoints(program.wasm, "wasm3", sample=program, world=world)
    dead: list[int] = []
    got = run(max(1, count // by_tier(check=2, test=3, soak=30)), noise(program.wasm, stack, dead))
    assert got.hops > 0 or count < 2
    assert _same(got, expected)
    assert all(0 <= size <= STACK for size in dead)
    assert got.hops == 0 or max(dead) > STACK // 2


@pytest.mark.slow
@pytest.mark.parametrize("export", ["red_zone", "waves"])
@pytest.mark.parametrize("flags", [(), ("-O0",), ("-O1",), ("-Os",)], ids=" ".join)
def test_noise_in_a_red_zone_and_deep_down(export: str, flags: tuple[str, ...]) -> None:
    wasm = built("-Wl,--stack-first", *flags)
    stack = prove(decode(wasm))
    assert (stack.low, stack.high) == (0, STACK)
    given = {"invoke": export, "arguments": (Value(I32, 300),)}
    expected = move(wasm, PAIR, 0, **given)  # type: ignore[arg-type]
    nth = safepoints(wasm, "wasm3", **given) // by_tier(check=4, test=9, soak=60)  # type: ignore[arg-type]
    dead: list[int] = []
    got = move(wasm, PAIR, nth, touch=noise(wasm, stack, dead), **given)  # type: ignore[arg-type]
    assert got.hops > 3
    assert _same(got, expected)
    assert max(dead) > STACK // 2


def test_the_twin_without_the_red_zone_differs() -> None:
    wasm = built("-Wl,--stack-first")
    stack = prove(decode(wasm))
    assert stack.below
    given = {"invoke": "red_zone", "arguments": (Value(I32, 300),)}
    expected = move(wasm, PAIR, 0, **given)  # type: ignore[arg-type]
    for below, same in ((stack.below, True), ({}, False)):
        touch = noise(wasm, replace(stack, below=below), [])
        assert _same(move(wasm, PAIR[:1], 100, touch=touch, **given), expected) == same  # type: ignore[arg-type]


def test_a_program_that_reads_what_is_dead_sees_it() -> None:
    """Which is why nobody leaves it out unasked."""
    wasm = built("-Wl,--stack-first")
    stack = prove(decode(wasm))
    given = {"invoke": "left_over", "arguments": (Value(I32, 3000),)}
    expected = move(wasm, PAIR, 0, **given)  # type: ignore[arg-type]
    nth = safepoints(wasm, "wasm3", **given) * 3 // 5  # type: ignore[arg-type]  # between the two calls
    assert move(wasm, PAIR, nth, **given) == expected  # type: ignore[arg-type]
    assert not _same(move(wasm, PAIR, nth, touch=noise(wasm, stack, []), **given), expected)  # type: ignore[arg-type]


def test_layouts_of_the_linker() -> None:
    data_first = built()
    with pytest.raises(NotSupported, match="does not say where"):
        prove(decode(data_first))
    told = prove(decode(built("-Wl,--export=__data_end")))
    assert 0 < told.low <= told.high - STACK < told.low + 32
    with pytest.raises(NotSupported, match="names no global"):
        prove(decode(built("-Wl,--stack-first", "-Wl,--strip-all")))
