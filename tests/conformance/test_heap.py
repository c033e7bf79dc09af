"""No runtime writes where it must not: whole processes with the C library's checks of its heap on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wasmckpt.runtimes import loader
from wasmckpt.runtimes.base import Engine

_ROOT = Path(__file__).parents[2]
_CHECKED = {
    "GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.perturb=165:glibc.malloc.mmap_threshold=1073741824",
    "LD_PRELOAD": "libc_malloc_debug.so.0",  # has the checks since glibc 2.34
    "PYTHONMALLOC": "malloc",
}

_PLANTED = """
import ctypes
block = bytearray(99)
inside = (ctypes.c_char * 99).from_buffer(block)
at = ctypes.addressof(inside)
del inside
ctypes.memset(at + 99, 0x5A, 9)
del block
"""

_GARBAGE = """
import gc, sys
from tests.conformance.guests import I32, host, start
from wasmckpt import runtimes
from wasmckpt.runtimes.handle import Handle
engine = runtimes.load(sys.argv[1])
TEXT = '''(module (import "e" "f" (func $f (param i32) (result i32)))
  (func (export "run") (param i32) (result i32) (call $f (local.get 0))))'''
SIZES = range(40, 257, 8)  # of objects, 33 of them beside the contents
blocks, finalize = [], Handle.__del__
def finalize_and_take_what_was_freed(handle):
    finalize(handle)
    blocks.extend(b"A" * (size - 33) for size in SIZES for _ in range(8))
Handle.__del__ = finalize_and_take_what_was_freed
def forget():
    cycle = []
    instance = start(engine, TEXT, {("e", "f"): host((I32,), (I32,), lambda n: n + len(cycle))})
    cycle.append(instance)
    assert instance.call("run", (1,)) == (2,)
for _ in range(8):
    forget()
    gc.collect()
    assert blocks
    assert all(block.count(b"A") == len(block) for block in blocks), "somebody wrote into freed memory"
    blocks.clear()
"""

_ARGUMENTS = """
import sys
from tests.conformance.guests import start, start_bounded
from wasmckpt import runtimes
from wasmckpt.errors import GuestTrap
engine = runtimes.load(sys.argv[1])
for n in (5, 100, 400):
    params, values = " ".join(["i64"] * n), "(i64.const -1) " * n
    text = f'''(module (type $t (func (param {params}))) (table 1 funcref) (elem (i32.const 0) $f)
      (func $f (export "f") (param {params}) {"".join(f"(local.get {i})" for i in range(n))} (call $f))
      (func $g (export "g") (call $f {values}) (call $g)) (func $h (export "h") (call $h) (call $f {values}))
      (func $i (export "i") (param i32) (call $i (local.get 0)) (call_indirect (type $t) {values} (i32.const 0))))'''
    for stack in range(64 << 10, 72 << 10, 1040):
        with start_bounded(engine, text, stack_bytes=stack) as instance:
            for name, arguments in (("f", [2**64 - 1] * n), ("g", ()), ("h", ()), ("i", (1,))):
                try:
                    instance.call(name, arguments)
                    sys.exit("endless recursion ended")
                except GuestTrap as trap:
                    assert trap.fields["kind"] == "stack overflow", trap
if sys.argv[1] == "wasm3":  # more arguments than its stack has room for
    text = f'(module (func (export "f") (param {"i64 " * 900})))'
    with start(engine, text, stack_bytes=4096) as instance:
        try:
            instance.call("f", [2**64 - 1] * 900)
            sys.exit("did not overflow")
        except GuestTrap:
            pass
"""


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*(loader(arguments[0]) if arguments else ()), sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=_ROOT, env={**os.environ, **_CHECKED}, capture_output=True, text=True,
                          timeout=240, check=False)


@pytest.fixture(scope="module", autouse=True)
def _checks_work() -> None:
    if _run(_PLANTED).returncode >= 0:
        pytest.skip("this C library does not check its heap")


@pytest.mark.parametrize("program", [
    pytest.param(_GARBAGE, id="instances that are garbage together with what they consist of"),
    pytest.param(_ARGUMENTS, id="arguments at the end of the stack"),
])
def test_the_heap_stays_whole(engine: Engine, program: str) -> None:
    done = _run(program, engine.name)
    assert done.returncode == 0, done.stderr[-2000:]
