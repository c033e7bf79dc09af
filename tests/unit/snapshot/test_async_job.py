"""The job for asyncio: nothing blocks the loop, and a cancelled task loses and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from wasmckpt import AsyncJob, Job, Value, WasiConfig
from wasmckpt.errors import GuestTrap, InvalidModule, JobEnded, NotSupported, WorkerDied
from wasmckpt.snapshot.worker_process import WorkerProcess
from wasmckpt.wasm.values import I32

from ...cli.programs import COUNT, FILLS, FOREVER, TRAPS, count_result, talk, talk_output, wat

SIMD = '(module (memory 1) (func (export "_start") (drop (i32x4.splat (i32.const 1)))))'


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.01)


@pytest.mark.slow
def test_moved_checkpointed_and_restored(tmp_path: Path) -> None:
    """Everything that a job can do, awaited, with the output of an undisturbed run."""
    lines, turns = 8, 300_000_000

    async def life() -> int:
        out = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
        module = wat(talk(lines, turns))
        async with await AsyncJob.start(module, config=WasiConfig(stdout=out)) as job:
            assert (await job.status(), job.runtime, job.ended) == ("running", "wasmtime", False)
            taken = await job.checkpoint(tmp_path / "i.wckpt")
            move = await job.migrate("wasmtime")
            assert (move.source, move.target) == ("wasmtime", "wasmtime")
            assert (await job.wait()).how == "done"
            assert job.ended
            with pytest.raises(JobEnded):
                await job.checkpoint()
        os.close(out)
        rest = os.open(tmp_path / "rest", os.O_RDWR | os.O_CREAT)
        async with await AsyncJob.restore(tmp_path / "i.wckpt", module=module, config=WasiConfig(stdout=rest)) as job:
            await job.wait()
        os.close(rest)
        return taken.size

    assert asyncio.run(life()) == os.path.getsize(tmp_path / "i.wckpt")
    assert (tmp_path / "out").read_bytes() == talk_output(lines, turns)
    assert talk_output(lines, turns).endswith((tmp_path / "rest").read_bytes())


@pytest.mark.slow
def test_many_at_once_and_the_loop_stays_free() -> None:
    """More programs than a thread pool has threads, all waited for; meanwhile the loop turns."""
    async def life() -> list[int]:
        longest = 0.0

        async def tick() -> None:
            nonlocal longest
            while True:
                since = time.monotonic()
                await asyncio.sleep(0.005)
                longest = max(longest, time.monotonic() - since)

        async def one(n: int) -> int:
            async with await AsyncJob.start(wat(COUNT), invoke="run", arguments=(Value(I32, n),)) as job:
                (result,) = (await job.wait()).results
                return result.bits

        ticking = asyncio.create_task(tick())
        async with asyncio.timeout(100):
            results = await asyncio.gather(*(one(n) for n in range(1, 13)))
        ticking.cancel()
        assert longest < 10
        return results

    assert asyncio.run(life()) == [count_result(n) & 0xFFFFFFFF for n in range(1, 13)]


@pytest.mark.parametrize(("make", "error"), [
    (lambda: AsyncJob.start(b"nonsense"), InvalidModule),
    pytest.param(lambda: AsyncJob.start(wat(SIMD), "wasm3"), NotSupported, marks=pytest.mark.slow),
    pytest.param(lambda: AsyncJob.check(wat(SIMD), "wasm3"), NotSupported, marks=pytest.mark.slow),
])
def test_errors_come_where_it_is_awaited(make: Callable[[], Awaitable[object]], error: type[Exception]) -> None:
    async def life() -> None:
        with pytest.raises(error):
            await make()
        await AsyncJob.check(wat(SIMD), "wasmtime")

    asyncio.run(life())


def test_how_it_ended_is_raised_by_wait() -> None:
    async def life() -> None:
        async with await AsyncJob.start(wat(TRAPS)) as job:
            for _ in range(2):
                with pytest.raises(GuestTrap):
                    await job.wait()
        async with await AsyncJob.start(wat(FOREVER)) as job:
            waiting = [asyncio.create_task(job.wait()) for _ in range(3)]
            await asyncio.sleep(0)
            os.kill(job.pid, 9)
            for task in waiting:
                with pytest.raises(WorkerDied):
                    await task

    asyncio.run(life())


def test_waiting_may_be_given_up_and_taken_up_again() -> None:
    async def life() -> None:
        async with await AsyncJob.start(wat(FOREVER)) as job:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await job.wait()
            assert not job._waiting, "nothing is kept for those who went"
            assert await job.status() == "running"
            await job.kill()
            assert (await job.wait()).how == "killed"

    asyncio.run(life())


def test_a_cancelled_start_leaves_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled while the worker starts: when that has succeeded, the job is ended."""
    made: list[Job] = []
    cancelled = threading.Event()
    start = Job._or_nothing

    def noted(self: Job) -> AbstractContextManager[None]:
        made.append(self)
        assert cancelled.wait(60)
        return start(self)

    monkeypatch.setattr(Job, "_or_nothing", noted)

    async def life() -> None:
        task = asyncio.create_task(AsyncJob.start(wat(FOREVER)))
        await until(lambda: made, "a worker")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        await until(lambda: not alive(made[0].pid), "its end")

    asyncio.run(life())


@pytest.mark.slow
def test_a_cancelled_move_is_made_or_not_but_never_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program lives on, on one of the two, and can be frozen again."""
    moving, cancelled = threading.Event(), threading.Event()
    real = Job._try_depth

    def halfway(self: Job, *workers: WorkerProcess) -> None:
        moving.set()
        assert cancelled.wait(60)
        real(self, *workers)

    monkeypatch.setattr(Job, "_try_depth", halfway)

    async def life() -> None:
        async with await AsyncJob.start(wat(FOREVER)) as job:
            task = asyncio.create_task(job.migrate("wasm3"))
            await until(moving.is_set, "the move")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            cancelled.set()
            while (await job.checkpoint(patience=60)).frames != 1:  # it may be at its beginning still
                await asyncio.sleep(0.01)
            assert job.runtime in ("wasmtime", "wasm3")
            assert await job.status() == "running"

    asyncio.run(life())


def test_the_block_ends_what_still_runs() -> None:
    async def life() -> int:
        async with await AsyncJob.start(wat(FILLS)) as job:
            return job.pid

    pid = asyncio.run(life())
    assert not alive(pid)
