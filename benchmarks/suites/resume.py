"""What a resume costs, and how fast the program is after it.

*Whole process*: wall time of the command ``wasmckpt restore`` for a small program of which almost nothing is left to
do: starting Python twice (command and worker), reading the image, rewriting, compiling, rebuilding the frames. *First*:
nobody was resumed at that place before; *again*: the cache folder has what was made for that.
*After a resume*: a kernel is frozen in its hot loop and resumed; CPU time of the rest, compilation not counted, against
the same rest of a run that was never stopped. What part the rest is, is measured too: the stop is at a counted
safepoint, so the run up to it is repeated and timed. The places are where 2, 10 and 30 % of all safepoints have passed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from tests.support.samples import Sample, build, describe
from tests.support.toolchain import cache_folder
from wasmckpt import formats
from wasmckpt.formats import Image
from wasmckpt.host import WasiConfig
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import Engine, GuestThread, run_in_guest_thread
from wasmckpt.snapshot.job import Job
from wasmckpt.snapshot.program import Host, Outcome, Phase, Program, Status
from wasmckpt.wasm.values import I32, Value

from ..guests import STACK, WrongResult, prepared, wat
from ..kept import Kept
from ..measure import geo_mean, percentile
from ..programs import kernels
from ..report import Goal, Report, Table
from ..settings import Settings
from .latency import DEEP

COUNTING = Options(count=True)
MANY = 1 << 40
STANDS = {"in its own loop": 30, "in printf": 40}
"""Where nbody is resumed: the safepoint. The functions on the stack are rewritten, and those of printf are large."""


def run(settings: Settings, report: Report) -> None:
    """The three tables."""
    with report.kept("whole process"):
        _whole_process(settings, report)
    _parts(settings, report)
    _speed(settings, report)


# The command

def _whole_process(settings: Settings, report: Report) -> None:
    sample = describe("nbody", "tiny", build("nbody"))
    table = Table(
        f"Whole process: `wasmckpt restore`, {sample.name}, ms",
        [("runtime", ""), ("the program stands", ""), ("frames", "d"), ("resumed there", ""), ("rounds", "d"),
         ("wall, least", ".0f"), ("wall, median", ".0f"), ("CPU, least", ".0f"),
         ("`wasmckpt version`: wall, least", ".0f"), ("CPU, least", ".0f")],
        note="On a busy machine the CPU time (all processes, user and system) says more than the wall time.",
    )
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "small.wck")
        for name in settings.names:
            for where, safepoint in STANDS.items():
                with report.kept(f"restore on {name}, {where}"):
                    frames = _freeze_small(sample, path, Path(scratch, "out"), safepoint)
                    kept = Kept()
                    restore = (["restore", "--runtime", name, str(path)], sample.stdout.split()[-1])
                    found: dict[str, list[tuple[float, float]]] = {"first": [], "again": [], "idle": []}
                    for _ in range(settings.few(12)):
                        kept.forget_later()
                        found["first"].append(_command(*restore))
                        _command(*restore)
                        found["again"].append(_command(*restore))
                        found["idle"].append(_command(["version"], b""))
                    kept.forget_later()  # for the next time that this is measured
                    idle, idle_cpu = zip(*found.pop("idle"), strict=True)
                    for when, rounds in found.items():
                        times, cpu = zip(*rounds, strict=True)
                        table.rows.append([
                            name, where, frames, when, len(times), min(times) * 1e3, percentile(list(times), 0.5) * 1e3,
                            min(cpu) * 1e3, min(idle) * 1e3, min(idle_cpu) * 1e3,
                        ])
                        settings.progress(table.rows[-1])
                        what = f"resume of a small program {where}, process included, {name}, {when}"
                        report.goals.append(Goal(what, min(times) * 1e3, 200, "ms"))
    report.tables.append(table)


def _freeze_small(sample: Sample, path: Path, output: Path, safepoint: int) -> int:
    """An image, with the module inside, of the sample at a safepoint; gives the number of its frames."""
    with open(output, "wb") as stream:
        config = WasiConfig(args=sample.argv, stdin=os.open(os.devnull, os.O_RDONLY), stdout=stream.fileno(),
                            stderr=stream.fileno())
        with Job.start(sample.wasm, "wasmtime", config=config, freeze_at=safepoint) as job:
            job.frozen.wait()
            return job.checkpoint(path, stop=True, carry_module=True).frames


def _command(arguments: list[str], last_word: bytes) -> tuple[float, float]:
    """Wall and CPU seconds of our command, its worker's included; ``last_word`` must be in what it prints."""
    command = Path(sys.executable).parent / "wasmckpt"
    # An installed tool has its byte code, whatever this shell says about writing it.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(cache_folder() / "bytecode")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run([str(command), *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL,
                          env=environment)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode or last_word not in done.stdout:
        raise RuntimeError(f"{arguments[0]} gave {done.returncode}: {done.stderr[-300:]!r}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# Its parts, here

def _parts(settings: Settings, report: Report) -> None:
    table = Table(
        "Parts of a resume, wall ms, median",
        [("runtime", ""), ("program", ""), ("image, bytes", "d"), ("freeze and capture", ".1f"), ("decode", ".1f"),
         ("rewrite, compile, fill memory", ".1f"), ("rebuild frames", ".1f")],
    )
    for engine in settings.engines(report):
        for frames in (1, 10_000, 100_000):
            with report.kept(f"{frames} frames on {engine.name}"):
                rows = [_one_resume(engine, frames) for _ in range(settings.few(3))]
                table.rows.append([
                    engine.name, f"recursion, {frames:,} frames", int(rows[0][0]),
                    *(percentile([row[n] for row in rows], 0.5) for n in range(1, 5)),
                ])
                settings.progress(table.rows[-1])
                if frames == 10_000:
                    total = sum(v for v in table.rows[-1][4:] if isinstance(v, float))
                    report.goals.append(Goal(f"resume of 10,000 frames, {engine.name}", total, 1000, "ms"))
    report.tables.append(table)


def _one_resume(engine: Engine, frames: int) -> tuple[float, ...]:
    wasm = wat(DEEP)
    stack = 1 << 20 if frames == 1 else 16 << 20 if frames <= 10_000 else 128 << 20
    make, leave = prepared(engine, wasm, invoke="run", arguments=(Value(I32, frames),), stack_bytes=stack)
    program = make()
    thread = GuestThread(program.run, stack_bytes=engine.thread_stack_bytes(stack))
    time.sleep(0.3)
    began = time.perf_counter()
    program.request_freeze()
    if thread.result().status is not Status.FROZEN:
        raise RuntimeError("it ended before it was frozen")
    raw = formats.encode(program.capture())
    frozen = time.perf_counter()
    program.close()
    image = formats.decode(raw)
    decoded = time.perf_counter()
    again = Program.restored(engine, wasm, Host(), image, stack_bytes=stack)
    made = time.perf_counter()
    thread = GuestThread(again.run, stack_bytes=engine.thread_stack_bytes(stack))
    while again.phase in (Phase.NEW, Phase.REBUILDING):
        time.sleep(0.0002)
    rebuilt = time.perf_counter()
    again.request_freeze()
    thread.result()
    if len(again.capture().frames) != len(image.frames):
        raise WrongResult("not the frames that were frozen")
    again.close()
    leave()
    steps = (frozen - began, decoded - frozen, made - decoded, rebuilt - made)
    return (float(len(raw)), *(step * 1e3 for step in steps))


# Speed after it

def _speed(settings: Settings, report: Report) -> None:
    places = (0.02, 0.1, 0.3)
    for engine in settings.engines(report):
        table = Table(
            f"After a resume, {engine.name}: CPU time of the rest, undisturbed = 1",
            [("kernel", ""), ("undisturbed, ms", ".1f"), *((f"stopped at {p:.0%}", ".2f") for p in places),
             ("frames", "")],
        )
        every: list[float] = []
        for sample in islice(kernels(report), 2 if settings.quick else None):
            with report.kept(f"speed of {sample.name} on {engine.name}"):
                whole, ratios, frames = _after(engine, sample, places, settings)
                every += ratios
                table.rows.append([sample.name, whole * 1e3, *ratios, " ".join(map(str, frames))])
                settings.progress(table.rows[-1])
        if every:
            table.rows.append(["geo mean", None, geo_mean(every), None, None, "of all"])
            what = "speed after a resume in a hot loop"
            report.goals.append(Goal(f"{what}, geo mean, {engine.name}", geo_mean(every), 1.05))
            report.goals.append(Goal(f"{what}, worst kernel, {engine.name}", max(every), 1.05))
        report.tables.append(table)


def _after(
    engine: Engine, sample: Sample, places: tuple[float, ...], settings: Settings
) -> tuple[float, list[float], list[int]]:
    """Seconds of the undisturbed run; for each place the ratio, and the frames in the image. Least of many instances:
    where an instance's code happens to lie makes a difference of up to a third (fib on Wasm3), resumed or not."""
    expected = tuple(v.bits for v in sample.calls[0].results)
    counted, leave_counted = prepared(engine, sample, options=COUNTING)
    undisturbed, leave = prepared(engine, sample)
    try:
        program = counted()
        program.freeze_at(MANY)
        rounds = settings.few(12 if _timed(engine, program)[0] > 0.1 else 40)
        passed = MANY - program.instance.get_global("__wasmckpt_count")
        program.close()
        stops = [max(1, int(passed * place)) for place in places]
        images: list[Image] = []
        whole = counted_whole = 1e9
        before = [1e9] * len(stops)
        after = [1e9] * len(stops)
        for turn in range(rounds):
            seconds, outcome = _finished(engine, undisturbed())
            whole = min(whole, seconds)
            _check(outcome, expected)
            program = counted()
            program.freeze_at(MANY)
            counted_whole = min(counted_whole, _finished(engine, program)[0])
            for n, stop in enumerate(stops):
                program = counted()
                program.freeze_at(stop)
                seconds, outcome = _timed(engine, program)
                if outcome.status is not Status.FROZEN:
                    raise RuntimeError(f"it was not frozen at safepoint {stop} of {passed}")
                before[n] = min(before[n], seconds)
                if not turn:
                    images.append(formats.decode(formats.encode(program.capture())))
                program.close()
                resumed = Program.restored(engine, sample.wasm, Host(), images[n], stack_bytes=STACK)
                seconds, outcome = _finished(engine, resumed)
                _check(outcome, expected)
                after[n] = min(after[n], seconds)
        ratios = [a / (whole * (1 - b / counted_whole)) for a, b in zip(after, before, strict=True)]
        return whole, ratios, [len(image.frames) for image in images]
    finally:
        leave()
        leave_counted()


def _check(outcome: Outcome, expected: tuple[int, ...]) -> None:
    if outcome.status is not Status.DONE or outcome.results != expected:
        raise WrongResult(f"{outcome} instead of {expected}")


def _finished(engine: Engine, program: Program) -> tuple[float, Outcome]:
    try:
        return _timed(engine, program)
    finally:
        program.close()


def _timed(engine: Engine, program: Program) -> tuple[float, Outcome]:
    """CPU seconds of a run, and how it ended."""

    def go() -> tuple[float, Outcome]:
        began = time.thread_time()
        outcome = program.run()
        return time.thread_time() - began, outcome

    return run_in_guest_thread(go, stack_bytes=engine.thread_stack_bytes(STACK))
