"""What jobs have written."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from ...api import ENDED
from ..access import Here, Who
from ..following import Followers, log_of, offset_of, streamed
from ..logs import Stream
from ..problems import described
from ..reply import aside
from .jobs import JobName
from .uploads import OCTETS

router = APIRouter(prefix="/jobs/{job}/logs", tags=["logs"])
_HEADERS: Final = {
    "Log-Offset": {"schema": {"type": "integer"}, "description": "Of the first byte of this answer."},
    "Log-End": {"schema": {"type": "integer"}, "description": "Where the log ends now."},
    "Log-Complete": {"schema": {"type": "string", "enum": ["true", "false"]},
                     "description": "Whether the job has ended, and nothing follows behind `Log-End`."},
}
_ANSWER: Final[dict[int | str, dict[str, Any]]] = {200: {
    "description": "Bytes of the log; with `follow` events: `output` (`offset`, `text` or `base64`), `gap`, `end`.",
    "headers": _HEADERS, "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}, "text/event-stream": {
        "schema": {"type": "string"},
        "example": 'id: 6\nevent: output\ndata: {"offset": 0, "text": "hello\\n"}\n\n',
    }},
}}
LastEvent = Annotated[str | None, Header(alias="Last-Event-ID", max_length=40, description="Go on behind that event.")]


@router.get("/{stream}", response_class=Response, responses=_ANSWER | described(404), dependencies=[Who("jobs:read")])
async def get_log(
    job: JobName, stream: Stream, agent: Here, request: Request,
    offset: Annotated[int, Query(ge=0, lt=1 << 62, description="Of the first byte that is wanted.")] = 0,
    limit: Annotated[int, Query(ge=1, le=16 << 20, description="Bytes at most.")] = 1 << 20,
    follow: Annotated[bool, Query(description="Send what comes as server-sent events.")] = False,
    last_event: LastEvent = None,
) -> Response:
    """What a job has written to its standard output or error."""
    record = await aside(agent.records.get, job)
    if follow:
        followers: Followers = request.app.state.followers
        followers.check()
        return streamed(log_of(agent, followers, record.id, stream, offset_of(last_event, offset)))
    piece = await aside(agent.log, record.id, stream, offset, limit)
    return Response(piece.data, media_type=OCTETS, headers={
        "Log-Offset": str(piece.offset), "Log-End": str(piece.end),
        "Log-Complete": "true" if record.state in ENDED else "false",
    })
