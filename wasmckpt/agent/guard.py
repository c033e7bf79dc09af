"""Around all requests: how long a body may be, how long a client may pause in it, and what each answer says about
itself.

The server gives the body piece by piece; so a body that is too long is refused at its first byte that is too many, or
by its announced length before any of it is read, and nobody keeps a place by sending one byte a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..api import problem_of
from ..errors import CheckpointError, TooLarge, UsageError
from .config import AgentConfig
from .problems import response_of

__all__ = ["Guard"]

_TIMED_OUT: Final = 408
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class _Stopped(Exception):
    """The app is not to go on with the body; what it then says is not what is answered."""


class Guard:
    """Pure ASGI, since what wraps requests and answers in objects would keep whole bodies."""

    def __init__(self, app: ASGIApp, config: AgentConfig) -> None:
        self._app, self._config = app, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most, got, begun, complete = self._most(scope), 0, False, False
        answer: Response | None = None
        """Ours, in the place of the app's."""

        def stop(error: CheckpointError, status: int) -> _Stopped:
            nonlocal answer
            answer = response_of(problem_of(error).model_copy(update={"status": status}))
            return _Stopped(str(error))

        def too_long() -> _Stopped:
            return stop(TooLarge(f"the request's body is longer than {most} bytes", most=most), TooLarge.http_status)

        async def limited() -> Message:
            nonlocal got, complete
            if complete:
                return await receive()  # waits for the client to go
            try:
                async with asyncio.timeout(None if self._talks(scope) else self._config.body_pause):
                    message = await receive()
            except TimeoutError:
                raise stop(UsageError("the request's body did not come on", seconds=self._config.body_pause),
                           _TIMED_OUT) from None
            if message["type"] == "http.request":
                got += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if got > most:
                    raise too_long()
            return message

        async def marked(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                have = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in _HEADERS if pair[0] not in have)]
                if not complete and _has_body(scope):  # what is left of the body is not read
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        async def unless_stopped(message: Message) -> None:
            if answer is None or begun:
                await marked(message)

        if (length := _announced(scope)) is not None and length > most:
            too_long()
        else:
            try:
                await self._app(scope, limited, unless_stopped)
            except _Stopped:
                if begun:
                    raise
            except ClientDisconnect:  # in the middle of its body: nobody is left to hear of it
                return
        if answer is not None and not begun:
            await answer(scope, receive, marked)

    @staticmethod
    def _talks(scope: Scope) -> bool:
        """Whether it is a conversation, which has limits of its own."""
        return bool(scope["path"] == "/v1/arrivals")

    def _most(self, scope: Scope) -> int:
        path: str = scope["path"]
        if self._talks(scope):
            return 1 << 62
        if path.startswith("/v1/modules"):
            return self._config.most_module
        if path.endswith("/checkpoints/upload") or (path.startswith("/v1/neighbours/") and path.endswith("/image")):
            return self._config.most_image
        return self._config.most_body


def _header(scope: MutableMapping[str, Any], name: bytes) -> bytes | None:
    return next((value for key, value in scope["headers"] if key == name), None)


def _announced(scope: Scope) -> int | None:
    found = _header(scope, b"content-length")
    return int(found) if found is not None and found.isdigit() else None


def _has_body(scope: Scope) -> bool:
    return _header(scope, b"transfer-encoding") is not None or bool(_announced(scope))
