"""Host functions: exceptions come back as themselves, exports may be called again from inside."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from wasmckpt.errors import GuestTrap, UsageError
from wasmckpt.runtimes import traps
from wasmckpt.runtimes.base import Engine, Instance

from .guests import I32, I64, host, start, start_bounded

_TEXT = """(module (import "h" "f" (func $f (param i32) (result i32)))
  (memory (export "m") 1 20)
  (func (export "f") (param i32) (result i32) (i32.add (i32.const 1) (call $f (local.get 0))))
  (func (export "twice") (param i32) (result i32) (i32.add (call $f (local.get 0)) (call $f (local.get 0))))
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
  (func (export "many") (param i64 i64 i64 i64 i64 i64 i64 i64) (result i64) local.get 7)
  (func (export "trap") unreachable)
  (func $deep (export "deep") (param i32) (result i32)
    (if (result i32) (local.get 0) (then (i32.add (i32.const 1) (call $deep (i32.sub (local.get 0) (i32.const 1)))))
      (else (call $f (i32.const 0)))))
  (func $over (export "overflow") (result i32) (i32.add (i32.const 1) (call $over))))"""


class Stop(BaseException):
    """Not even an Exception: what a signal handler may raise."""


@pytest.mark.parametrize("problem", [Stop("now"), RuntimeError("no"), SystemExit(3), KeyboardInterrupt()])
def test_the_same_exception_object_comes_back(engine: Engine, problem: BaseException) -> None:
    def fail(_: int) -> int:
        raise problem

    with start(engine, _TEXT, {("h", "f"): host((I32,), (I32,), fail)}) as instance:
        for _ in range(2):
            with pytest.raises(type(problem)) as caught:
                instance.call("f", (1,))
            assert caught.value is problem
        with pytest.raises(GuestTrap) as trap:
            instance.call("trap")
        assert trap.value.fields["kind"] == traps.UNREACHABLE


@pytest.mark.parametrize("bad", [None, (1, 2), -1, 1 << 32, "1", 1.0, ()])
def test_results_that_do_not_fit_are_an_error_not_a_value(engine: Engine, bad: object) -> None:
    def give(_: int) -> Any:
        return bad

    with start(engine, _TEXT, {("h", "f"): host((I32,), (I32,), give)}) as instance, pytest.raises(UsageError):
        instance.call("f", (1,))


def test_a_result_where_none_is_wanted_is_an_error(engine: Engine) -> None:
    text = '(module (import "h" "f" (func $f)) (func (export "f") call $f))'
    with start(engine, text, {("h", "f"): host((), (), lambda: 1)}) as instance, pytest.raises(UsageError):
        instance.call("f")


def test_fifty_levels_of_host_calls_guest_calls_host(engine: Engine) -> None:
    instances: list[Instance] = []

    def again(n: int) -> int:
        return instances[0].call("f", (n - 1,))[0] if n else 100

    with start(engine, _TEXT, {("h", "f"): host((I32,), (I32,), again)}) as instance:
        instances.append(instance)
        assert instance.call("f", (50,)) == (151,)
        assert instance.call("twice", (1,)) == (202,)
        instances.clear()


def test_a_nested_trap_and_a_nested_exception_can_be_caught(engine: Engine) -> None:
    instances: list[Instance] = []
    problem = RuntimeError("inner")

    def catch(n: int) -> int:
        if n == 2:
            raise problem
        inner = "trap" if n == 0 else "f"
        with pytest.raises((GuestTrap, RuntimeError)) as caught:
            instances[0].call(inner, () if n == 0 else (2,))
        assert n == 0 or caught.value is problem
        return 10 + n

    with start(engine, _TEXT, {("h", "f"): host((I32,), (I32,), catch)}) as instance:
        instances.append(instance)
        assert instance.call("f", (0,)) == (11,)
        assert instance.call("f", (1,)) == (12,)
        assert instance.call("twice", (1,)) == (22,)
        instances.clear()


def test_memory_that_grows_in_a_nested_call_leaves_the_stack_limit_right(engine: Engine) -> None:
    instances: list[Instance] = []

    def grow(_: int) -> int:
        return instances[0].call("grow", (2,))[0]

    with start_bounded(engine, _TEXT, {("h", "f"): host((I32,), (I32,), grow)}, 64 * 1024) as instance:
        instances.append(instance)
        assert instance.call("deep", (300,)) == (301,)
        assert instance.memory("m").size == 3 * 65536
        for _ in range(3):
            with pytest.raises(GuestTrap) as caught:
                instance.call("overflow")
            assert caught.value.fields["kind"] == traps.STACK_OVERFLOW
        instances.clear()


def test_a_nested_call_at_the_end_of_the_stack_traps_and_nothing_else(engine: Engine) -> None:
    instances: list[Instance] = []
    outcomes: set[str] = set()

    def many(_: int) -> int:
        try:
            assert instances[0].call("many", (1, 2, 3, 4, 5, 6, 7, 8)) == (8,)
            outcomes.add("ok")
        except GuestTrap as trap:
            outcomes.add(str(trap.fields["kind"]))
        return 0

    with start_bounded(engine, _TEXT, {("h", "f"): host((I32,), (I32,), many)}, 16 * 1024) as instance:
        instances.append(instance)
        low, high = 0, 100_000
        kinds: set[object] = set()
        while high - low > 1:  # the deepest call that works
            middle = (low + high) // 2
            try:
                instance.call("deep", (middle,))
                low = middle
            except GuestTrap as trap:
                kinds.add(trap.fields["kind"])
                high = middle
        for depth in range(low - 30, low + 1):
            instance.call("deep", (depth,))
        assert kinds == {traps.STACK_OVERFLOW}
        assert outcomes <= {"ok", traps.STACK_OVERFLOW}
        assert "ok" in outcomes
        instances.clear()


def test_a_second_thread_is_refused_while_the_guest_runs(engine: Engine) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait(n: int) -> int:
        inside.set()
        assert go_on.wait(60)
        return n

    with start(engine, _TEXT, {("h", "f"): host((I32,), (I32,), wait)}) as instance:
        results: list[tuple[int, ...]] = []
        thread = threading.Thread(target=lambda: results.append(instance.call("f", (5,))))
        thread.start()
        assert inside.wait(60)
        try:
            with pytest.raises(UsageError, match="another thread"):
                instance.call("grow", (0,))
            with pytest.raises(UsageError, match="running"):
                instance.close()
        finally:
            go_on.set()
            thread.join()
        assert results == [(6,)]
        assert instance.call("grow", (0,)) == (1,)


def test_odd_import_names_and_the_same_import_twice(engine: Engine) -> None:
    text = """(module
      (import "" "" (func $a (result i64))) (import "" "" (func $b (result i64)))
      (import "*" "gr\\c3\\bc\\c3\\9fe \\22\\00x" (func $c (result i64)))
      (import "env" "f" (func $d (result i64)))
      (func (export "all") (result i64 i64 i64 i64) call $a call $b call $c call $d))"""
    imports = {
        ("", ""): host((), (I64,), lambda: 1),
        ("*", 'grüße "\0x'): host((), (I64,), lambda: 2),
        ("env", "f"): host((), (I64,), lambda: 3),
    }
    with start(engine, text, imports) as instance:
        assert instance.call("all") == (1, 1, 2, 3)
