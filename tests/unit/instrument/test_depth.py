"""The depth counter: whatever way a function is left by, what it took is given back; without an end it traps."""

from __future__ import annotations

import pytest
from wasmtime import wat2wasm

from wasmckpt import runtimes
from wasmckpt.errors import GuestTrap
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.linker import PREFIX
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import traps
from wasmckpt.runtimes.base import DEPTH_EXPORT, DEPTH_OVERFLOW, Instance

_LEFT = 100_000

_BODIES = {
    "the end": "(if (result i32) (local.get 0) (then (i32.add (call 0 (i32.sub (local.get 0) (i32.const 1)))"
               " (i32.const 3))) (else (i32.const 5)))",
    "a return": "(if (local.get 0) (then (return (i32.mul (i32.const 3) (call 0 (i32.sub (local.get 0)"
                " (i32.const 1))))))) (i32.const 5)",
    "a branch out": "(block (drop (br_if 1 (i32.const 8) (i32.eqz (local.get 0))))"
                    " (drop (br_if 1 (call 0 (i32.sub (local.get 0) (i32.const 1))) (i32.const 1)))) (i32.const 7)",
    "a branch table": "(block (br_if 0 (local.get 0)) (br_table 1 1 (i32.const 9) (i32.const 0)))"
                      " (i32.add (call 0 (i32.sub (local.get 0) (i32.const 1))) (i32.const 2))",
    "a tail call": "(if (local.get 0) (then (return_call 0 (i32.sub (local.get 0) (i32.const 1))))) (i32.const 5)",
    "an indirect tail call": "(if (local.get 0) (then (return_call_indirect (type 0) (i32.sub (local.get 0)"
                             " (i32.const 1)) (i32.const 0)))) (i32.const 5)",
}


def _module(body: str) -> bytes:
    return bytes(wat2wasm(f"""(module (type (func (param i32) (result i32))) (table 1 funcref) (elem (i32.const 0) 0)
      (func (export "f") (type 0) {body}))"""))


def _start(wasm: bytes) -> Instance:
    engine = runtimes.load("wasmtime")
    return engine.instantiate(engine.compile(wasm), {})


def test_both_sides_name_the_same_export() -> None:
    assert PREFIX + "depth" == DEPTH_EXPORT


@pytest.mark.parametrize("way", _BODIES)
@pytest.mark.parametrize("unroll", [1, 4])
def test_what_was_taken_is_given_back(way: str, unroll: int) -> None:
    plain = _module(_BODIES[way])
    counted = instrument(plain, Options(depth_counter=True, tail_calls=True, unroll=unroll)).wasm
    with _start(plain) as expected, _start(counted) as instance:
        for argument in (0, 1, 2, 50):
            instance.set_global(DEPTH_EXPORT, _LEFT)
            assert instance.call("f", (argument,)) == expected.call("f", (argument,))
            assert instance.get_global(DEPTH_EXPORT) == _LEFT


@pytest.mark.parametrize("way", ["the end", "a return", "a branch out"])
def test_the_deepest_call_that_fits_and_the_next_one(way: str) -> None:
    with _start(instrument(_module(_BODIES[way]), Options(depth_counter=True)).wasm) as instance:
        kinds: set[object] = set()

        def works(depth: int) -> bool:
            instance.set_global(DEPTH_EXPORT, _LEFT)
            try:
                instance.call("f", (depth,))
            except GuestTrap as trap:
                kinds.add(trap.fields["kind"])
                assert instance.get_global(DEPTH_EXPORT) == DEPTH_OVERFLOW
                return False
            return True

        low, high = 0, _LEFT
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if works(middle) else (low, middle)
        assert _LEFT / 100 < low < _LEFT / 16  # a frame takes its return address and its locals
        assert works(low)
        assert not works(low + 1)
        assert works(0)
        assert kinds == {traps.UNREACHABLE}


def test_a_tail_call_takes_nothing() -> None:
    wasm = instrument(_module(_BODIES["a tail call"]), Options(depth_counter=True, tail_calls=True)).wasm
    with _start(wasm) as instance:
        instance.set_global(DEPTH_EXPORT, 200)
        assert instance.call("f", (1_000_000,)) == (5,)


def test_what_cannot_recurse_is_not_counted() -> None:
    wasm = bytes(wat2wasm("""(module (func $f (result i32) (i32.const 4))
      (func (export "f") (param i32) (result i32) (loop (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
        (call $f)))"""))
    with _start(instrument(wasm, Options(depth_counter=True)).wasm) as instance:
        instance.set_global(DEPTH_EXPORT, 0)
        assert instance.call("f", (5,)) == (4,)
