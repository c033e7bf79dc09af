"""Exceptions: what is caught, what nobody catches, and what no clause is for, on each runtime that has them."""

from __future__ import annotations

import pytest

from wasmckpt.errors import CheckpointError, GuestTrap
from wasmckpt.runtimes import HostFunction, traps
from wasmckpt.runtimes.base import Engine, Instance

from .guests import start, start_bounded

_TEXT = """(module (import "h" "h" (func $host)) (tag $e (param i32)) (tag $v)
  (func $throw (param i32 i32)
    (if (local.get 0) (then (call $throw (i32.sub (local.get 0) (i32.const 1)) (local.get 1))))
    (if (i32.eqz (local.get 0)) (then (throw $e (local.get 1)))))
  (func (export "throw") (param i32 i32) (call $throw (local.get 0) (local.get 1)))
  (func (export "caught") (param i32 i32) (result i32)
    (block $l (result i32) (try_table (catch $e $l) (call $throw (local.get 0) (local.get 1)))
      (return (i32.const -1))))
  (func (export "again") (param i32) (block $l (result exnref)
    (try_table (catch_all_ref $l) (call $throw (i32.const 3) (local.get 0))) return) throw_ref)
  (func (export "null") (throw_ref (ref.null exn)))
  (func (export "trap") (block $l (try_table (catch_all $l) unreachable)))
  (func (export "host") (block $l (try_table (catch_all $l) (call $host))))
  (func $deep (param i32) (result i32) (i32.add (i32.const 1) (call $deep (local.get 0))))
  (func (export "overflow") (block $l (try_table (catch_all $l) (drop (call $deep (i32.const 0))))))
  (func (export "fine") (result i32) (i32.const 42)))"""


def _fail() -> None:
    raise ZeroDivisionError


def _start(engine: Engine) -> Instance | None:
    """None: the runtime says that it has no exceptions, and refuses the module."""
    functions = {("h", "h"): HostFunction((), (), _fail)}
    if "exceptions" not in engine.capabilities.features:
        with pytest.raises(CheckpointError):
            start(engine, _TEXT, functions)
        return None
    return start_bounded(engine, _TEXT, functions)


@pytest.mark.parametrize("depth", [0, 1, 500])
def test_caught(engine: Engine, depth: int) -> None:
    if instance := _start(engine):
        with instance:
            assert instance.call("caught", (depth, 7)) == (7,)


@pytest.mark.parametrize(("export", "args", "kind"), [
    ("throw", (0, 1), traps.UNCAUGHT), ("throw", (9, 1), traps.UNCAUGHT), ("again", (5,), traps.UNCAUGHT),
    ("null", (), traps.NULL_REFERENCE), ("trap", (), traps.UNREACHABLE), ("overflow", (), traps.STACK_OVERFLOW),
])
def test_what_is_not_caught_has_its_kind(engine: Engine, export: str, args: tuple[int, ...], kind: str) -> None:
    """An exception that leaves the guest, and traps, which no clause is for. The instance goes on."""
    if instance := _start(engine):
        with instance:
            for _ in range(3):
                with pytest.raises(GuestTrap) as caught:
                    instance.call(export, args)
                assert caught.value.fields["kind"] == kind
                assert caught.value.fields["runtime"] == engine.name
                assert instance.call("fine") == (42,)


def test_a_host_functions_error_passes_through(engine: Engine) -> None:
    if instance := _start(engine):
        with instance:
            with pytest.raises(ZeroDivisionError):
                instance.call("host")
            assert instance.call("fine") == (42,)


def test_what_frames_had_taken_is_free_again(engine: Engine) -> None:
    """Whoever throws out of deep calls again and again has the same depth each time."""
    if instance := _start(engine):
        with instance:
            for _ in range(300):
                assert instance.call("caught", (900, 3)) == (3,)
            with pytest.raises(GuestTrap):
                instance.call("overflow")
            assert instance.call("caught", (900, 4)) == (4,)
