"""Views of linear memory, while it grows and in a forked copy of the process."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

import pytest

from wasmckpt.errors import UsageError
from wasmckpt.runtimes.base import Engine, Memory, MemoryFault

from .guests import start

_PAGE = 65536
_TEXT = """(module (memory (export "m") 1 200) (data (i32.const 10) "abc")
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
  (func (export "size") (result i32) memory.size)
  (func (export "load") (param i32) (result i32) (i32.load8_u (local.get 0)))
  (func (export "store") (param i32 i32) (i32.store8 (local.get 0) (local.get 1))))"""


def _grow_until_moved(grow: object, memory: Memory) -> bool:
    """Grows with other allocations between; whether the base moved."""
    assert callable(grow)
    first, held = memory.address, []
    for _ in range(30):
        held.append(bytearray(300_000))
        grow(5)
    return memory.address != first


def test_host_and_guest_see_the_same_bytes(engine: Engine) -> None:
    with start(engine, _TEXT) as instance:
        memory = instance.memory("m")
        assert memory.size == _PAGE
        assert memory.read(9, 5) == b"\0abc\0"
        memory.write(20, b"xyz")
        memory.write(23, memoryview(bytearray(b"!?")))
        assert instance.call("load", (24,)) == (ord("?"),)
        instance.call("store", (_PAGE - 1, 7))
        assert memory.read(_PAGE - 1, 1) == b"\x07"
        assert ctypes.string_at(memory.address + 20, 3) == b"xyz"


def test_growth_in_the_guest_is_seen_at_once(engine: Engine) -> None:
    with start(engine, _TEXT) as instance:
        memory = instance.memory("m")
        with pytest.raises(MemoryFault):
            memory.write(3 * _PAGE, b"a")
        assert instance.call("grow", (4,)) == (1,)
        assert memory.size == 5 * _PAGE
        memory.write(5 * _PAGE - 1, b"a")
        assert instance.call("load", (5 * _PAGE - 1,)) == (97,)
        assert memory.read(10, 3) == b"abc"
        assert instance.call("grow", (1000,)) == (0xFFFFFFFF,)
        assert memory.size == 5 * _PAGE
        moved = _grow_until_moved(lambda n: instance.call("grow", (n,)), memory)
        assert moved == engine.capabilities.memory_moves
        assert memory.read(10, 3) == b"abc"


@pytest.mark.parametrize(("address", "length"), [
    (_PAGE, 1), (_PAGE - 1, 2), (-1, 1), (0, -1), (0, _PAGE + 1), (1 << 64, 1), (_PAGE + 1, 0),
])
def test_access_outside_is_a_fault(engine: Engine, address: int, length: int) -> None:
    with start(engine, _TEXT) as instance:
        memory = instance.memory("m")
        with pytest.raises(MemoryFault) as caught:
            memory.read(address, length)
        assert isinstance(caught.value, IndexError)
        if length >= 0:
            with pytest.raises(MemoryFault):
                memory.write(address, bytes(length))
        assert memory.read(_PAGE, 0) == b""
        memory.write(_PAGE, b"")


def test_a_memory_without_pages(engine: Engine) -> None:
    with start(engine, '(module (memory (export "m") 0 0) (func (export "g") (result i32) '
                       "(memory.grow (i32.const 1))))") as instance:
        memory = instance.memory("m")
        assert memory.size == 0
        assert memory.read(0, 0) == b""
        assert instance.call("g") == (0xFFFFFFFF,)


def test_unknown_memory(engine: Engine) -> None:
    with start(engine, _TEXT) as instance:
        for name in ("n", "grow"):
            with pytest.raises(UsageError):
                instance.memory(name)
            with pytest.raises(UsageError):
                instance.memory_locator(name)


def test_the_locator_follows_growth(engine: Engine) -> None:
    with start(engine, _TEXT) as instance:
        memory = instance.memory("m")
        locator = instance.memory_locator("m")
        for grown in (0, 1, 7, 100):
            instance.call("grow", (grown,))
            assert locator.resolve(ctypes.string_at) == (memory.address, memory.size)


def test_the_locator_finds_the_memory_of_a_forked_copy_that_went_on(engine: Engine) -> None:
    with start(engine, _TEXT, stack_bytes=64 * 1024) as instance:
        locator = instance.memory_locator("m")
        reader, writer = os.pipe()
        child = os.fork()
        if not child:  # the copy goes on: it grows its memory and marks the new end
            try:
                instance.call("grow", (99,))
                instance.call("store", (100 * _PAGE - 1, 77))
                os.write(writer, b"!")
                signal.pause()
            finally:
                os._exit(1)
        try:
            os.close(writer)
            assert os.read(reader, 1) == b"!"
            with open(f"/proc/{child}/mem", "rb", buffering=0) as mem:

                def read(address: int, n: int) -> bytes:
                    mem.seek(address)
                    return mem.read(n)

                base, length = locator.resolve(read)
                assert length == 100 * _PAGE
                assert read(base + length - 1, 1) == b"\x4d"
                assert read(base + 10, 3) == b"abc"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reader)
        assert instance.memory("m").size == _PAGE


def test_the_right_one_of_two_memories(engine: Engine) -> None:
    if "multi-memory" not in engine.capabilities.features:
        pytest.skip("the runtime has one memory only")
    with start(engine, '(module (memory (export "a") 1) (memory (export "b") 1) (func (export "g") (result i32) '
                       "(memory.grow 1 (i32.const 2))))") as instance:
        instance.memory("a").write(0, b"A")
        instance.memory("b").write(0, b"B")
        first, second = instance.memory_locator("a"), instance.memory_locator("b")
        instance.call("g")
        assert first.resolve(ctypes.string_at) == (instance.memory("a").address, _PAGE)
        assert second.resolve(ctypes.string_at) == (instance.memory("b").address, 3 * _PAGE)
        assert (instance.memory("a").read(0, 1), instance.memory("b").read(0, 1)) == (b"A", b"B")


@pytest.mark.slow
def test_the_largest_memory_is_the_declared_one(engine: Engine) -> None:
    most = engine.capabilities.max_memory_pages
    with start(engine, '(module (memory (export "m") 0) (func (export "g") (param i32) (result i32) '
                       "(memory.grow (local.get 0))))") as instance:
        if not engine.capabilities.memory_moves:  # where memory is reserved, not touched
            assert instance.call("g", (most,)) == (0,)
            assert instance.memory("m").size == most * _PAGE
            assert instance.memory("m").read(most * _PAGE - 1, 1) == b"\0"
        assert instance.call("g", (most + 1,)) == (0xFFFFFFFF,)


def test_the_extent_may_be_asked_for_while_the_guest_grows(engine: Engine) -> None:
    """A tracker does. Where memory moves, what lay at the old address is no longer mapped."""
    with start(engine, """(module (memory (export "m") 64 4000)
      (func (export "grow") (loop (br_if 0 (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))))""") as instance:
        memory, seen = instance.memory("m"), set()
        guest = threading.Thread(target=instance.call, args=("grow", ()))
        guest.start()
        while guest.is_alive():
            seen.add(memory.extent())
        assert all(size % _PAGE == 0 and 64 * _PAGE <= size <= 4000 * _PAGE for _, size in seen)
        assert memory.size == 4000 * _PAGE
