"""Jobs: made, looked at, changed, ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response

from ...api import JobInfo, JobSpec, Page, Restore, Signal, State, Stop
from ...errors import UsageError
from ..access import Here, Who
from ..problems import described
from ..records import Record
from ..reply import Cursor, IfMatch, IfNoneMatch, Key, Keys, Limit, aside, matches, not_modified
from ..service import Agent
from ..tokens import Known

router = APIRouter(prefix="/jobs", tags=["jobs"])
JobName = Annotated[str, Path(
    pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="Name or id of the job.", examples=["j1"])]
Write = Annotated[Known, Who("jobs:write")]
_READ: Final = [Who("jobs:read")]
_WRITE: Final = [Who("jobs:write")]
_CHANGES: Final = described(404, 409, 412)
_SAME: Final[dict[int | str, dict[str, Any]]] = {304: {"description": "As it was."}}


def _answer(agent: Agent, record: Record, response: Response) -> JobInfo:
    response.headers["ETag"] = record.etag
    return agent.info(record)


@router.post("", status_code=201, responses=described(404, 409, 501))
def create_job(
    spec: JobSpec, request: Request, response: Response, agent: Here, who: Write, key: Key = None,
) -> Any:
    """Make a job of a module that was uploaded; it is started as soon as there is room, see its `state`."""
    keys: Keys = request.app.state.keys
    fingerprint = keys.fingerprint(request, spec.model_dump())
    if (before := keys.answered(key, who, fingerprint)) is not None:
        return before

    def written(db: Any, record: Record) -> None:
        if key is not None:
            keys.put(db, key, who, fingerprint, 201, agent.info(record).model_dump_json())

    record = agent.create(spec, written)
    response.headers["Location"] = f"/v1/jobs/{record.name}"
    return _answer(agent, record, response)


create_job.__annotations__["return"] = JobInfo  # what OpenAPI shows; an answer that is given again is one already


@router.get("", responses=_SAME | described(), dependencies=_READ)
def list_jobs(
    agent: Here, response: Response, limit: Limit = 100, cursor: Cursor = None,
    label: Annotated[list[str], Query(max_length=16, description="`name=value` or `name`; all of them.")] = [],  # noqa: B006
    state: Annotated[list[State], Query(max_length=8, description="One of these.")] = [],  # noqa: B006
    module: Annotated[str | None, Query(max_length=64, description="Of this module.")] = None,
    if_none_match: IfNoneMatch = None,
) -> Any:
    """Jobs, newest first."""
    etag = f'W/"{agent.records.revision()}"'
    if matches(if_none_match, etag):
        return not_modified(etag)
    labels: dict[str, str | None] = {}
    for one in label:
        name, has_value, value = one.partition("=")
        if not name:
            raise UsageError("a label has a name", label=one[:80])
        labels[name] = value if has_value else None
    response.headers["ETag"] = etag
    return agent.page(labels, state, module, cursor, limit)


list_jobs.__annotations__["return"] = Page[JobInfo]


@router.get("/{job}", responses=_SAME | described(404), dependencies=_READ)
async def get_job(
    job: JobName, agent: Here, response: Response, if_none_match: IfNoneMatch = None,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for a change from `If-None-Match`.")] = 0,
) -> Any:
    """A job as it is now, or as soon as it is not any more what it was."""
    end = time.monotonic() + wait
    loop, new = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(new.set)

    stop_following = agent.events.follow(tell) if wait else lambda: None
    try:
        while True:
            new.clear()
            record = await aside(agent.records.get, job)
            if not matches(if_none_match, record.etag):
                return await aside(_answer, agent, record, response)
            if (left := end - time.monotonic()) <= 0:
                return not_modified(record.etag)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await new.wait()
    finally:
        stop_following()


get_job.__annotations__["return"] = JobInfo


@router.delete("/{job}", status_code=204, responses=_CHANGES, dependencies=_WRITE)
async def delete_job(
    job: JobName, agent: Here, if_match: IfMatch = None,
    force: Annotated[bool, Query(description="Even if it runs.")] = False,
) -> None:
    """Forget a job, its output and its images."""
    await aside(lambda: agent.jobs.delete(job, force=force, if_match=if_match))


async def _changed(agent: Agent, response: Response, change: Callable[[], Record]) -> JobInfo:
    return await aside(lambda: _answer(agent, change(), response))


@router.post("/{job}/stop", responses=_CHANGES, dependencies=_WRITE)
async def stop_job(
    job: JobName, agent: Here, response: Response, stop: Stop = Stop(), if_match: IfMatch = None,  # noqa: B008
) -> JobInfo:
    """End a job at once, or with an image from which it can go on. Nothing happens to one that has ended."""
    if stop.checkpoint:
        return await _changed(agent, response, lambda: agent.jobs.freeze(job, "stop", if_match=if_match))
    return await _changed(agent, response, lambda: agent.jobs.stop(job, if_match=if_match))


@router.post("/{job}/start", responses=_CHANGES, dependencies=_WRITE)
async def start_job(job: JobName, agent: Here, response: Response, if_match: IfMatch = None) -> JobInfo:
    """Start a job that has ended, from its beginning. Nothing happens to one that lives."""
    return await _changed(agent, response, lambda: agent.jobs.begin_again(job, if_match=if_match))


@router.post("/{job}/restore", responses=_CHANGES | described(404, 409, 412, 501), dependencies=_WRITE)
async def restore_job(
    job: JobName, agent: Here, response: Response, restore: Restore = Restore(), if_match: IfMatch = None,  # noqa: B008
) -> JobInfo:
    """Let a job go on from one of its images, here or on another runtime. What it did after that is lost."""
    return await _changed(agent, response, lambda: agent.jobs.restore(
        job, restore.checkpoint, restore.runtime, if_match=if_match))


@router.post("/{job}/hibernate", responses=_CHANGES, dependencies=_WRITE)
async def hibernate_job(job: JobName, agent: Here, response: Response, if_match: IfMatch = None) -> JobInfo:
    """Put a job away as an image, without a process, until it is woken."""
    return await _changed(agent, response, lambda: agent.jobs.freeze(job, "hibernate", if_match=if_match))


@router.post("/{job}/wake", responses=_CHANGES, dependencies=_WRITE)
async def wake_job(job: JobName, agent: Here, response: Response, if_match: IfMatch = None) -> JobInfo:
    """Let a hibernated job go on. Nothing happens to one that lives."""
    return await _changed(agent, response, lambda: agent.jobs.wake(job, if_match=if_match))


@router.post("/{job}/signal", status_code=202, responses=_CHANGES, dependencies=_WRITE)
async def signal_job(job: JobName, signal: Signal, agent: Here, response: Response) -> JobInfo:
    """Have a job do something, without waiting for it; its events tell what became of it."""
    return await _changed(agent, response, lambda: agent.jobs.signal(job, signal.signal))
