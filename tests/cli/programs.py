"""Small programs for tests of the command line and of workers, as text, so that no C compiler is needed."""

from __future__ import annotations

import functools

import wasmtime

__all__ = [
    "CAT", "COUNT", "FILLS", "FOREVER", "TRAPS", "count_result", "exits", "talk", "talk_output", "wat",
]

_WRITE = '(import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))'


@functools.cache
def wat(text: str) -> bytes:
    """A module from its text."""
    return bytes(wasmtime.wat2wasm(text))


COUNT = """(module
  (func $mix (param $sum i32) (param $i i32) (result i32)
    (i32.add (i32.mul (local.get $sum) (i32.const 31)) (local.get $i)))
  (func (export "run") (param $n i32) (result i32) (local $i i32) (local $sum i32)
    (loop $next
      (local.set $sum (call $mix (local.get $sum) (local.get $i)))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $i) (local.get $n))))
    (local.get $sum))
  (func (export "swap") (param i64 f32) (result f32 i64) (local.get 1) (local.get 0)))"""
"""``run(n)`` mixes n numbers; ``swap`` gives its arguments back."""

FOREVER = """(module
  (memory (export "memory") 1)
  (func (export "_start") (local $i i32)
    (loop $next
      (i32.store (i32.const 8) (local.tee $i (i32.add (local.get $i) (i32.const 1))))
      (br $next))))"""
"""Runs until it is stopped."""

TRAPS = """(module
  (memory (export "memory") 1)
  (func $inner unreachable)
  (func (export "_start") (call $inner)))"""

CAT = """(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  WRITE
  (memory (export "memory") 1)
  (func (export "_start")
    (loop $next
      (i32.store (i32.const 0) (i32.const 64))
      (i32.store (i32.const 4) (i32.const 1000))
      (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then (unreachable)))
      (if (i32.load (i32.const 8))
        (then
          (i32.store (i32.const 4) (i32.load (i32.const 8)))
          (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 12)))
          (br $next))))))""".replace("WRITE", _WRITE)
"""Copies standard input to standard output, waiting for it."""

FILLS = f"""(module
  (memory (export "memory") 2048)
  (func (export "_start")
    {" ".join(f"(memory.fill (i32.const 0) (i32.const {i}) (i32.const 0x8000000))" for i in range(80))}
    (if (i32.ne (i32.load8_u (i32.const 77)) (i32.const 79)) (then (unreachable)))))"""
"""A second and more without any safepoint, then it checks itself."""


def count_result(n: int) -> int:
    """What ``run(n)`` of `COUNT` gives, computed here, as a signed number."""
    total = 0
    for i in range(n):
        total = (total * 31 + i) & 0xFFFFFFFF
    return total - (1 << 32 if total >> 31 else 0)


def exits(code: int) -> str:
    """Ends by ``proc_exit(code)``."""
    return f"""(module
      (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
      (memory (export "memory") 1)
      (func (export "_start") (call $exit (i32.const {code}))))"""


def talk(lines: int, turns: int) -> str:
    """Writes ``lines`` lines of six digits, each after ``turns`` turns of a loop, which make the digits."""
    return f"""(module
      {_WRITE}
      (memory (export "memory") 1)
      (global $state (mut i32) (i32.const 1))
      (data (i32.const 0) "\\10\\00\\00\\00\\07\\00\\00\\00")
      (func $spin (param $turns i32)
        (loop $next
          (global.set $state (i32.add (i32.mul (global.get $state) (i32.const 1664525)) (i32.const 1013904223)))
          (br_if $next (local.tee $turns (i32.sub (local.get $turns) (i32.const 1))))))
      (func $digits (param $rest i32) (local $at i32)
        (local.set $at (i32.const 21))
        (loop $next
          (i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.rem_u (local.get $rest) (i32.const 10))))
          (local.set $rest (i32.div_u (local.get $rest) (i32.const 10)))
          (br_if $next (i32.ge_u (local.tee $at (i32.sub (local.get $at) (i32.const 1))) (i32.const 16)))))
      (func (export "_start") (local $line i32)
        (i32.store8 (i32.const 22) (i32.const 10))
        (loop $next
          (call $spin (i32.const {turns}))
          (call $digits (i32.shr_u (global.get $state) (i32.const 12)))
          (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
          (br_if $next (i32.lt_u (local.tee $line (i32.add (local.get $line) (i32.const 1))) (i32.const {lines}))))))"""


def talk_output(lines: int, turns: int) -> bytes:
    """What `talk` writes, computed here."""
    state, out = 1, []
    for _ in range(lines):
        multiplier, increment = _power(turns)
        state = (state * multiplier + increment) & 0xFFFFFFFF
        out.append(b"%06d\n" % ((state >> 12) % 1_000_000))
    return b"".join(out)


@functools.cache
def _power(turns: int) -> tuple[int, int]:
    """The generator's step, ``turns`` times over, as one multiplication and one addition."""
    multiplier, increment, a, c = 1, 0, 1664525, 1013904223
    while turns:
        if turns & 1:
            multiplier, increment = multiplier * a & 0xFFFFFFFF, (increment * a + c) & 0xFFFFFFFF
        a, c = a * a & 0xFFFFFFFF, (c * a + c) & 0xFFFFFFFF
        turns >>= 1
    return multiplier, increment
