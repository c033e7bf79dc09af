"""What this agent is to a job, as `wasmckpt.migrate.handover` sees it, in the rows of ``job`` and ``migration``.

The fencing token is the job's ``epoch``. Of a job that is not here the highest one that was heard of is in the moves of
it, which are kept. Each change is one transaction: who owns a job, its state, and the move's.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from ..api import MigrationInfo, Problem, State, problem_of
from ..errors import CheckpointError, NotFound
from ..migrate.handover import FRESH, Role, Standing
from .database import Database

__all__ = ["Moves"]

_OPEN: Final = ("moving", "calling-off", "telling")
"""States of a move about which the other agent has not heard the last word."""


class Moves:
    """Of one agent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def standing(self, job: str) -> Standing:
        """What this agent is to a job, by its id."""
        row = self._database.row("SELECT state, epoch FROM job WHERE id = ?", (job,))
        seen = int(self._database.value("SELECT coalesce(max(epoch), 0) FROM migration WHERE job = ?", (job,)))
        if row is None:
            return FRESH if not seen else Standing(Role.ABSENT, seen)
        role = {State.MOVED: Role.GONE, State.ARRIVING: Role.PREPARED}.get(State(row["state"]), Role.OWNER)
        return Standing(role, max(int(row["epoch"]), seen if role is Role.GONE else 0),
                        settled=not self.unsettled(job))

    def unsettled(self, job: str) -> list[sqlite3.Row]:
        """Moves away about which the other agent has yet to hear, oldest first."""
        return self._database.rows(
            "SELECT * FROM migration WHERE job = ? AND direction = 'out' AND state IN (?, ?, ?) ORDER BY started",
            (job, *_OPEN))

    def open(self) -> list[sqlite3.Row]:
        """The same, of all jobs."""
        return self._database.rows(
            "SELECT * FROM migration WHERE direction = 'out' AND state IN (?, ?, ?) ORDER BY started", _OPEN)

    def get(self, job: str, move: str) -> MigrationInfo:
        """One of them. Raises `NotFound`."""
        row = self._database.row("SELECT * FROM migration WHERE job = ? AND id = ?", (job, move))
        if row is None:
            raise NotFound("there is no such move of the job", migration=move)
        return _info(row)

    def of(self, job: str) -> list[MigrationInfo]:
        """Moves of a job, oldest first. Tokens that came to nothing before a job was prepared are remembered in the
        same table, and are no moves."""
        return [_info(row) for row in self._database.rows(
            "SELECT * FROM migration WHERE job = ? AND runtime != '' ORDER BY started", (job,))]

    def address(self, move: str) -> tuple[str, str | None]:
        """Of the other agent, and the token that was given for it."""
        peer = json.loads(self._database.value("SELECT peer FROM migration WHERE id = ?", (move,)))
        return peer["url"], peer.get("token")

    # In a transaction of others

    @staticmethod
    def begin(
        db: sqlite3.Connection, job: str, token: int, direction: str, peer: dict[str, Any], runtime: str, state: str,
    ) -> str:
        """One more; gives its id."""
        new, now = uuid.uuid4().hex, time.time()
        db.execute("INSERT INTO migration (id, job, epoch, direction, peer, runtime, state, started, changed) "
                   "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   (new, job, token, direction, json.dumps(peer), runtime, state, now, now))
        return new

    @staticmethod
    def becomes(db: sqlite3.Connection, move: str, state: str, problem: CheckpointError | None = None) -> None:
        """It is that now. The token for the other agent is forgotten with the last word."""
        db.execute("UPDATE migration SET state = ?, changed = ?, problem = coalesce(?, problem) WHERE id = ?",
                   (state, time.time(), None if problem is None else problem_of(problem).model_dump_json(), move))
        if state not in _OPEN:
            db.execute("UPDATE migration SET peer = json_remove(peer, '$.token') WHERE id = ?", (move,))

    def write(self, change: Callable[[sqlite3.Connection], object], then: Callable[[], object] | None = None) -> None:
        """In one transaction."""
        with self._database.transaction(then) as db:
            change(db)


def _info(row: sqlite3.Row) -> MigrationInfo:
    return MigrationInfo(
        id=row["id"], job=row["job"], direction=row["direction"], peer=json.loads(row["peer"])["url"],
        runtime=row["runtime"], token=row["epoch"], state=row["state"], progress=json.loads(row["progress"]),
        problem=None if row["problem"] is None else Problem.model_validate_json(row["problem"]),
        started=row["started"], changed=row["changed"],
    )
