"""Continuations from disk are those that would be made, or they are made; whatever is wrong with an entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from wasmtime import wat2wasm

from wasmckpt.instrument.cache import cached_instrument
from wasmckpt.instrument.continuations import extend
from wasmckpt.instrument.instrument import Instrumented, instrument
from wasmckpt.instrument.kept_resumes import cached_extend
from wasmckpt.instrument.options import Options
from wasmckpt.instrument.records import AT_SAFEPOINT, IN_CALL, Place
from wasmckpt.instrument.resumes import Resumes
from wasmckpt.wasm.values import F64, I32

WASM = bytes(wat2wasm("""(module (memory 1) (table 2 funcref) (elem (i32.const 0) $f)
  (func $f (param i32) (result i32) (loop (br_if 0 (local.get 0))) (local.get 0))
  (func $g (export "run") (param $n i32) (result i32)
    (f64.const -1) (call $f (local.get $n)) (drop) (drop) (call $g (local.get $n)))
  (func (export "other") (param f64) (result f64)
    (loop (br_if 0 (f64.lt (local.get 0) (f64.const 1)))) (local.get 0)))"""))
LOOP = Place(0, 2, AT_SAFEPOINT, ((0, I32),), ())
CALLING = Place(1, 11, IN_CALL, ((0, I32),), (F64,))
AGAIN = Place(1, 17, IN_CALL, (), ())
OTHER = Place(2, 2, AT_SAFEPOINT, ((0, F64),), ())
STACKS = [[LOOP], [CALLING, LOOP], [AGAIN, CALLING, LOOP], [AGAIN, AGAIN, AGAIN, CALLING, LOOP], [OTHER]]
WAYS = {
    "whole": Options(), "tail calls": Options(tail_calls=True),
    "side": Options(tail_calls=True, poll="atomic-memory", side_modules=True),
}


@pytest.fixture(params=WAYS)
def options(request: pytest.FixtureRequest) -> Options:
    return WAYS[request.param]


def state(out: Instrumented) -> list[Any]:
    """All that continuations are, and what a freeze after them reads."""
    linker = out.linker
    return [
        out.wasm, out.side, out.continuations, out.numbers, out.resumes, out.not_moved, out.polls_at_once,
        list(out.sites), linker.types, linker.functions, linker.exports, linker.next_function(),
        [kind for kind, _ in linker.added],
    ]


def entries(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("frames", STACKS)
def test_the_same_as_made(frames: list[Place], options: Options, tmp_path: Path) -> None:
    fresh = instrument(WASM, options)
    numbers = extend(fresh, frames)
    for before in (False, True, True):
        out = cached_instrument(WASM, options, tmp_path)
        assert cached_extend(out, frames, folder=tmp_path) == numbers
        assert out.resumed_before == before
        assert state(out) == state(fresh)
        assert (out.side is None) == (not options.side_modules)


def test_each_set_of_stacks_is_an_entry_of_its_own(options: Options, tmp_path: Path) -> None:
    """But the depth of a recursion does not matter."""
    cached_instrument(WASM, options, tmp_path)
    base = entries(tmp_path)
    keys = []
    for frames in STACKS:
        out = cached_instrument(WASM, options, tmp_path)
        cached_extend(out, frames, folder=tmp_path)
        assert not out.resumed_before
        keys.append(out.resume_key)
    assert len(set(keys)) == len(STACKS) == len(entries(tmp_path) - base)
    out = cached_instrument(WASM, options, tmp_path)
    deeper = [AGAIN] * 9 + [CALLING, LOOP]
    assert len(cached_extend(out, deeper, folder=tmp_path)) == len(deeper)
    assert (out.resumed_before, out.resume_key) == (True, keys[3])


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign", "of another rewriting"])
def test_a_damaged_entry_is_made_anew(damage: str, options: Options, tmp_path: Path) -> None:
    cached_instrument(WASM, options, tmp_path)
    base = entries(tmp_path)
    cached_extend(cached_instrument(WASM, options, tmp_path), [CALLING, LOOP], folder=tmp_path)
    path, = entries(tmp_path) - base
    good = path.read_bytes()
    if damage == "of another rewriting":
        other = tmp_path / "other"
        spoiled = cached_instrument(WASM, options, other)
        spoiled.linker.sites.append(spoiled.sites[0])
        cached_extend(spoiled, [CALLING, LOOP], folder=other)
        bad = (other / path.relative_to(tmp_path)).read_bytes()
        assert bad != good
    else:
        bad = {"flip": good[:-1] + bytes([good[-1] ^ 1]), "cut": good[:-9], "empty": b"",
               "foreign": next(iter(base)).read_bytes()}[damage]
    path.write_bytes(bad)
    out = cached_instrument(WASM, options, tmp_path)
    fresh = instrument(WASM, options)
    assert cached_extend(out, [CALLING, LOOP], folder=tmp_path) == extend(fresh, [CALLING, LOOP])
    assert not out.resumed_before
    assert state(out) == state(fresh)
    assert path.read_bytes() == good


def test_a_folder_that_cannot_be_written_is_no_error(options: Options, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = cached_instrument(WASM, options, tmp_path)
    fresh = instrument(WASM, options)
    assert cached_extend(out, [LOOP], folder=tmp_path / "file") == extend(fresh, [LOOP])
    assert state(out) == state(fresh)


def test_what_stops_in_place_make_is_not_kept(options: Options, tmp_path: Path) -> None:
    out = cached_instrument(WASM, options, tmp_path)
    base = entries(tmp_path)
    cached_extend(out, [LOOP], also=Resumes(), folder=tmp_path)
    plain = instrument(WASM, options)
    cached_extend(plain, [LOOP], folder=tmp_path)
    assert entries(tmp_path) == base
