"""A probe for each feature that an adapter may declare: declared means it runs and gives the right answer, not declared
means it does not. Wrong either way fails."""

from __future__ import annotations

import pytest

from wasmckpt.errors import CheckpointError
from wasmckpt.runtimes.base import Engine

from .guests import start

_PROBES: dict[str, tuple[str, int]] = {
    "multi-value": ("""(func $two (result i32 i64) (i32.const 3) (i64.const 4))
        (func (export "f") (result i32) (local i64) call $two local.set 0 (i32.wrap_i64 (local.get 0)) i32.add)""", 7),
    "sign-extension": ("""(func (export "f") (result i32) (i32.extend8_s (i32.const 0xff)))""", 0xFFFFFFFF),
    "saturating-conversions": (
        """(func (export "f") (result i32) (i32.trunc_sat_f64_s (f64.const 1e99)))""", 0x7FFFFFFF),
    "mutable-globals": ("""(global $g (export "g") (mut i32) (i32.const 5)) (func (export "f") (result i32)
        (global.set $g (i32.const 6)) (global.get $g))""", 6),
    "memory-copy-fill": ("""(memory 1) (func (export "f") (result i32)
        (memory.fill (i32.const 0) (i32.const 9) (i32.const 4))
        (memory.copy (i32.const 3) (i32.const 0) (i32.const 4)) (i32.load8_u (i32.const 6)))""", 9),
    "bulk-memory": ("""(memory 1) (table 2 funcref) (data $d "\\11\\22") (elem $e func $x $x)
        (func $x (result i32) (i32.const 1))
        (func (export "f") (result i32) (memory.init $d (i32.const 4) (i32.const 1) (i32.const 1)) (data.drop $d)
        (table.init $e (i32.const 0) (i32.const 0) (i32.const 2)) (elem.drop $e)
        (table.copy (i32.const 0) (i32.const 1) (i32.const 1))
        (i32.add (call_indirect (result i32) (i32.const 0)) (i32.load8_u (i32.const 4))))""", 0x23),
    "reference-types": ("""(table $t 1 funcref) (table $u 3 externref) (func $x (result i32) (i32.const 8))
        (elem declare func $x)
        (func (export "f") (result i32) (local funcref) (local.set 0 (ref.func $x))
        (drop (table.grow $t (local.get 0) (i32.const 2))) (table.set $t (i32.const 0) (local.get 0))
        (i32.add (call_indirect $t (result i32) (i32.const 2))
          (i32.add (table.size $t) (ref.is_null (table.get $u (i32.const 0))))))""", 12),
    "simd": ("""(func (export "f") (result i32)
        (i32x4.extract_lane 2 (i32x4.add (v128.const i32x4 1 2 3 4) (i32x4.splat (i32.const 10)))))""", 13),
    "multi-memory": ("""(memory $a 1) (memory $b 1) (func (export "f") (result i32)
        (i32.store $b (i32.const 0) (i32.const 5))
        (memory.copy $a $b (i32.const 8) (i32.const 0) (i32.const 4))
        (i32.add (i32.load $a (i32.const 8)) (i32.load $a (i32.const 0))))""", 5),
    "tail-calls": ("""(func $n (param i32) (result i32) (if (result i32) (local.get 0)
        (then (return_call $n (i32.sub (local.get 0) (i32.const 1)))) (else (i32.const 77))))
        (func (export "f") (result i32) (return_call $n (i32.const 1000000)))""", 77),
    "extended-const": ("""(global $g i32 (i32.add (i32.const 40) (i32.mul (i32.const 1) (i32.const 2))))
        (func (export "f") (result i32) (global.get $g))""", 42),
    "exceptions": ("""(tag $e (param i32 i64)) (tag $f) (func $throw (throw $e (i32.const 5) (i64.const 6)))
        (func (export "f") (result i32) (local i64) (block $m
        (block $l (result i32 i64 exnref) (try_table (catch $f $m) (catch_ref $e $l) (call $throw)) unreachable)
        drop local.set 0 (return (i32.mul (i32.wrap_i64 (local.get 0))))) (i32.const 0))""", 30),
    "atomics": ("""(memory 1) (func (export "f") (result i32) (i32.atomic.store (i32.const 8) (i32.const 3))
        (drop (i32.atomic.rmw.add (i32.const 8) (i32.const 4))) (i32.atomic.load (i32.const 8)))""", 7),
}


def test_each_declared_feature_has_a_probe(engine: Engine) -> None:
    assert engine.capabilities.features <= _PROBES.keys()


@pytest.mark.parametrize("feature", _PROBES)
def test_what_is_declared_works_and_what_is_not_does_not(engine: Engine, feature: str) -> None:
    text, answer = _PROBES[feature]
    try:
        with start(engine, f"(module {text})") as instance:
            works = instance.call("f") == (answer,)
    except CheckpointError:
        works = False
    assert works == (feature in engine.capabilities.features)


def test_the_declared_number_of_slots(engine: Engine) -> None:
    slots = engine.capabilities.max_slots or 40_000
    text = f'(module (func (export "f") (result i64) (local {"i64 " * (slots - 10)}) (local.get {slots - 20})))'
    with start(engine, text) as instance:
        assert instance.call("f") == (0,)


def test_a_signature_of_declared_length(engine: Engine) -> None:
    params = min(engine.capabilities.max_params, 900)
    with start(engine, f'(module (func (export "f") (param {"i32 " * params}) (result i32) (local.get {params - 1})))',
               ) as instance:
        assert instance.call("f", tuple(range(params))) == (params - 1,)
