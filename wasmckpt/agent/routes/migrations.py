"""Moves of jobs to other agents: begun, watched, called off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response

from ...api import Migrate, MigrationInfo
from ..access import Here, Who
from ..following import Followers, events_of, offset_of, streamed
from ..problems import described
from ..reply import aside
from ..service import Agent
from .jobs import JobName
from .logs import LastEvent

router = APIRouter(prefix="/jobs/{job}/migrations", tags=["migrations"])
MoveId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of the move.", examples=["0" * 32])]
_ANSWER: Final[dict[int | str, dict[str, Any]]] = {200: {
    "description": "Events `migration`, as of `GET /v1/events`, until it is over; `data.step` says how far it is.",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}}


@router.post("", status_code=202, responses=described(404, 409, 502), dependencies=[Who("jobs:write")])
async def start_migration(job: JobName, wish: Migrate, agent: Here, response: Response) -> MigrationInfo:
    """Move a running job to another agent, while it runs. Until the other one has all that it takes nothing changes for
    the job, whatever fails."""
    found = await aside(agent.departures.begin, job, wish)
    response.headers["Location"] = f"/v1/jobs/{found.job}/migrations/{found.id}"
    return found


@router.get("", responses=described(404), dependencies=[Who("jobs:read")])
async def list_migrations(job: JobName, agent: Here) -> list[MigrationInfo]:
    """Moves of a job, oldest first: those away from here, and those to here."""
    return await aside(lambda: agent.moves.of(agent.records.get(job).id))


@router.get("/{migration}", responses=described(404), dependencies=[Who("jobs:read")])
async def get_migration(job: JobName, migration: MoveId, agent: Here) -> MigrationInfo:
    """A move as it stands."""
    return await aside(lambda: agent.moves.get(agent.records.get(job).id, migration))


@router.post("/{migration}/cancel", responses=described(404), dependencies=[Who("jobs:write")])
async def cancel_migration(job: JobName, migration: MoveId, agent: Here) -> MigrationInfo:
    """Call a move off: the job goes on here as if nothing had been. Nothing happens if it has been decided already;
    the answer says how."""
    return await aside(agent.departures.cancel, job, migration)


@router.get("/{migration}/events", responses=_ANSWER | described(404), dependencies=[Who("jobs:read")])
async def follow_migration(
    job: JobName, migration: MoveId, agent: Here, request: Request, last_event: LastEvent = None,
    after: Annotated[int, Query(ge=0, lt=1 << 62, description="Behind this one.")] = 0,
) -> Any:
    """How a move goes, as server-sent events, from its beginning to its end."""
    found = await aside(lambda: agent.moves.get(agent.records.get(job).id, migration))
    followers: Followers = request.app.state.followers
    followers.check()
    return streamed(_of_it(agent, followers, found, offset_of(last_event, after)))


follow_migration.__annotations__["return"] = Response


async def _of_it(agent: Agent, followers: Followers, move: MigrationInfo, after: int) -> AsyncIterator[str]:
    events = events_of(agent, followers, after, move.job)
    try:
        async for event in events:
            if event.startswith(":"):
                yield event
                if (await aside(agent.moves.get, move.job, move.id)).state in ("moved", "kept", "here", "off") and (
                        event != ": following\n\n"):
                    return
            elif "\nevent: migration\n" in event and f'"migration": "{move.id}"' in event:
                yield event
                if any(f'"step": "{step}"' in event for step in ("moved", "kept")):
                    return
    finally:
        await events.aclose()  # type: ignore[attr-defined]
