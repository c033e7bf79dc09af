"""Moves of this agent's jobs to other agents: one thread each, from the first page to the decision.

What the other agent has not heard when the connection ends, since it broke or since this agent died, it is told by
requests of their own, until it says that it has heard: see `tell_all`.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ..api import Migrate, MigrationInfo, State, problem_of
from ..errors import CheckpointError, Conflict, NotFound, NotSupported, RetryLater
from ..faults import point
from ..lazydata import field_names
from ..migrate import Moved, Options, Progress, Wire, send
from ..migrate.handover import Role, Standing
from .jobs import Jobs
from .logs import STREAMS, Logs, stream_of
from .peer import Peer, dial, tell
from .records import Record
from .runner import Runner
from .standing import Moves

__all__ = ["ARRIVALS", "Departures"]

ARRIVALS: Final = "/v1/arrivals"
_PIECE: Final = 1 << 16
_AGAIN: Final = 2.0
"""Seconds between attempts to tell another agent of a decision."""


class Departures:
    """Of one agent, whose id is ``owner``. ``peers``: other agents that it knows, by address."""

    def __init__(self, jobs: Jobs, moves: Moves, owner: str) -> None:
        self._jobs, self.moves, self._owner = jobs, moves, owner
        self._peers = {url.rstrip("/"): peer for url, peer in jobs.around.config.peers.items()}
        self._live: dict[str, _Departing] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._teller: threading.Thread | None = None
        self._told = threading.Event()
        self.check: Callable[[Record, str], None] = lambda record, url: None
        """Raises: a job may not be given to that agent now."""
        self.term: Callable[[Record], int | None] = lambda record: None
        """Of a job that has neighbours: the one of its next owner."""
        self.gives: Callable[[sqlite3.Connection, str], None] = lambda db, job: None
        """Called when a job is this agent's no more, in the same transaction."""

    def start(self) -> None:
        """Tell others what was decided about moves before this agent started: what was not, is off."""
        for row in self.moves.open():
            if row["state"] == "moving":
                self._off(row["id"], RetryLater("the agent died before it was decided", hint="move it again"))
        self._teller = threading.Thread(target=self._tell_all, name="tell others", daemon=True)
        self._teller.start()

    def _off(self, move: str, problem: CheckpointError) -> None:
        self.moves.write(lambda db: self.moves.becomes(db, move, "calling-off", problem))

    def begin(self, job: str, wish: Migrate) -> MigrationInfo:
        """Begin to move a job. Raises `NotFound`; `Conflict`: it does not run, or is being moved; `NotSupported`."""
        record = self._jobs.records.get(job)
        runner = self._jobs.runner(record.id)
        if record.state is not State.RUNNING or runner is None:
            raise Conflict("the job is not running", job=record.name, state=record.state.value)
        if record.journal:
            raise NotSupported("a job with a journal is not moved while it runs", job=record.name, need="no journal",
                               hint="stop it with an image, and give that to the other agent")
        self.check(record, wish.to)
        with self._lock:
            if record.id in self._live:
                raise Conflict("the job is being moved already", job=record.name)
            moving = self._live[record.id] = _Departing(self, record, runner, wish)
        moving.begin()
        return self.moves.get(record.id, moving.id)

    def cancel(self, job: str, move: str) -> MigrationInfo:
        """Call a move off, and wait until it is, or has been decided; nothing happens to one that is over."""
        record = self._jobs.records.get(job)
        found = self.moves.get(record.id, move)
        with self._lock:
            moving = self._live.get(record.id)
        if moving is not None and moving.id == move:
            moving.cancelled.set()
            moving.over.wait(60.0)
            found = self.moves.get(record.id, move)
        return found

    def peer(self, url: str, token: str | None) -> Peer:
        """Another agent, as the settings have it."""
        known = self._peers.get(url.rstrip("/"))
        if known is None:
            return Peer(url, token)
        return Peer(url, token or known.secret(), *(None if path is None else str(path) for path in (
            known.ca, known.certificate, known.key)))

    def finished(self, job: str) -> None:
        """A move is over."""
        with self._lock:
            self._live.pop(job, None)
        self._told.set()

    @property
    def jobs(self) -> Jobs:
        """The agent's."""
        return self._jobs

    @property
    def owner(self) -> str:
        """The agent's id."""
        return self._owner

    def _tell_all(self) -> None:
        while not self._over.is_set():
            left = False
            for row in self._rows():
                with self._lock:
                    if row["job"] in self._live:
                        continue
                left |= not self._tell(row)
            self._told.wait(_AGAIN if left else 60.0)
            self._told.clear()

    def _rows(self) -> list[sqlite3.Row]:
        try:
            return self.moves.open()
        except CheckpointError:
            return []

    def _tell(self, row: sqlite3.Row) -> bool:
        outcome = "commit" if row["state"] == "telling" else "abort"
        url, token = self.moves.address(row["id"])
        try:
            tell(self.peer(url, token), f"{ARRIVALS}/{row['job']}/outcome",
                 {"token": row["epoch"], "outcome": outcome})
            self.moves.write(lambda db: self.moves.becomes(
                db, row["id"], "moved" if outcome == "commit" else "kept"), self._jobs.events.tell)
        except NotFound:
            if outcome == "commit":
                return False
            with contextlib.suppress(CheckpointError):  # it has never heard of it
                self.moves.write(lambda db: self.moves.becomes(db, row["id"], "kept"))
            return True
        except CheckpointError:
            return False
        return True

    def close(self) -> None:
        """Call all of them off that are not decided yet, and wait for that. Idempotent."""
        self._over.set()
        self._told.set()
        with self._lock:
            live = list(self._live.values())
        for moving in live:
            moving.cancelled.set()
        for moving in live:
            moving.over.wait(30.0)


class _Departing:
    """One move; what `wasmckpt.migrate.Source` asks for."""

    def __init__(self, all_: Departures, record: Record, runner: Runner, wish: Migrate) -> None:
        self._all, self._record, self._runner, self._wish = all_, record, runner, wish
        self.id = ""
        self.cancelled, self.over, self._begun = threading.Event(), threading.Event(), threading.Event()
        self._problem: CheckpointError | None = None
        self._logs: Logs = all_.jobs.around.logs(record.id)

    def begin(self) -> None:
        """In a thread of its own; returns when the move has an id. Raises what it failed by before that."""
        threading.Thread(target=self._run, name=f"move {self._record.name}", daemon=True).start()
        self._begun.wait()
        if not self.id:
            assert self._problem is not None
            raise self._problem

    def _run(self) -> None:
        jobs = self._all.jobs
        newest = jobs.around.store.newest(self._record.id)
        try:
            with Wire(dial(self._all.peer(self._wish.to, self._wish.token), ARRIVALS)) as wire:
                moved = send(
                    self._runner.job, wire, self, module=jobs.around.modules.read(self._record.module),
                    runtime=self._wish.runtime, about={
                        "id": self._record.id, "name": self._record.name, "agent": self._all.owner,
                        "spec": self._record.spec.model_dump(mode="json"), "term": self._all.term(self._record),
                        "number": 0 if newest is None else newest.number,
                    }, options=Options(self._wish.downtime, max(self._wish.downtime, self._wish.most_downtime),
                                       self._wish.force),
                    told=self._tell, cancelled=self.cancelled, streams=STREAMS,
                )
            self._moved(moved)
        except CheckpointError as problem:
            self._failed(problem)
        except Exception as problem:  # a bug; the job is not to suffer from it
            self._failed(CheckpointError(f"internal error: {type(problem).__name__}: {problem}"))
            jobs.internal_error(problem)
        finally:
            with contextlib.suppress(CheckpointError):
                if self.standing().role is Role.GONE:
                    self._runner.close()
            self._begun.set()
            self._all.finished(self._record.id)
            self.over.set()

    # For `send`

    def standing(self) -> Standing:
        return self._all.moves.standing(self._record.id)

    def persist(self, standing: Standing) -> None:
        jobs, job = self._all.jobs, self._record.id
        if standing.role is Role.OWNER and standing.settled:
            self._becomes("kept")
        elif standing.role is Role.OWNER:
            self._attempt(standing.token)
        elif standing.settled:
            self._becomes("moved")
        else:
            with jobs.changing(job) as record:
                if record.state is not State.RUNNING or jobs.runner(job) is not self._runner:
                    raise Conflict("the job was changed while it was being moved", job=record.name,
                                   state=record.state.value)
                self._all.check(record, self._wish.to)
                point("agent.moving-away")
                jobs.records.move(
                    job, State.MOVED, self._wish.to, text=f"moved to {self._wish.to}, {self._wish.runtime}",
                    data={"to": self._wish.to, "migration": self.id},
                    also=self._gives,
                )
                jobs.leaves(self._runner)

    def _gives(self, db: sqlite3.Connection) -> None:
        self._all.moves.becomes(db, self.id, "telling")
        self._all.gives(db, self._record.id)

    def _attempt(self, token: int) -> None:
        """One more attempt: the one before, if there was one, is off."""
        moves, job, url = self._all.moves, self._record.id, self._wish.to
        before, given = self.id, self._wish.token
        new: list[str] = []

        def change(db: sqlite3.Connection) -> None:
            if before:  # the same move, under another token, of which the target has heard
                db.execute("UPDATE migration SET epoch = ? WHERE id = ?", (token, before))
            else:
                new.append(moves.begin(db, job, token, "out", {"url": url, **({} if given is None else {
                    "token": given})}, self._wish.runtime, "moving"))
            db.execute("UPDATE job SET epoch = ? WHERE id = ?", (token, job))
            if not before:
                self._all.jobs.events.add(db, job, "migration", f"a move to {url} begins", {
                    "migration": new[0], "step": "begins", "to": url, "runtime": self._wish.runtime})

        moves.write(change, self._all.jobs.events.tell)
        self.id = self.id or new[0]
        self._begun.set()

    def _becomes(self, state: str) -> None:
        if self.id:
            self._all.moves.write(lambda db: self._all.moves.becomes(db, self.id, state))

    def output(self, stream: str, offset: int) -> bytes:
        return self._logs.read(stream_of(stream), self.begins(stream), offset, _PIECE).data

    def begins(self, stream: str) -> int:
        return self._all.jobs.records.get(self._record.id).begins[stream_of(stream)]

    # What is told

    def _tell(self, progress: Progress) -> None:
        if progress.step == "moved":
            return
        self._say({name: getattr(progress, name) for name in field_names(progress)}, _in_words(progress))

    def _moved(self, moved: Moved) -> None:
        self._say({"step": "moved", **{name: getattr(moved, name) for name in field_names(moved)}},
                  f"it runs on {self._wish.to}: stopped {moved.stopped * 1e3:.1f} ms, {moved.sent / 1e6:.1f} MB")
        self._all.jobs.counts["moves away"] += 1

    def _failed(self, problem: CheckpointError) -> None:
        self._problem = problem
        gone = self.id and self.standing().role is Role.GONE
        if not self.id or gone:
            return
        with contextlib.suppress(CheckpointError):
            settled = self._all.moves.get(self._record.id, self.id).state == "kept"
            self._all.moves.write(lambda db: self._all.moves.becomes(
                db, self.id, "kept" if settled else "calling-off", problem))
            self._say({"step": "kept", "problem": problem_of(problem).model_dump()}, f"it stays: {problem}")

    def _say(self, data: dict[str, Any], text: str) -> None:
        events = self._all.jobs.events

        def change(db: sqlite3.Connection) -> None:
            db.execute("UPDATE migration SET progress = ?, changed = ? WHERE id = ?",
                       (json.dumps(data), time.time(), self.id))
            events.add(db, self._record.id, "migration", text, {"migration": self.id, **data})

        with contextlib.suppress(CheckpointError):
            self._all.moves.write(change, events.tell)


def _in_words(progress: Progress) -> str:
    if progress.step == "round":
        return (f"round {progress.round}: {progress.pages} pages in {progress.seconds:.2f} s, a stop now would take "
                f"{progress.expected * 1e3:.0f} ms")
    return {"connected": "the other agent is ready", "stopping": "it is being stopped",
            "again": "it goes on for another round: it stood where the target had not seen it"}.get(
                progress.step, progress.step)


