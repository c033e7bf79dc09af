"""Jobs that come from other agents: a request that is a conversation, and what its owner has decided."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response
from starlette.types import Receive, Scope, Send

from ...api import ArrivalOutcome
from ..access import Here, Who
from ..arrivals import Arrivals
from ..problems import described
from ..reply import aside
from .uploads import OCTETS, binary_answer, binary_body

router = APIRouter(prefix="/arrivals", tags=["migrations"])
_PIECE: Final = 1 << 17
_WHO: Final = [Who("jobs:write", "modules:write")]
JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of the job.", examples=["0" * 32])]


class _Conversation(Response):
    """An answer that begins at once and lasts as long as the request: its bytes go to a thread that serves them, and
    what that says comes back."""

    media_type = OCTETS

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__()
        self._arrivals = arrivals

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        threading.Thread(target=self._arrivals.serve, args=(theirs,), name="arrival", daemon=True).start()
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", OCTETS.encode())]})
        inward = asyncio.ensure_future(self._inward(ours, receive))
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(ours, _PIECE):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except OSError:
            pass
        finally:
            inward.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await inward
            ours.close()
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    @staticmethod
    async def _inward(ours: socket.socket, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    ours.shutdown(socket.SHUT_RDWR)
                    return
                if body := message.get("body", b""):
                    await loop.sock_sendall(ours, body)
                if not message.get("more_body", False):
                    ours.shutdown(socket.SHUT_WR)
                    return
        except OSError:
            return  # whoever served it has heard enough


@router.post("", response_class=Response, responses=binary_answer(OCTETS, "What the target says.") |
             described(503), openapi_extra=binary_body(OCTETS, "What the source says; see docs/live-migration.md."),
             dependencies=_WHO)
async def arrive(agent: Here) -> Any:
    """Bring a running job here: between agents. The answer begins at once, and both talk until it is decided."""
    agent.arrivals.check()
    return _Conversation(agent.arrivals)


arrive.__annotations__["return"] = Response


@router.post("/{job}/outcome", responses=described(404, 503), dependencies=_WHO)
async def tell_outcome(job: JobId, told: ArrivalOutcome, agent: Here) -> ArrivalOutcome:
    """What the owner of a job has decided about a move of it, for the case that the connection was lost before. It may
    be told any number of times."""
    await aside(agent.arrivals.decided, job, told.token, told.outcome)
    return told
