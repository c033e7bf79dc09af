"""Instances come and go without a trace."""

from __future__ import annotations

import gc
import weakref

import psutil
import pytest

from wasmckpt.errors import UsageError
from wasmckpt.runtimes.base import Engine

from .guests import I32, host, start, wat

_TEXT = """(module (import "e" "f" (func $f (param i32) (result i32))) (memory (export "m") 2)
  (global (export "g") (mut i32) (i32.const 0))
  (func (export "touch") (param i32) (result i32) (memory.fill (i32.const 0) (i32.const 7) (i32.const 131072))
    (call $f (local.get 0))))"""


def test_two_hundred_cycles_leave_the_memory_as_it_was(engine: Engine) -> None:
    process = psutil.Process()

    def cycle() -> None:
        compiled = engine.compile(wat(_TEXT))
        instance = engine.instantiate(compiled, {("e", "f"): host((I32,), (I32,), lambda n: n)}, stack_bytes=64 << 10)
        assert instance.call("touch", (3,)) == (3,)
        with pytest.raises(UsageError):
            instance.call("touch", ())
        instance.close()
        compiled.close()

    for _ in range(50):
        cycle()
    gc.collect()
    before, maps = process.memory_info(), len(process.memory_maps(grouped=False))
    for _ in range(200):
        cycle()
    gc.collect()
    after = process.memory_info()
    assert after.rss - before.rss < 4 << 20
    assert after.vms - before.vms < 1 << 30  # a memory that stays reserves 4 GiB, a thread's heap 64 MiB
    assert len(process.memory_maps(grouped=False)) - maps < 20


def test_an_instance_that_nobody_closes_is_freed(engine: Engine) -> None:
    def forget() -> weakref.ref[object]:
        instance = start(engine, _TEXT, {("e", "f"): host((I32,), (I32,), lambda n: n)})
        instance.call("touch", (1,))
        return weakref.ref(instance)

    gone = forget()
    gc.collect()
    assert gone() is None


def test_everything_after_close_is_an_error_not_a_crash(engine: Engine) -> None:
    instance = start(engine, _TEXT, {("e", "f"): host((I32,), (I32,), lambda n: n)})
    memory = instance.memory("m")
    assert instance.call("touch", (1,)) == (1,)
    instance.close()
    instance.close()
    with pytest.raises(UsageError):
        instance.call("touch", (1,))
    for attempt in (lambda: memory.size, lambda: memory.address, lambda: memory.read(0, 1),
                    lambda: instance.memory("m").size, lambda: instance.get_global("g"),
                    lambda: instance.set_global("g", 1), lambda: instance.word_address("g")):
        with pytest.raises(UsageError):
            attempt()


def test_a_refused_instance_frees_what_it_had(engine: Engine) -> None:
    from wasmckpt.runtimes.base import MissingImport

    compiled = engine.compile(wat(_TEXT))
    for _ in range(20):
        with pytest.raises(MissingImport):
            engine.instantiate(compiled, {})
    compiled.close()
