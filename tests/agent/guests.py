"""Programs for agents' tests."""

from __future__ import annotations

from typing import Final

from ..cli.programs import talk, talk_output, wat

__all__ = ["GROWS", "LINES", "LONG", "LONG_OUTPUT", "SLEEPS", "TALK", "TALK_OUTPUT", "TURNS"]

LINES, TURNS = 12, 60_000_000
TALK: Final = wat(talk(LINES, TURNS))
"""Twelve lines, in a second or two on a compiler."""
TALK_OUTPUT: Final = talk_output(LINES, TURNS)

LONG: Final = wat(talk(LINES, 5 * TURNS))
LONG_OUTPUT: Final = talk_output(LINES, 5 * TURNS)
"""The same for tests that do several things with it while it runs, also on a busy machine."""

GROWS: Final = wat("""(module (memory (export "memory") 1)
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0))))""")
"""``grow(pages)`` gives the size before, or -1."""

SLEEPS: Final = wat("""(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 200) "\\d0\\00\\00\\00\\02\\00\\00\\00z\\0a")
  (func (export "_start") (local $i i32)
    (i32.store (i32.const 200) (i32.const 208))
    (loop $next
      (i32.store (i32.const 16) (i32.const 1))               ;; the monotonic clock
      (i64.store (i32.const 24) (i64.const 3600000000000))   ;; an hour
      (i32.store16 (i32.const 40) (i32.const 0))             ;; from now
      (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 100)))
      (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 100))))))""")
"""Sleeps for hours."""
