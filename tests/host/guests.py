"""Guests that call functions of the user's."""

from __future__ import annotations

import functools

import wasmtime

from wasmckpt.wasm.values import I32, Value

SUMMER = """
;; run(n): adds up next(0) ... next(n - 1). through(n): the same, through a table.
(module
  (import "env" "next" (func $next (param i32) (result i32)))
  (type $t (func (param i32) (result i32)))
  (memory (export "memory") 1)
  (table 1 funcref) (elem (i32.const 0) $next)
  (func (export "run") (param $n i32) (result i32) (local $i i32) (local $sum i32)
    loop $l
      (local.set $sum (i32.add (local.get $sum) (call $next (local.get $i))))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    local.get $sum)
  (func (export "through") (param $n i32) (result i32) (local $i i32) (local $sum i32)
    loop $l
      (local.set $sum (i32.add (local.get $sum) (call_indirect (type $t) (local.get $i) (i32.const 0))))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    local.get $sum))
"""

NESTED = """
;; run(n): n times back(i), for which the host calls an export: `turn` counts a loop in memory and calls out again.
(module
  (import "env" "back" (func $back (param i32) (result i32)))
  (import "env" "inner" (func $inner (param i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "run") (param $n i32) (result i32) (local $i i32) (local $sum i32)
    loop $l
      (local.set $sum (i32.add (local.get $sum) (call $back (local.get $i))))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    (i32.add (local.get $sum) (i32.load (i32.const 8))))
  (func (export "turn") (param $turns i32) (result i32)
    loop $l
      (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1)))
      (br_if $l (local.tee $turns (i32.sub (local.get $turns) (i32.const 1))))
    end
    (call $inner (i32.load (i32.const 8))))
  (func (export "sleep") (param $ms i32) (result i32)
    (i32.store (i32.const 80) (i32.const 1))
    (i64.store (i32.const 88) (i64.mul (i64.extend_i32_u (local.get $ms)) (i64.const 1000000)))
    (call $poll (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 32)))
  (func (export "grow") (result i32) (memory.grow (i32.const 1)))
  (func (export "trap") unreachable)
  (func (export "leave") (call $exit (i32.const 7))))
"""

BITS = """
;; run(): f32 and f64 signalling NaNs, an i64, in and out of the host. Result: what came back, folded; no memory.
(module
  (import "env" "swap" (func $swap (param f32 f64 i64) (result i64 f64 f32)))
  (func (export "run") (result i64) (local $f f32) (local $d f64)
    (call $swap (f32.const nan:0x200001) (f64.const nan:0x4000000000001) (i64.const -2))
    (local.set $f) (local.set $d)
    (i64.xor (i64.xor (i64.reinterpret_f64 (local.get $d))) (i64.extend_i32_u (i32.reinterpret_f32 (local.get $f))))))
"""


@functools.cache
def assemble(text: str) -> bytes:
    """The module of a guest's text."""
    return bytes(wasmtime.wat2wasm(text))


def i32(number: int) -> tuple[Value, ...]:
    """One argument."""
    return (Value(I32, number),)

LOGGER = """
;; run(n): appends a letter to "log" (descriptor 5, 4 is a hole) and sleeps 2 ms, n times; then writes 8 random bytes to
;; stdout. Result: the position in the file.
(module
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_tell" (func $tell (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 0) "log")
  (func $must (param i32) (if (local.get 0) (then unreachable)))
  (func (export "run") (param $n i32) (result i32) (local $i i32)
    (call $must (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 3) (i32.const 1) (i64.const 0x1fffffff)
      (i64.const 0) (i32.const 1) (i32.const 8)))
    (call $must (call $open (i32.const 3) (i32.const 0) (i32.const 0) (i32.const 3) (i32.const 1) (i64.const 0x1fffffff)
      (i64.const 0) (i32.const 1) (i32.const 8)))
    (call $must (call $close (i32.const 4)))
    (i32.store (i32.const 80) (i32.const 1)) (i64.store (i32.const 88) (i64.const 2000000))
    (i32.store (i32.const 16) (i32.const 12)) (i32.store (i32.const 20) (i32.const 1))
    loop $l
      (i32.store8 (i32.const 12) (i32.add (i32.const 97) (i32.rem_u (local.get $i) (i32.const 26))))
      (call $must (call $write (i32.const 5) (i32.const 16) (i32.const 1) (i32.const 24)))
      (call $must (call $poll (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 32)))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    (call $must (call $random (i32.const 256) (i32.const 8)))
    (i32.store (i32.const 16) (i32.const 256)) (i32.store (i32.const 20) (i32.const 8))
    (call $must (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24)))
    (call $must (call $tell (i32.const 5) (i32.const 40)))
    (i32.load (i32.const 40))))
"""

ECHO = """
;; run(): copies standard input to standard output until it ends. Result: bytes, and 1 << 16 for each errno.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "run") (result i32) (local $sum i32)
    block $end
      loop $l
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 64))
        (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8))
          (then (local.set $sum (i32.add (local.get $sum) (i32.const 0x10000))) (br $end)))
        (br_if $end (i32.eqz (i32.load (i32.const 8))))
        (local.set $sum (i32.add (local.get $sum) (i32.load (i32.const 8))))
        (i32.store (i32.const 4) (i32.load (i32.const 8)))
        (if (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 12))
          (then (local.set $sum (i32.add (local.get $sum) (i32.const 0x10000)))))
        br $l
      end
    end
    local.get $sum))
"""
