"""Several agents as one, for orchestrators: where a job is, where a new one goes, what happens anywhere.

It decides nothing by itself but where a new job goes, and that by a hook (`Placement`). An agent that does not answer
is left out, and told as *lost* where events are followed; that is no reason to think that its jobs do not run. What
makes sure that a job of a lost agent goes on, and only once, are its neighbours (`Fleet.create` chooses them).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from ..api import ENDED, Event, JobInfo, JobSpec, Migrate, NodeInfo, State, raised_by
from ..errors import CheckpointError, NotFound, RetryLater, UsageError
from ..lazydata import dataclass
from .aio import AsyncAgentClient
from .where import Where

__all__ = ["Fleet", "Happening", "Placed", "Placement", "least_loaded"]

T = TypeVar("T")
_AGAIN: Final = 0.5
"""Seconds between two attempts to reach an agent, or to find a job that is on its way."""
_TURN: Final = 5.0
"""Seconds that one agent is asked to wait for a job, before all are asked where it is."""

Placement = Callable[[JobSpec, Mapping[str, NodeInfo]], list[str]]
"""A job and what all agents that answer are -> addresses of those that could take it, the best one first."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A job, and the agent that it is at."""

    url: str
    job: JobInfo


@dataclass(frozen=True, slots=True)
class Happening:
    """An event of an agent; None: the agent is ``lost`` (it does not answer), or answers again."""

    url: str
    event: Event | None
    lost: bool = False


def least_loaded(spec: JobSpec, nodes: Mapping[str, NodeInfo]) -> list[str]:
    """Agents that take jobs and have its runtime, those first that have least to do, and then the most memory."""

    def key(url: str) -> tuple[float, float, int]:
        node = nodes[url]
        return round(node.load[0] / node.cpus, 1), node.jobs.get("running", 0) / node.cpus, -node.memory_available

    return sorted((url for url, node in nodes.items() if not node.draining and any(
        runtime.name == spec.runtime and runtime.version is not None for runtime in node.runtimes)), key=key)


class Fleet:
    """Agents by their addresses. An async context manager, which closes their clients.

    Args:
        agents: where they are. place: chooses where new jobs go.
    """

    def __init__(self, agents: Iterable[Where | str], place: Placement = least_loaded) -> None:
        clients = [AsyncAgentClient(where) for where in agents]
        self._clients = {client.where.url.rstrip("/"): client for client in clients}
        self._place = place

    def client(self, url: str) -> AsyncAgentClient:
        """Of one of them."""
        return self._clients[url.rstrip("/")]

    @property
    def urls(self) -> list[str]:
        """All addresses."""
        return list(self._clients)

    async def nodes(self) -> dict[str, NodeInfo]:
        """What those are that answer."""
        return (await self._all(lambda client: client.node()))[0]

    async def jobs(self, **chosen: Any) -> list[Placed]:
        """Jobs of those that answer, wherever they are; ``chosen``: as of `AsyncAgentClient.jobs`."""

        async def of(client: AsyncAgentClient) -> list[JobInfo]:
            return [job async for job in client.all_jobs(**chosen) if job.state is not State.MOVED]

        found, _ = await self._all(of)
        return [Placed(url, job) for url, jobs in found.items() for job in jobs]

    async def find(self, name: str) -> Placed:
        """Where a job is, by its name or id. Raises `NotFound`: nowhere; `RetryLater`: it is with none that answers."""
        found, problems = await self._all(lambda client: client.job(name))
        here = [Placed(url, job) for url, job in found.items() if job.state is not State.MOVED]
        if here:
            return max(here, key=lambda placed: placed.job.epoch)
        if found or any(not isinstance(problem, NotFound) for problem in problems.values()):
            raise RetryLater("the job is with none of the agents that answer", job=name)
        raise NotFound("no agent has such a job", job=name)

    async def create(self, spec: JobSpec, module: bytes, *, neighbours: int = 0, key: str | None = None) -> Placed:
        """Make a job where the hook says. ``neighbours``: so many of the next best agents look after it.

        Raises:
            UsageError: no agent can take it, or there are not so many. Else as `AsyncAgentClient.create`.
        """
        candidates = self._place(spec, await self.nodes())
        if len(candidates) <= neighbours:
            raise UsageError("there are not enough agents that could take the job", found=len(candidates),
                             need=neighbours + 1)
        url, *others = candidates
        if neighbours:
            spec = spec.model_copy(update={"neighbours": others[:neighbours]})
        client = self._clients[url]
        await client.upload(module)
        return Placed(url, await client.create(spec, key=key))

    async def migrate(self, name: str, to: str, **wish: Any) -> Placed:
        """Move a job that runs to another agent, and wait until it is there; ``wish``: as of `Migrate`.

        Raises:
            NotFound, RetryLater, Conflict, NotSupported: it cannot be moved. Else what kept it where it is.
        """
        placed = await self.find(name)
        client, job = self._clients[placed.url], placed.job.id
        move = await client.migrate(job, Migrate(**{
            "to": to.rstrip("/"), "runtime": placed.job.runtime, "token": self.client(to).where.token, **wish}))
        async for _ in client.follow_migration(job, move.id):
            pass
        move = await client.migration(job, move.id)
        if move.problem is not None and move.state not in ("moved", "telling"):
            raise raised_by(0, move.problem.model_dump())
        return Placed(to.rstrip("/"), await self.client(to).job(job))

    async def wait(
        self, name: str, *, until: Callable[[JobInfo], bool] = lambda job: job.state in ENDED,
    ) -> Placed:
        """Wait until a job has ended, or is as it was asked for, wherever it moves meanwhile. Raises `NotFound`."""
        while True:
            try:
                placed = await self.find(name)
                if until(placed.job):
                    return placed
                await self._clients[placed.url].wait(
                    placed.job.id, until=lambda job: job.state is State.MOVED or until(job), timeout=_TURN)
            except RetryLater:
                await asyncio.sleep(_AGAIN)

    async def events(self) -> AsyncIterator[Happening]:
        """What happens at all of them, from now on, without end. Of an agent that was lost what happened meanwhile
        comes when it is back."""
        queue: asyncio.Queue[Happening | BaseException] = asyncio.Queue()
        followers = [asyncio.create_task(self._follow(url, queue)) for url in self._clients]
        try:
            while True:
                happening = await queue.get()
                if isinstance(happening, BaseException):
                    raise happening
                yield happening
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)

    async def _follow(self, url: str, queue: asyncio.Queue[Happening | BaseException]) -> None:
        client, last, lost = self._clients[url], -1, False
        while True:
            try:
                if last < 0:
                    last = await client.newest_event()
                else:
                    await client.node()  # that it answers at all
                lost = _back(url, lost, queue)
                async for event in client.follow_events(last):
                    last = event.number
                    queue.put_nowait(Happening(url, event))
            except RetryLater:
                pass
            except CheckpointError as problem:  # the token is no good, say
                queue.put_nowait(problem)
                return
            if not lost:
                lost = True
                queue.put_nowait(Happening(url, None, lost=True))
            await asyncio.sleep(_AGAIN)

    async def _all(
        self, ask: Callable[[AsyncAgentClient], Awaitable[T]],
    ) -> tuple[dict[str, T], dict[str, CheckpointError]]:
        """What each one answers, and what it fails by."""
        found: dict[str, T] = {}
        problems: dict[str, CheckpointError] = {}

        async def one(url: str, client: AsyncAgentClient) -> None:
            try:
                found[url] = await ask(client)
            except CheckpointError as problem:
                problems[url] = problem

        await asyncio.gather(*(one(url, client) for url, client in self._clients.items()))
        return found, problems

    async def close(self) -> None:
        """Idempotent."""
        for client in self._clients.values():
            await client.close()

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        await self.close()


def _back(url: str, lost: bool, queue: asyncio.Queue[Happening | BaseException]) -> bool:
    if lost:
        queue.put_nowait(Happening(url, None))
    return False
