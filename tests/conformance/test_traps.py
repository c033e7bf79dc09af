"""Each kind of trap has one name on every runtime, and the instance goes on after it."""

from __future__ import annotations

import pytest

from wasmckpt.errors import GuestTrap
from wasmckpt.runtimes import traps
from wasmckpt.runtimes.base import Engine

from .guests import start, start_bounded, wat

_TEXT = """(module (memory (export "m") 1) (table 3 funcref) (type $v (func)) (type $i (func (result i32)))
  (elem (i32.const 0) $v) (elem (i32.const 2) $v)
  (func $v)
  (func (export "unreachable") unreachable)
  (func (export "div") (param i32 i32) (result i32) (i32.div_s (local.get 0) (local.get 1)))
  (func (export "rem64") (param i64 i64) (result i64) (i64.rem_u (local.get 0) (local.get 1)))
  (func (export "trunc") (param f64) (result i32) (i32.trunc_f64_s (local.get 0)))
  (func (export "load") (param i32) (result i32) (i32.load (local.get 0)))
  (func (export "store") (param i32) (i64.store offset=8 (local.get 0) (i64.const 1)))
  (func (export "indirect") (param i32) (call_indirect (type $v) (local.get 0)))
  (func (export "wrong") (param i32) (result i32) (call_indirect (type $i) (local.get 0)))
  (func $deep (export "deep") (param i32) (result i32) (i32.add (i32.const 1) (call $deep (local.get 0))))
  (func (export "fine") (result i32) (i32.const 42)))"""

_CASES = [
    ("unreachable", (), traps.UNREACHABLE),
    ("div", (1, 0), traps.DIVIDE_BY_ZERO),
    ("rem64", (1, 0), traps.DIVIDE_BY_ZERO),
    ("div", (0x80000000, 0xFFFFFFFF), traps.INTEGER_OVERFLOW),
    ("trunc", (0x7FF8000000000000,), traps.BAD_CONVERSION),
    ("trunc", (0x41F0000000000000,), traps.INTEGER_OVERFLOW),
    ("load", (65533,), traps.MEMORY_BOUNDS),
    ("load", (0xFFFFFFFF,), traps.MEMORY_BOUNDS),
    ("store", (65528,), traps.MEMORY_BOUNDS),
    ("indirect", (3,), traps.UNDEFINED_ELEMENT),
    ("indirect", (1,), traps.NULL_ELEMENT),
    ("wrong", (0,), traps.SIGNATURE),
    ("deep", (0,), traps.STACK_OVERFLOW),
]


@pytest.mark.parametrize(("export", "args", "kind"), _CASES)
def test_a_trap_has_its_kind_and_leaves_the_instance_usable(
    engine: Engine, export: str, args: tuple[int, ...], kind: str,
) -> None:
    with start_bounded(engine, _TEXT) as instance:
        for _ in range(3):
            with pytest.raises(GuestTrap) as caught:
                instance.call(export, args)
            assert caught.value.fields["kind"] == kind
            assert caught.value.fields["runtime"] == engine.name
            assert caught.value.what
            assert instance.call("fine") == (42,)


def test_a_trap_names_the_function(engine: Engine) -> None:
    with start(engine, _TEXT) as instance, pytest.raises(GuestTrap) as caught:
        instance.call("div", (1, 0))
    assert caught.value.fields.get("function") == (2 if engine.capabilities.traps_name_function else None)


def test_kinds_are_a_closed_set(engine: Engine) -> None:
    assert {kind for _, _, kind in _CASES} <= traps.KINDS


@pytest.mark.parametrize(("text", "kind"), [
    ('(module (memory 1) (data (i32.const 65536) "x"))', traps.MEMORY_BOUNDS),
    ('(module (memory 1) (data (i32.const -1) "x"))', traps.MEMORY_BOUNDS),
    ("(module (func unreachable) (start 0))", traps.UNREACHABLE),
])
def test_instantiation_traps(engine: Engine, text: str, kind: str) -> None:
    compiled = engine.compile(wat(text))
    with pytest.raises(GuestTrap) as caught:
        engine.instantiate(compiled, {})
    assert caught.value.fields["kind"] == kind


def test_a_start_function_that_recurses_without_end(engine: Engine) -> None:
    """The rewriter exports it, so what is lowered traps at the call."""
    with pytest.raises(GuestTrap) as caught:
        start_bounded(engine, "(module (func $f (call $f)) (start $f))").call("__wasmckpt_start")
    assert caught.value.fields["kind"] == traps.STACK_OVERFLOW
