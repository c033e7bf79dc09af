"""A checkpoint before a call: the image holds the call as not begun, each call is asked for once, whatever happens."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable

import pytest

from wasmckpt import Call, Checkpoint, Job, UserFunction, WasiConfig
from wasmckpt.errors import GuestTrap, JobEnded, RetryLater, StorageError, UsageError
from wasmckpt.formats import StopKind, decode

from ..cli.conftest import wait_for
from ..cli.programs import CAT, talk, talk_output, wat
from ..support.pairs import BASE, drawn, runtimes_for
from ..support.tiers import by_tier, every_nth
from .guests import NESTED, SUMMER, assemble, i32

pytestmark = pytest.mark.slow

NEXT = ("env", "next")
PAIRS = [*itertools.product(BASE, BASE), *drawn(runtimes_for(), "before calls", 2)]


def taking(images: list[Checkpoint]) -> Callable[[Job], object]:
    return lambda job: images.append(job.checkpoint(patience=30))


def counting(calls: list[int], freeze: str = "atomic") -> dict[tuple[str, str], UserFunction]:
    def answer(call: Call, i: int) -> int:
        calls.append(i)
        return i * i

    return {NEXT: UserFunction("i32 -> i32", answer, freeze)}  # type: ignore[arg-type]


@pytest.mark.parametrize("freeze", ["atomic", "repeatable"])
@pytest.mark.parametrize("export", ["run", "through"])
def test_nothing_of_the_call_is_done(way: str, export: str, freeze: str) -> None:
    """n images of n calls, directly or through a table; each holds its call as to be made, and a life that goes on from
    it begins with that call and makes the rest."""
    n = 4
    images: list[Checkpoint] = []
    calls: list[int] = []
    done: list[int] = []

    def before(job: Job) -> None:
        done.append(len(calls))
        taking(images)(job)
        done.append(len(calls))

    with Job.start(assemble(SUMMER), "wasm3", invoke=export, arguments=i32(n), host_functions=counting(calls, freeze),
                   before_call={"next": before}) as job:
        result = job.wait(60).results
    assert calls == list(range(n)), "each made once"
    assert done == [i for i in range(n) for _ in range(2)]
    for i, image in every_nth(list(enumerate(images)), check=3, test=3):
        assert image.data is not None
        assert decode(image.data).frames[-1].point.kind is StopKind.REPEAT
        again: list[int] = []
        with Job.restore(image.data, "wasmtime", module=assemble(SUMMER), host_functions=counting(again)) as job:
            assert job.wait(60).results == result
        assert again == list(range(i, n))


@pytest.mark.parametrize(("origin", "target"), PAIRS)
def test_before_output(origin: str, target: str) -> None:
    """WASI's own functions as well: at each image all earlier lines are out and not one byte of this one."""
    lines, turns = 5, 1000
    read, write = os.pipe()
    images: list[tuple[bytes, bytes]] = []
    out = b""

    def before(job: Job) -> None:
        nonlocal out
        image = job.checkpoint(patience=30).data
        os.set_blocking(read, False)
        try:
            out += os.read(read, 1000)
        except BlockingIOError:
            pass
        images.append((out, image or b""))

    program = wat(talk(lines, turns))
    with Job.start(program, origin, config=WasiConfig(stdout=write),
                   before_call={"wasi_snapshot_preview1.fd_write": before}) as job:
        os.close(write)
        job.wait(60)
    os.set_blocking(read, True)
    out += os.read(read, 1000)
    os.close(read)
    assert out == talk_output(lines, turns)
    assert len(images) == lines
    for number, (before_it, image) in every_nth(list(enumerate(images)), check=4, test=2):
        assert before_it == talk_output(lines, turns)[: 7 * number]
        read, write = os.pipe()
        asked: list[Job] = []
        with Job.restore(image, target, module=program, config=WasiConfig(stdout=write),
                         before_call={"fd_write": asked.append}) as job:
            os.close(write)
            job.wait(60)
        with open(read, "rb") as file:
            assert file.read() == talk_output(lines, turns)[7 * number :]
        assert len(asked) == lines - number - 1, "the call that the image begins with has had its checkpoint"


def test_stop_before_each_call(way: str) -> None:
    """A chain of lives, each of which ends before its next call: none stands still, none makes a call twice."""
    n = 4
    calls: list[int] = []
    images: list[bytes] = []

    def stop(job: Job) -> None:
        images.append(job.checkpoint(stop=True, patience=30).data or b"")

    runtimes = itertools.cycle(BASE)
    functions = counting(calls)
    with Job.start(assemble(SUMMER), invoke="run", arguments=i32(n), host_functions=functions,
                   before_call={"next": stop}) as job:
        assert job.wait(60).how == "stopped"
        wait_for(lambda: images, "the image to be handed out")
    for made in range(n):
        assert calls == list(range(made))
        with Job.restore(images[-1], next(runtimes), module=assemble(SUMMER), host_functions=functions,
                         before_call={"next": stop}) as job:
            end = job.wait(60)
            if end.how == "stopped":
                wait_for(lambda made=made: len(images) > made + 1, "the image")  # type: ignore[misc]
    assert (end.how, len(images)) == ("done", n)
    assert end.results[0].bits == sum(i * i for i in range(n))
    assert calls == list(range(n))


def test_asked_once_though_the_call_is_begun_again(way: str) -> None:
    """A read that waits is interrupted by other checkpoints, and begun again by each."""
    read, write = os.pipe()
    asked = threading.Semaphore(0)
    with Job.start(wat(CAT), config=WasiConfig(stdin=read, stdout=os.open(os.devnull, os.O_WRONLY)),
                   before_call={"fd_read": lambda job: asked.release()}) as job:
        assert asked.acquire(timeout=30)
        job.idle(timeout=30)
        for _ in range(3):
            job.checkpoint(patience=30)
        assert not asked.acquire(blocking=False)
        os.write(write, b"one\n")
        assert asked.acquire(timeout=30), "the next read is another call"
        os.close(write)
        job.wait(30)
    assert not asked.acquire(blocking=False)


@pytest.mark.parametrize("mover", ["the one who is asked", "somebody else"])
def test_a_move_before_the_call(mover: str) -> None:
    """The program has moved when the call is made, it is asked for once all the same, and an image that comes after the
    move is still one before the call."""
    n = 4
    calls: list[int] = []
    asked: list[str] = []
    images: list[Checkpoint] = []
    targets = itertools.cycle(BASE[::-1])

    def before(job: Job) -> None:
        asked.append(job.runtime)
        if mover == "somebody else":
            other = threading.Thread(target=lambda: job.migrate(next(targets), patience=30))
            other.start()
            other.join()
        else:
            job.migrate(next(targets), patience=30)
        taking(images)(job)

    with Job.start(assemble(SUMMER), invoke="run", arguments=i32(n), host_functions=counting(calls),
                   before_call={"next": before}) as job:
        assert job.wait(60).results[0].bits == sum(i * i for i in range(n))
    assert calls == list(range(n))
    assert asked == [BASE[i % 2] for i in range(n)]
    for i, image in every_nth(list(enumerate(images)), check=3, test=3):
        again: list[int] = []
        with Job.restore(image.data or b"", module=assemble(SUMMER), host_functions=counting(again)) as job:
            job.wait(60)
        assert again == list(range(i, n))


def test_calls_within_a_function_of_the_users() -> None:
    """No image can hold a function that calls an export, so what is called meanwhile is not asked for."""
    images: list[Checkpoint] = []
    inner: list[int] = []

    def back(call: Call, i: int) -> int:
        return call.call_export("turn", 3)[0]

    def answer(call: Call, i: int) -> int:
        inner.append(i)
        return i

    functions = {
        ("env", "back"): UserFunction("i32 -> i32", back), ("env", "inner"): UserFunction("i32 -> i32", answer),
    }
    with Job.start(assemble(NESTED), invoke="run", arguments=i32(4), host_functions=functions,
                   before_call={"inner": taking(images), "back": taking(images)}) as job:
        job.wait(60)
    assert len(inner) == 4
    assert len(images) == 4, "of back, none of inner"


def test_a_checkpoint_that_fails_does_not_keep_the_call() -> None:
    """What it raises is for whoever takes it; anything else is a bug and ends the program, as in a user's function."""
    calls: list[int] = []

    def full(job: Job) -> None:
        raise StorageError("no space left")

    with Job.start(assemble(SUMMER), invoke="run", arguments=i32(3), host_functions=counting(calls),
                   before_call={"next": full}) as job:
        job.wait(60)
    assert calls == [0, 1, 2]
    with Job.start(assemble(SUMMER), invoke="run", arguments=i32(3), host_functions=counting(calls),
                   before_call={"next": lambda job: 1 // 0}) as job, pytest.raises(Exception, match="ZeroDivision"):
        job.wait(60)


@pytest.mark.parametrize(("name", "found"), [
    ("absent", False), ("", False), ("env.absent", False), ("other.next", False), ("run", False), ("memory", False),
    ("next", True), ("env.next", True),
])
def test_names_that_the_module_does_not_import(name: str, found: bool) -> None:
    """Refused before anything has run, with what there is; also from an image."""
    calls: list[int] = []
    images: list[Checkpoint] = []

    def start() -> Job:
        return Job.start(assemble(SUMMER), invoke="run", arguments=i32(1), host_functions=counting(calls),
                         before_call={name: taking(images)})

    if found:
        with start() as job:
            job.wait(30)
        assert len(images) == 1
        return
    with pytest.raises(UsageError, match=r"imports no function.*its imports: env\.next"):
        start()
    assert not calls
    with Job.start(assemble(SUMMER), invoke="run", arguments=i32(1), host_functions=counting(calls),
                   before_call={"next": taking(images)}) as job:
        job.wait(30)
    with pytest.raises(UsageError, match="imports no function"):
        Job.restore(images[0].data or b"", module=assemble(SUMMER), host_functions=counting(calls),
                    before_call={name: taking(images)})


def test_a_program_that_ends_in_the_call() -> None:
    """``proc_exit`` is a call like others."""
    images: list[Checkpoint] = []
    module = wat("""(module (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
      (memory (export "memory") 1) (func (export "_start") (call $exit (i32.const 9))))""")
    with Job.start(module, before_call={"proc_exit": taking(images)}) as job:
        assert (job.wait(30).how, job.wait().exit_code) == ("exited", 9)
    with Job.restore(images[0].data or b"", "wasm3", module=module) as job:
        assert job.wait(30).exit_code == 9


# Waiting

NAPS = """(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start") (local $i i32)
    (i32.store (i32.const 80) (i32.const 1))
    (i64.store (i32.const 88) (i64.const NAP))
    (loop $l
      (drop (call $poll (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 32)))
      CHANGE
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const TIMES))))))"""


def naps(nap_ms: int, times: int, *, changes: bool = False) -> bytes:
    """Sleeps again and again; its counter is an argument of nothing, and in memory only with ``changes``."""
    change = "(i32.store (i32.const 512) (local.get $i))" if changes else ""
    text = NAPS.replace("NAP", str(nap_ms * 1_000_000)).replace("TIMES", str(times)).replace("CHANGE", change)
    counted = "(local.tee $i (i32.add (local.get $i) (i32.const 1)))"
    return wat(text if changes else text.replace(counted, "(local.get $i)"))


@pytest.mark.parametrize("runtime", dict.fromkeys(
    (*BASE, *(target for _, target in drawn(runtimes_for(), "idle", 1)))))
def test_waiting_for_input(runtime: str, way: str) -> None:
    """Seen while it waits, once for each state; the digest tells whether anything but clocks has changed."""
    read, write = os.pipe()
    with Job.start(wat(CAT), runtime, config=WasiConfig(stdin=read, stdout=os.open(os.devnull, os.O_WRONLY))) as job:
        first = job.idle(timeout=30)
        assert job.idle(timeout=30) == first
        with pytest.raises(RetryLater):
            job.idle(first, timeout=0.2)
        os.write(write, b"one\n")
        second = job.idle(first, timeout=30)
        assert second != first
        assert job.checkpoint(patience=30).way in ("wait", "in-place")
        os.close(write)
        with pytest.raises(JobEnded):
            job.idle(second, timeout=30)
        job.wait(30)


def test_naps_that_change_nothing_and_naps_that_do() -> None:
    with Job.start(naps(400, 1)) as job:
        woken = job.idle(timeout=30)
        with contextlib.suppress(RetryLater):  # unless it had been woken when we looked for the first time
            woken = job.idle(woken, timeout=10)
        with pytest.raises(RetryLater):
            job.idle(woken, timeout=by_tier(check=0.3, test=1.0, soak=5.0))
    with Job.start(naps(400, 1 << 30, changes=True)) as job:
        seen: list[bytes] = []
        for _ in range(3):
            seen.append(job.idle(seen[-1] if seen else None, timeout=30))
        assert len(set(seen)) == 3
    with Job.start(naps(1, 1 << 30, changes=True)) as job, pytest.raises(RetryLater):
        job.idle(settle=2.0, timeout=2.5)


def test_a_program_that_computes_is_not_idle() -> None:
    with Job.start(wat("(module (memory (export \"memory\") 1) (func (export \"_start\") (loop $l (br $l))))")) as job:
        with pytest.raises(RetryLater):
            job.idle(timeout=0.1)
        job.kill()
        with pytest.raises((JobEnded, GuestTrap)):
            job.idle()
