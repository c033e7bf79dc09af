"""Compiled code never reaches the end of its thread's stack, however large its frames are; no function of the host is
in a table."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from wasmckpt import runtimes
from wasmckpt.errors import GuestTrap, NotSupported
from wasmckpt.instrument.instrument import instrument
from wasmckpt.runtimes import HostFunction, traps
from wasmckpt.snapshot.prepare import options_for

from ...support.tiers import by_tier, missing

_ROOT = Path(__file__).parents[3]
_NAME = "wasmedge-aot"

_OVERFLOW = """
import random, sys
from tests.conformance.guests import start_bounded
from wasmckpt import runtimes
from wasmckpt.errors import GuestTrap, NotSupported
from wasmckpt.runtimes import traps
engine = runtimes.load(sys.argv[1])
draw = random.Random(int(sys.argv[2]))
outcomes = {"overflow": 0, "refused": 0}
for _ in range(int(sys.argv[3])):
    locals_, height, after = draw.choice([0, 3, 60, 900]), draw.choice([0, 8, 90, 700]), draw.random() < 0.5
    kind = draw.choice(["i64", "f64", "v128"])
    one = {"i64": "i64.load", "f64": "f64.load", "v128": "v128.load"}[kind]
    mix = {"i64": "i64.xor", "f64": "f64.add", "v128": "v128.xor"}[kind]
    # Many values live at once: loaded before the call, folded after it (or before it), in locals and on the stack.
    loads = " ".join(f"({one} offset={16 * i} (local.get 0))" for i in range(height + 2))
    folds = " ".join([mix] * (height + 1))
    fill = " ".join(f"(local.set {i + 1} ({one} offset={16 * i} (local.get 0)))" for i in range(locals_))
    use = " ".join(f"(local.get {i + 1}) {mix}" for i in range(locals_))
    call = "(call $f (i32.and (i32.add (local.get 0) (i32.const 32)) (i32.const 0xff0)))"
    body = f"{fill} {loads} {call if after else ''} {folds} {use} {'' if after else call + ' ' + mix}"
    if after:
        body = f"{fill} {loads} {call} {mix} {folds} {use}"
    text = f'''(module (memory 2) (func $f (param i32) (result {kind}) (local {" ".join([kind] * locals_)}) {body})
      (func (export "f") (call $f (i32.const 0)) drop))'''
    for stack in (16 << 10, 512 << 10, 4 << 20):
        try:
            with start_bounded(engine, text, stack_bytes=stack) as instance:
                for _ in range(2):
                    try:
                        instance.call("f")
                        sys.exit("it ended")
                    except GuestTrap as trap:
                        assert trap.fields["kind"] == traps.STACK_OVERFLOW, trap
                        outcomes["overflow"] += 1
        except NotSupported:
            outcomes["refused"] += 1
print(outcomes)
assert outcomes["overflow"] > outcomes["refused"]
"""


@pytest.fixture(autouse=True)
def _here() -> None:
    if _NAME not in runtimes.available():
        missing("wasmedge", "WasmEdge is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(by_tier(check=1, test=2, soak=40)))
def test_endless_recursion_traps_whatever_the_frames_hold(seed: int) -> None:
    command = [*runtimes.loader(_NAME), sys.executable, "-c", _OVERFLOW, _NAME, str(seed), "8"]
    done = subprocess.run(command, cwd=_ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=280,
                          check=False)
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-2000:])


def test_a_function_of_the_host_in_a_table_is_refused_by_name() -> None:
    engine = runtimes.load(_NAME)
    text = '(module (import "e" "f" (func $f)) (func $g) (table 1 funcref) (elem (i32.const 0) {}))'
    with pytest.raises(NotSupported) as caught:
        engine.compile(bytes(wat2wasm(text.format("$f"))))
    assert caught.value.fields["need"] == "imported functions in tables"
    engine.compile(bytes(wat2wasm(text.format("$g")))).close()


@pytest.mark.slow
def test_such_a_function_is_called_through_one_of_the_modules_own() -> None:
    """Half a million calls in one activation: at 16 bytes each they would have taken the stack that there is."""
    text = """(module (type $t (func (param i32 i64) (result i64))) (import "e" "f" (func $f (type $t)))
      (table 3 funcref) (elem (i32.const 0) func $f)
      (elem (table 0) (i32.const 1) funcref (ref.null func) (ref.func $f))
      (func (export "run") (param i32) (result i64) (local i64)
        (loop $l (local.set 1 (call_indirect (type $t) (local.get 0) (local.get 1)
            (i32.shl (i32.and (local.get 0) (i32.const 1)) (i32.const 1))))
          (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
        (local.get 1)))"""
    engine = runtimes.load(_NAME)
    wasm = instrument(bytes(wat2wasm(text)), options_for(engine)).wasm
    imports = {("e", "f"): HostFunction((0x7F, 0x7E), (0x7E,), lambda n, total: total + n)}
    with engine.instantiate(engine.compile(wasm), imports, stack_bytes=64 << 10) as instance:
        assert instance.call("run", (500_000,)) == (500_000 * 500_001 // 2,)


def test_the_signals_of_faults_are_as_before() -> None:
    """With handlers of its own while it runs: a trap by a fault still comes back as one."""
    engine = runtimes.load(_NAME)
    wasm = bytes(wat2wasm('(module (memory 1) (func (export "f") (param i32) (result i32) (i32.load (local.get 0))))'))

    def handler() -> bytes:
        found = ctypes.create_string_buffer(256)
        assert ctypes.CDLL(None).sigaction(int(signal.SIGSEGV), None, found) == 0
        return found.raw[:16]  # the function and the kernel's mask; what follows is not all set

    before = handler()
    assert any(before)  # pytest's own
    with engine.instantiate(engine.compile(wasm), {}) as instance:
        assert instance.call("f", (8,)) == (0,)
        assert handler() == before
        with pytest.raises(GuestTrap) as caught:
            instance.call("f", (1 << 20,))
        assert caught.value.fields["kind"] == traps.MEMORY_BOUNDS
        assert handler() == before
