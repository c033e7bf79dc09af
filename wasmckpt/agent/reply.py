"""What answers have in common: ETags, idempotency keys, long work beside the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
from fastapi import Header, Query, Request, Response
from fastapi.responses import JSONResponse

from ..errors import Conflict, UsageError
from .database import Database
from .tokens import Known

__all__ = ["Cursor", "IfMatch", "IfNoneMatch", "Key", "Keys", "Limit", "aside", "matches", "not_modified"]

T = TypeVar("T")
_LONG: Final = 64
"""Long calls that may be under way at once."""
Limit = Annotated[int, Query(ge=1, le=1000, description="Items of one page, at most.")]
Cursor = Annotated[str | None, Query(max_length=100, description="`next` of the page before.")]
IfMatch = Annotated[str | None, Header(max_length=1000, description="Only if its ETag is one of these.")]
IfNoneMatch = Annotated[str | None, Header(max_length=1000, description="Only if its ETag is none of these: else 304.")]
Key = Annotated[str | None, Header(
    alias="Idempotency-Key", min_length=1, max_length=200,
    description="Of this wish: however often it is sent, it is fulfilled once. Remembered for a day.",
)]
_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, anyio.CapacityLimiter] = WeakKeyDictionary()


async def aside(call: Callable[..., T], *given: Any) -> T:
    """Do what may take long in a thread of its own kind, so that short requests do not wait for it."""
    limiter = _limiters.setdefault(asyncio.get_running_loop(), anyio.CapacityLimiter(_LONG))
    return await anyio.to_thread.run_sync(call, *given, limiter=limiter)


def matches(header: str | None, etag: str) -> bool:
    """Whether an ETag is in an ``If-None-Match``."""
    if header is None:
        return False
    given = {part.strip().removeprefix("W/") for part in header.split(",")}
    return "*" in given or etag.removeprefix("W/") in given


def not_modified(etag: str) -> Response:
    """304."""
    return Response(status_code=304, headers={"ETag": etag})


class Keys:
    """Idempotency keys, each of one token. The answer to a wish is kept with its key, and given again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @staticmethod
    def fingerprint(request: Request, body: object) -> str:
        """Of what is wished for."""
        wish = [request.method, request.url.path, body]
        return hashlib.sha256(json.dumps(wish, sort_keys=True, default=str).encode()).hexdigest()

    def answered(self, key: str | None, who: Known, fingerprint: str) -> JSONResponse | None:
        """The answer that was given before, if there is one.

        Raises:
            UsageError: the key was for something else. Conflict: that is under way.
        """
        row = None if key is None else self._database.row(
            "SELECT * FROM idempotency WHERE key = ? AND token = ?", (key, who.id))
        if row is None:
            return None
        if row["fingerprint"] != fingerprint:
            raise UsageError("the idempotency key was used for another request", hint="use a new key for each wish")
        if row["status"] is None:
            raise Conflict("a request with that idempotency key is under way", hint="ask again in a while")
        return JSONResponse(json.loads(row["body"]), row["status"], {"Idempotency-Replayed": "true"})

    def begin(self, key: str | None, who: Known, fingerprint: str) -> None:
        """Nobody else begins with it. Raises `Conflict`."""
        if key is not None:
            with self._database.transaction() as db:
                _insert(db, key, who, fingerprint, None, None)

    def done(self, key: str | None, who: Known, status: int, body: str) -> None:
        """It was fulfilled."""
        if key is not None:
            with self._database.transaction() as db:
                db.execute("UPDATE idempotency SET status = ?, body = ? WHERE key = ? AND token = ?",
                           (status, body, key, who.id))

    def failed(self, key: str | None, who: Known) -> None:
        """It was not: the same key may be used again."""
        if key is not None:
            with self._database.transaction() as db:
                db.execute("DELETE FROM idempotency WHERE key = ? AND token = ?", (key, who.id))

    @staticmethod
    def put(db: sqlite3.Connection, key: str, who: Known, fingerprint: str, status: int, body: str) -> None:
        """It is fulfilled by this very transaction. Raises `Conflict`."""
        _insert(db, key, who, fingerprint, status, body)


def _insert(
    db: sqlite3.Connection, key: str, who: Known, fingerprint: str, status: int | None, body: str | None,
) -> None:
    try:
        db.execute("INSERT INTO idempotency VALUES (?, ?, ?, ?, ?, ?)",
                   (key, who.id, fingerprint, status, body, time.time()))
    except sqlite3.IntegrityError:
        raise Conflict("a request with that idempotency key is under way", hint="ask again in a while") from None
