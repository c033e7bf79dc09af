"""How long a request to freeze takes: from raising the flag in another thread until the program is out of the guest,
all frames in the window, at random moments of a run. Wall time, with whatever else this machine does; and what of it
the guest's thread computes itself (*CPU*), which is all that the program has to do with it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from wasmckpt.runtimes import Engine, GuestThread
from wasmckpt.snapshot.program import Program, Status
from wasmckpt.wasm.values import I32, Value

from ..guests import STACK, prepared, wat
from ..measure import percentile
from ..programs import LOOPS, kernels, programs
from ..report import Goal, Report, Table
from ..settings import Settings

FRAMES = 10_000
DEEP = """(module (func $f (export "run") (param i32) (result i32) (local i64 f64)
  (local.set 1 (i64.extend_i32_u (local.get 0))) (local.set 2 (f64.convert_i32_u (local.get 0)))
  (if (local.get 0)
    (then
      (call $f (i32.sub (local.get 0) (i32.const 1)))
      (return (i32.add (i32.wrap_i64 (i64.add (local.get 1) (i64.trunc_f64_u (local.get 2)))))))
    (else (loop $spin (br_if $spin (i64.ne (local.tee 1 (i64.add (local.get 1) (i64.const 1))) (i64.const -1))))))
  (i32.const 0)))"""
DEEP_STACK = 16 << 20
_FAST = ("wasmtime", "wasmer")
"""Runtimes on which a program ends soon enough for many requests."""


def run(settings: Settings, report: Report) -> None:
    """Each kernel and program is frozen again and again, each time in a fresh instance."""
    rng = random.Random(20)
    for engine in settings.engines(report):
        table = Table(
            f"{engine.name}: ms from the request", [("program", ""), ("requests", "d"), ("median", ".2f"),
                                                    ("99 %", ".2f"), ("worst", ".2f"), ("CPU, 99 %", ".2f"),
                                                    ("CPU, worst", ".2f"), ("ended first", "d")],
        )
        everything: list[Wait] = []
        worst = worst_computed = 0.0
        for sample in (*kernels(report), *kernels(report, folder=LOOPS), *programs(report, quick=False)):
            with report.kept(f"{sample.name} on {engine.name}"):
                make, leave = prepared(engine, sample)
                try:
                    wanted = settings.few(24 if sample.kind == "module" or engine.name in _FAST else 6)
                    waits, ended = latencies(engine, make, wanted, rng)
                finally:
                    leave()
                everything += waits
                worst = max(worst, summary(waits)[1])
                worst_computed = max(worst_computed, summary(waits)[3])
                table.rows.append([sample.name, len(waits), *summary(waits), ended])
                settings.progress(table.rows[-1])
        if everything:
            table.rows.append(["all", len(everything), *summary(everything), None])
            report.goals += [
                Goal(f"reaction to a request, {what}, {engine.name}", figure, 5, "ms") for what, figure in
                (("99 %", summary(everything)[1]), ("99 % of the slowest program", worst),
                 ("CPU of the guest's thread, 99 % of the slowest program", worst_computed),
                 ("worst", summary(everything)[2]))
            ]
        with report.kept(f"{FRAMES} frames on {engine.name}"):
            make, leave = prepared(
                engine, wat(DEEP), invoke="run", arguments=(Value(I32, FRAMES),), stack_bytes=DEEP_STACK
            )
            waits, ended = latencies(engine, make, settings.few(8), rng, moment=lambda: 0.2, stack_bytes=DEEP_STACK)
            table.rows.append([f"unwinding {FRAMES:,} frames", len(waits), *summary(waits), ended])
            settings.progress(table.rows[-1])
        report.tables.append(table)


class Wait(NamedTuple):
    """Milliseconds from a request: on the wall, and those that the guest's thread computed."""

    wall: float
    computed: float


def summary(waits: list[Wait]) -> list[float]:
    """Median, 99th percentile and worst on the wall; the latter two of what was computed."""
    wall, computed = [wait.wall for wait in waits], [wait.computed for wait in waits]
    return [*(percentile(wall, part) for part in (0.5, 0.99, 1.0)), *(percentile(computed, p) for p in (0.99, 1.0))]


def latencies(
    engine: Engine, make: Callable[[], Program], wanted: int, rng: random.Random, *,
    moment: Callable[[], float] | None = None, stack_bytes: int = STACK,
) -> tuple[list[Wait], int]:
    """The waits of ``wanted`` requests, and how many more came after the program's end.

    Raises:
        RuntimeError: too many did.
    """
    whole = _whole_run(engine, make, stack_bytes) if moment is None else 0.0
    waits: list[Wait] = []
    ended = 0
    while len(waits) < wanted:
        program = make()
        clocks: list[int] = []
        back: list[tuple[float, float]] = []
        entered = threading.Event()

        def go(
            program: Program = program, clocks: list[int] = clocks, back: list[tuple[float, float]] = back,
            entered: threading.Event = entered,
        ) -> Status:
            clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
            entered.set()
            outcome = program.run()
            back.append((time.perf_counter(), time.thread_time()))
            return outcome.status

        thread = GuestThread(go, stack_bytes=engine.thread_stack_bytes(stack_bytes))
        entered.wait()
        time.sleep(moment() if moment else rng.uniform(0, whole * 0.9))
        computed = 0.0
        with suppress(OSError):  # the thread is no more
            computed = time.clock_gettime(clocks[0])
        asked = time.perf_counter()
        program.request_freeze()
        status = thread.result()
        program.close()
        if status is Status.FROZEN:
            waits.append(Wait((back[0][0] - asked) * 1e3, (back[0][1] - computed) * 1e3))
        else:
            ended += 1
            if ended > 3 * wanted:
                raise RuntimeError(f"{ended} of {ended + len(waits)} requests came after the end")
    return waits, ended


def _whole_run(engine: Engine, make: Callable[[], Program], stack_bytes: int) -> float:
    """Seconds of an undisturbed run."""
    program = make()
    thread = GuestThread(program.run, stack_bytes=engine.thread_stack_bytes(stack_bytes))
    began = time.perf_counter()
    thread.result()
    whole = time.perf_counter() - began
    program.close()
    return whole
