"""Jobs in the database. A job's state changes here and nowhere else, along the arrows of `wasmckpt.api.states`, in one
transaction with the event that tells of it."""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from pydantic import JsonValue

from ..api import MOVES, Crash, JobInfo, JobSpec, Page, Problem, SpecInfo, State
from ..errors import Conflict, NotFound, PreconditionFailed, UsageError
from ..faults import point
from ..lazydata import dataclass
from .database import Database
from .events import Events
from .logs import Stream

__all__ = ["Record", "Records"]

_LETTERS: Final = "bcdfghjkmnpqrstvwxz23456789"


@dataclass(frozen=True, slots=True)
class Record:
    """A job as the database has it.

    Attributes:
        source: where it starts from next: "beginning", "newest" (image; from the beginning if there is none), or an
            image's number.
        next_try: not before. wakes: it goes on when the agent starts again. revision: rises with each change of
            any job.
        stdout_from, stderr_from: the first byte of its logs that is there.
        crashes: since it was last calm; restarts: how many of them in a row, on its runtime.
    """

    number: int
    id: str
    name: str
    module: str
    spec: JobSpec
    state: State
    why: str
    runtime: str
    source: str
    created: float
    changed: float
    revision: int
    exit_code: int | None
    results: list[str]
    problem: Problem | None
    runs: int
    restarts: int
    checkpoint: int | None
    next_try: float
    wake_at: float | None
    wakes: bool
    stdout_from: int
    stderr_from: int
    epoch: int
    crashes: list[Crash]

    @property
    def etag(self) -> str:
        """Of what a client sees of it."""
        return f'"{self.revision}"'

    @property
    def begins(self) -> Mapping[Stream, int]:
        """The first byte of each of its logs that is there."""
        return {"stdout": self.stdout_from, "stderr": self.stderr_from}

    @property
    def journal(self) -> bool:
        """Whether it keeps one."""
        return self.spec.checkpoint.journal

    def info(self, pid: int | None) -> JobInfo:
        """What a client sees of it."""
        spec = self.spec
        return JobInfo.model_construct(
            id=self.id, name=self.name, state=self.state, why=self.why, runtime=self.runtime, labels=spec.labels,
            created=self.created, changed=self.changed, exit_code=self.exit_code, results=self.results,
            problem=self.problem, runs=self.runs, restarts=self.restarts, crashes=self.crashes,
            checkpoint=self.checkpoint, epoch=self.epoch, pid=pid, wake_at=self.wake_at, spec=SpecInfo.model_construct(
                name=self.name, module=self.module, runtime=spec.runtime, args=spec.args, env_names=list(spec.env),
                invoke=spec.invoke, arguments=spec.arguments, preopens=spec.preopens, random_seed=spec.random_seed,
                canonical_nans=spec.canonical_nans, limits=spec.limits, checkpoint=spec.checkpoint,
                restart=spec.restart, hibernate=spec.hibernate, neighbours=spec.neighbours,
            ),
        )


class Records:
    """All jobs of one agent, whose id is ``owner``. ``changed``: called after each change."""

    def __init__(self, database: Database, events: Events, owner: str, changed: Callable[[], object]) -> None:
        self._database, self._events, self._owner, self._changed = database, events, owner, changed

    # Looking

    def get(self, job: str) -> Record:
        """By name or id. Raises `NotFound`."""
        row = self._database.row("SELECT * FROM job WHERE name = ? OR id = ?", (job, job))
        if row is None:
            raise NotFound("there is no such job", job=job, hint="GET /v1/jobs lists them")
        return _record(row)

    def in_states(self, states: Collection[State], *, before: float | None = None) -> list[Record]:
        """In the order in which they were made; ``before``: whose time has come then."""
        marks = ",".join("?" * len(states))
        due, given = ("", ()) if before is None else (" AND next_try <= ?", (before,))
        return [_record(row) for row in self._database.rows(
            f"SELECT * FROM job WHERE state IN ({marks}){due} ORDER BY number", (*states, *given))]

    def with_neighbours(self) -> list[Record]:
        """Those that other agents look after too."""
        return [_record(row) for row in self._database.rows(
            "SELECT * FROM job WHERE json_array_length(spec, '$.neighbours') > 0 ORDER BY number")]

    def sleepers_due(self, now: float) -> list[str]:
        """Ids of hibernated jobs whose time to wake has come."""
        return [row[0] for row in self._database.rows(
            "SELECT id FROM job WHERE wake_at <= ? AND state = ?", (now, State.HIBERNATED))]

    def next_time(self) -> float | None:
        """When something is due next: a sleeper, or another attempt."""
        found: float | None = self._database.value(
            "SELECT min(at) FROM (SELECT min(wake_at) AS at FROM job WHERE wake_at IS NOT NULL AND state = ? UNION ALL "
            "SELECT min(next_try) FROM job WHERE state = ? AND next_try > ?)",
            (State.HIBERNATED, State.PENDING, time.time()))
        return found

    def counts(self) -> dict[str, int]:
        """How many are in each state."""
        found = {row[0]: row[1] for row in self._database.rows("SELECT state, count(*) FROM job GROUP BY state")}
        return {state.value: found.get(state.value, 0) for state in State}

    def ids(self) -> set[str]:
        """Of all."""
        return {row[0] for row in self._database.rows("SELECT id FROM job")}

    def revision(self) -> int:
        """Of the newest change of any job."""
        return int(self._database.value("SELECT value FROM meta WHERE key = 'revision'") or 0)

    def page(
        self, labels: Mapping[str, str | None], states: Sequence[State], module: str | None, cursor: int, limit: int,
        pid: Callable[[str], int | None],
    ) -> Page[JobInfo]:
        """Newest first, those made before ``cursor`` (0: all), with all of these labels (None: of any value)."""
        where, given = ["1"], list[object]()
        if cursor:
            where.append("number < ?"); given.append(cursor)
        if states:
            where.append(f"state IN ({','.join('?' * len(states))})"); given += states
        if module is not None:
            where.append("module = ?"); given.append(module)
        for name, value in labels.items():
            same = "" if value is None else " AND value = ?"
            where.append(f"id IN (SELECT job FROM label WHERE name = ?{same})")
            given += [name] if value is None else [name, value]
        rows = self._database.rows(
            f"SELECT * FROM job WHERE {' AND '.join(where)} ORDER BY number DESC LIMIT ?", (*given, limit + 1))
        found = [_record(row) for row in rows[:limit]]
        return Page[JobInfo].model_construct(
            items=[record.info(pid(record.id)) for record in found],
            next=str(found[-1].number) if len(rows) > limit else None,
        )

    # Changing

    def create(
        self, spec: JobSpec, most: int,
        written: Callable[[sqlite3.Connection, Record], object] = lambda db, record: None,
    ) -> Record:
        """A new job, pending or stopped. ``written``: what belongs into the same transaction.

        Raises:
            NotFound: its module is not here. Conflict: another job has its name. TooManyRequests.
        """
        from ..errors import TooManyRequests

        now, new = time.time(), uuid.uuid4().hex
        name = spec.name or "job-" + "".join(secrets.choice(_LETTERS) for _ in range(8))
        state = State.PENDING if spec.start else State.STOPPED
        with self._database.transaction(self._told) as db:
            if db.execute("SELECT 1 FROM module WHERE sha256 = ?", (spec.module,)).fetchone() is None:
                raise NotFound("the module has not been uploaded", module=spec.module,
                               hint="PUT /v1/modules/SHA256 uploads it")
            other = db.execute("SELECT id, name, state, why FROM job WHERE name = ? OR id = ?", (name, name)).fetchone()
            if other and other["name"] == name and (other["state"], other["why"]) == (State.STOPPED, "moved"):
                # It went away from here; perhaps this is how it comes back.
                _update(db, other["id"], {"name": f"{name[:50]}-{other['id'][:8]}"})
            elif other:
                raise Conflict("another job has that name", job=name, hint="delete it, or choose another name")
            if db.execute("SELECT count(*) FROM job").fetchone()[0] >= most:
                raise TooManyRequests("there are as many jobs as the agent takes", most=most,
                                      hint="delete some that have ended")
            db.execute(
                "INSERT INTO job (id, name, module, spec, state, runtime, created, changed, revision, owner) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (new, name, spec.module, spec.model_dump_json(), state, spec.runtime, now, now, _bump(db), self._owner),
            )
            db.executemany("INSERT INTO label VALUES (?, ?, ?)", [(new, *label) for label in spec.labels.items()])
            self._events.add(db, new, "created", f"job {name} was made", {"name": name, "module": spec.module})
            record = _record(db.execute("SELECT * FROM job WHERE id = ?", (new,)).fetchone())
            written(db, record)
            point("agent.creating")
        return record

    def move(
        self, job: str, state: State, why: str = "", *, expected: Collection[State] | None = None,
        text: str | None = None, data: Mapping[str, JsonValue] | None = None,
        also: Callable[[sqlite3.Connection], object] = lambda db: None, **changes: Any,
    ) -> Record:
        """Bring it into another state, with other changes.

        Args:
            expected: states from which it may come; None: all with an arrow to the new one.
            text, data: of the event. also: what belongs into the same transaction. changes: other columns.

        Raises:
            NotFound. Conflict: there is no way from the state it is in.
        """
        with self._database.transaction(self._told) as db:
            row = db.execute("SELECT name, state FROM job WHERE id = ?", (job,)).fetchone()
            if row is None:
                raise NotFound("there is no such job", job=job)
            before = State(row["state"])
            if state not in MOVES[before] or (expected is not None and before not in expected):
                raise Conflict(f"the job is {before}, which cannot become {state}", job=row["name"], state=before.value)
            columns = {"state": state, "why": why, "changed": time.time(), **changes}
            _update(db, job, columns)
            also(db)
            self._events.add(db, job, "state", text or state.value,
                             {"state": state.value, "before": before.value, "why": why, **(data or {})})
            return _record(db.execute("SELECT * FROM job WHERE id = ?", (job,)).fetchone())

    def arrive(
        self, job: str, name: str, spec: JobSpec, runtime: str, epoch: int, checkpoint: int | None,
        logs_from: Mapping[Any, int], also: Callable[[sqlite3.Connection], object], *, state: State = State.ARRIVING,
        why: str = "", source: str = "newest", text: str = "",
    ) -> None:
        """A job that comes from another agent: new, or one that had moved away. ``also``: what belongs into the same
        transaction. ``state``: it is prepared to go on here, or does (PENDING).

        Raises `Conflict`: another job has its name, or it is here.
        """
        now = time.time()
        with self._database.transaction(self._told) as db:
            _check_free(db, job, name)
            row = db.execute("SELECT state FROM job WHERE id = ?", (job,)).fetchone()
            columns = {"epoch": epoch, "checkpoint": checkpoint, "runtime": runtime, "source": source, "why": why,
                       "state": state, "changed": now, "problem": None, "exit_code": None, "next_try": 0,
                       **{f"{stream}_from": begin for stream, begin in logs_from.items()}}
            if row is None:
                db.execute(
                    "INSERT INTO job (id, name, module, spec, state, runtime, created, changed, revision, owner) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (job, name, spec.module, spec.model_dump_json(), state, runtime, now, now, _bump(db),
                     self._owner))
                db.executemany("INSERT INTO label VALUES (?, ?, ?)",
                               [(job, *label) for label in spec.labels.items()])
            elif State(row["state"]) not in (State.MOVED, *([] if text == "" else [State.ARRIVING])):
                raise Conflict("the job is here already", job=name)
            _update(db, job, columns)
            also(db)
            self._events.add(db, job, "state", text or f"job {name} is prepared to go on here",
                             {"state": state.value, "runtime": runtime, "epoch": epoch})

    def free(self, job: str, name: str) -> None:
        """Raises `Conflict`: another job has that name."""
        with self._database.transaction() as db:
            _check_free(db, job, name)

    def update(self, job: str, event: tuple[str, str, Mapping[str, JsonValue]] | None = None, **changes: Any) -> None:
        """Other changes than of its state, with an event: kind, text, data. Nothing happens if it is gone."""
        with self._database.transaction(self._told) as db:
            if changes:
                _update(db, job, changes)
            if event is not None:
                self._events.add(db, job, *event)

    def delete(self, job: str, also: Callable[[sqlite3.Connection], object] = lambda db: None) -> None:
        """Forget it. ``also``: what belongs into the same transaction."""
        with self._database.transaction(self._told) as db:
            row = db.execute("SELECT name FROM job WHERE id = ?", (job,)).fetchone()
            if row is None:
                raise NotFound("there is no such job", job=job)
            db.execute("DELETE FROM job WHERE id = ?", (job,))
            db.execute("DELETE FROM event WHERE job = ?", (job,))
            also(db)
            _bump(db)
            self._events.add(db, None, "deleted", f"job {row['name']} was deleted", {"job": job, "name": row["name"]})

    def check(self, record: Record, if_match: str | None) -> None:
        """Raises `PreconditionFailed`: it is not as it was when its ETag was read."""
        if if_match is not None and if_match.strip() != "*" and record.etag not in map(str.strip, if_match.split(",")):
            raise PreconditionFailed("the job has changed since you looked at it", job=record.name,
                                     hint="look again: its ETag is another one now")

    def _told(self) -> None:
        self._events.tell()
        self._changed()


def _check_free(db: sqlite3.Connection, job: str, name: str) -> None:
    if db.execute("SELECT 1 FROM job WHERE name = ? AND id != ?", (name, job)).fetchone():
        raise Conflict("another job here has that name", job=name)


def _bump(db: sqlite3.Connection) -> int:
    db.execute("INSERT INTO meta VALUES ('revision', '1') ON CONFLICT DO UPDATE SET value = value + 1")
    return int(db.execute("SELECT value FROM meta WHERE key = 'revision'").fetchone()[0])


def _update(db: sqlite3.Connection, job: str, columns: Mapping[str, Any]) -> None:
    given = {name: json.dumps(value, default=Crash.model_dump) if isinstance(value, list) else value
             for name, value in columns.items()}
    given = {name: value.model_dump_json() if isinstance(value, Problem) else value for name, value in given.items()}
    given["revision"] = _bump(db)
    names = ", ".join(f"{name} = ?" for name in given)
    db.execute(f"UPDATE job SET {names} WHERE id = ?", (*given.values(), job))


def _record(row: sqlite3.Row) -> Record:
    return Record(
        row["number"], row["id"], row["name"], row["module"], JobSpec.model_validate_json(row["spec"]),
        State(row["state"]), row["why"], row["runtime"], row["source"], row["created"], row["changed"],
        row["revision"], row["exit_code"], json.loads(row["results"]),
        None if row["problem"] is None else Problem.model_validate_json(row["problem"]), row["runs"], row["restarts"],
        row["checkpoint"], row["next_try"], row["wake_at"], bool(row["wakes"]), row["stdout_from"],
        row["stderr_from"], row["epoch"],
        [Crash.model_validate(crash) for crash in json.loads(row["crashes"])],
    )


def cursor_of(text: str | None) -> int:
    """Raises `UsageError`: it is none that a page gave."""
    if text is None:
        return 0
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise UsageError("that is no cursor of a page", cursor=text)
    return int(text)
