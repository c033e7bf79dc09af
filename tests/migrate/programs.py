"""Programs that move."""

from __future__ import annotations

import functools
from typing import Final

from ..cli.programs import wat

__all__ = ["writes", "writes_output"]

_WRITES: Final = """(module
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  {wait_import}(memory (export "memory") {pages64})
  (func $write (param $page i32) (param $n i32)
    (i32.store (i32.add (i32.const 65536) (i32.mul (local.get $page) (i32.const 4096)))
      (i32.add (i32.mul (local.get $n) (i32.const 31))
        (i32.load (i32.add (i32.const 65536) (i32.mul (local.get $page) (i32.const 4096)))))))
  (func $now (result i64)
    (drop (call $clock (i32.const 1) (i64.const 1) (i32.const 64)))
    (i64.load (i32.const 64)))
  (func $pause (local $i i32) (local $end i64)
    (local.set $end (i64.add (call $now) (i64.const {pause}000000)))
    (loop $look
      (local.set $i (i32.const 0))
      (loop $next
        (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 20000))))
      (br_if $look (i64.lt_u (call $now) (local.get $end)))))
  (func $say (param $n i32) (local $at i32)
    (local.set $at (i32.const 40))
    (i32.store8 (i32.const 40) (i32.const 10))
    (loop $digit
      (local.set $at (i32.sub (local.get $at) (i32.const 1)))
      (i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10))))
      (br_if $digit (local.tee $n (i32.div_u (local.get $n) (i32.const 10)))))
    (i32.store (i32.const 0) (local.get $at))
    (i32.store (i32.const 4) (i32.sub (i32.const 41) (local.get $at)))
    (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))))
  (func (export "_start") (local $round i32) (local $page i32) (local $sum i32)
    (local.set $page (i32.const 0))
    (loop $fill (call $write (local.get $page) (local.get $page))
      (br_if $fill (i32.lt_u (local.tee $page (i32.add (local.get $page) (i32.const 1))) (i32.const {pages}))))
    (loop $round
      (local.set $page (i32.const 0))
      (loop $some
        (call $write (i32.rem_u (i32.mul (i32.add (local.get $page) (i32.mul (local.get $round) (i32.const {some})))
                                         (i32.const 7)) (i32.const {pages})) (local.get $round))
        (br_if $some (i32.lt_u (local.tee $page (i32.add (local.get $page) (i32.const 1))) (i32.const {some}))))
      (call $pause)
      (call $say (local.get $round))
      (br_if $round (i32.lt_u (local.tee $round (i32.add (local.get $round) (i32.const 1))) (i32.const {rounds}))))
    {wait}(local.set $page (i32.const 0))
    (loop $check
      (local.set $sum (i32.add (i32.rotl (local.get $sum) (i32.const 5))
        (i32.load (i32.add (i32.const 65536) (i32.mul (local.get $page) (i32.const 4096))))))
      (br_if $check (i32.lt_u (local.tee $page (i32.add (local.get $page) (i32.const 1))) (i32.const {pages}))))
    (call $say (local.get $sum))))"""

_WAIT_IMPORT: Final = """(import "wasi_snapshot_preview1" "fd_read"
    (func $fd_read (param i32 i32 i32 i32) (result i32)))
  """
_WAIT: Final = """(i32.store (i32.const 0) (i32.const 48)) (i32.store (i32.const 4) (i32.const 1))
    (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
    """


@functools.cache
def writes(
    rounds: int, pages: int = 256, some: int = 16, pause: int = 20, more: str = "", waits: bool = False,
) -> bytes:
    """Fills ``pages`` pages of its memory; then in each round writes to ``some`` of them, turns until ``pause``
    milliseconds are over, and says the round's number; in the end a sum over all pages. ``more``: what else the
    module has. ``waits``: before that end for that of its standard input."""
    text = _WRITES.format(rounds=rounds, pages=pages, some=some, pause=pause, pages64=2 + pages // 16,
                          wait_import=_WAIT_IMPORT if waits else "", wait=_WAIT if waits else "")
    return wat(text.removesuffix(")") + more + ")")


def writes_output(rounds: int, pages: int = 256, some: int = 16) -> bytes:
    """What it says."""
    memory = [page * 31 & 0xFFFFFFFF for page in range(pages)]
    for number in range(rounds):
        for n in range(some):
            page = ((n + number * some) * 7 & 0xFFFFFFFF) % pages
            memory[page] = (memory[page] + number * 31) & 0xFFFFFFFF
    total = 0
    for value in memory:
        total = ((total << 5 | total >> 27) + value) & 0xFFFFFFFF
    return b"".join(b"%d\n" % n for n in range(rounds)) + b"%d\n" % total
