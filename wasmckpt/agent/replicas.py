"""What this agent keeps of jobs that have neighbours, and its votes about who runs them (`wasmckpt.supervise.lease`).

Every agent that has a vote about a job has a row for it, the job's owner too. It holds the vote (term and site), under
which term this agent owns the job (``owned``; 0: it does not), what
the newest image is that was kept (``version``: the term of the owner who took it; ``number``, 0: the job's beginning),
and all that it takes to run the job. A row is never forgotten while somebody may still ask for a vote: of a job that is
``over`` the vote stays, and nothing else.

Images of other agents' jobs, and what those have written, are kept in memory: in a store of their own on a file system
of the kind ``tmpfs``. So they outlive this agent and not the machine; a row whose image is lost still votes, but does
not want to take over.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ..api import Candidacy, Entrusted, JobSpec, Leases, Promise, Promises, Replica, State, Vote
from ..errors import CheckpointError, Conflict, NotFound, StorageError, UsageError
from ..formats import load_header
from ..lazydata import dataclass
from ..snapshot.deadline import CLOCK
from ..store import Entry, Retention, Store
from ..supervise import Ballot, Voter
from .database import Database
from .logs import STREAMS, Logs, Stream, stream_of
from .modules import Upload
from .start import produced_by

__all__ = ["Kept", "Replicas", "now", "replica_folder"]

_SHARED_MEMORY: Final = Path("/dev/shm")
_KEEP: Final = Retention(2)
_REMEMBERED: Final = 30 * 86400.0
"""Seconds for which the vote about a job that is over is kept."""


def now() -> float:
    """By the clock of promises, which goes on while the machine is suspended."""
    return time.clock_gettime(CLOCK)


def replica_folder(given: Path | None, state: Path, agent: str) -> Path:
    """Where images of other agents' jobs are kept: in memory, if there is a file system for that."""
    if given is not None:
        return given
    if os.access(_SHARED_MEMORY, os.W_OK) and os.statvfs(_SHARED_MEMORY).f_bavail:
        return _SHARED_MEMORY / f"wasmckpt-{agent}"
    return state / "replicas"


@dataclass(frozen=True, slots=True)
class Kept:
    """A row: a job, the vote about it, and what it takes to run it.

    Attributes:
        owned: the term for which this agent was elected, or got the job from its owner.
        begins: the first byte of its logs that there is. voters: address of each agent that has a vote -> its id.
        duration: seconds of a promise.
    """

    job: str
    name: str
    spec: JobSpec
    runtime: str
    ballot: Ballot
    owned: int
    begins: Mapping[Stream, int]
    voters: Mapping[str, str]
    duration: float
    over: int
    """0: it lives. 1: it has ended, and all know. 2: it was deleted, and not all know."""


class Replicas:
    """Of one agent, with that ``id``. ``lost``: called with a job, a term and a site when that one owns a job of this
    agent from that term on."""

    def __init__(
        self, database: Database, id_: str, main: Store, folder: Path, most_image: int, most: int,
    ) -> None:
        self._database, self._id, self._main, self.folder = database, id_, main, folder
        self._most_image, self._most = most_image, most
        self._lock = threading.RLock()
        self._storing = threading.Lock()
        """Held while an image is added: promises do not wait for that."""
        self._promised: dict[str, float] = {}
        """Until when this one votes for nobody else, by job."""
        self._began = now()
        self._claimed: dict[str, tuple[int, str]] = {}
        """Of each job the last term and site for which leases were asked for: that one was elected."""
        self._opened: Store | None = None
        self._sweep()
        self.lost: Callable[[str, int, str], object] = lambda job, term, site: None
        self.came: Callable[[], object] = lambda: None
        """Called when there is one more."""
        self.newer: Callable[[], object] = lambda: None
        """Called when there is a newer image."""

    def _sweep(self) -> None:
        """What was on its way here when this agent was killed."""
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if path.is_file():
                    path.unlink()

    # Looking

    def all(self) -> list[Kept]:
        """All but those that are over."""
        return [_kept(row) for row in self._database.rows("SELECT * FROM replica WHERE NOT over ORDER BY job")]

    def get(self, job: str) -> Kept | None:
        """Of a job, by its id."""
        row = self._database.row("SELECT * FROM replica WHERE job = ?", (job,))
        return None if row is None else _kept(row)

    def find(self, name: str) -> Kept:
        """By id or name. Raises `NotFound`."""
        for kept in self.all():
            if name in (kept.job, kept.name):
                return kept
        raise NotFound("this agent does not look after that job", job=name, hint="GET /v1/neighbours lists them")

    def infos(self, own: Callable[[str], bool], standby: Callable[[str], bool]) -> list[Replica]:
        """Those of other agents; ``own``: whether a job is this one's; ``standby``: whether a worker stands by."""
        found = []
        for kept in self.all():
            if own(kept.job):
                continue
            number = self._held(kept)[1]
            found.append(Replica(job=kept.job, name=kept.name, site=self.owner_of(kept), term=kept.ballot.term,
                                 number=number, voters=dict(kept.voters), standby=standby(kept.job),
                                 promised=round(self._voter(kept).promised - now(), 3)))
        return found

    def owner_of(self, kept: Kept) -> str:
        """The last agent that is known to have owned a job; if none is, the one that this one has voted for."""
        return self._claimed.get(kept.job, (0, kept.ballot.site))[1]

    def due(self) -> list[Kept]:
        """Those that could be taken over: nothing is promised any more, and what they would go on from is here."""
        return [kept for kept in self.all() if self._voter(kept).promised < now() and self._held(kept)[1] is not None]

    def owned(self) -> list[Kept]:
        """This agent's jobs, also those that have ended and of which not all know that."""
        return [_kept(row) for row in self._database.rows("SELECT * FROM replica WHERE owned > 0 AND over != 1")]

    def closing(self) -> list[Kept]:
        """Jobs of this agent that have ended or are deleted: the others are to be told."""
        return [_kept(row) for row in self._database.rows(
            "SELECT replica.* FROM replica LEFT JOIN job ON job.id = replica.job WHERE over = 2 OR (over = 0 AND "
            "state IN (?, ?, ?) AND owned > 0)", (State.STOPPED, State.EXITED, State.FAILED))]

    @staticmethod
    def forget(db: sqlite3.Connection, job: str) -> None:
        """It is deleted here, by its owner: in the same transaction."""
        db.execute("UPDATE replica SET over = 2 WHERE job = ? AND NOT over", (job,))

    def logs(self, job: str) -> Logs:
        """What a job had written."""
        return Logs(self.folder / "logs" / job)

    # Votes

    def entrust(self, job: str, given: Entrusted, *, owned: bool = False) -> None:
        """A job's owner (which may be this agent) has it looked after here, or says so again. Raises `Conflict`: there
        is a newer owner; `UsageError`: this agent is none of the voters. ``owned``: this agent is the owner."""
        if self._id not in given.voters.values():
            raise UsageError("this agent is none of the job's voters", agent=self._id)
        with self._lock:
            before = self.get(job)
            known = Ballot() if before is None else before.ballot
            if given.term < known.term or (given.term == known.term and known.site not in ("", given.site)):
                raise Conflict("the job has a newer owner", job=job, term=known.term, site=known.site)
            newest = (given.term, 0) if before is None or before.over else known.newest
            with self._database.transaction() as db:
                db.execute("INSERT OR REPLACE INTO replica VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?)", (
                    job, given.name, given.spec.module, given.spec.model_dump_json(), given.runtime, given.term,
                    given.site, *newest, json.dumps(given.voters, sort_keys=True), given.duration,
                    given.term if owned else 0, time.time()))
            self._promised[job] = max(self._promised.get(job, 0.0), now() + given.duration)
        self.came()

    def leases(self, asked: Leases) -> Promises:
        """Promises for an owner, of the jobs that are known here. Raises `Conflict`: another agent is asked for."""
        self._check(asked.voter)
        found: dict[str, Promise] = {}
        for job, term in asked.terms.items():
            with self._lock:
                kept = self.get(job)
                if kept is None or kept.over:
                    continue
                if asked.site not in kept.voters:
                    found[job] = self._promise(kept, False)
                    continue
                voter, granted = self._voter(kept).renew(now(), asked.site, term, kept.duration)
                self._voted(kept, voter, granted)
                if granted:
                    self._claimed[job] = term, asked.site
                    if kept.owned and term > kept.owned:
                        self.lost(job, term, asked.site)
                found[job] = self._promise(self._known(job), granted)
        return Promises(promises=found)

    def _promise(self, kept: Kept, granted: bool) -> Promise:
        version, number, entry = self._held(kept)
        if number and entry is None:  # in the agent's own store: to its present owner that is none
            version, number = None, None
        logs = self.logs(kept.job)
        return Promise(
            granted=granted, term=kept.ballot.term, site=kept.ballot.site, version=version, number=number,
            owned=kept.owned == kept.ballot.term or (
                self._claimed.get(kept.job) == (kept.ballot.term, kept.ballot.site)),
            sha256="" if entry is None else entry.sha256.hex(), position=0 if entry is None else entry.position,
            stdout=logs.size("stdout"), stderr=logs.size("stderr"),
        )

    def renew(self, job: str, site: str, term: int) -> bool:
        """This agent's own promise to itself, about a job that it owns."""
        with self._lock:
            kept = self._known(job)
            voter, granted = self._voter(kept).renew(now(), site, term, kept.duration)
            self._voted(kept, voter, granted)
            return granted

    @staticmethod
    def inherit(db: sqlite3.Connection, job: str, site: str, term: int) -> None:
        """The owner has given it to this agent, for that term, with an image. If somebody was elected for it meanwhile
        that one has it, and the others say so."""
        db.execute("UPDATE replica SET term = ?, site = ? WHERE job = ? AND term < ?", (term, site, job, term))
        db.execute("UPDATE replica SET owned = ?, version = ?, number = coalesce((SELECT checkpoint FROM job WHERE "
                   "id = replica.job), 0) WHERE job = ?", (term, term, job))

    @staticmethod
    def owns(db: sqlite3.Connection, job: str, term: int) -> None:
        """This agent owns it from that term on; 0: no more. In a transaction of others."""
        db.execute("UPDATE replica SET owned = ? WHERE job = ?", (term, job))

    def elected(self, job: str, term: int) -> None:
        """This agent, for that term."""
        with self._database.transaction() as db:
            self.owns(db, job, term)

    def seize(self, job: str, term: int, site: str, voters: Mapping[str, str]) -> None:
        """It is this agent's, and its alone, from that term on."""
        with self._lock, self._database.transaction() as db:
            db.execute("UPDATE replica SET term = ?, site = ?, owned = ?, voters = ?, changed = ? WHERE job = ?",
                       (term, site, term, json.dumps(dict(voters)), time.time(), job))

    def vote(self, job: str, asked: Candidacy) -> Vote:
        """A vote for a candidate. Raises `NotFound`, `Conflict`."""
        self._check(asked.voter)
        with self._lock:
            kept = self._known(job)
            before = self._voter(kept)
            granted = kept.over != 1 and asked.site in kept.voters and before.would(
                now(), asked.site, asked.term, asked.newest)
            if granted and not asked.trial:
                voter, granted = before.vote(now(), asked.site, asked.term, asked.newest, kept.duration)
                self._voted(kept, voter, granted)
            return Vote(granted=granted, term=self._known(job).ballot.term)

    def _check(self, voter: str) -> None:
        if voter != self._id:
            raise Conflict("another agent is at that address now; its votes are those of the one before no more",
                           agent=self._id, expected=voter)

    def _voted(self, kept: Kept, voter: Voter, granted: bool) -> None:
        """Write down what was decided, before it is answered."""
        if not granted:
            return
        old, new = kept.ballot, voter.ballot
        if (old.term, old.site) != (new.term, new.site):
            with self._database.transaction() as db:
                db.execute("UPDATE replica SET term = ?, site = ?, changed = ? WHERE job = ?",
                           (new.term, new.site, time.time(), kept.job))
        self._promised[kept.job] = voter.promised

    def _voter(self, kept: Kept) -> Voter:
        promised = self._promised.get(kept.job)
        if promised is None:  # from before this agent started there may be a promise
            promised = self._promised[kept.job] = Voter.started(kept.ballot, self._began, kept.duration).promised
        return Voter(kept.ballot, promised)

    def _known(self, job: str) -> Kept:
        kept = self.get(job)
        if kept is None:
            raise NotFound("this agent does not look after that job", job=job)
        return kept

    # Images

    def took(self, job: str, term: int, number: int) -> None:
        """The owner here has taken an image of its own."""
        with self._database.transaction() as db:
            db.execute("UPDATE replica SET version = ?, number = ? WHERE job = ? AND (version, number) < (?, ?)",
                       (term, number, job, term, number))

    def upload(self) -> Upload:
        """For an image that comes. Raises `StorageError`: as much is kept here as may be."""
        self._check_room()
        self._store()
        return Upload(self.folder, self._most_image)

    def _check_room(self) -> None:
        used = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(OSError):  # it is gone meanwhile
                    used += os.stat(os.path.join(folder, name)).st_blocks * 512
        if used > self._most:
            raise StorageError("as many images of other agents' jobs are kept here as may be", used=used,
                               most=self._most, hint="the agent's setting most_replicas")

    def keep(
        self, job: str, site: str, term: int, number: int, begins: Mapping[Stream, int], upload: Upload, module: bytes,
    ) -> Promise:
        """An image of a job, which its owner of that term has brought; ``begins``: of its logs. Gives what is kept now.

        Raises:
            Conflict: that one is not its owner, or what the job had written before is not here. ImageError: it is
                damaged, or the difference to one that is not here.
        """
        sha256 = bytes.fromhex(upload.finish())
        produced = produced_by(load_header(upload.path).image.host)
        with self._storing:
            with self._lock:
                kept = self._owned_by(job, site, term)
                voter, taken = self._voter(kept).kept(term, (term, number))
                if not taken:
                    raise Conflict("the job has a newer owner", job=job, term=kept.ballot.term)
                if term <= kept.ballot.newest[0] and self._held(kept)[1] == kept.ballot.newest[1] >= number:
                    return self._promise(kept, False)  # it is there
                new = self._new_logs(job)
                logs = {stream: new if new.size(stream) else self.logs(job) for stream in STREAMS}
                if any(logs[stream].size(stream) < end for stream, end in produced.items()):
                    raise Conflict("what the job had written before its image is not here", job=job)
            store = self._store()
            for other in [entry.number for entry in store.entries(job) if entry.number >= number]:
                store.remove(job, other)  # of an owner whose images nobody else has, or of a row that was not written

            def write(path: Path) -> bytes:
                path.write_bytes(upload.path.read_bytes())
                return sha256

            store.add(job, write, module=module, number=number)
            with self._lock:
                self._owned_by(job, site, term)
                new.take_the_place_of(self.logs(job))
                for stream in STREAMS:
                    self.logs(job).give_back(stream, begins[stream])
                with self._database.transaction() as db:
                    db.execute("UPDATE replica SET version = ?, number = ?, stdout_from = ?, stderr_from = ? "
                               "WHERE job = ?", (*voter.ballot.newest, begins["stdout"], begins["stderr"], job))
            with contextlib.suppress(CheckpointError):
                if store.prune(job, _KEEP):
                    store.gc(timeout=1.0)
        self.newer()
        return self._promise(self._known(job), False)

    def append(self, job: str, site: str, term: int, stream: str, begin: int, offset: int, data: bytes) -> int:
        """More of what a job has written, from an offset on; gives where it ends now. ``begin``: the first byte of it
        that there is: from there on it is written anew, beside what belongs to the image that is kept, until another
        one comes. Raises `Conflict`: there is a newer owner, or what comes before is not here; `StorageError`."""
        if offset == begin:
            self._check_room()
        with self._lock:
            self._owned_by(job, site, term)
            name = stream_of(stream)
            self._store()
            (self.folder / "logs").mkdir(mode=0o700, exist_ok=True)
            logs, new = self.logs(job), self._new_logs(job)
            if offset == begin:
                if logs.size(name):
                    logs = new
                logs.cut(name, begin)
            elif new.size(name):
                logs = new
            if (size := logs.size(name)) != offset:
                raise Conflict("what the job had written before is not here", job=job, size=size, offset=offset)
            logs.append(name, data)
            return logs.size(name)

    def _new_logs(self, job: str) -> Logs:
        """Output that belongs to an image that is yet to come, where it was written anew."""
        return Logs(self.folder / "logs" / f"{job}.new")

    def _owned_by(self, job: str, site: str, term: int) -> Kept:
        """Raises `Conflict`: it is not that one's, by what is known here."""
        kept = self._known(job)
        if term < kept.ballot.term or kept.ballot.site != site or kept.over:
            raise Conflict("the job has a newer owner, or is over", job=job, term=kept.ballot.term,
                           site=kept.ballot.site)
        return kept

    def hand_out(self, kept: Kept) -> tuple[Store, int] | None:
        """The store with a job's newest image, and its number there; None: it has none, and begins anew. Of a job that
        was this agent's that may be its own store. Raises `NotFound`: it is lost."""
        _, number, entry = self._held(kept)
        if number is None:
            raise NotFound("the image that was kept is lost", job=kept.job)
        if not number:
            return None
        return (self._main if entry is None else self._store()), number

    def is_main(self, store: Store) -> bool:
        """Whether it is the agent's own."""
        return store is self._main

    def over(self, job: str, term: int, site: str) -> None:
        """It has ended at that site, or was deleted: nothing is kept of it but the vote. Raises `Conflict`: it has a
        newer owner."""
        with self._lock:
            kept = self.get(job)
            if kept is None:
                return
            if max(self._claimed.get(job, (0, ""))[0], kept.owned) > term:
                raise Conflict("the job has a newer owner", job=job, term=kept.ballot.term, site=kept.ballot.site)
            with self._database.transaction() as db:
                db.execute("UPDATE replica SET over = 1, term = max(term, ?), changed = ? WHERE job = ?",
                           (term, time.time(), job))
            if 0 < kept.owned < term:
                self.lost(job, term, site)
        self.drop(job)

    def drop(self, job: str) -> None:
        """The image and output that are kept of it."""
        if self._exists():
            store = self._store()
            if store.remove(job):
                with contextlib.suppress(CheckpointError):
                    store.gc(timeout=1.0)
            self.logs(job).remove()
            self._new_logs(job).remove()

    @staticmethod
    def tidy(db: sqlite3.Connection) -> None:
        """Forget votes about what has been over for long."""
        db.execute("DELETE FROM replica WHERE over AND changed < ?", (time.time() - _REMEMBERED,))

    def _held(self, kept: Kept) -> tuple[int | None, int | None, Entry | None]:
        """Term and number of the image that is kept of it (None, None: it is lost), and its entry; no entry: it is in
        the agent's own store, since the job was this agent's when it was taken."""
        version, number = kept.ballot.newest
        if not number:
            return version, 0, None
        entry = self._store().newest(kept.job) if self._exists() else None
        if entry is not None and entry.number == number:
            return version, number, entry
        own = self._main.newest(kept.job)
        return (version, number, None) if own is not None and own.number == number else (None, None, None)

    def _exists(self) -> bool:
        return self._opened is not None or (self.folder / "store").is_dir()

    def _store(self) -> Store:
        if self._opened is None:
            try:
                self.folder.mkdir(mode=0o700, exist_ok=True)
                found = self.folder.lstat()
                if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                    raise StorageError("the folder for other agents' images is somebody else's", path=str(self.folder))
            except OSError as reason:
                raise StorageError(f"other agents' images cannot be kept: {reason.strerror}",
                                   path=str(self.folder)) from reason
            self._opened = Store(self.folder / "store", create=True)
        return self._opened


def _kept(row: sqlite3.Row) -> Kept:
    return Kept(
        row["job"], row["name"], JobSpec.model_validate_json(row["spec"]), row["runtime"],
        Ballot(row["term"], row["site"], (row["version"], row["number"])), row["owned"],
        {"stdout": row["stdout_from"], "stderr": row["stderr_from"]}, json.loads(row["voters"]), row["duration"],
        row["over"],
    )
