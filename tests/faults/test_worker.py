"""Workers that die, hang or are asked at the wrong moment: an error in the parent, nothing left behind, nothing done
twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from wasmckpt import runtimes
from wasmckpt.errors import (
    CheckpointError,
    GuestTrap,
    ImageError,
    JobEnded,
    RetryLater,
    RuntimeMissing,
    StorageError,
    WorkerDied,
)
from wasmckpt.formats import decode
from wasmckpt.host import WasiConfig
from wasmckpt.snapshot.job import Job, check
from wasmckpt.snapshot.worker_process import WorkerProcess

from ..cli.conftest import alive, wait_for
from ..cli.programs import CAT, COUNT, FILLS, FOREVER, TRAPS, talk, talk_output, wat
from ..support.processes import children
from ..unit.snapshot.fork_guests import longer

LINES, TURNS = 24, 100_000_000  # three seconds on wasmtime


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No process (zombie or not), descriptor or thread of a job survives it."""
    before = descriptors()
    yield
    wait_for(lambda: not children(), "the end of all children")
    wait_for(lambda: descriptors() <= before, "closed descriptors")
    wait_for(lambda: {t.name for t in threading.enumerate() if t.name.startswith("worker ")} <= {"worker spawner"},
             "the end of all threads")


def descriptors() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
    return {entry for entry in found if "/proc/" not in entry and "/fd" not in entry}


class Output:
    """A file for a program's output, and what is in it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "output"
        stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.config = WasiConfig(stdin=stdin, stdout=os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))

    def read(self) -> bytes:
        return self._path.read_bytes()

    def close(self) -> None:
        os.close(self.config.stdout)
        os.close(self.config.stdin)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    made = Output(tmp_path)
    yield made
    made.close()


def spawned(monkeypatch: pytest.MonkeyPatch) -> list[WorkerProcess]:
    """All workers started from now on."""
    found: list[WorkerProcess] = []
    start = WorkerProcess.__init__

    def note(self: WorkerProcess, *args: object, **options: object) -> None:
        start(self, *args, **options)  # type: ignore[arg-type]
        found.append(self)

    monkeypatch.setattr(WorkerProcess, "__init__", note)
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_a_killed_worker_is_named_by_its_signal(number: signal.Signals) -> None:
    with Job.start(wat(FOREVER)) as job:
        while alive(job.pid) and not job.ended:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(job.pid, number)  # a runtime's handler may take the first SIGSEGV for something of its own
            time.sleep(0.02)
        with pytest.raises(WorkerDied, match=f"killed by {number.name}") as caught:
            job.wait(60)
        assert caught.value.fields["signal"] == number.name
        with pytest.raises(JobEnded):
            job.checkpoint()
        with pytest.raises(JobEnded):
            job.migrate("wasm3")
        assert job.status() == "ended"


@pytest.mark.slow
def test_killed_while_it_writes_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there under that name is still there."""
    monkeypatch.setenv("WASMCKPT_SLOW", "image.write:10")
    target = tmp_path / "i.wckpt"
    target.write_bytes(b"the one before")
    with Job.start(wat(FOREVER)) as job:
        failures: list[CheckpointError] = []

        def take() -> None:
            try:
                job.checkpoint(target)
            except CheckpointError as problem:
                failures.append(problem)

        thread = threading.Thread(target=take)
        thread.start()
        wait_for(lambda: list(tmp_path.glob(".wckpt-*")), "the beginning of the file")
        os.kill(job.pid, signal.SIGKILL)
        thread.join()
    assert [type(problem) for problem in failures] == [WorkerDied]
    assert target.read_bytes() == b"the one before"


def test_the_worker_ends_with_its_parent() -> None:
    code = "import sys; from wasmckpt.snapshot.job import Job; from tests.cli.programs import FOREVER, wat\n" \
           "job = Job.start(wat(FOREVER)); print(job.pid, flush=True); sys.stdin.read()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert alive(worker)
    parent.kill()
    parent.communicate()
    wait_for(lambda: not alive(worker), "the worker's end")


def test_the_worker_does_not_end_with_the_thread_that_started_it() -> None:
    """Linux counts the thread as the parent; callers' threads come and go."""
    started: list[Job] = []
    thread = threading.Thread(target=lambda: started.append(Job.start(wat(FOREVER))))
    thread.start()
    thread.join()
    with started[0] as job:
        time.sleep(0.2)
        assert job.status() == "running"


# Moves: at each step the target, or the source, dies.


class Conversation:
    """A program that copies its input to its output, and the other ends of its pipes."""

    def __init__(self) -> None:
        self._input, self._write = os.pipe()
        self._read, self._output = os.pipe()
        self.job = Job.start(wat(CAT), config=WasiConfig(stdin=self._input, stdout=self._output))
        self.exchange(b"before the move\n")

    def exchange(self, line: bytes) -> None:
        """The program copies a line, and nothing else comes."""
        os.write(self._write, line)
        assert os.read(self._read, 1000) == line

    def finish(self) -> None:
        """It copies on, sees the end of its input and ends."""
        self.exchange(b"after the move\n")
        os.close(self._write)
        self._write = -1
        assert self.job.wait(60).how == "done"

    def close(self) -> None:
        self.job.close()
        for fd in (self._input, self._read, self._output, self._write):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
def talking(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Conversation, list[WorkerProcess]]]:
    """A conversation with a program on wasmtime, and the list of all workers, its own first."""
    workers = spawned(monkeypatch)
    made = Conversation()
    yield made, workers
    made.close()


Talking = tuple[Conversation, list[WorkerProcess]]


def before_request(monkeypatch: pytest.MonkeyPatch, request: str, act: Callable[[Sequence[int]], object]) -> None:
    """Call ``act`` with the descriptors of the request before it is sent to a worker, once."""
    real = WorkerProcess.ask
    done: list[bool] = []

    def ask(self: WorkerProcess, do: str, *args: Any, descriptors: Sequence[int] = ()) -> object:
        if do == request and not done:
            done.append(True)
            act(descriptors)
        return real(self, do, *args, descriptors=descriptors)

    monkeypatch.setattr(WorkerProcess, "ask", ask)


def end(worker: WorkerProcess) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    wait_for(lambda: worker.gone is not None, "the worker's end")


@pytest.mark.parametrize("step", ["load", "prepare", "hold", "restore", "commit"])
def test_the_target_dies_before(monkeypatch: pytest.MonkeyPatch, talking: Talking, step: str) -> None:
    """The program goes on where it was; nothing of its input or output is lost or doubled."""
    conversation, workers = talking
    before_request(monkeypatch, step, lambda _: end(workers[1]))
    with pytest.raises(WorkerDied):
        conversation.job.migrate("wasm3")
    assert conversation.job.runtime == "wasmtime"
    conversation.finish()


@pytest.mark.parametrize("step", ["restore", "commit"])
def test_the_source_dies_when_it_is_not_needed_any_more(
    monkeypatch: pytest.MonkeyPatch, talking: Talking, step: str
) -> None:
    conversation, workers = talking
    before_request(monkeypatch, step, lambda _: end(workers[0]))
    assert conversation.job.migrate("wasm3").target == "wasm3"
    conversation.finish()


def test_the_source_dies_while_the_target_is_made_ready(monkeypatch: pytest.MonkeyPatch, talking: Talking) -> None:
    """Its death is the program's: the move fails, and so does waiting for the program."""
    conversation, workers = talking
    before_request(monkeypatch, "hold", lambda _: end(workers[0]))
    with pytest.raises(WorkerDied):
        conversation.job.migrate("wasm3")
    with pytest.raises(WorkerDied):
        conversation.job.wait(60)


def test_both_die(monkeypatch: pytest.MonkeyPatch, talking: Talking) -> None:
    conversation, workers = talking
    before_request(monkeypatch, "restore", lambda _: list(map(end, workers[:2])))
    with pytest.raises(WorkerDied):
        conversation.job.migrate("wasm3")
    with pytest.raises(WorkerDied):
        conversation.job.wait(60)


def test_ended_while_it_is_moved(monkeypatch: pytest.MonkeyPatch, talking: Talking) -> None:
    """Neither of the two may go on."""
    conversation, workers = talking
    before_request(monkeypatch, "commit", lambda _: None)
    before_request(monkeypatch, "restore", lambda _: conversation.job.kill())
    with pytest.raises(CheckpointError):
        conversation.job.migrate("wasm3")
    assert conversation.job.wait(60).how == "killed"
    assert not alive(workers[0].pid)
    assert not alive(workers[1].pid)


def test_an_image_that_the_target_refuses(monkeypatch: pytest.MonkeyPatch, talking: Talking) -> None:
    """The source has lost nothing, and can be moved again."""
    conversation, workers = talking
    before_request(monkeypatch, "restore", lambda descriptors: os.pwrite(descriptors[0], b"\xff", 200))
    with pytest.raises(ImageError):
        conversation.job.migrate("wasm3")
    assert not alive(workers[1].pid)
    conversation.exchange(b"between\n")
    assert conversation.job.migrate("wasm3").target == "wasm3"
    conversation.finish()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_a_program_that_computes_goes_on_after_a_failed_move(
    monkeypatch: pytest.MonkeyPatch, output: Output, way: str
) -> None:
    """Held with all its frames, or rebuilt from its image."""
    monkeypatch.setenv("WASMCKPT_SNAPSHOT", way)
    workers = spawned(monkeypatch)
    with Job.start(wat(talk(LINES, TURNS)), config=output.config) as job:
        before_request(monkeypatch, "commit", lambda _: end(workers[1]))
        with pytest.raises(WorkerDied):
            job.migrate("wasm3")
        job.wait(120)
    assert output.read() == talk_output(LINES, TURNS)


@pytest.mark.parametrize("module", ["simd", "absent"])
def test_refusals_come_before_the_source_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str
) -> None:
    asked: list[str] = []
    real = WorkerProcess.ask

    def note(self: WorkerProcess, do: str, *args: object, **options: object) -> object:
        asked.append(do)
        return real(self, do, *args, **options)  # type: ignore[arg-type]

    text = FOREVER
    if module == "simd":
        text = FOREVER.replace("(loop $next", "(drop (i32x4.splat (i32.const 1))) (loop $next", 1)
    with Job.start(wat(text)) as job:
        if module == "absent":
            (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['wasm3'] = None\n")
            monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        monkeypatch.setattr(WorkerProcess, "ask", note)
        with pytest.raises(RuntimeMissing if module == "absent" else CheckpointError):
            job.migrate("wasm3")
        assert "hold" not in asked
        assert job.status() == "running"


# Checkpoints at the wrong moment


def test_after_the_end(tmp_path: Path) -> None:
    with Job.start(wat(talk(1, 1)), config=WasiConfig(stdout=os.open(os.devnull, os.O_WRONLY))) as job:
        job.wait(60)
        for ask in (lambda: job.checkpoint(tmp_path / "i"), lambda: job.migrate("wasm3")):
            with pytest.raises(JobEnded, match="already ended"):
                ask()
        os.close(job._assignment.config.stdout)
    assert not (tmp_path / "i").exists()


@pytest.mark.slow
def test_twice_at_once() -> None:
    """The second one is told to come back, or waits if it says so; both images are whole."""
    with Job.start(wat(FOREVER)) as job:
        results: list[int] = []

        def take(patience: float) -> None:
            results.append(len(decode(job.checkpoint(patience=patience).data or b"").frames))

        first = threading.Thread(target=take, args=(0.0,))
        os.kill(job.pid, signal.SIGSTOP)  # so that the first one is not over soon
        first.start()
        wait_for(lambda: job._turn.busy, "the first request")
        with pytest.raises(RetryLater, match="under way"):
            job.checkpoint()
        with pytest.raises(RetryLater, match="under way"):
            job.migrate("wasm3")
        os.kill(job.pid, signal.SIGCONT)
        take(60.0)
        first.join()
        assert results == [1, 1]


def test_no_safepoint_in_time() -> None:
    """The request is given up, the program is not harmed, and a freeze that comes too late is undone."""
    for _ in range(10):
        with Job.start(wat(FILLS)) as job:
            with pytest.raises((RetryLater, JobEnded)) as caught:
                job.checkpoint(timeout=0.05)
            assert job.wait(120).how == "done"
        if caught.type is RetryLater:
            break  # else the machine was so busy that the program ended first
    assert caught.type is RetryLater


def test_a_trap_is_the_programs_own() -> None:
    with Job.start(wat(TRAPS)) as job, pytest.raises(GuestTrap) as caught:
        job.wait(60)
    assert caught.value.fields["kind"] == "unreachable"


@pytest.mark.slow
def test_an_image_that_cannot_be_written_with_stop(output: Output, tmp_path: Path) -> None:
    """Stop and image belong together: without the image the program goes on."""
    with Job.start(wat(talk(LINES, TURNS)), config=output.config) as job:
        with pytest.raises(StorageError, match="File name too long"):
            job.checkpoint(tmp_path / ("x" * 300), stop=True)
        assert job.status() == "running"
        job.wait(120)
    assert output.read() == talk_output(LINES, TURNS)
    assert sorted(os.listdir(tmp_path)) == ["output"]


@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_checkpoints_while_it_waits_for_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str) -> None:
    """A waiting read is repeated after the freeze; no byte is lost or read twice."""
    monkeypatch.setenv("WASMCKPT_SNAPSHOT", way)
    reader, writer = os.pipe()
    out_reader, out_writer = os.pipe()
    try:
        with Job.start(wat(CAT), config=WasiConfig(stdin=reader, stdout=out_writer)) as job:
            for i in range(3):
                os.write(writer, b"%d\n" % i)
                assert os.read(out_reader, 100) == b"%d\n" % i
                taken = job.checkpoint(tmp_path / f"{i}.wckpt")
                assert (taken.way == "in-place") == (way == "in-place")
            os.close(writer)
            writer = -1
            assert job.wait(60).how == "done"
    finally:
        for fd in (reader, out_reader, out_writer, *([writer] if writer >= 0 else [])):
            os.close(fd)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", "in-place"])
@pytest.mark.parametrize("runtime", runtimes.available())
def test_the_source_does_not_notice(monkeypatch: pytest.MonkeyPatch, output: Output, way: str, runtime: str) -> None:
    """Images one after the other; each of them ends like the source."""
    monkeypatch.setenv("WASMCKPT_SNAPSHOT", way)
    lines, expected = 6, b""
    for turns in longer(TURNS if runtime in ("wasmtime", "wasmer", "wasmedge-aot") else TURNS // 30):
        images = []
        with Job.start(wat(talk(lines, turns)), runtime, config=output.config) as job:
            with contextlib.suppress(JobEnded):
                while True:
                    images.append(job.checkpoint())
            job.wait(120)
        expected += talk_output(lines, turns)
        assert output.read() == expected
        if len(images) >= 2:
            break
    assert len(images) >= 2
    last = images[-1].data
    assert last is not None
    with Job.restore(last, "wasmtime", module=wat(talk(lines, turns)), config=output.config) as job:
        job.wait(60)
    assert expected.endswith(output.read()[len(expected) :])


def test_a_runtime_that_cannot(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        check(b"nonsense", "wasmtime")
    with pytest.raises(CheckpointError):
        check(wat(FOREVER), "nothing")
    for name in runtimes.available():
        check(wat(COUNT), name)


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerDied, match="no worker process can be started: No such file"):
        Job.start(wat(FOREVER))
