"""What happened."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from ...api import Event, Page
from ..access import Here, Who
from ..following import Followers, events_of, offset_of, streamed
from ..problems import described
from ..reply import Limit, aside
from .logs import LastEvent

router = APIRouter(prefix="/events", tags=["events"])
_ANSWER: Final[dict[int | str, dict[str, Any]]] = {200: {
    "model": Page[Event], "description": "Events in order; `next` is the number of the last one, if more may follow.",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}}


@router.get("", responses=_ANSWER | described(404), dependencies=[Who("jobs:read")])
async def list_events(
    agent: Here, request: Request, limit: Limit = 100,
    after: Annotated[int, Query(ge=-1, lt=1 << 62, description="Behind this one; -1: behind the newest.")] = 0,
    job: Annotated[str | None, Query(max_length=63, description="Of this job only: name or id.")] = None,
    follow: Annotated[bool, Query(description="Send them as server-sent events, also those to come.")] = False,
    last_event: LastEvent = None,
) -> Any:
    """What happened, oldest first: jobs' states, images, failures."""
    id_ = None if job is None else (await aside(agent.records.get, job)).id
    behind = await aside(agent.events.newest) if after < 0 else after
    if follow:
        followers: Followers = request.app.state.followers
        followers.check()
        return streamed(events_of(agent, followers, offset_of(last_event, behind), id_))
    found = await aside(agent.events.after, behind, id_, limit)
    full = str(found[-1].number) if len(found) == limit else None
    return Page[Event](items=found, next=str(behind) if after < 0 and not found else full)


list_events.__annotations__["return"] = Response
