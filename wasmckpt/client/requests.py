"""All requests, as data: what is sent, and what is made of the answer. The clients send them, each in its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote

import httpx

from ..api import (
    CheckpointInfo,
    Event,
    JobInfo,
    JobSpec,
    MemoryMap,
    Migrate,
    MigrationInfo,
    ModuleInfo,
    Neighbour,
    NodeInfo,
    Page,
    Readiness,
    Replica,
    Restore,
    Signal,
    State,
    Stop,
    raised_by,
)
from ..errors import CheckpointError, RetryLater

__all__ = ["Call", "Requests", "checked", "unreachable"]

T = TypeVar("T")


class Call(NamedTuple, Generic[T]):
    """A request. ``fine``: statuses that are no error."""

    method: str
    path: str
    parse: Callable[[httpx.Response], T]
    params: Mapping[str, Any] | None = None
    json: Any = None
    headers: Mapping[str, str] | None = None
    fine: tuple[int, ...] = (200, 201, 202, 204)
    seconds: float = 0.0
    """That the agent may take longer than usual."""


def checked(call: Call[T], answer: httpx.Response) -> T:
    """What is made of an answer that was read. Raises what a problem names."""
    if answer.status_code not in call.fine:
        raise problem(answer)
    try:
        return call.parse(answer)
    except ValueError as reason:
        raise CheckpointError(f"the agent's answer makes no sense: {type(reason).__name__}",
                              hint="is it of another version, or no agent?", path=call.path) from reason


def problem(answer: httpx.Response) -> CheckpointError:
    """What an answer that was read says is wrong."""
    try:
        return raised_by(answer.status_code, answer.json())
    except ValueError:
        return raised_by(answer.status_code, None)


def unreachable(url: str, reason: Exception) -> RetryLater:
    """The error for an agent that does not answer."""
    what = "does not answer in time" if isinstance(reason, httpx.TimeoutException) else "cannot be reached"
    return RetryLater(f"the agent {what}: {str(reason) or type(reason).__name__}", url=url, hint="does it run there?")


class Requests:
    """Those of the clients that need no streams: their methods, and what each sends."""

    @staticmethod
    def ready() -> Call[Readiness]:
        """Whether the agent takes jobs, and if not, why."""
        return Call("GET", "/v1/ready", lambda a: Readiness.model_validate_json(a.content), fine=(200, 503))

    @staticmethod
    def node() -> Call[NodeInfo]:
        """The machine as it is now."""
        return Call("GET", "/v1/node", lambda a: NodeInfo.model_validate_json(a.content))

    @staticmethod
    def metrics() -> Call[str]:
        """In Prometheus' text format."""
        return Call("GET", "/v1/metrics", lambda a: a.text)

    @staticmethod
    def drain(to: str | None = None, token: str | None = None) -> Call[dict[str, Any]]:
        """Freeze all jobs, and let them go on at another agent (None: as the settings say): names of those that are
        images here (``frozen``), with problems of those that are not (``failed``), addresses where they go on
        (``moved``), and why some do not (``stayed``)."""
        return Call("POST", "/v1/node/drain", lambda a: dict(a.json()), seconds=3600,
                    json=_given(to=to, token=token) or None)

    @staticmethod
    def undrain() -> Call[int]:
        """Go on after a drain; gives how many jobs do."""
        return Call("POST", "/v1/node/undrain", lambda a: int(a.json()["woken"]))

    @staticmethod
    def modules(cursor: str | None = None, limit: int = 100) -> Call[Page[ModuleInfo]]:
        """Some of the modules that were uploaded, by digest."""
        return Call("GET", "/v1/modules", lambda a: Page[ModuleInfo].model_validate_json(a.content),
                    _given(cursor=cursor, limit=limit))

    @staticmethod
    def module(sha256: str) -> Call[ModuleInfo]:
        """What is known of a module."""
        return Call("GET", f"/v1/modules/{quote(sha256, safe='')}", _module)

    @staticmethod
    def delete_module(sha256: str) -> Call[None]:
        """Forget a module of which there is no job."""
        return Call("DELETE", f"/v1/modules/{quote(sha256, safe='')}", _nothing)

    @staticmethod
    def forget_lessons(sha256: str) -> Call[None]:
        """Forget which runtimes have crashed on a module: its new jobs begin where they are told to."""
        return Call("DELETE", f"/v1/modules/{quote(sha256, safe='')}/lessons", _nothing)

    @staticmethod
    def create(spec: JobSpec, *, key: str | None = None) -> Call[JobInfo]:
        """Make a job. ``key``: the same wish is fulfilled once, however often it is sent with the same key."""
        return Call("POST", "/v1/jobs", _job, json=spec.model_dump(mode="json"),
                    headers=None if key is None else {"Idempotency-Key": key})

    @staticmethod
    def jobs(
        *, labels: Mapping[str, str] | Sequence[str] = (), states: Sequence[State] = (), module: str | None = None,
        cursor: str | None = None, limit: int = 100,
    ) -> Call[Page[JobInfo]]:
        """Some jobs, newest first. ``labels``: all of these, or all of these names."""
        label = [f"{k}={v}" for k, v in labels.items()] if isinstance(labels, Mapping) else list(labels)
        return Call("GET", "/v1/jobs", lambda a: Page[JobInfo].model_validate_json(a.content), _given(
            label=label, state=[State(state).value for state in states], module=module, cursor=cursor, limit=limit))

    @staticmethod
    def job(name: str) -> Call[JobInfo]:
        """A job as it is now."""
        return Call("GET", _path(name), _job)

    @staticmethod
    def job_unless(name: str, etag: str | None, wait: float) -> Call[tuple[JobInfo | None, str | None]]:
        """A job and its ETag, as soon as that is another one; None after ``wait`` seconds."""
        return Call(
            "GET", _path(name), lambda a: (None if a.status_code == 304 else _job(a), a.headers.get("ETag")),
            {"wait": wait}, headers=None if etag is None else {"If-None-Match": etag}, fine=(200, 304), seconds=wait,
        )

    @staticmethod
    def stop(name: str, *, checkpoint: bool = False, etag: str | None = None) -> Call[JobInfo]:
        """End a job, at once or with an image. ``etag``: only if it is still that."""
        return _change(name, "stop", etag, Stop(checkpoint=checkpoint).model_dump())

    @staticmethod
    def start(name: str, *, etag: str | None = None) -> Call[JobInfo]:
        """Start a job that has ended from its beginning."""
        return _change(name, "start", etag)

    @staticmethod
    def restore(
        name: str, checkpoint: int | None = None, *, runtime: str | None = None, etag: str | None = None,
    ) -> Call[JobInfo]:
        """Let a job go on from an image (None: the newest)."""
        return _change(name, "restore", etag, Restore(checkpoint=checkpoint, runtime=runtime).model_dump())

    @staticmethod
    def hibernate(name: str, *, etag: str | None = None) -> Call[JobInfo]:
        """Put a job away as an image."""
        return _change(name, "hibernate", etag)

    @staticmethod
    def wake(name: str, *, etag: str | None = None) -> Call[JobInfo]:
        """Let a hibernated job go on."""
        return _change(name, "wake", etag)

    @staticmethod
    def signal(name: str, signal: str) -> Call[JobInfo]:
        """Have a job do something, without waiting for it: "checkpoint", "hibernate", "wake"."""
        return Call("POST", f"{_path(name)}/signal", _job, json=Signal.model_validate({"signal": signal}).model_dump())

    @staticmethod
    def delete(name: str, *, force: bool = False, etag: str | None = None) -> Call[None]:
        """Forget a job. ``force``: even if it runs."""
        return Call("DELETE", _path(name), _nothing, {"force": str(force).lower()}, headers=_if(etag), seconds=60)

    @staticmethod
    def migrate(name: str, wish: Migrate) -> Call[MigrationInfo]:
        """Begin to move a running job to another agent."""
        return Call("POST", f"{_path(name)}/migrations", _migration, json=wish.model_dump(mode="json"), seconds=60)

    @staticmethod
    def neighbours(name: str) -> Call[list[Neighbour]]:
        """Agents that look after a job."""
        return Call("GET", f"{_path(name)}/neighbours", lambda a: [Neighbour.model_validate(one) for one in a.json()])

    @staticmethod
    def replicas() -> Call[list[Replica]]:
        """Jobs of other agents that this one looks after."""
        return Call("GET", "/v1/neighbours", lambda a: [Replica.model_validate(one) for one in a.json()])

    @staticmethod
    def take_over(job: str) -> Call[JobInfo]:
        """Let a job of another agent, which this one looks after, go on here: a person knows that the other is gone."""
        return Call("POST", f"/v1/neighbours/{quote(job, safe='')}/take-over", _job, seconds=60)

    @staticmethod
    def migrations(name: str) -> Call[list[MigrationInfo]]:
        """Moves of a job, oldest first."""
        return Call("GET", f"{_path(name)}/migrations",
                    lambda a: [MigrationInfo.model_validate(one) for one in a.json()])

    @staticmethod
    def migration(name: str, move: str) -> Call[MigrationInfo]:
        """A move as it stands."""
        return Call("GET", f"{_path(name)}/migrations/{quote(move, safe='')}", _migration)

    @staticmethod
    def cancel_migration(name: str, move: str) -> Call[MigrationInfo]:
        """Call a move off; gives what has become of it."""
        return Call("POST", f"{_path(name)}/migrations/{quote(move, safe='')}/cancel", _migration, seconds=120)

    @staticmethod
    def checkpoint(name: str, *, key: str | None = None) -> Call[CheckpointInfo]:
        """Take an image of a job, which goes on."""
        return Call("POST", f"{_path(name)}/checkpoints", _checkpoint, seconds=120,
                    headers=None if key is None else {"Idempotency-Key": key})

    @staticmethod
    def checkpoints(name: str, cursor: str | None = None, limit: int = 100) -> Call[Page[CheckpointInfo]]:
        """Some images of a job, oldest first."""
        return Call("GET", f"{_path(name)}/checkpoints", lambda a: Page[CheckpointInfo].model_validate_json(a.content),
                    _given(cursor=cursor, limit=limit))

    @staticmethod
    def memory_map(name: str, number: int) -> Call[list[MemoryMap]]:
        """What an image holds of the program's memories, as cells."""
        return Call("GET", f"{_path(name)}/checkpoints/{number}/map",
                    lambda a: [MemoryMap.model_validate(one) for one in a.json()])

    @staticmethod
    def log(name: str, stream: str = "stdout", offset: int = 0, limit: int = 1 << 20) -> Call[tuple[int, bytes]]:
        """Some of what a job has written: from which byte on, and what."""
        return Call("GET", f"{_path(name)}/logs/{quote(stream, safe='')}",
                    lambda a: (int(a.headers["Log-Offset"]), a.content), {"offset": offset, "limit": limit})

    @staticmethod
    def events(after: int = 0, job: str | None = None, limit: int = 100) -> Call[list[Event]]:
        """What happened behind the event with that number."""
        return Call("GET", "/v1/events", lambda a: Page[Event].model_validate_json(a.content).items,
                    _given(after=after, job=job, limit=limit))

    @staticmethod
    def newest_event() -> Call[int]:
        """Number of the newest event."""
        return Call("GET", "/v1/events", lambda a: int(a.json()["next"]), {"after": -1, "limit": 1})


def _path(name: str) -> str:
    return f"/v1/jobs/{quote(name, safe='')}"


def _change(name: str, do: str, etag: str | None, json: object = None) -> Call[JobInfo]:
    return Call("POST", f"{_path(name)}/{do}", _job, json=json, headers=_if(etag), seconds=120)


def _if(etag: str | None) -> dict[str, str] | None:
    return None if etag is None else {"If-Match": etag}


def _given(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _job(answer: httpx.Response) -> JobInfo:
    return JobInfo.model_validate_json(answer.content)


def _module(answer: httpx.Response) -> ModuleInfo:
    return ModuleInfo.model_validate_json(answer.content)


def _migration(answer: httpx.Response) -> MigrationInfo:
    return MigrationInfo.model_validate_json(answer.content)


def _checkpoint(answer: httpx.Response) -> CheckpointInfo:
    return CheckpointInfo.model_validate_json(answer.content)


def _nothing(answer: httpx.Response) -> None:
    return None
