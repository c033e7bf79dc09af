"""Following what happens: server-sent events of a job's output, and of what is told.

Each event's id says where to go on: a client that was cut off sends it back as ``Last-Event-ID``. Files are read in
threads; a follower that waits costs nothing but a look now and then.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

from fastapi.responses import StreamingResponse

from ..api import ENDED, State
from ..errors import CheckpointError, NotFound, TooManyRequests, UsageError
from .logs import Stream
from .reply import aside
from .service import Agent

__all__ = ["Followers", "events_of", "log_of", "streamed"]

_PIECE: Final = 1 << 16
_SHORTEST: Final = 0.05
_LONGEST: Final = 0.5
_SIGN_OF_LIFE: Final = 15.0
"""Seconds after which a follower who hears nothing else hears a comment, so that a dead connection is noticed."""


class Followers:
    """Those of an agent: not too many, and all let go when it stops."""

    def __init__(self, most: int) -> None:
        self._most, self._number = most, 0
        self.over = asyncio.Event()

    def check(self) -> None:
        """Whether there is room for one more. Raises `TooManyRequests`."""
        if self._number >= self._most:
            raise TooManyRequests("there are as many followers as the agent takes", most=self._most)

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        """While one follows."""
        self._number += 1
        try:
            yield
        finally:
            self._number -= 1

    async def pause(self, seconds: float) -> bool:
        """Wait; gives whether the agent stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.over.wait()
        return self.over.is_set()


def streamed(events: AsyncIterator[str]) -> StreamingResponse:
    """An answer that goes on and on."""
    return StreamingResponse(events, media_type="text/event-stream")


def offset_of(last: str | None, otherwise: int) -> int:
    """Where to go on: behind ``Last-Event-ID``. Raises `UsageError`."""
    if last is None:
        return otherwise
    if not last.isascii() or not last.isdigit() or len(last) > 18:
        raise UsageError("Last-Event-ID is none of this stream", given=last[:40])
    return int(last)


async def log_of(agent: Agent, followers: Followers, job: str, stream: Stream, offset: int) -> AsyncIterator[str]:
    """What a job writes from ``offset`` on, until it has ended and all was said.

    Events: ``output`` with ``offset``, and ``text`` or (if it is not UTF-8) ``base64``; ``gap``: bytes before
    ``offset`` are there no more; ``end`` with the job's ``state`` and ``exit_code``.
    """
    with followers.one_more():
        pause, silence = _SHORTEST, 0.0
        while True:
            try:
                record = await aside(agent.records.get, job)
                piece = await aside(agent.log, job, stream, offset, _PIECE)
            except NotFound:
                yield _event("end", offset, {"state": "deleted", "exit_code": None})
                return
            except CheckpointError as problem:
                yield _event("end", offset, {"state": "unknown", "exit_code": None, "why": problem.what})
                return
            if piece.offset > offset:
                yield _event("gap", piece.offset, {"offset": piece.offset})
                offset = piece.offset
            if piece.data:
                yield _event("output", offset + len(piece.data), {"offset": offset, **_as_text(piece.data)})
                offset, pause, silence = offset + len(piece.data), _SHORTEST, 0.0
                continue
            if record.state in ENDED:
                yield _event("end", offset, {"state": record.state.value, "exit_code": record.exit_code})
                return
            if silence >= _SIGN_OF_LIFE:
                yield ": still here\n\n"
                silence = 0.0
            quiet = record.state is State.HIBERNATED
            if await followers.pause(_LONGEST if quiet else pause):
                return
            silence += _LONGEST if quiet else pause
            pause = min(pause * 1.5, _LONGEST)


async def events_of(agent: Agent, followers: Followers, after: int, job: str | None) -> AsyncIterator[str]:
    """What happens, behind the event with that number, until the client goes."""
    loop, new = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(new.set)

    with followers.one_more(), _ended(agent.events.follow(tell)):
        yield ": following\n\n"
        while not followers.over.is_set():
            new.clear()
            found = await aside(agent.events.after, after, job)
            for event in found:
                yield _event(event.kind, event.number, event.model_dump())
                after = event.number
            if found:
                continue
            waits = [asyncio.ensure_future(new.wait()), asyncio.ensure_future(followers.over.wait())]
            try:
                done, _ = await asyncio.wait(waits, timeout=_SIGN_OF_LIFE, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if not done:
                yield ": still here\n\n"


@contextlib.contextmanager
def _ended(end: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    finally:
        end()


def _event(kind: str, number: int, data: object) -> str:
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"


def _as_text(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
