"""The guest meets its own limit, never the thread's end."""

from __future__ import annotations

import threading

import pytest

from wasmckpt.errors import GuestTrap, UsageError
from wasmckpt.runtimes import traps
from wasmckpt.runtimes.base import Engine, Instance
from wasmckpt.runtimes.threads import GuestThread, current_stack_bytes, run_in_guest_thread

from .guests import start_bounded

_TEXT = """(module
  (func $f (export "f") (param i32) (result i32)
    (if (result i32) (i32.eqz (local.get 0)) (then (i32.const 0))
      (else (i32.add (i32.const 1) (call $f (i32.sub (local.get 0) (i32.const 1)))))))
  (func $wide (export "wide") (param i32) (result i64) (local i64 i64 i64 i64 i64 i64 i64 i64)
    (local.set 1 (i64.extend_i32_u (local.get 0)))
    (i64.add (local.get 1) (call $wide (i32.add (local.get 0) (i32.const 1))))))"""


def _overflows(instance: Instance, export: str) -> bool:
    with pytest.raises(GuestTrap) as caught:
        instance.call(export, (0xFFFFFFFF,))
    return caught.value.fields["kind"] == traps.STACK_OVERFLOW


def _depth(instance: Instance) -> int:
    low, high = 1, 1 << 24
    while high - low > max(low // 100, 1):
        middle = (low + high) // 2
        try:
            assert instance.call("f", (middle,)) == (middle,)
            low = middle
        except GuestTrap:
            high = middle
    return low


@pytest.mark.parametrize("stack_bytes", [16 << 10, 64 << 10, 512 << 10, 4 << 20])
def test_deep_recursion_traps_in_any_thread(engine: Engine, stack_bytes: int) -> None:
    with start_bounded(engine, _TEXT, stack_bytes=stack_bytes) as instance:
        assert all(_overflows(instance, export) for export in ("f", "wide"))  # this thread: perhaps too small
        assert run_in_guest_thread(lambda: _overflows(instance, "f"), stack_bytes=128 << 10)  # certainly too small
        large = engine.thread_stack_bytes(stack_bytes)
        assert run_in_guest_thread(lambda: _overflows(instance, "wide"), stack_bytes=large)
        assert instance.call("f", (50,)) == (50,)


def test_a_larger_stack_holds_more(engine: Engine) -> None:
    depths = []
    for stack_bytes in (64 << 10, 256 << 10, 1 << 20):
        with start_bounded(engine, _TEXT, stack_bytes=stack_bytes) as instance:
            depths.append(run_in_guest_thread(lambda i=instance: _depth(i),  # type: ignore[misc]
                                              stack_bytes=engine.thread_stack_bytes(stack_bytes)))
    assert depths[1] > 3 * depths[0]
    assert depths[2] > 3 * depths[1]


@pytest.mark.slow
def test_a_stack_of_16_mib(engine: Engine) -> None:
    with start_bounded(engine, _TEXT, stack_bytes=16 << 20) as instance:
        assert instance.call("f", (500_000,)) == (500_000,)
        assert _overflows(instance, "f")
        assert _overflows(instance, "wide")


@pytest.mark.parametrize("stack_bytes", [0, -1, 1000, 1 << 40])
def test_stack_sizes_that_make_no_sense(engine: Engine, stack_bytes: int) -> None:
    with pytest.raises(UsageError):
        start_bounded(engine, _TEXT, stack_bytes=stack_bytes)


def test_a_guest_thread_has_its_stack_and_gives_its_outcome() -> None:
    before = threading.stack_size()
    size = run_in_guest_thread(current_stack_bytes, stack_bytes=48 << 20)
    assert 48 << 20 <= size < 50 << 20
    assert threading.stack_size() == before
    problem = KeyError("x")

    def fail() -> None:
        raise problem

    thread = GuestThread(fail, stack_bytes=1 << 20)
    assert thread.native_id > 0
    assert thread.join(60)
    assert not thread.alive
    with pytest.raises(KeyError) as caught:
        thread.result()
    assert caught.value is problem


def test_a_stack_that_no_thread_can_have() -> None:
    with pytest.raises(UsageError):
        run_in_guest_thread(lambda: None, stack_bytes=1 << 50)


def test_other_threads_do_not_get_its_stack() -> None:
    """Started at the same time: the size is a setting of the whole process for a moment."""
    sizes: list[int] = []
    over = threading.Event()

    def others() -> None:
        while not over.is_set():
            thread = threading.Thread(target=lambda: sizes.append(current_stack_bytes()))
            thread.start()
            thread.join()

    starter = threading.Thread(target=others)
    starter.start()
    try:
        turns = 0
        while turns < 300 or len(sizes) <= 50:  # on a busy machine the other one gets few turns
            run_in_guest_thread(lambda: None, stack_bytes=96 << 20)
            turns += 1
    finally:
        over.set()
        starter.join()
    assert max(sizes) < 96 << 20
