"""Samples that are checkpointed while they run, by fork and in place: the source does not notice, each image is whole.

The program runs in a worker as the command line runs it. Its output must be that of the undisturbed run; each image,
resumed on either runtime, must write exactly what came after it.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from pathlib import Path

import pytest

from wasmckpt.errors import CheckpointError, JobEnded, RetryLater
from wasmckpt.host import WasiConfig
from wasmckpt.snapshot.job import Job

from ..support.pairs import BASE, SEED, others, runtimes_for
from ..support.samples import Sample, cases, manifest, names, sample
from ..support.tiers import by_tier

RUNTIMES = BASE
LEFT_OUT = {
    "time": "what it writes depends on how long it is held up",
    "sleepy": "reads a pipe in its own tests", "append": "its files are compared in the matrix",
    "sqlite": "seconds on Wasm3", "lua": "seconds on Wasm3", "primes": "seconds to rewrite",
}
CHECK = ("qsort", "fib")
LONG = ("qsort", "vm", "sha256")
"""They run long enough on wasmtime: there must be images."""


def rows() -> list[object]:
    """On `RUNTIMES` all of them; on each other runtime the long ones and two that the seed draws (``soak``: all)."""
    out: list[object] = []
    chosen = [name for name in names(kind="command") if name not in LEFT_OUT
              and set(RUNTIMES) <= set(runtimes_for(manifest()[name].get("features", ())))]
    for runtime in (*RUNTIMES, *others()):
        some = {*LONG, *random.Random(f"{SEED} {runtime}").sample(chosen, 2)}
        for name, way in itertools.product(chosen, ("fork", "in-place")):
            quick = name in CHECK and runtime == "wasmtime"
            marks = [] if quick else [pytest.mark.slow] if runtime in RUNTIMES or name in some else [pytest.mark.soak]
            out.append(pytest.param(name, way, runtime, id=f"{name}-{way}-{runtime}", marks=marks))
    return out


class Life:
    """One life of a sample: its folder and its output."""

    def __init__(self, program: Sample, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.stdout = open(folder / "stdout", "w+b")  # noqa: SIM115 (closed below)
        self.stdin = open(folder / "stdin", "w+b")  # noqa: SIM115
        self.stdin.write(program.stdin)
        self.stdin.flush()
        self.stdin.seek(0)
        self.guest = folder / "guest"
        for name, content in program.files.items():
            (self.guest / name).parent.mkdir(parents=True, exist_ok=True)
            (self.guest / name).write_bytes(content)
        self.guest.mkdir(exist_ok=True)

    def config(self) -> WasiConfig:
        program = self.program
        preopens = [(str(self.guest), program.guest_dir)] if program.guest_dir else []
        out = self.stdout.fileno()
        return WasiConfig(args=program.argv, env=program.env, preopens=preopens, stdin=self.stdin.fileno(), stdout=out,
                          stderr=out)

    def output(self) -> bytes:
        self.stdout.seek(0)
        return self.stdout.read()

    def close(self) -> None:
        self.stdout.close()
        self.stdin.close()


def run_to_end(job: Job) -> str:
    """Wait; how it ended, a trap as its text."""
    try:
        return str(job.wait(120).exit_code)
    except CheckpointError as error:
        return type(error).__name__


@pytest.mark.parametrize(("name", "way", "runtime"), rows())
def test_the_source_goes_on(
    name: str, way: str, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WASMCKPT_SNAPSHOT", way)
    program = sample(name, "tiny" if runtime != "wasmtime" and "tiny" in cases(name) else "default")
    wanted = by_tier(check=2, test=4, soak=12)
    draw = random.Random(f"{name} {way} {runtime}")
    images: list[bytes] = []
    for _ in range(5):
        life = Life(program, Path(tempfile.mkdtemp(dir=tmp_path)))
        try:
            with Job.start(program.wasm, runtime, config=life.config()) as job:
                try:
                    while len(images) < wanted:
                        time.sleep(draw.random() * 0.01)
                        try:
                            images.append(job.checkpoint().data or b"")
                        except RetryLater:
                            pass
                except JobEnded:
                    pass  # it was faster
                end = run_to_end(job)
            whole = life.output()
            assert whole == program.stdout + program.stderr
            assert end == ("GuestTrap" if program.traps else str(program.exit_code))
        finally:
            life.close()
        if images or name not in LONG or runtime != "wasmtime":
            break  # else a busy machine was too late
    assert images or name not in LONG or runtime != "wasmtime"
    if program.files or program.guest_dir:
        return  # its files have gone on: an older image does not fit them, and says so (tests/unit/host)
    for number, image in enumerate(images):
        again = Life(program, Path(tempfile.mkdtemp(dir=tmp_path)))
        try:
            target = (*RUNTIMES, runtime)[number % 3]
            with Job.restore(image, target, module=program.wasm, config=again.config()) as job:
                assert run_to_end(job) == end
            rest = again.output()
            assert whole.endswith(rest), number
        finally:
            again.close()
