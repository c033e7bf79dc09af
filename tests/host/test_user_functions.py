"""Functions of the user's: called once, never lost, whatever is frozen or moved meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wasmckpt import Call, Ended, Job, UserFunction, check
from wasmckpt.errors import (
    GuestTrap,
    HostFunctionError,
    JobEnded,
    NotSupported,
    RetryLater,
    UsageError,
)
from wasmckpt.runtimes import MissingImport
from wasmckpt.snapshot.worker_process import WorkerProcess

from ..support.tiers import by_tier
from .guests import BITS, NESTED, SUMMER, assemble, i32

NEXT = ("env", "next")
RUNTIMES = ("wasmtime", "wasm3")


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.001)


def summer(function: UserFunction, n: int, runtime: str = "wasmtime", export: str = "run") -> Job:
    return Job.start(assemble(SUMMER), runtime, invoke=export, arguments=i32(n), host_functions={NEXT: function})


def disturb(job: Job, rng: random.Random, often: int, *, moves: float = 0.1) -> int:
    """Snapshots and moves at random moments, ``often`` times or until the program has ended; gives how many moves."""
    made = 0
    runtimes = itertools.cycle(RUNTIMES[::-1])
    for number in range(often):
        try:
            if rng.random() < moves or number == 1:
                job.migrate(next(runtimes))
                made += 1
            else:
                job.checkpoint()
        except JobEnded:
            break
        except RetryLater:
            pass
        time.sleep(rng.random() * 0.005)
    return made


# Never twice, never lost

OFTEN = by_tier(check=8, test=60, soak=600)


@pytest.mark.slow
@pytest.mark.parametrize("freeze", ["atomic", "repeatable"])
@pytest.mark.parametrize("export", ["run", "through"])
def test_disturbed_all_the_time(way: str, freeze: str, export: str) -> None:
    """Each atomic call is made once, in order, over all freezes; a repeatable one again only over a move."""
    n = 100 * OFTEN
    calls: list[int] = []
    over = threading.Event()

    def answer(call: Call, i: int) -> int:
        calls.append(i)
        if not over.is_set():  # in its second half so slowly that it does not end before it has been disturbed enough
            over.wait(0.002 if i < n // 2 else 0.1)
        return i * i

    with summer(UserFunction("i32 -> i32", answer, freeze), n, export=export) as job:  # type: ignore[arg-type]
        moves = disturb(job, random.Random(n), OFTEN)
        assert not job.ended
        over.set()
        assert job.wait(100).results[0].bits == sum(i * i for i in range(n)) & 0xFFFFFFFF
    if freeze == "atomic":
        assert calls == list(range(n))
    else:
        assert [i for i, _ in itertools.groupby(calls)] == list(range(n))
        assert len(calls) <= n + moves


COUNTER = """
import os, time
def answer(call, i):
    with open({path!r}, "ab", buffering=0) as file:
        file.write(b"%d\\n" % i)
    time.sleep(0.001)
    return i * i
not_callable = 5
"""


@pytest.mark.slow
@pytest.mark.parametrize("freeze", ["atomic", "repeatable"])
def test_functions_by_name_run_in_the_worker(
    way: str, freeze: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_own.py").write_text(COUNTER.format(path=str(tmp_path / "calls")))
    monkeypatch.syspath_prepend(str(tmp_path))
    n = 20 * OFTEN
    with summer(UserFunction("i32 -> i32", "users_own:answer", freeze), n) as job:  # type: ignore[arg-type]
        disturb(job, random.Random(n), OFTEN, moves=0.05)
        assert job.wait(60).results[0].bits == sum(i * i for i in range(n)) & 0xFFFFFFFF
    calls = [int(line) for line in (tmp_path / "calls").read_bytes().split()]
    if freeze == "atomic":
        assert calls == list(range(n))
    else:
        assert [i for i, _ in itertools.groupby(calls)] == list(range(n))


@pytest.mark.slow
def test_a_restored_program_makes_the_calls_that_its_image_has_not(way: str) -> None:
    """From each image of a program that goes on, on another runtime: exactly the rest of the calls."""
    n = by_tier(check=40, test=150, soak=600)
    images: list[bytes] = []
    lives: list[list[int]] = []

    def life() -> UserFunction:
        calls: list[int] = []
        lives.append(calls)

        def answer(call: Call, i: int) -> int:
            calls.append(i)
            time.sleep(0.002 if len(images) > 3 else 0.02)
            return i + 1

        return UserFunction("i32 -> i32", answer)

    with summer(life(), n) as job:
        while not job.ended:
            with contextlib.suppress(JobEnded, RetryLater):
                images.append(job.checkpoint().data or b"")
            time.sleep(0.01)
        result = job.wait(60).results
    assert lives[0] == list(range(n))
    assert len(images) > 3
    for image in images[:: max(1, len(images) // 6)]:
        with Job.restore(
            image, "wasm3", module=assemble(SUMMER), host_functions={NEXT: life()},
        ) as job:
            assert job.wait(60).results == result
        assert lives[-1] == list(range(n))[n - len(lives[-1]) :]


# What a freeze does while a function runs


class Gate:
    """A function that stands still until it is let go."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.calls: list[Call] = []

    def __call__(self, call: Call, i: int) -> int:
        self.calls.append(call)
        self.entered.set()
        assert self.open.wait(60)
        return i + 41


@pytest.mark.slow
@pytest.mark.parametrize("stop", [True, False])
def test_a_freeze_waits_for_an_atomic_function(way: str, stop: bool) -> None:
    gate = Gate()
    with summer(UserFunction("i32 -> i32", gate), 2) as job:
        assert gate.entered.wait(30)
        with pytest.raises(RetryLater):
            job.checkpoint(stop=stop, timeout=0.3)
        images: list[bytes] = []
        thread = threading.Thread(target=lambda: images.append(job.checkpoint(stop=True).data or b""))
        thread.start()
        time.sleep(0.2)
        assert thread.is_alive()
        gate.open.set()
        thread.join()
        assert job.wait(30).how == "stopped"
    with Job.restore(
        images[0], "wasm3", module=assemble(SUMMER), host_functions={NEXT: UserFunction("i32 -> i32", gate)}
    ) as job:
        assert job.wait(30).results[0].bits == 41 + 42
    assert len(gate.calls) == 2


def test_a_freeze_does_not_wait_for_a_repeatable_function() -> None:
    gate, second = Gate(), Gate()
    second.open.set()
    with summer(UserFunction("i32 -> i32", gate, "repeatable"), 1) as job:
        assert gate.entered.wait(30)
        (call,) = gate.calls
        assert not call.abandoned
        image = job.checkpoint(stop=True, timeout=20).data
        assert job.wait(30).how == "stopped"
        with pytest.raises(JobEnded):
            call.read(0, 4)
    assert [call.abandoned for call in gate.calls] == [True]
    assert image is not None
    with Job.restore(
        image, "wasm3", module=assemble(SUMMER),
        host_functions={NEXT: UserFunction("i32 -> i32", second, "repeatable")},
    ) as job:
        assert job.wait(30).results[0].bits == 41
    gate.open.set()
    assert (len(gate.calls), len(second.calls)) == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("export", ["run", "through"])
def test_a_program_that_goes_on_keeps_the_run_it_has(way: str, export: str) -> None:
    """Snapshots while a repeatable function runs: it is not run again, and what it stores and gives counts."""
    gate = Gate()
    with summer(UserFunction("i32 -> i32", gate, "repeatable"), 1, export=export) as job:
        assert gate.entered.wait(30)
        images = [job.checkpoint(timeout=20).data for _ in range(5)]
        assert gate.calls[0].read(0, 4) == bytes(4)
        gate.open.set()
        assert job.wait(30).results[0].bits == 41
    assert len(gate.calls) == 1
    for image in (images[0], images[-1]):
        assert image is not None
        with Job.restore(
            image, "wasm3", module=assemble(SUMMER), host_functions={NEXT: UserFunction("i32 -> i32", gate)}
        ) as job:
            assert job.wait(30).results[0].bits == 41
    assert len(gate.calls) == 3


@pytest.mark.slow
def test_a_move_that_fails_keeps_the_run_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    real = WorkerProcess.ask

    def fail(self: WorkerProcess, do: str, *args: object, **options: object) -> object:
        if do == "restore":
            raise NotSupported("planted")
        return real(self, do, *args, **options)  # type: ignore[arg-type]

    with summer(UserFunction("i32 -> i32", gate, "repeatable"), 2) as job:
        assert gate.entered.wait(30)
        with monkeypatch.context() as planted:
            planted.setattr(WorkerProcess, "ask", fail)
            with pytest.raises(NotSupported, match="planted"):
                job.migrate("wasm3")
        gate.open.set()
        assert job.wait(30).results[0].bits == 83
    assert [call.abandoned for call in gate.calls] == [True, True]  # the program has ended
    assert len(gate.calls) == 2


@pytest.mark.slow
def test_a_move_makes_a_repeatable_call_again() -> None:
    gate = Gate()
    with summer(UserFunction("i32 -> i32", gate, "repeatable"), 1) as job:
        assert gate.entered.wait(30)
        gate.entered.clear()
        job.migrate("wasm3")
        assert gate.entered.wait(30)
        assert [call.abandoned for call in gate.calls] == [True, False]
        gate.open.set()
        assert job.wait(30).results[0].bits == 41


def test_a_function_sees_that_its_program_was_killed() -> None:
    gate = Gate()
    with summer(UserFunction("i32 -> i32", gate), 1) as job:
        assert gate.entered.wait(30)
        job.kill()
        assert job.wait(30).how == "killed"
        assert gate.calls[0].abandoned
        gate.open.set()


# What a function gets and gives


@pytest.mark.slow
def test_values_keep_their_bits() -> None:
    seen: list[tuple[int, ...]] = []

    def swap(call: Call, single: int, double: int, long: int) -> tuple[int, int, int]:
        seen.append((single, double, long, call.size))
        return long, double, single

    for runtime in RUNTIMES:
        if runtime == "wasm3":
            single = UserFunction("i32 -> i32", lambda call, i: i)
            with summer(single, 5, runtime) as job:
                assert job.wait(30).results[0].bits == 10
            continue
        functions = {("env", "swap"): UserFunction("f32 f64 i64 -> i64 f64 f32", swap)}
        with Job.start(assemble(BITS), runtime, invoke="run", host_functions=functions) as job:
            bits = job.wait(30).results[0].bits
        assert seen.pop() == (0x7FA00001, 0x7FF4000000000001, 2**64 - 2, 0)
        assert bits == (2**64 - 2) ^ 0x7FF4000000000001 ^ 0x7FA00001


def test_memory_is_stored_when_the_function_returns() -> None:
    def answer(call: Call, i: int) -> int:
        if i == 0:
            call.write(100, b"abcdef")
            call.write(102, b"XY")
            assert call.read(99, 8) == b"\0abXYef\0"
            assert call.read(103, 2) == b"Ye"
            assert call.read(0, 0) == b""
            for bad in ((-1, 1), (call.size, 1), (0, call.size + 1), (0, -1)):
                with pytest.raises(IndexError):
                    call.read(*bad)
            with pytest.raises(IndexError):
                call.write(call.size - 1, b"ab")
            call.write(call.size - 1, b"z")
        else:
            assert call.read(100, 6) == b"abXYef"
            assert call.read(call.size - 1, 1) == b"z"
        return -1

    with summer(UserFunction("i32 -> i32", answer), 2) as job:
        assert job.wait(30).results[0].bits == 2**32 - 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda call, i: 1 // i, "ZeroDivisionError"), (lambda call, i: None, "0 results, 1 declared"),
        (lambda call, i: (1, 2), "2 results"), (lambda call, i: 1.5, "float"), (lambda call, i: 1 << 32, "no i32"),
        (lambda call, i: -(1 << 31) - 1, "no i32"), (lambda call: 5, "positional argument"),
        (lambda call, i: call.read(1 << 20, 1), "MemoryFault"), (lambda call, i: "5", "str"),
    ],
)
def test_a_function_that_fails_ends_the_program(answer: Callable[..., object], said: str) -> None:
    with summer(UserFunction("i32 -> i32", answer), 3) as job:
        with pytest.raises(HostFunctionError, match=said) as error:
            job.wait(30)
        assert error.value.fields["function"] == "env.next"
        assert error.value.__cause__ is not None
    assert not os.path.exists(f"/proc/{job.pid}")


def test_a_twin_that_does_not_fail() -> None:
    with summer(UserFunction("i32 -> i32", lambda call, i: True), 3) as job:
        assert job.wait(30).results[0].bits == 3


def test_a_failure_in_the_worker_is_told_as_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_bad.py").write_text("def fail(call, i):\n    raise LookupError('no such thing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for freeze in ("atomic", "repeatable"):
        with (
            summer(UserFunction("i32 -> i32", "users_bad:fail", freeze), 3) as job,
            pytest.raises(HostFunctionError, match="LookupError: no such thing"),
        ):
            job.wait(30)


# Refusals, each before anything has run


def test_functions_that_are_missing_or_of_another_type() -> None:
    module = assemble(SUMMER)
    with pytest.raises(MissingImport, match="host_functions"):
        Job.start(module, invoke="run", arguments=i32(1))
    with pytest.raises(MissingImport, match="another type"):
        summer(UserFunction("i64 -> i32", lambda call, i: i), 1)
    with pytest.raises(MissingImport):
        check(module, "wasm3")
    check(module, "wasm3", host_functions={NEXT: UserFunction("i32 -> i32", lambda call, i: i)})


def test_a_restore_without_its_functions() -> None:
    def slow(call: Call, i: int) -> int:
        time.sleep(0.001)
        return i

    with summer(UserFunction("i32 -> i32", slow), 10_000) as job:
        image = job.checkpoint(stop=True).data
    assert image is not None
    with pytest.raises(MissingImport, match=r"next.*host_functions"):
        Job.restore(image, module=assemble(SUMMER))


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: UserFunction("i32 -> v128", lambda call: 1), lambda: UserFunction("int", lambda call: 1),
        lambda: UserFunction("", "no_colon"), lambda: UserFunction("", "__main__:f"), lambda: UserFunction("", ":f"),
        lambda: UserFunction("", lambda call: 1, "sometimes"),  # type: ignore[arg-type]
        lambda: UserFunction("", 5),  # type: ignore[arg-type]
        lambda: summer(UserFunction("i32 -> i32", "no_such_module:f"), 1),
        lambda: summer(UserFunction("i32 -> i32", "os:no_such_function"), 1),
        lambda: summer(UserFunction("i32 -> i32", "os:sep"), 1),
        lambda: Job.start(assemble(SUMMER), invoke="run", arguments=i32(1), host_functions={
            NEXT: UserFunction("i32 -> i32", lambda call, i: i),
            ("wasi_snapshot_preview1", "fd_write"): UserFunction("i32 i32 i32 i32 -> i32", lambda *a: 0),
        }),
    ],
)
def test_what_cannot_be_a_function(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        make()


# Guest to host to guest


def nested(
    back: Callable[[Call, int], object], n: int, inner: Callable[[Call, int], object] | None = None, *,
    freeze_at: int = 0,
) -> Job:
    return Job.start(
        assemble(NESTED), invoke="run", arguments=i32(n), host_functions={
            ("env", "back"): UserFunction("i32 -> i32", back),
            ("env", "inner"): UserFunction("i32 -> i32", inner or (lambda call, i: i)),
        }, freeze_at=freeze_at,
    )


@pytest.mark.slow
def test_a_freeze_waits_until_the_depth_is_zero_again(way: str) -> None:
    """All the time something is frozen or moved, while host functions call exports with loops that call out again."""
    n = by_tier(check=20, test=150, soak=1500)
    turns = 20_000
    seen: list[int] = []
    over = threading.Event()

    def back(call: Call, i: int) -> int:
        call.write(0, b"seen")
        (given,) = call.call_export("turn", turns)
        assert given == turns * (i + 1)
        assert int.from_bytes(call.read(8, 4), "little") == given
        assert call.read(0, 4) == b"seen"
        return i

    def inner(call: Call, i: int) -> int:
        seen.append(i)
        if not over.is_set():  # as in `test_disturbed_all_the_time`
            over.wait(0.001 if len(seen) < n // 2 else 0.2)
        return i

    with nested(back, n, inner) as job:
        assert disturb(job, random.Random(n), n // 3) > 0
        over.set()
        assert job.wait(120).results[0].bits == sum(range(n)) + n * turns
    assert seen == [turns * (i + 1) for i in range(n)]


@pytest.mark.slow
def test_a_freeze_that_was_asked_for_before_the_export_is_called(way: str) -> None:
    asked = threading.Event()

    def back(call: Call, i: int) -> int:
        asked.set()
        time.sleep(0.3)  # the flag is up by now
        return call.call_export("turn", 1000)[0] + call.call_export("sleep", 100)[0]

    n = 12
    with nested(back, n) as job:
        assert asked.wait(30)
        assert job.checkpoint(timeout=30).frames == 1
        assert job.migrate("wasm3").frames == 1
        assert job.wait(30).results[0].bits == sum(1000 * (i + 1) for i in range(n)) + 1000 * n


@pytest.mark.slow
def test_safepoints_inside_are_not_counted() -> None:
    def back(call: Call, i: int) -> int:
        return call.call_export("turn", 1000)[0]

    with nested(back, 50, freeze_at=40) as job:
        assert job.frozen.wait(30)
        data = job.checkpoint(stop=True).data
        assert job.wait(30).how == "stopped"
    assert data is not None
    functions = {
        ("env", name): UserFunction("i32 -> i32", call) for name, call in (("back", back), ("inner", lambda call, i: i))
    }
    with Job.restore(data, "wasm3", module=assemble(NESTED), host_functions=functions) as job:
        assert job.wait(30).results[0].bits == sum(1000 * (i + 1) for i in range(50)) + 50_000


def test_memory_that_grows_meanwhile() -> None:
    def back(call: Call, i: int) -> int:
        before = call.size
        call.call_export("grow")
        assert call.size == before + 65536
        call.write(before, b"new")
        return 0

    with nested(back, 3) as job:
        assert job.wait(30).results[0].bits == 0


@pytest.mark.slow
def test_the_guest_traps_or_leaves_inside() -> None:
    def swallow(export: str) -> Callable[[Call, int], int]:
        def back(call: Call, i: int) -> int:
            with contextlib.suppress(GuestTrap, JobEnded):
                call.call_export(export)
            return 3

        return back

    with nested(lambda call, i: call.call_export("trap"), 1) as job, pytest.raises(GuestTrap, match="unreachable"):
        job.wait(30)
    with nested(swallow("trap"), 2) as job:
        assert job.wait(30).results[0].bits == 6
    for back in (swallow("leave"), lambda call, i: call.call_export("leave")):
        with nested(back, 1) as job:
            assert job.wait(30) == Ended("exited", 7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("export", "arguments"), [("nope", ()), ("turn", ()), ("turn", (1, 2)), ("turn", (-1,)), ("__wasmckpt_resume", ())]
)
def test_exports_that_cannot_be_called(export: str, arguments: tuple[int, ...]) -> None:
    with (
        nested(lambda call, i: call.call_export(export, *arguments), 1) as job,
        pytest.raises(HostFunctionError, match="UsageError"),
    ):
        job.wait(30)


def test_a_repeatable_function_may_not_call_an_export() -> None:
    functions = {
        ("env", name): UserFunction("i32 -> i32", lambda call, i: call.call_export("turn", 1)[0], "repeatable")
        for name in ("back", "inner")
    }
    with (
        Job.start(assemble(NESTED), invoke="run", arguments=i32(1), host_functions=functions) as job,
        pytest.raises(HostFunctionError, match="repeatable function may not call an export"),
    ):
        job.wait(30)
