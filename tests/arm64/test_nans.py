"""Which NaN arithmetic makes differs between the processors; with canonical NaNs not one bit does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from wasmckpt import formats, runtimes

from ..matrix.test_identical import neutral
from ..support import nans
from ..support.arm64 import NAMES
from ..support.moving import EVERYWHERE
from ..support.pairs import SEED
from ..support.samples import Call, Sample
from ..support.tiers import by_tier
from .far import Far
from .legs import Life, Where, begin, images_of, run_leg

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # emulated, on a core that is shared

COUNT = by_tier(check=50, test=500, soak=1_200)
DIVIDING = """(module (memory 1) (global $g (mut f64) (f64.const 0)) (global $h (mut f32) (f32.const 0))
  (func $inner (param $z f64) (param $n i32) (result i64) (local $s i64)
    (loop $l
      (global.set $g (f64.div (local.get $z) (local.get $z)))
      (global.set $h (f32.demote_f64 (f64.sqrt (f64.sub (local.get $z) (f64.const 1)))))
      (f64.store (i32.const 64) (global.get $g)) (f32.store (i32.const 4160) (global.get $h))
      (local.set $s (i64.add (i64.rotl (local.get $s) (i64.const 7)) (i64.reinterpret_f64 (global.get $g))))
      (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (local.get $s))
  (func (export "run") (result i64) (call $inner (f64.load (i32.const 1024)) (i32.const 60))))"""
"""Its result, its globals and its memory hold NaNs that were made by 0/0 and by the square root of -1."""


@pytest.mark.parametrize("engine", NAMES)
def test_every_instruction_gives_the_same_bits_on_both(engine: str, far: Far) -> None:
    """Random bit patterns, all instructions that make NaNs. The twin: without the option some differ."""
    print(f"seed {SEED}")
    vectors = "simd" in runtimes.load(engine).capabilities.features
    names = tuple(nans.operations(vectors=vectors))
    differ = set()
    for some in (names[: len(names) // 2], names[len(names) // 2:]):
        wasm = nans.module(SEED, COUNT, some)
        size = COUNT * len(some)
        assert (far(".support.nans", "outcomes", wasm, size, engine, True)
                == nans.outcomes(wasm, size, engine, True)), engine
        there = far(".support.nans", "outcomes", wasm, size, engine, False)
        here = nans.outcomes(wasm, size, engine, False)
        step = COUNT * nans.SLOT
        parts = [(name, slice(n * step, (n + 1) * step)) for n, name in enumerate(some)]
        differ |= {name for name, part in parts if there[part] != here[part]}
    assert {"f32.div", "f64.div", "f64.sqrt", "f64.sub"} <= differ


def test_what_only_moves_bits_is_the_same_on_both(far: Far) -> None:
    """Without any option."""
    wasm = nans.module(SEED, COUNT, tuple(nans.operations(vectors=True, moving=True)))
    size = COUNT * len(nans.operations(vectors=True, moving=True))
    for engine in ("wasmtime", "wamr", "wasmedge"):
        assert (far(".support.nans", "outcomes", wasm, size, engine, False)
                == nans.outcomes(wasm, size, engine, False)), engine


def life(folder: Path, *, canonical: bool) -> Life:
    """The program `DIVIDING` at its beginning."""
    folder.mkdir()
    path = folder / "dividing.wasm"
    path.write_bytes(wat2wasm(DIVIDING))
    program = Sample("dividing", "default", path, path, "NaNs", "module", "small", frozenset())
    return begin(program, Call("run", (), ()), folder, replace(EVERYWHERE, canonical_nans=canonical))


@pytest.mark.parametrize("engine", NAMES)
def test_images_with_nans_in_them(engine: str, far: Far, tmp_path: Path) -> None:
    """Globals, memory, frames, result: the same bytes on both with canonical NaNs, and others without."""
    for canonical in (True, False):
        got, left = far("legs", "images_of", life(tmp_path / f"far{canonical}", canonical=canonical), engine, 5, 8)
        expected, end = images_of(life(tmp_path / f"near{canonical}", canonical=canonical), engine, 5, 8)
        assert len(got) == len(expected) == 8
        assert (left == end) is canonical
        for one, other in zip(got, expected, strict=True):
            assert formats.decode(one).canonical_nans is canonical
            assert (formats.encode(neutral(one)) == formats.encode(neutral(other))) is canonical


@pytest.mark.parametrize("engine", NAMES)
def test_who_began_with_canonical_nans_goes_on_with_them(engine: str, far: Far, tmp_path: Path) -> None:
    """By what the image says: the options of the process that goes on are others. Without its word the end is
    another."""
    expected = run_leg(life(tmp_path / "undisturbed", canonical=True), Where(), "wasmtime", 0).trace
    assert expected
    begun = life(tmp_path / "begun", canonical=True)
    frozen = run_leg(begun, Where(), engine, 20)
    again = replace(begun, options=EVERYWHERE)
    back = far("legs", "run_leg", again, frozen, engine, 20)
    assert frozen.trace is back.trace is None
    assert run_leg(again, back, "wasm3", 0).trace == expected
    forgotten = replace(frozen, image=formats.encode(replace(formats.decode(frozen.image), canonical_nans=False)))
    other = run_leg(again, forgotten, engine, 0).trace  # here: over there arithmetic makes canonical ones by itself
    assert other
    assert other.results != expected.results
    assert other.globals != expected.globals
