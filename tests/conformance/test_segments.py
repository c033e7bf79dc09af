"""The table and its element segments, as instantiation and indirect calls see them."""

from __future__ import annotations

import pytest

from wasmckpt.errors import GuestTrap
from wasmckpt.runtimes import traps
from wasmckpt.runtimes.base import Engine, HostGlobal

from .guests import I32, start

_CALL = """(type $t (func (result i32))) (import "e" "at" (global $at i32)) (func $seven (result i32) (i32.const 7))
  (func (export "at") (param i32) (result i32) (call_indirect (type $t) (local.get 0)))"""


def _module(table: str, at: int = 0) -> tuple[str, dict[tuple[str, str], HostGlobal]]:
    return f"(module {_CALL} {table})", {("e", "at"): HostGlobal(I32, False, at)}


@pytest.mark.parametrize(("table", "at"), [
    ("(table 2 funcref) (elem (i32.const 1) $seven $seven)", 0),
    ("(table 2 3 funcref) (elem (i32.const 0) $seven) (elem (i32.const 3))", 0),
    ("(table 2 funcref) (elem (i32.const -1) $seven)", 0),
    ("(table 0 funcref) (elem (i32.const 0) $seven)", 0),
    ("(table 2 funcref) (elem (global.get $at) $seven)", 2),
    ("(table 2 funcref) (elem (global.get $at) $seven)", 0xFFFF_FFFF),
    ("(table 2 funcref) (elem (global.get $at) $seven)", 0x8000_0000),
])
def test_a_segment_past_the_end_traps(engine: Engine, table: str, at: int) -> None:
    with pytest.raises(GuestTrap) as caught:
        start(engine, *_module(table, at))
    assert caught.value.fields["kind"] == traps.UNDEFINED_ELEMENT


@pytest.mark.parametrize(("table", "at", "filled", "size"), [
    ("(table 5 funcref)", 0, set(), 5),
    ("(table 5 funcref) (elem (i32.const 1) $seven)", 0, {1}, 5),
    ("(table 5 9 funcref) (elem (i32.const 4) $seven) (elem (i32.const 5)) (elem (i32.const 0))", 0, {4}, 5),
    ("(table 5 funcref) (elem (global.get $at) $seven $seven)", 3, {3, 4}, 5),
    ("(table 0 funcref)", 0, set(), 0),
    ("(table 0 funcref) (elem (i32.const 0))", 0, set(), 0),
    ("(table 100000 funcref) (elem (i32.const 99999) $seven)", 0, {99_999}, 100_000),
], ids=str)
def test_every_slot_is_a_function_null_or_not_there(engine: Engine, table: str, at: int, filled: set[int],
                                                    size: int) -> None:
    with start(engine, *_module(table, at)) as instance:
        for index in [*range(min(size, 6)), max(size - 1, 0), size, size + 1, 0x7FFF_FFFF, 0xFFFF_FFFF]:
            if index in filled:
                assert instance.call("at", (index,)) == (7,)
                continue
            with pytest.raises(GuestTrap) as caught:
                instance.call("at", (index,))
            assert caught.value.fields["kind"] == (traps.NULL_ELEMENT if index < size else traps.UNDEFINED_ELEMENT)
