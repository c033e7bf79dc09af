"""The client for asyncio: the same methods and arguments, awaited; what comes piece by piece is an async iterator."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

import httpx

from ..api import ENDED, CheckpointInfo, Event, JobInfo, ModuleInfo
from ..errors import NotFound, RetryLater, StorageError
from .requests import Call, Requests, checked, problem, unreachable
from .sse import Lines, Output, Sent, output_of
from .where import Where, local

__all__ = ["AsyncAgentClient"]

P = ParamSpec("P")
T = TypeVar("T")
_WAIT = 30.0


def _sent(make: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncAgentClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(make)
    async def send(self: AsyncAgentClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(make(*args, **kwargs))

    return send


class AsyncAgentClient:
    """As `AgentClient`."""

    def __init__(self, where: Where | str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.where = Where(where) if isinstance(where, str) else where
        self._client = httpx.AsyncClient(**self.where.settings(), transport=transport)

    @classmethod
    def local(cls, state: str | os.PathLike[str] | None = None) -> AsyncAgentClient:
        """Of the agent that runs on this machine. Raises `RetryLater`: none does."""
        return cls(local(state))

    ready = _sent(Requests.ready)
    node = _sent(Requests.node)
    metrics = _sent(Requests.metrics)
    drain = _sent(Requests.drain)
    undrain = _sent(Requests.undrain)
    modules = _sent(Requests.modules)
    module = _sent(Requests.module)
    delete_module = _sent(Requests.delete_module)
    forget_lessons = _sent(Requests.forget_lessons)
    create = _sent(Requests.create)
    jobs = _sent(Requests.jobs)
    job = _sent(Requests.job)
    job_unless = _sent(Requests.job_unless)
    stop = _sent(Requests.stop)
    start = _sent(Requests.start)
    restore = _sent(Requests.restore)
    hibernate = _sent(Requests.hibernate)
    wake = _sent(Requests.wake)
    signal = _sent(Requests.signal)
    delete = _sent(Requests.delete)
    checkpoint = _sent(Requests.checkpoint)
    checkpoints = _sent(Requests.checkpoints)
    migrate = _sent(Requests.migrate)
    migrations = _sent(Requests.migrations)
    neighbours = _sent(Requests.neighbours)
    replicas = _sent(Requests.replicas)
    take_over = _sent(Requests.take_over)
    migration = _sent(Requests.migration)
    cancel_migration = _sent(Requests.cancel_migration)
    memory_map = _sent(Requests.memory_map)
    log = _sent(Requests.log)
    events = _sent(Requests.events)
    newest_event = _sent(Requests.newest_event)

    async def send(self, call: Call[T], content: Any = None) -> T:
        """Send a request. ``content``: a body that is not JSON."""
        try:
            return checked(call, await self._client.request(
                call.method, call.path, params=call.params, json=call.json, headers=call.headers, content=content,
                timeout=self.where.timeout + call.seconds,
            ))
        except httpx.HTTPError as reason:
            raise unreachable(self.where.url, reason) from reason

    async def upload(self, module: bytes | str | os.PathLike[str]) -> ModuleInfo:
        """Upload a module, or a file of one, unless it is there already. Raises `StorageError`: it cannot be read."""
        data = module if isinstance(module, bytes) else await _read(module, "module")
        sha256 = hashlib.sha256(data).hexdigest()
        try:
            return await self.module(sha256)
        except NotFound:
            parse = Requests.module(sha256).parse
            return await self.send(Call("PUT", f"/v1/modules/{sha256}", parse, seconds=300), data)

    async def all_jobs(self, **chosen: Any) -> AsyncIterator[JobInfo]:
        """As `jobs`, page after page."""
        cursor = None
        while True:
            page = await self.jobs(cursor=cursor, **chosen)
            for job in page.items:
                yield job
            if (cursor := page.next) is None:
                return

    async def wait(
        self, name: str, *, until: Callable[[JobInfo], bool] = lambda job: job.state in ENDED,
        timeout: float | None = None,
    ) -> JobInfo:
        """Wait until a job has ended, or is as it was asked for. Raises `RetryLater` after ``timeout`` seconds."""
        etag, end = None, None if timeout is None else time.monotonic() + timeout
        while True:
            left = _WAIT if end is None else end - time.monotonic()
            job, etag = await self.job_unless(name, etag, max(0.0, min(_WAIT, left)))
            if job is not None and until(job):
                return job
            if left <= 0:
                raise RetryLater(f"the job is not so far after {timeout:g} s", job=name)

    async def output(self, name: str, stream: str = "stdout") -> bytes:
        """All that a job has written and that is still there."""
        found, offset = bytearray(), 0
        while True:
            begin, data = await self.log(name, stream, offset)
            if not data:
                return bytes(found)
            found += data
            offset = begin + len(data)

    async def follow_log(self, name: str, stream: str = "stdout", offset: int = 0) -> AsyncIterator[Output]:
        """What a job writes, as it comes, until it has ended."""
        path = Requests.log(name, stream).path
        async for event in self._follow(path, {"offset": offset, "follow": "true"}):
            if event.kind == "output":
                yield output_of(event)

    async def follow_events(self, after: int = -1, job: str | None = None) -> AsyncIterator[Event]:
        """What happens, from now on (or behind the event with that number), until the agent stops."""
        chosen = {"after": after, "follow": "true"} | ({} if job is None else {"job": job})
        async for event in self._follow("/v1/events", chosen):
            yield Event.model_validate(event.data)

    async def follow_migration(self, name: str, move: str) -> AsyncIterator[Event]:
        """How a move goes, from its beginning to its end: events `migration`, whose ``data`` has the ``step``."""
        async for event in self._follow(f"{Requests.migration(name, move).path}/events", {}):
            yield Event.model_validate(event.data)

    async def _follow(self, path: str, params: dict[str, Any]) -> AsyncIterator[Sent]:
        lines = Lines()
        async with self._streamed("GET", path, params=params, headers={"Accept": "text/event-stream"}) as answer:
            async for line in answer.aiter_lines():
                if (event := lines.take(line)) is not None:
                    yield event

    async def download(
        self, name: str, number: int, path: str | os.PathLike[str], *, carry_module: bool = False,
    ) -> None:
        """Write an image to a file, whole or not at all. Raises `StorageError`."""
        from ..formats.files import write_whole

        data = bytearray()
        params = {"carry_module": str(carry_module).lower()}
        async with self._streamed(
            "GET", f"{Requests.job(name).path}/checkpoints/{number}/image", params=params
        ) as answer:
            async for piece in answer.aiter_bytes():
                data += piece
        await asyncio.to_thread(write_whole, path, bytes(data), "image")

    async def upload_checkpoint(self, name: str, path: str | os.PathLike[str]) -> CheckpointInfo:
        """Add an image that was taken elsewhere to those of a job. Raises `StorageError`."""
        parse = Requests.checkpoint(name).parse
        call = Call("POST", f"{Requests.job(name).path}/checkpoints/upload", parse, seconds=300)
        return await self.send(call, await _read(path, "image"))

    @asynccontextmanager
    async def _streamed(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx.Response]:
        try:
            async with self._client.stream(method, path, **options) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise problem(answer)
                yield answer
        except httpx.HTTPError as reason:
            raise unreachable(self.where.url, reason) from reason

    async def close(self) -> None:
        """Idempotent."""
        await self._client.aclose()

    async def __aenter__(self) -> AsyncAgentClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        await self.close()


async def _read(path: str | os.PathLike[str], what: str) -> bytes:
    try:
        return await asyncio.to_thread(Path(path).read_bytes)
    except OSError as reason:
        raise StorageError(f"the {what} cannot be read: {reason.strerror}", path=os.fspath(path)) from reason
