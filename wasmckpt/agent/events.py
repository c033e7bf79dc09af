"""What happened, kept in order; whoever follows is woken."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping

from pydantic import JsonValue

from ..api import Event
from .database import Database

__all__ = ["Events"]


class Events:
    """Of one agent."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._followers: dict[int, Callable[[], object]] = {}
        self._next = 0

    def add(
        self, db: sqlite3.Connection, job: str | None, kind: str, text: str,
        data: Mapping[str, JsonValue] | None = None,
    ) -> None:
        """Write one down, in a transaction of others, who call `tell` when it is committed."""
        db.execute("INSERT INTO event (at, job, kind, text, data) VALUES (?, ?, ?, ?, ?)",
                   (time.time(), job, kind, text, json.dumps(data or {})))

    def say(self, job: str | None, kind: str, text: str, data: Mapping[str, JsonValue] | None = None) -> None:
        """Write one down."""
        with self._database.transaction(self.tell) as db:
            self.add(db, job, kind, text, data)

    def after(self, number: int, job: str | None = None, limit: int = 100) -> list[Event]:
        """Those behind the one with that number, of a job or of all."""
        where, given = ("AND job = ?", (number, job, limit)) if job is not None else ("", (number, limit))
        rows = self._database.rows(f"SELECT * FROM event WHERE number > ? {where} ORDER BY number LIMIT ?", given)
        return [Event(number=row["number"], at=row["at"], job=row["job"], kind=row["kind"], text=row["text"],
                      data=json.loads(row["data"])) for row in rows]

    def newest(self) -> int:
        """Number of the newest."""
        return int(self._database.value("SELECT coalesce(max(number), 0) FROM event"))

    def trim(self, most: int) -> None:
        """Forget all but the newest so many."""
        with self._database.transaction() as db:
            db.execute("DELETE FROM event WHERE number <= (SELECT max(number) FROM event) - ?", (most,))

    def follow(self, call: Callable[[], object]) -> Callable[[], None]:
        """Call ``call``, from some thread, whenever there may be something new. Gives what ends that."""
        with self._lock:
            self._next += 1
            number = self._next
            self._followers[number] = call

        def end() -> None:
            with self._lock:
                self._followers.pop(number, None)

        return end

    def tell(self) -> None:
        """There is something new."""
        with self._lock:
            followers = list(self._followers.values())
        for call in followers:
            call()
