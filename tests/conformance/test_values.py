"""Bit patterns go in and come out unchanged."""

from __future__ import annotations

import pytest

from wasmckpt.errors import NotSupported, UsageError
from wasmckpt.runtimes.base import Engine

from .guests import F32, F64, I32, I64, SNAN32, SNAN64, V128, host, start

_ECHO = """(module
  (func (export "i32") (param i32) (result i32) local.get 0)
  (func (export "i64") (param i64) (result i64) local.get 0)
  (func (export "f32") (param f32) (result f32) local.get 0)
  (func (export "f64") (param f64) (result f64) local.get 0)
  (func (export "bits") (param f32) (result i32) (i32.reinterpret_f32 (local.get 0)))
  (func (export "five") (param i32 i64 f32 f64 i32) (result i32 f64 f32 i64 i32)
    local.get 4 local.get 3 local.get 2 local.get 1 local.get 0)
  (memory 1)
  (func (export "moved") (param i32) (result i32) (i32.store (i32.const 0) (local.get 0))
    (f32.store (i32.const 8) (f32.load (i32.const 0))) (i32.load (i32.const 8)))
  (func (export "nothing")))"""

_PATTERNS = {
    "i32": [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
    "i64": [0, 1, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF],
    "f32": [0, 0x80000000, 0x3F800000, 0x7F800000, 0x00000001, 0x7FC00000, 0xFFE12345],
    "f64": [0, 1 << 63, 0x3FF0000000000000, 1, 0x7FF8000000000000, 0xFFF8000000012345, SNAN64, SNAN64 | 1 << 63],
}


@pytest.mark.parametrize("kind", _PATTERNS)
def test_every_bit_survives_a_call(engine: Engine, kind: str) -> None:
    with start(engine, _ECHO) as instance:
        for bits in _PATTERNS[kind]:
            assert instance.call(kind, (bits,)) == (bits,)


def test_signalling_f32_is_kept_unless_declared_otherwise(engine: Engine) -> None:
    with start(engine, _ECHO) as instance:
        assert instance.call("bits", (SNAN32,)) == (SNAN32,)
        assert instance.call("f32", (SNAN32,)) == (SNAN32,)
        # An interpreter's register may be wider than the value.
        assert instance.call("moved", (SNAN32,)) == (
            SNAN32 | 0x400000 if engine.capabilities.nan_f32_quieted else SNAN32,)


def test_five_mixed_results_and_none(engine: Engine) -> None:
    with start(engine, _ECHO) as instance:
        args = (0xFFFFFFFF, 1 << 63, 0x3F800000, SNAN64, 7)
        assert instance.call("five", args) == (7, SNAN64, 0x3F800000, 1 << 63, 0xFFFFFFFF)
        assert instance.call("nothing") == ()


@pytest.mark.parametrize("args", [(), (1, 2), (-1,), (1 << 32,), (1.5,), ("1",)])
def test_arguments_that_do_not_fit_are_refused_before_the_guest_runs(engine: Engine, args: tuple[int, ...]) -> None:
    with start(engine, _ECHO) as instance:
        with pytest.raises(UsageError):
            instance.call("i32", args)
        assert instance.call("i32", (9,)) == (9,)


def test_host_functions_see_and_give_bits(engine: Engine) -> None:
    text = """(module
      (import "h" "swap" (func $swap (param i32 i64 f32 f64) (result f64 f32 i64 i32)))
      (func (export "swap") (param i32 i64 f32 f64) (result f64 f32 i64 i32)
        local.get 0 local.get 1 local.get 2 local.get 3 call $swap))"""
    seen: list[tuple[int, ...]] = []

    def swap(*args: int) -> tuple[int, ...]:
        seen.append(args)
        return args[::-1]

    args = (0xFFFFFFFE, 0xFFFFFFFFFFFFFFFD, 0x7FC00001, SNAN64)
    imports = {("h", "swap"): host((I32, I64, F32, F64), (F64, F32, I64, I32), swap)}
    with start(engine, text, imports) as instance:
        assert instance.call("swap", args) == args[::-1]
    assert seen == [args]


def test_vectors_cross_as_128_bits(engine: Engine) -> None:
    text = """(module (import "h" "f" (func $f (param v128) (result v128)))
      (func (export "f") (param v128 i32) (result i32 v128) local.get 1 local.get 0 call $f))"""
    bits = 0x0102030405060708_F1F2F3F4F5F6F7F8

    def run() -> tuple[int, ...]:
        with start(engine, text, {("h", "f"): host((V128,), (V128,), lambda v: v ^ 1)}) as instance:
            return instance.call("f", (bits, 5))

    if engine.capabilities.vectors_cross:
        assert run() == (5, bits ^ 1)
    else:
        with pytest.raises(NotSupported):
            run()


def test_references_cross_as_null_only(engine: Engine) -> None:
    if "reference-types" not in engine.capabilities.features:
        pytest.skip("the runtime has no reference types")
    text = """(module (func $f) (elem declare func $f)
      (func (export "null") (param funcref) (result funcref) local.get 0)
      (func (export "other") (result funcref) ref.func $f))"""
    with start(engine, text) as instance:
        assert instance.call("null", (0,)) == (0,)
        with pytest.raises(NotSupported):
            instance.call("null", (1,))
        with pytest.raises(NotSupported):
            instance.call("other")


_VECTORS = """(module
  (func $two (param i32) (result i32 v128) (i32.add (local.get 0) (i32.const 1)) (v128.const i64x2 3 5))
  (func (export "several results") (param i32) (result i64) (local v128)
    (call $two (local.get 0)) (local.set 1) (drop) (i64x2.extract_lane 1 (local.get 1)))
  (func (export "typed select") (param i32) (result i64) (i64x2.extract_lane 1
    (select (result v128) (v128.const i64x2 1 2) (v128.const i64x2 3 5) (local.get 0))))
  %s)"""
_TAIL_CALLS = """(type $last (func (param i32 v128 i64) (result i64))) (table funcref (elem $last))
  (func $last (type $last) (i64.add (local.get 2) (i64x2.extract_lane 1 (local.get 1))))
  (func (export "tail call") (param i32) (result i64)
    (return_call $last (i32.const 1) (v128.const i64x2 3 4) (i64.const 1)))
  (func (export "indirect tail call") (param i32) (result i64)
    (return_call_indirect (type $last) (i32.const 1) (v128.const i64x2 3 4) (i64.const 1) (i32.const 0)))"""


def test_vectors_inside_are_whole(engine: Engine) -> None:
    """Where runtimes handle values by their size, 16 bytes are easily forgotten."""
    if "simd" not in engine.capabilities.features:
        pytest.skip("the runtime has no vectors")
    tail_calls = "tail-calls" in engine.capabilities.features
    with start(engine, _VECTORS % (_TAIL_CALLS if tail_calls else "")) as instance:
        for name in ["several results", "typed select"] + ["tail call", "indirect tail call"] * tail_calls:
            assert (name, instance.call(name, (0,))) == (name, (5,))
