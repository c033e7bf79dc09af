"""`Job` for asyncio: the same names and arguments, awaited.

Nothing is borrowed from the loop's thread pool: a program may run for months, and a thousand of them must not wait for
one another's threads. The end of a program is told to the loop; what takes a while has a thread of its own meanwhile.

A task that is cancelled stops waiting and no more: a move or a checkpoint is done whole, or refused, whether or not
somebody waits. Only a job whose `start` or `restore` was cancelled is ended, since nobody holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ..errors import CheckpointError, JobEnded
from .job import DEFAULT_TIMEOUT, Checkpoint, Ended, Job, check

if TYPE_CHECKING:
    from ..planning import Pace

__all__ = ["AsyncJob"]

P = ParamSpec("P")
T = TypeVar("T")


async def _in_thread(call: Callable[[], T], unwanted: Callable[[T], object] = lambda result: None) -> T:
    """Await a call that blocks. ``unwanted`` gets the result if nobody waits for it any more."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            if error is None:
                threading.Thread(target=unwanted, args=(result,), daemon=True).start()
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as problem:
            error = problem
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:  # the loop is closed
            if error is None:
                unwanted(result)  # type: ignore[arg-type]

    threading.Thread(target=run, name="async job", daemon=True).start()
    return await future


def _awaited(method: Callable[Concatenate[Job, P], T]) -> Callable[Concatenate[AsyncJob, P], Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(self: AsyncJob, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await _in_thread(lambda: method(self.job, *args, **kwargs))

    return call


def _made(make: Callable[P, Job]) -> Callable[P, Coroutine[Any, Any, AsyncJob]]:
    @functools.wraps(make)
    async def call(*args: P.args, **kwargs: P.kwargs) -> AsyncJob:
        return AsyncJob(await _in_thread(lambda: make(*args, **kwargs), Job.close))

    return call


def _unbound(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await _in_thread(lambda: function(*args, **kwargs))

    return call


class AsyncJob:
    """A `Job` whose methods are awaited. ``async with`` kills what still runs."""

    def __init__(self, job: Job) -> None:
        self.job = job
        """The same job for callers that block; both may be used at once."""
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        job.on_end(self._tell)

    start = staticmethod(_made(Job.start))
    restore = staticmethod(_made(Job.restore))
    checkpoint = _awaited(Job.checkpoint)
    cut_journal = _awaited(Job.cut_journal)
    migrate = _awaited(Job.migrate)
    status = _awaited(Job.status)
    idle = _awaited(Job.idle)
    kill = _awaited(Job.kill)
    close = _awaited(Job.close)
    check = staticmethod(_unbound(check))

    @property
    def runtime(self) -> str:
        """Name of the runtime that it runs on now."""
        return self.job.runtime

    @property
    def pid(self) -> int:
        """Process id of its worker now."""
        return self.job.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended; then `wait` gives or raises at once."""
        return self.job.ended

    async def wait(self) -> Ended:
        """Wait for the end; use `asyncio.timeout` for less. Raises as `Job.wait`."""
        over = asyncio.Event()
        waiter = asyncio.get_running_loop(), over
        self._waiting.add(waiter)
        try:
            if not self.ended:
                await over.wait()
        finally:
            self._waiting.discard(waiter)
        return self.job.wait()

    async def checkpoints(
        self, pace: Pace | float, path: str | os.PathLike[str] | None = None, *,
        on_error: Callable[[CheckpointError], object] | None = None, **options: Any,
    ) -> AsyncIterator[Checkpoint]:
        """As `Job.checkpoints`: ``async for image in job.checkpoints(...)``."""
        from .schedule import Schedule

        schedule = Schedule(pace)
        while not await self._ends_within(schedule.wait()):
            schedule.begin()
            try:
                taken = await self.checkpoint(path, **{"patience": DEFAULT_TIMEOUT, **options})
            except JobEnded:
                return
            except CheckpointError as problem:
                if on_error is None:
                    raise
                schedule.took(None)
                on_error(problem)
                continue
            schedule.took(taken)
            yield taken

    async def _ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            return self.ended
        except CheckpointError:
            pass  # how it ended is for others to hear
        return True

    def _tell(self) -> None:
        for loop, over in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(over.set)

    async def __aenter__(self) -> AsyncJob:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        await asyncio.shield(self.close())
