"""Live moves: how long a program stands still, and what goes over the wire.

Two sides joined by 1 Gbit/s with 5 ms there and back (see `benchmarks.live`). A program fills its memory with what no
compressor can make smaller, or with what it can, and then writes to so many pages a second, drawn at random, and sleeps
between, ten milliseconds at a time, so that it leaves the two cores to the two sides.
*Stopped*: from the program's last instruction here until the target has said that it runs, as the source sees it: the
answer's way back is in it. Decisions are synced to disk on both sides, and so is the image at the target, before it
may run. Wall time, of one move each unless a row says more; both sides, the relay and the programs share two cores."""

from __future__ import annotations

import socket
import statistics
import tempfile
import time
from pathlib import Path

from wasmckpt.errors import CheckpointError
from wasmckpt.migrate import Moved, Options, Progress, Wire, send
from wasmckpt.snapshot.job import Job

from ..guests import wat
from ..live import Owner, machines
from ..plots import rounds as plot
from ..report import Goal, Report, Table
from ..settings import Settings

_GIGABIT, _DELAY = 125e6, 0.005
_PROGRAM = """(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") {pages64})
  (func $sleep
    (i32.store (i32.const 16) (i32.const 1))
    (i64.store (i32.const 24) (i64.const {pause}))
    (i32.store16 (i32.const 40) (i32.const 0))
    (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 100))))
  (func (export "_start") (local $at i32) (local $x i64) (local $n i32)
    (local.set $x (i64.const 88172645463325252))
    (local.set $at (i32.const 65536))
    (loop $fill
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
      (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
      (i64.store (local.get $at) (local.get $x))
      (br_if $fill (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const {step}))) (i32.const {bytes}))))
    (loop $ever
      (local.set $n (i32.const {some}))
      (if (i32.eqz (i32.const {some})) (then (local.set $n (i32.const 1))))
      (loop $write
        (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
        (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
        (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
        (local.set $at (i32.and (i32.wrap_i64 (local.get $x)) (i32.const {mask})))
        (if (i32.lt_u (local.get $at) (i32.const 65536)) (then (local.set $at (i32.const 65536))))
        (i64.store (local.get $at) (local.get $x))
        (br_if $write (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
      (call $sleep)
      (br $ever))))"""
_PAUSE = 10_000_000


def _program(mebibytes: int, rate: float, step: int) -> bytes:
    return wat(_PROGRAM.format(
        pages64=mebibytes * 16, bytes=(mebibytes << 20) - 8, step=step, mask=(mebibytes << 20) - 4096,
        some=max(0, round(rate / 4096 * _PAUSE / 1e9)), pause=_PAUSE))


def run(settings: Settings, report: Report) -> None:
    """One row for each program and target."""
    table = Table("", [
        ("program", ""), ("from, to", ""), ("stopped, ms", ".1f"), ("prepared, s", ".2f"), ("rounds", "d"),
        ("stops", "d"), ("sent / memory", ".2f"), ("sent while it stood, MB", ".2f"), ("limit, ms", ".0f"),
    ])
    large, huge = (16, 32) if settings.quick else (256, 1024)
    # An own set of targets: the goals name them.
    targets = settings.names if settings.quick else ("wasmtime", "wasmer", "wamr", "wasm3", "wasmedge")
    with machines(_GIGABIT, _DELAY) as (host, port, how):
        table.note = f"Wire: {how}."
        for target in targets:
            name = f"{large} MiB, 20 MB/s written"
            with report.kept(f"{name}, to {target}"):
                found = [_move(host, port, _program(large, 20e6, 8), target)
                         for _ in range(settings.few(3) if target == "wasmtime" else 1)]
                _row(settings, table, name, target, found)
                if target in ("wasmtime", "wasmer", "wamr"):
                    report.goals.append(Goal(f"{name}, to {target}: stopped",
                                             min(one.stopped for one, _ in found) * 1e3, 50, "ms"))
                if target == "wasmtime":
                    moved, progress = found[0]
                    report.goals.append(Goal(f"{name}: bytes / memory", moved.sent / moved.memory, 1.3))
                    if not settings.quick:
                        plot(progress, moved.stopped, Path("docs/live-migration.svg"))
        with report.kept("compressible"):
            _row(settings, table, f"{large} MiB, 20 MB/s written, compressible", "wasmtime",
                 [_move(host, port, _program(large, 20e6, 256), "wasmtime")])
        with report.kept("idle"):
            name = f"{huge} MiB, mostly idle"
            found = [_move(host, port, _program(huge, 0.4e6, 4096), "wasmtime")]
            _row(settings, table, name, "wasmtime", found)
            report.goals.append(Goal(f"{name}: stopped", found[0][0].stopped * 1e3, 50, "ms"))
        with report.kept("faster than the wire"):
            began = time.monotonic()
            try:
                _move(host, port, _program(large, 400e6, 8), "wasmtime", Options(most_downtime=0.2))
                said = "moved"
            except CheckpointError as problem:
                said = problem.what
            table.note += (f" A program that writes 400 MB/s, with a limit of 200 ms, stays, after "
                           f"{time.monotonic() - began:.1f} s: \"{said}\".")
    report.tables.append(table)


def _row(settings: Settings, table: Table, name: str, target: str, found: list[tuple[Moved, list[Progress]]]) -> None:
    best = min((moved for moved, _ in found), key=lambda moved: moved.stopped)
    if len(found) > 1:
        name += f" (least of {len(found)}, median {statistics.median(one.stopped for one, _ in found) * 1e3:.1f} ms)"
    table.rows.append([name, f"wasmtime, {target}", best.stopped * 1e3, best.prepared, best.rounds, best.attempts,
                       best.sent / best.memory, best.last / 1e6, best.limit * 1e3])
    settings.progress(table.rows[-1])


def _move(
    host: str, port: int, module: bytes, target: str, options: Options | None = None,
) -> tuple[Moved, list[Progress]]:
    progress: list[Progress] = []
    with tempfile.TemporaryDirectory() as folder, Job.start(module, "wasmtime") as job:
        time.sleep(1.0 if len(module) else 0)  # it fills its memory
        with Wire(socket.create_connection((host, port))) as wire:
            moved = send(job, wire, Owner(Path(folder)), module=module, runtime=target, about={}, options=options,
                         told=progress.append)
    return moved, progress
