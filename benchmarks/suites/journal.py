"""What a journal costs: calls of a program that does nothing but call its host, and a program that only computes.

The program tells by its own monotonic clock how long it took, so that starting is left out. *Batch* outlives a kill at
any moment, *always* a power cut as well: there every write is two (or, to a file, three) syncs of a disk. Best of the
rounds, which take turns. The pipe's reader is this process. *Bytes* are those of the journal, for each call."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Literal

from wasmckpt import Job, JournalOptions, WasiConfig
from wasmckpt.host.journal.file import read_journal
from wasmckpt.wasm.values import I32, Value

from ..guests import wat
from ..report import Goal, Report, Table
from ..settings import Settings

PROGRAM = """(module
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_pwrite" (func $pwrite (param i32 i32 i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\\00\\01\\00\\00\\40\\00\\00\\00")
  (data (i32.const 32) "f")
  (func (export "run") (param $n i32) (result i64) (local $i i32) (local $x i64)
    (drop (call $open (i32.const 3) (i32.const 0) (i32.const 32) (i32.const 1) (i32.const 1) (i64.const 0x64)
                      (i64.const 0) (i32.const 0) (i32.const 24)))
    (local.set $x (i64.const 88172645463325252))
    (drop (call $clock (i32.const 1) (i64.const 1) (i32.const 48)))
    (loop $next
      {body}
      (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n))))
    (i64.store (i32.const 512) (local.get $x))
    (drop (call $clock (i32.const 1) (i64.const 1) (i32.const 56)))
    (i64.sub (i64.load (i32.const 56)) (i64.load (i32.const 48)))))"""

CALLS = {
    "clock_time_get": "(drop (call $clock (i32.const 1) (i64.const 1) (i32.const 16)))",
    "random_get, 16 bytes": "(drop (call $random (i32.const 256) (i32.const 16)))",
    "fd_write, 64 bytes, pipe": "(drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))",
    "fd_read, 64 bytes, pipe": "(drop (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 16)))",
    "fd_pwrite, 64 bytes, file":
        "(drop (call $pwrite (i32.const 4) (i32.const 0) (i32.const 1) (i64.const 0) (i32.const 16)))",
}
COMPUTING = """
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
      (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))"""

Sync = Literal["batch", "always"]


def run(settings: Settings, report: Report) -> None:
    """One row for each kind of call and runtime."""
    table = Table(
        "Calls a second",
        [("runtime", ""), ("call", ""), ("without", ",.0f"), ("batch", ",.0f"), ("always", ",.0f"),
         ("batch, us more a call", ".1f"), ("bytes", ".0f")],
    )
    computing = Table("A program that computes only", [("runtime", ""), ("with a journal, against without", ".3f")])
    for name in settings.names:
        for what, body in CALLS.items():
            with report.kept(f"{what} on {name}"):
                n = 50 if settings.quick else 20_000
                without, batch, size = _compared(settings, name, body, n)
                few = max(20, n // 200)
                always = few / _seconds(name, body, few, "always")[0]
                table.rows.append([name, what, n / without, n / batch, always, (batch - without) / n * 1e6, size])
                settings.progress(table.rows[-1])
        with report.kept(f"computing on {name}"):
            n = 10_000 if settings.quick else 400_000_000 if name != "wasm3" else 40_000_000
            without, batch, _ = _compared(settings, name, COMPUTING, n)
            computing.rows.append([name, batch / without])
            settings.progress(computing.rows[-1])
            report.goals.append(Goal(f"computing only, with a journal, {name}", batch / without, 1.01))
    report.tables += [table, computing]


def _compared(settings: Settings, name: str, body: str, n: int) -> tuple[float, float, float]:
    """Best seconds without and with a journal, and bytes for each call."""
    without, batch, size = [], [], 0.0
    for _ in range(settings.few(5)):
        without.append(_seconds(name, body, n, None)[0])
        seconds, size = _seconds(name, body, n, "batch")
        batch.append(seconds)
    return min(without), min(batch), size / n


def _seconds(name: str, body: str, n: int, sync: Sync | None) -> tuple[float, int]:
    """How long the calls took, and how large their journal is."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "image")
        journal = None if sync is None else JournalOptions.beside(image, sync)
        read, write = os.pipe()
        fed, feed = os.pipe()
        threads = [threading.Thread(target=_drain, args=(read,)), threading.Thread(target=_feed, args=(feed,))]
        for thread in threads:
            thread.start()
        try:
            config = WasiConfig(preopens=[(folder, "/")], stdin=fed, stdout=write)
            with Job.start(wat(PROGRAM.format(body=body)), name, config=config, invoke="run",
                           arguments=(Value(I32, n),), journal=journal) as job:
                ended = job.wait()
            size = 0
            if journal is not None:
                size = sum(frame.end - frame.at for frame in read_journal(journal.path)[1][1:])
            return ended.results[0].bits / 1e9, size
        finally:
            os.close(write)
            os.close(fed)
            for thread in threads:
                thread.join()


def _drain(read: int) -> None:
    while os.read(read, 1 << 16):
        pass
    os.close(read)


def _feed(feed: int) -> None:
    try:
        while True:
            os.write(feed, bytes(1 << 16))
    except BrokenPipeError:
        os.close(feed)
