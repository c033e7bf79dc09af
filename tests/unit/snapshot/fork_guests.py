"""Guests for snapshots whose source goes on, and how they are run: each checks itself by its result."""

from __future__ import annotations

import functools
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import wasmtime

from wasmckpt import formats, runtimes
from wasmckpt.formats import Image
from wasmckpt.host import MODULE_NAME, Wasi, WasiConfig
from wasmckpt.runtimes import Engine, GuestThread, HostFunction
from wasmckpt.snapshot.fork_in_place import LiveProgram
from wasmckpt.snapshot.program import Host, Outcome, Program, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import I32, Value

COMPILERS = ("wasmtime", "wasmer", "wasmedge-aot")
TURNS = defaultdict(lambda: 15_000_000, {**dict.fromkeys(COMPILERS, 30_000_000), "wasmedge": 800_000})
"""Turns of `MIXER` that take a fraction of a second, by the runtime's name."""

LOG = ("env", "log")

MIXER = """
;; run(n, every): a generator that writes one word of a mebibyte each turn, calls env.log(i) each `every` turns (0:
;; never), and at the end folds all of memory into its result: one wrong or stale byte anywhere shows.
(module (import "env" "log" (func $log (param i32))) (memory (export "memory") 16)
  (func (export "run") (param $n i32) (param $every i32) (result i64) (local $i i32) (local $a i64)
    (local.set $a (i64.const 88172645463325252))
    loop $l
      (local.set $a (i64.xor (local.get $a) (i64.shl (local.get $a) (i64.const 13))))
      (local.set $a (i64.xor (local.get $a) (i64.shr_u (local.get $a) (i64.const 7))))
      (local.set $a (i64.xor (local.get $a) (i64.shl (local.get $a) (i64.const 17))))
      (i64.store (i32.and (i32.wrap_i64 (local.get $a)) (i32.const 0xffff8)) (local.get $a))
      (if (local.get $every)
        (then (if (i32.eqz (i32.rem_u (local.get $i) (local.get $every))) (then (call $log (local.get $i))))))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    (local.set $i (i32.const 0))
    loop $m
      (local.set $a (i64.add (i64.rotl (local.get $a) (i64.const 1)) (i64.load (local.get $i))))
      (br_if $m (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 8))) (i32.const 0x100000)))
    end
    local.get $a))
"""

TABLE_CALLER = """
;; run(n): calls the import through a table, which cannot be repeated from its site. Result: n.
(module (import "env" "log" (func $log (param i32))) (table 1 funcref) (elem (i32.const 0) $log)
  (type $t (func (param i32)))
  (func (export "run") (param $n i32) (result i32) (local $i i32)
    loop $l
      (call_indirect (type $t) (local.get $i) (i32.const 0))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    local.get $i))
"""

DEEP = """
;; run(depth, turns): recurses, turns at the bottom, and adds up the levels on the way back.
(module (func $down (param $d i32) (param $turns i32) (result i32)
    (if (result i32) (local.get $d)
      (then (i32.add (local.get $d) (call $down (i32.sub (local.get $d) (i32.const 1)) (local.get $turns))))
      (else
        loop $l (br_if $l (local.tee $turns (i32.sub (local.get $turns) (i32.const 1)))) end
        i32.const 0)))
  (func (export "run") (param $d i32) (param $turns i32) (result i32) (call $down (local.get $d) (local.get $turns))))
"""

GROWING = """
;; run(pages, turns): grows by a page, fills its first word, turns; result: sum of all first words, times pages.
(module (memory (export "memory") 1)
  (func (export "run") (param $n i32) (param $turns i32) (result i32) (local $i i32) (local $t i32) (local $sum i32)
    loop $l
      (i32.store (i32.shl (memory.grow (i32.const 1)) (i32.const 16)) (i32.add (local.get $i) (i32.const 3)))
      (local.set $t (local.get $turns))
      loop $w (br_if $w (local.tee $t (i32.sub (local.get $t) (i32.const 1)))) end
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    (local.set $i (i32.const 0))
    loop $m
      (local.set $sum (i32.add (local.get $sum) (i32.load (i32.shl (local.get $i) (i32.const 16)))))
      (br_if $m (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (memory.size)))
    end
    (i32.mul (local.get $sum) (memory.size))))
"""

HUGE = """
;; run(turns): a memory of a gibibyte of which seven pages are touched, again and again. Result: what they hold.
(module (memory (export "memory") 16384)
  (func (export "run") (param $turns i32) (result i32) (local $i i32) (local $at i32)
    loop $l
      (local.set $at (i32.mul (i32.rem_u (local.get $i) (i32.const 7)) (i32.const 0x09000010)))
      (i32.store (local.get $at) (i32.add (i32.load (local.get $at)) (local.get $i)))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $turns)))
    end
    (i32.xor (i32.load (i32.const 0)) (i32.load (i32.const 0x36000060)))))
"""

TRAPPING = """
;; run(turns): turns, and then traps.
(module (func (export "run") (param $n i32) (result i32)
    loop $l (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))) end
    unreachable))
"""

SLEEPER = """
;; run(ms): writes "a", sleeps (relative time-out), writes "b". Result: errno of the sleep * 256 + number of events.
(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 0) "ab")
  (func $put (param $at i32)
    (i32.store (i32.const 16) (local.get $at)) (i32.store (i32.const 20) (i32.const 1))
    (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24))))
  (func (export "run") (param $ms i32) (result i32) (local $errno i32)
    (call $put (i32.const 0))
    (i64.store (i32.const 64) (i64.const 7)) (i32.store (i32.const 80) (i32.const 1))
    (i64.store (i32.const 88) (i64.mul (i64.extend_i32_u (local.get $ms)) (i64.const 1000000)))
    (local.set $errno (call $poll (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 32)))
    (call $put (i32.const 1))
    (i32.add (i32.mul (local.get $errno) (i32.const 256)) (i32.load (i32.const 32)))))
"""

READER = """
;; run(): reads standard input to its end, 5 bytes at a time, echoes what it read. Result: a hash of all bytes.
(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "run") (result i32) (local $hash i32) (local $i i32)
    block $end
      loop $l
        (i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 5))
        (br_if $end (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
        (br_if $end (i32.eqz (i32.load (i32.const 8))))
        (local.set $i (i32.const 0))
        loop $b
          (local.set $hash (i32.add (i32.mul (local.get $hash) (i32.const 31)) (i32.load8_u offset=64 (local.get $i))))
          (br_if $b (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.load (i32.const 8))))
        end
        (i32.store (i32.const 4) (i32.load (i32.const 8)))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 12)))
        br $l
      end
    end
    local.get $hash))
"""


@functools.cache
def assemble(text: str) -> bytes:
    """The module of a guest's text."""
    return bytes(wasmtime.wat2wasm(text))


class Life:
    """One life of a guest: the program, its host and thread. The log holds what it passed to ``env.log``."""

    def __init__(
        self, engine: Engine | str, text: str, arguments: tuple[int, ...] = (), *, image: Image | None = None,
        config: WasiConfig | None = None, log: Callable[[int], None] | None = None, start: bool = True,
    ) -> None:
        self.engine = runtimes.load(engine) if isinstance(engine, str) else engine
        self.wasm = assemble(text)
        self.log: list[int] = []
        functions = {LOG: HostFunction((I32,), (), log or self.log.append)}
        self.wasi: Wasi | None = None
        if config is None:
            self.host = Host(functions=functions)
        else:
            wasi = self.wasi = Wasi(config) if image is None else Wasi.restore(config, image.host)
            names = {
                (MODULE_NAME, name): HostFunction(f.params, f.results, f.call) for name, f in wasi.functions.items()
            }
            self.host = Host(
                functions={**names, **functions}, wants_memory=frozenset(names), mark=wasi.mark, state=wasi.state,
                interrupt=wasi.interrupt, resume_calls=wasi.clear_interrupt,
            )
        if image is None:
            entry = entry_for(decode(self.wasm), "run", [Value(I32, bits) for bits in arguments])
            program = Program.fresh(self.engine, self.wasm, self.host, entry)
        else:
            program = self.restore(formats.decode(formats.encode(image)))
        self.live = LiveProgram(program, self.restore)
        self.thread: GuestThread[Outcome] | None = None
        if start:
            self.start()

    def restore(self, image: Image, before: Program | None = None) -> Program:
        """A program on this life's host that goes on from an image."""
        return Program.restored(self.engine, self.wasm, self.host, image, before=before)

    def start(self) -> None:
        """Let it run."""
        size = self.engine.thread_stack_bytes(self.live.program.stack_bytes)
        self.thread = GuestThread(self.live.run, stack_bytes=size)

    @property
    def thread_id(self) -> int:
        """The guest thread's native id."""
        assert self.thread is not None
        return self.thread.native_id

    def result(self) -> tuple[int, ...]:
        """Waits for the end; results, and everything is given back."""
        assert self.thread is not None
        try:
            return self.thread.result().results
        finally:
            self.live.close()
            self.live.program.close()
            if self.wasi is not None:
                self.wasi.close()


def wait_until(true: Callable[[], object], timeout: float = 60.0) -> None:
    """Wait for something that another thread brings about."""
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)


def longer(turns: int) -> Iterator[int]:
    """Turns for one try after the other: where a machine was so busy that the program had ended before it was looked at
    (often enough), the next one lasts four times as long."""
    yield from (n for n in (turns, turns * 4, turns * 16) if n < 1 << 32)


def pipe_with(data: bytes) -> int:
    """The reading end of a pipe that holds ``data`` and its end."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading
