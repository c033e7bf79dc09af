"""An agent without HTTP: opened on its folder, used from any thread, closed.

::

    agent.sqlite   what it knows          modules/   programs           store/     images, journals
    logs/ID/       stdout, stderr         incoming/  uploads            token      the owner's
    lock           of the one agent that may use the folder             agent.json where it listens, while it does
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import uuid
from collections.abc import Callable
from types import TracebackType

from ..api import CheckpointInfo, JobInfo, JobSpec, MemoryMap, Page, State
from ..errors import CheckpointError, Conflict, RetryLater, StorageError
from ..formats import PAGE_SIZE, WASM_PAGE_SIZE
from ..formats.cells import cells
from ..lazydata import dataclass
from ..store import Entry, Store
from .arrivals import Arrivals
from .config import AgentConfig
from .database import Database
from .departures import Departures
from .events import Events
from .healing import Healing
from .jobs import Drained, Jobs, checkpoint_info
from .leaving import Leaving
from .logs import Piece, Stream
from .modules import Modules
from .neighbours import Neighbours
from .node import Node
from .pressure import PressureWatch
from .records import Record, Records, cursor_of
from .recovery import mend, recover, sweep
from .replicas import Replicas, replica_folder
from .roots import Roots
from .standbys import Standbys
from .standing import Moves
from .start import Surroundings, sandbox_of
from .timers import Timers
from .tokens import Tokens

__all__ = ["Agent", "Drain"]

_MOST_CELLS = 4096
"""Of a picture of a memory."""
_KEPT_KEYS = 86400.0
"""Seconds that an idempotency key is remembered."""


@dataclass(frozen=True, slots=True)
class Drain:
    """What became of the jobs of a drain, by name.

    Attributes:
        frozen: are images here. failed: go on, and why they could not be frozen. moved: go on at that address.
        stayed: of ``frozen`` those that should have moved, and why they have not.
    """

    frozen: list[str]
    failed: dict[str, CheckpointError]
    moved: dict[str, str]
    stayed: dict[str, CheckpointError]


class Agent:
    """All of an agent but its server. A context manager, which closes it.

    Raises:
        StorageError: its folder cannot be used. Conflict: another agent uses it.
    """

    def __init__(self, config: AgentConfig, url: str | None = None) -> None:
        self.config = config
        sandbox = sandbox_of(config)
        with contextlib.ExitStack() as opened:
            try:
                for folder in (config.state, *(config.state / name for name in ("modules", "logs", "incoming"))):
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                config.state.chmod(0o700)
                self._lock = os.open(config.state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                opened.callback(os.close, self._lock)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict("another agent uses that folder", path=str(config.state)) from None
            except OSError as reason:
                raise StorageError(f"the agent's folder cannot be used: {reason.strerror}",
                                   path=str(config.state)) from reason
            self.database = Database(config.state / "agent.sqlite")
            opened.callback(self.database.close)
            self.events = Events(self.database)
            self.tokens = Tokens(self.database)
            self.tokens.make_first(config.state)
            self.modules = Modules(self.database, config.state / "modules", config.state / "incoming",
                                   config.most_module)
            self.store = Store(config.state / "store", create=True)
            self.node = Node(self._id(), config.state)
            self.records = Records(self.database, self.events, self.node.id, lambda: self.timers.wake())
            self.jobs = Jobs(self.records, self.events, Surroundings(
                config, self.modules, self.store, Roots(config.roots), config.state / "logs", sandbox,
            ), Healing(self.database, self.store), lambda: self.timers.wake())
            self.moves = Moves(self.database)
            self.replicas = Replicas(
                self.database, self.node.id, self.store, replica_folder(config.replicas, config.state, self.node.id),
                config.most_image, config.most_replicas)
            self.departures = Departures(self.jobs, self.moves, self.node.id)
            self.arrivals = Arrivals(self.jobs, self.moves)
            self.neighbours = Neighbours(self, config.advertise or url)
            self.standbys = Standbys(self, config.standbys)
            self.replicas.newer = self.standbys.wake
            self.jobs.untold = self.moves.unsettled
            self.departures.check, self.departures.term = self.neighbours.check_move, self.neighbours.term_for_heir
            self.departures.gives = self.neighbours.gives
            self.arrivals.is_ours = self.neighbours.arrives
            self.arrivals.check_one, self.arrivals.prepared = self.neighbours.check_arrival, self.neighbours.inherits
            self.jobs.until, self.jobs.may_start = self.neighbours.until, self.neighbours.may_start
            opened.callback(self.node.stand_by.close)
            for runtime in config.warm:
                self.node.stand_by.prepare(runtime)
            self.timers = Timers(self.jobs, self.tidy, config.tidy_every)
            sweep(self.jobs, config.state / "incoming")
            with self.database.transaction() as db:
                db.execute("DELETE FROM idempotency WHERE status IS NULL")  # whoever asked has got no answer
            lost = recover(self.jobs)
            self.events.say(None, "started", "the agent has started", {"lost": lost})
            self.timers.start()
            self.departures.start()
            self.neighbours.start()
            self.standbys.start()
            self.pressure = PressureWatch(self)
            self.pressure.start()
            opened.pop_all()

    def _id(self) -> str:
        with self.database.transaction() as db:
            db.execute("INSERT INTO meta VALUES ('id', ?) ON CONFLICT DO NOTHING", (uuid.uuid4().hex,))
        return str(self.database.value("SELECT value FROM meta WHERE key = 'id'"))

    # Jobs

    def create(
        self, spec: JobSpec, written: Callable[[sqlite3.Connection, Record], object] = lambda db, record: None,
    ) -> Record:
        """A new job. ``written``: what belongs into the transaction that makes it. Raises as `Jobs.check` and
        `Records.create`."""
        self.modules.get(spec.module)
        self.jobs.check(spec)
        self.neighbours.check(spec)
        made = self.records.create(spec, self.config.most_jobs, written)
        if spec.neighbours:
            self.neighbours.start()
        return made

    def info(self, record: Record) -> JobInfo:
        """What a client sees of a job."""
        return record.info(self.jobs.pid(record.id))

    def page(
        self, labels: dict[str, str | None], states: list[State], module: str | None, cursor: str | None, limit: int,
    ) -> Page[JobInfo]:
        """Some jobs, newest first. Raises `UsageError`: a cursor that is none."""
        return self.records.page(labels, states, module, cursor_of(cursor), limit, self.jobs.pid)

    def log(self, job: str, stream: Stream, offset: int, limit: int) -> Piece:
        """Some of what it has written. Raises `NotFound`."""
        record = self.records.get(job)
        return self.jobs.around.logs(record.id).read(stream, record.begins[stream], offset, limit)

    # Images

    def checkpoints(self, job: str) -> list[CheckpointInfo]:
        """Images of a job, oldest first. Raises `NotFound`."""
        record = self.records.get(job)
        return [checkpoint_info(record, entry) for entry in self.store.entries(record.id)]

    def checkpoint(self, job: str, number: int | None) -> CheckpointInfo:
        """One of them; None: the newest. Raises `NotFound`."""
        record = self.records.get(job)
        return checkpoint_info(record, self.jobs.entry(record, number))

    def memory_map(self, job: str, number: int | None) -> list[MemoryMap]:
        """The memories of an image, as cells. Raises `NotFound`."""
        record = self.records.get(job)
        found = []
        for memory in self.store.layout(record.id, self.jobs.entry(record, number).number):
            each, drawn = cells(memory.pages, memory.changed, memory.zero, _MOST_CELLS)
            changed, cleared = (sum(count for _, count in runs) * PAGE_SIZE for runs in (memory.changed, memory.zero))
            found.append(MemoryMap(index=memory.index, size=memory.pages * WASM_PAGE_SIZE, changed=changed,
                                   cleared=cleared, cell=each * PAGE_SIZE, cells=drawn))
        return found

    def take(self, job: str) -> CheckpointInfo:
        """Take one. Raises as `Jobs.checkpoint`."""
        record = self.records.get(job)
        return checkpoint_info(record, self.jobs.checkpoint(record.id))

    def export(self, job: str, number: int | None, *, carry_module: bool) -> tuple[CheckpointInfo, int]:
        """An image as one file, which has no name: its descriptor, the caller's to close. Raises `NotFound`."""
        record = self.records.get(job)
        entry: Entry = self.jobs.entry(record, number)
        path = self.config.state / "incoming" / os.urandom(12).hex()
        try:
            self.store.export(record.id, path, entry.number, carry_module=carry_module)
            return checkpoint_info(record, entry), os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            with contextlib.suppress(OSError):
                path.unlink()

    def add_image(self, job: str, path: str | os.PathLike[str]) -> CheckpointInfo:
        """An image that was taken elsewhere, as one more of a job.

        Raises:
            NotFound. ImageError: it is damaged, of another module, or the difference to another image.
        """
        from ..errors import ImageError
        from ..formats import load_header

        record = self.records.get(job)
        header = load_header(path).image
        if header.module.sha256.hex() != record.module:
            raise ImageError("the image is of another module than the job", job=record.name,
                             module=header.module.sha256.hex(), expected=record.module)
        if header.parent is not None:
            raise ImageError("the image is the difference to another one", job=record.name,
                             hint="wasmckpt store export makes one file of both")
        entry = self.store.import_image(record.id, path, module=self.modules.read(record.module))
        self.records.update(record.id, ("checkpoint", f"image {entry.number} was uploaded", {"number": entry.number}),
                            checkpoint=entry.number)
        return checkpoint_info(record, entry)

    # The node

    def ready(self) -> list[str]:
        """Why it takes no jobs; empty: it does."""
        why = []
        if self.jobs.draining or self.jobs.closing:
            why.append("the node is being drained")
        try:
            self.database.value("SELECT 1")
            self.store.newest("-")
        except CheckpointError as problem:
            why.append(problem.what)
        return why

    def drain(self, to: str | None = None, token: str | None = None) -> Drain:
        """Take no more jobs, and freeze those that run to the store; if there is another agent to go to they go on
        there. What does not get away goes on here, when the drain is over.

        Args:
            to, token: the other agent, and a token of it; None: as the settings say.

        Raises:
            UsageError, StorageError: there is no way to that agent; nothing has been done.
        """
        where = to or self.config.drain_to
        if where is None:
            return Drain(*self.jobs.drain(), {}, {})
        moved: dict[str, str] = {}
        stayed: dict[str, CheckpointError] = {}
        with Leaving(self, where, token) as leaving:
            frozen, failed = self.jobs.drain()
            for name in frozen:
                try:
                    leaving.take(name)
                    moved[name] = leaving.to
                except CheckpointError as problem:
                    stayed[name] = problem
        return Drain([name for name in frozen if name not in moved], failed, moved, stayed)

    def tidy(self) -> None:
        """Free what nobody needs any more."""
        with contextlib.suppress(CheckpointError):
            self.events.trim(self.config.most_events)
            with self.database.transaction() as db:
                db.execute("DELETE FROM idempotency WHERE created < unixepoch() - ?", (_KEPT_KEYS,))
                self.jobs.healing.tidy(db)
                self.replicas.tidy(db)
            mend(self.jobs)
        if self.jobs.unused:
            self.jobs.unused = False
            try:
                self.store.gc(timeout=5.0)
            except RetryLater:
                self.jobs.unused = True
            except CheckpointError:
                pass

    def close(self) -> Drained:
        """Freeze all jobs; they go on when an agent is opened on the same folder. Idempotent."""
        if self.jobs.closing:
            return [], {}
        self.pressure.close()
        self.departures.close()
        self.arrivals.close()
        self.jobs.closing = True
        self.timers.close()
        told = self.jobs.close()
        self.neighbours.close()
        self.standbys.close()
        self.node.stand_by.close()
        with contextlib.suppress(CheckpointError):
            self.events.say(None, "stopped", "the agent was stopped", {"frozen": len(told[0])})
        self.database.close()
        os.close(self._lock)
        return told

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.close()
