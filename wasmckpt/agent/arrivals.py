"""Jobs of other agents that come here while they run: what `wasmckpt.migrate.Target` asks for."""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psutil
from pydantic import ValidationError

from ..api import JobSpec, State
from ..errors import CheckpointError, Conflict, NotFound, NotSupported, RetryLater, TooManyRequests, UsageError
from ..faults import point
from ..formats import Image, ParentRef, save
from ..lazydata import replace
from ..migrate import Offer, Wire, receive
from ..migrate.handover import Do, Kind, Message, Phase, Role, Standing, step
from ..snapshot.job import Job
from ..snapshot.moving import Arrival
from ..store import Entry, Series
from .jobs import Jobs
from .logs import Logs, Stream, stream_of
from .records import Record
from .replicas import now
from .runner import Runner
from .standing import Moves
from .start import expect

__all__ = ["Arrivals"]

_MOST: Final = 16
"""Jobs that may be on their way here at a time."""


class Arrivals:
    """Of one agent."""

    def __init__(self, jobs: Jobs, moves: Moves) -> None:
        self._jobs, self.moves = jobs, moves
        self._live: dict[str, _Arriving] = {}
        self._lock = threading.Lock()
        self._streams: set[socket.socket] = set()
        self.check_one: Callable[[str, JobSpec, int | None], None] = lambda job, spec, term: None
        """Raises: a job may not come here for that term (`neighbours`)."""
        self.is_ours: Callable[[sqlite3.Connection, str, int | None], None] = lambda db, job, term: None
        """Called when a job becomes this agent's for that term, in the same transaction."""
        self.prepared: Callable[[str, float], float] = lambda job, prepared: float("inf")
        """Called when a job was prepared at that time (`replicas.now`); gives until when it may run by its owner's
        promises."""

    @property
    def jobs(self) -> Jobs:
        return self._jobs

    def check(self) -> None:
        """Raises `RetryLater`, `TooManyRequests`: none may come now."""
        if self._jobs.draining or self._jobs.closing:
            raise RetryLater("the node is being drained", hint="use another node")
        with self._lock:
            if len(self._streams) >= _MOST:
                raise TooManyRequests("as many jobs as may are on their way here", most=_MOST)

    def serve(self, stream: socket.socket) -> None:
        """One move, in this thread, on a stream that is closed in the end."""
        with self._lock:
            self._streams.add(stream)
        arriving = _Arriving(self)
        try:
            with Wire(stream) as wire:
                receive(wire, arriving)
        except CheckpointError:
            pass  # the source has been told, or is gone: then it tells what it has decided later
        except Exception as problem:
            self._jobs.internal_error(problem)
        finally:
            with self._lock:
                self._streams.discard(stream)
                if self._live.get(arriving.id) is arriving:
                    del self._live[arriving.id]

    def begins(self, arriving: _Arriving) -> None:
        """Raises `Conflict`: the same job is on its way here already."""
        with self._lock:
            if arriving.id in self._live:
                raise Conflict("the job is on its way here already", job=arriving.id)
            self._live[arriving.id] = arriving

    def decided(self, job: str, token: int, outcome: str) -> None:
        """Its owner says what has become of a move, whether that was known or not. Raises `NotFound`: nothing is known
        of the job; `RetryLater`: the move is still under way."""
        with self._lock:
            if job in self._live:
                raise RetryLater("the move is still under way here", job=job)
        standing = self.moves.standing(job)
        if standing.role is Role.ABSENT and outcome == "commit":
            raise NotFound("there is no such job", job=job)
        _, effects = step(standing, Phase.IDLE, Message(Kind(outcome), token))
        site = _Told(self, job)
        for effect in effects:
            if effect.do is Do.PERSIST and effect.standing is not None:
                site.persist(effect.standing)
        self._jobs.start_due()

    def becomes_ours(self, db: sqlite3.Connection, job: str, token: int) -> None:
        """In the transaction in which its owner's decision is written down."""
        row = db.execute("SELECT json_extract(peer, '$.term') FROM migration WHERE job = ? AND epoch = ? AND "
                         "direction = 'in'", (job, token)).fetchone()
        self.is_ours(db, job, None if row is None else row[0])
        _all_become(db, job, token, "here")

    def close(self) -> None:
        """Nobody comes any more. Idempotent."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)


class _Told:
    """A job about which a decision is heard after its connection is gone: it goes on from the image that was kept."""

    def __init__(self, all_: Arrivals, job: str) -> None:
        self._all, self.id = all_, job

    def persist(self, standing: Standing) -> None:
        records, moves = self._all.jobs.records, self._all.moves
        if standing.role is Role.OWNER:
            records.move(self.id, State.PENDING, "moved here", source="newest", next_try=0, text="it is ours now",
                         also=lambda db: self._all.becomes_ours(db, self.id, standing.token))
            return
        remembered = moves.standing(self.id)
        moves.write(lambda db: _fence(db, self.id, standing.token))
        if remembered.role is Role.PREPARED:
            _forget(self._all.jobs, self.id)


class _Arriving:
    """One job on its way."""

    id = ""

    def __init__(self, all_: Arrivals) -> None:
        self._all = all_
        self._offer: Offer | None = None
        self._name = ""
        self._spec: JobSpec
        self._folders: list[int] = []
        self._kept: Entry | None = None
        self._since = b""
        self._was_here = False
        self._runner: Runner | None = None
        self._move = ""
        self._after = 0
        self._arrival: Arrival | None = None
        self._term: int | None = None
        self._logs: Logs
        self._cut: dict[Stream, int] = {}

    def standing(self) -> Standing:
        return self._all.moves.standing(self.id)

    def accept(self, offer: Offer) -> None:
        about, jobs = offer.about, self._all.jobs
        job, name = about.get("id"), about.get("name")
        if not isinstance(job, str) or len(job) != 32 or not set(job) <= set("0123456789abcdef"):
            raise UsageError("a job has an id")
        try:
            self._spec = JobSpec.model_validate({**_plain(about.get("spec")), "name": name})
        except ValidationError as problem:
            raise UsageError(f"the job is not as it should be: {problem.errors()[0]['msg']}") from None
        if self._spec.module != offer.module.hex():
            raise UsageError("the job is of another module than was announced")
        if offer.size > jobs.around.config.most_module:
            raise UsageError("the module is larger than this agent takes", most=jobs.around.config.most_module)
        self._name, self._offer = str(name), offer
        jobs.check(self._spec.model_copy(update={"runtime": offer.runtime, "invoke": None, "arguments": []}))
        record = _known(jobs, job)
        if record is not None and record.state is not State.MOVED:
            raise Conflict("the job is here already", job=record.name, state=record.state.value)
        other = _known(jobs, self._name)
        if other is not None and other.id != job:
            raise Conflict("another job here has that name", job=self._name, hint="delete it, or rename the job")
        if offer.token <= self._all.moves.standing(job).token:
            raise Conflict("something newer is known of that job here", job=self._name, token=offer.token)
        term = about.get("term")
        self._term = term if isinstance(term, int) and 0 < term < 1 << 62 else None
        number = about.get("number")  # of its newest image there: those that follow have larger ones
        self._after = number if isinstance(number, int) and 0 <= number < 1 << 62 else 0
        self._all.check_one(job, self._spec, self._term)
        self.id = job
        self._was_here = record is not None
        self._all.begins(self)
        self._logs = jobs.around.logs(job)

    def module(self, sha256: bytes) -> bytes | None:
        try:
            return self._all.jobs.around.modules.read(sha256.hex())
        except NotFound:
            return None

    def add_module(self, content: bytes) -> None:
        modules = self._all.jobs.around.modules
        with modules.upload() as upload:
            upload.write(content)
            modules.add(upload, self._spec.module)

    def base(self) -> Image | None:
        store = self._all.jobs.around.store
        if not self._was_here or store.newest(self.id) is None:
            return None
        with contextlib.suppress(CheckpointError):
            return store.load(self.id)
        return None

    def begin(self, module: bytes) -> Arrival:
        assert self._offer is not None
        self._arrival, self._folders = expect(
            self.id, self._spec, self._offer.runtime, module, self._all.jobs.around)
        return self._arrival

    def room(self, memory: int) -> None:
        limit = self._spec.limits.memory_bytes or self._all.jobs.around.config.default_memory
        if memory > limit:
            raise NotSupported("the program's memory is larger than it may be here", need=f"{memory} bytes", most=limit,
                               hint="limits.memory_bytes of the job, or default_memory of the agent")
        free = psutil.virtual_memory().available
        if 2 * memory > free:  # the program's own, and the one in which its pages come
            raise RetryLater("there is not enough memory for the program here", need=f"{2 * memory} bytes", free=free)

    def offset(self, stream: str) -> int:
        """What was written here, before it moved away, is there already."""
        return self._logs.size(stream_of(stream)) if self._was_here else 0

    def output(self, stream: str, offset: int, data: bytes) -> None:
        name = stream_of(stream)
        size = self._logs.size(name)
        if size != offset:
            self._logs.cut(name, offset)
            if size < offset:
                self._cut[name] = offset  # what came before it is not there any more
        self._logs.append(name, data)

    def keep(self, image: Image, last: bool) -> None:
        store, before = self._all.jobs.around.store, self._kept
        parent = None if image.parent is None or before is None else ParentRef(before.sha256, before.position + 1)
        if image.parent is not None and parent is None:
            raise UsageError("the first image of a move is a whole one")

        def write(path: Path) -> bytes:
            return save(replace(image, parent=parent), path)

        self._kept = store.add(self.id, write, module=self._all.jobs.around.modules.read(self._spec.module),
                               after=self._after)

    def persist(self, standing: Standing) -> None:
        jobs = self._all.jobs
        if standing.role is Role.PREPARED:
            self._prepared(standing.token)
        elif standing.role is Role.OWNER:
            assert self._runner is not None
            runner = self._runner
            jobs.records.move(
                self.id, State.RUNNING, text=f"it has come here, and runs on {runner.job.runtime}",
                data={"runtime": runner.job.runtime, "migration": self._move},
                also=lambda db: self._all.becomes_ours(db, self.id, standing.token),
            )
            jobs.lives(runner)
        else:
            self._all.moves.write(lambda db: _fence(db, self.id, standing.token))

    def _prepared(self, token: int) -> None:
        jobs, offer = self._all.jobs, self._offer
        assert offer is not None
        assert self._kept is not None
        kept = self._kept.number
        if self._term is not None and (until := self._all.prepared(self.id, now())) < float("inf"):
            assert self._arrival is not None
            self._arrival.job.end_at(until)

        def also(db: sqlite3.Connection) -> None:
            self._move = self._all.moves.begin(
                db, self.id, token, "in", {"url": str(offer.about.get("agent")), "term": self._term}, offer.runtime,
                "prepared")

        jobs.records.arrive(self.id, self._name, self._spec, offer.runtime, token, kept, self._cut, also)

    def runs(self, job: Job) -> None:
        jobs = self._all.jobs
        record = jobs.records.get(self.id)
        series = Series(jobs.around.store, self.id, jobs.around.modules.read(self._spec.module))
        self._runner = Runner(record, job, series, self._folders, jobs.around.config.freeze_time)
        self._folders = []
        point("agent.arrived")
        jobs.comes(self._runner)

    def drop(self) -> None:
        for folder in self._folders:
            with contextlib.suppress(OSError):
                os.close(folder)
        self._folders = []
        if self.id and self.standing().role in (Role.ABSENT, Role.PREPARED):
            _forget(self._all.jobs, self.id)


def _forget(jobs: Jobs, job: str) -> None:
    """Nothing is left of a job that did not come, but for what was here before."""
    record = _known(jobs, job)
    if record is not None and record.runs:
        jobs.records.move(job, State.MOVED, record.why, text="it did not come back")
        return
    if record is not None:
        jobs.records.delete(job)
    jobs.around.store.remove(job)
    jobs.around.logs(job).remove()
    jobs.unused = True


def _known(jobs: Jobs, job: str) -> Record | None:
    try:
        return jobs.records.get(job)
    except NotFound:
        return None


def _fence(db: sqlite3.Connection, job: str, token: int) -> None:
    """Nothing with that token or a lower one comes any more."""
    found = db.execute("SELECT id FROM migration WHERE job = ? AND epoch = ? AND direction = 'in'",
                       (job, token)).fetchone()
    if found is None:
        Moves.begin(db, job, token, "in", {"url": ""}, "", "off")
    else:
        Moves.becomes(db, found["id"], "off")


def _all_become(db: sqlite3.Connection, job: str, token: int, state: str) -> None:
    db.execute("UPDATE migration SET state = ?, changed = ? WHERE job = ? AND epoch = ? AND direction = 'in'",
               (state, time.time(), job, token))


def _plain(spec: Any) -> dict[str, Any]:
    if not isinstance(spec, dict):
        raise UsageError("a job has a specification")
    return {str(key): value for key, value in spec.items()}
