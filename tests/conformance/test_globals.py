"""Exported globals, and the word that stops a running guest."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from wasmckpt.errors import UsageError
from wasmckpt.runtimes.base import Engine, HostGlobal

from .guests import F32, F64, I32, I64, SNAN32, SNAN64, start

_TEXT = """(module
  (global $a (export "i32") (export "again") (mut i32) (i32.const -1)) (global (export "i64") (mut i64) (i64.const -2))
  (global (export "f32") (mut f32) (f32.const 1)) (global (export "f64") (mut f64) (f64.const 1))
  (global (export "fixed") i32 (i32.const 5))
  (func (export "get") (result i32) (global.get $a))
  (func (export "set") (param i32) (global.set $a (local.get 0))))"""


def test_globals_are_read_and_set_as_bits(engine: Engine) -> None:
    with start(engine, _TEXT) as instance:
        assert instance.get_global("i32") == 0xFFFFFFFF
        assert instance.get_global("i64") == 0xFFFFFFFFFFFFFFFE
        for name, bits in (("i32", 0x80000001), ("i64", 1 << 63), ("f32", SNAN32), ("f64", SNAN64)):
            instance.set_global(name, bits)
            assert instance.get_global(name) == bits
        assert instance.get_global("again") == 0x80000001
        assert instance.call("get") == (0x80000001,)
        instance.call("set", (3,))
        assert instance.get_global("i32") == 3
        assert instance.get_global("fixed") == 5


def test_what_cannot_be_set(engine: Engine) -> None:
    with start(engine, _TEXT) as instance:
        for name, bits in (("fixed", 1), ("i32", 1 << 32), ("i32", -1), ("none", 0), ("get", 0)):
            with pytest.raises(UsageError):
                instance.set_global(name, bits)
        assert instance.get_global("fixed") == 5


def test_imported_globals_have_their_value_before_anything_is_initialised(engine: Engine) -> None:
    text = """(module (import "e" "at" (global $at i32)) (import "e" "m" (global $m (mut i64)))
      (import "e" "f" (global $f f32)) (import "e" "d" (global $d (mut f64)))
      (global (export "copy") i32 (global.get $at)) (export "m" (global $m)) (export "f" (global $f))
      (export "d" (global $d))
      (memory (export "mem") 1) (data (global.get $at) "here"))"""
    imports = {
        ("e", "at"): HostGlobal(I32, False, 300), ("e", "m"): HostGlobal(I64, True, (1 << 64) - 5),
        ("e", "f"): HostGlobal(F32, False, SNAN32), ("e", "d"): HostGlobal(F64, True, SNAN64),
    }
    with start(engine, text, imports) as instance:
        assert instance.get_global("copy") == 300
        assert instance.memory("mem").read(300, 4) == b"here"
        assert instance.get_global("m") == (1 << 64) - 5
        assert instance.get_global("f") == SNAN32
        assert instance.get_global("d") == SNAN64
        instance.set_global("m", 4)
        assert instance.get_global("m") == 4


def test_the_word_that_the_poll_reads_stops_a_running_guest(engine: Engine) -> None:
    """The GIL is free during a run, and a store from another thread is seen in the innermost loop."""
    if engine.capabilities.poll == "global":
        text = """(module (global $w (export "word") (mut i32) (i32.const 0))
          (func (export "run") (result i64) (local i64)
            (loop $l (local.set 0 (i64.add (local.get 0) (i64.const 1)))
              (br_if $l (i32.eqz (global.get $w)))) local.get 0))"""
    else:
        text = """(module (memory (export "m") 1) (memory $c (export "control") 1)
          (func (export "run") (result i64) (local i64)
            (loop $l (local.set 0 (i64.add (local.get 0) (i64.const 1)))
              (br_if $l (i32.eqz (i32.atomic.load $c (i32.const 8))))) local.get 0))"""
    with start(engine, text) as instance:
        word = instance.word_address("word") if engine.capabilities.poll == "global" else \
            instance.memory("control").address + 8
        turns: list[int] = []
        thread = threading.Thread(target=lambda: turns.extend(instance.call("run")))
        spent, until = time.process_time(), time.monotonic() + 60
        thread.start()
        while time.process_time() < spent + 0.1 and time.monotonic() < until:  # this thread runs beside the guest
            time.sleep(0.005)
        assert thread.is_alive()
        ctypes.c_uint32.from_address(word).value = 1
        raised = time.monotonic()
        thread.join(60)
        assert not thread.is_alive()
        assert time.monotonic() - raised < 5
        assert turns[0] > 100_000


def test_a_word_address_is_the_global_itself(engine: Engine) -> None:
    with start(engine, _TEXT) as instance:
        if engine.capabilities.poll != "global":
            with pytest.raises(UsageError):
                instance.word_address("i32")
            return
        for name, kind in (("i32", ctypes.c_uint32), ("i64", ctypes.c_uint64)):
            word = kind.from_address(instance.word_address(name))
            instance.set_global(name, 0x12345678)
            assert word.value == 0x12345678
            word.value = 0x9ABCDEF0
            assert instance.get_global(name) == 0x9ABCDEF0
        assert instance.call("get") == (0x9ABCDEF0,)
        for name in ("f32", "fixed", "none"):
            with pytest.raises(UsageError):
                instance.word_address(name)
