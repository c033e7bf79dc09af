"""What an agent knows, in one SQLite file.

Two connections: one writes, one reads (in WAL mode neither waits for the other). Each is used by one thread at a time.
A transaction that was committed outlives a power cut.

Who owns a job is decided in a transaction with its state (`wasmckpt.api.states`): by its ``epoch`` and the table
``migration`` when it moves, and where neighbours look after it by the table ``replica``, which has this agent's votes
(`wasmckpt.agent.replicas`). The columns ``owner`` and ``lease_until`` of ``job`` are not used.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import StorageError
from ..faults import point

__all__ = ["Database"]

_APPLICATION: Final = 0x57434B41  # "WCKA"
_PATIENCE: Final = 30.0
_FIRST: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE token (
    id      TEXT PRIMARY KEY,
    name    TEXT NOT NULL UNIQUE,
    hash    BLOB NOT NULL,
    scopes  TEXT NOT NULL,
    created REAL NOT NULL,
    expires REAL
) STRICT;
CREATE TABLE module (
    sha256   TEXT PRIMARY KEY,
    size     INTEGER NOT NULL,
    uploaded REAL NOT NULL,
    imports  TEXT NOT NULL,
    exports  TEXT NOT NULL
) STRICT;
CREATE TABLE job (
    number      INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    name        TEXT NOT NULL UNIQUE,
    module      TEXT NOT NULL REFERENCES module,
    spec        TEXT NOT NULL,
    state       TEXT NOT NULL,
    why         TEXT NOT NULL DEFAULT '',
    runtime     TEXT NOT NULL,
    source      TEXT NOT NULL DEFAULT 'beginning',
    created     REAL NOT NULL,
    changed     REAL NOT NULL,
    revision    INTEGER NOT NULL,
    exit_code   INTEGER,
    results     TEXT NOT NULL DEFAULT '[]',
    problem     TEXT,
    runs        INTEGER NOT NULL DEFAULT 0,
    restarts    INTEGER NOT NULL DEFAULT 0,
    checkpoint  INTEGER,
    next_try    REAL NOT NULL DEFAULT 0,
    wake_at     REAL,
    wakes       INTEGER NOT NULL DEFAULT 0,
    stdout_from INTEGER NOT NULL DEFAULT 0,
    stderr_from INTEGER NOT NULL DEFAULT 0,
    epoch       INTEGER NOT NULL DEFAULT 1,
    owner       TEXT NOT NULL,
    lease_until REAL
) STRICT;
CREATE INDEX job_state ON job (state, next_try);
CREATE INDEX job_module ON job (module);
CREATE INDEX job_wake ON job (wake_at) WHERE wake_at IS NOT NULL;
CREATE TABLE label (
    job   TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    name  TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (job, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX label_value ON label (name, value);
CREATE TABLE event (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at     REAL NOT NULL,
    job    TEXT,
    kind   TEXT NOT NULL,
    text   TEXT NOT NULL,
    data   TEXT NOT NULL
) STRICT;
CREATE INDEX event_job ON event (job, number);
CREATE TABLE idempotency (
    key         TEXT NOT NULL,
    token       TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    status      INTEGER,
    body        TEXT,
    created     REAL NOT NULL,
    PRIMARY KEY (key, token)
) STRICT, WITHOUT ROWID;
CREATE TABLE migration (
    id        TEXT PRIMARY KEY,
    job       TEXT NOT NULL,
    epoch     INTEGER NOT NULL,
    direction TEXT NOT NULL,
    peer      TEXT NOT NULL,
    runtime   TEXT NOT NULL,
    state     TEXT NOT NULL,
    progress  TEXT NOT NULL DEFAULT '{}',
    problem   TEXT,
    started   REAL NOT NULL,
    changed   REAL NOT NULL
) STRICT;
CREATE INDEX migration_job ON migration (job, started)
"""
_HEALING: Final = """
ALTER TABLE job ADD COLUMN crashes TEXT NOT NULL DEFAULT '[]';
CREATE TABLE lesson (
    module  TEXT NOT NULL REFERENCES module (sha256) ON DELETE CASCADE,
    runtime TEXT NOT NULL,
    how     TEXT NOT NULL,
    learned REAL NOT NULL,
    PRIMARY KEY (module, runtime)
) STRICT, WITHOUT ROWID
"""
_NEIGHBOURS: Final = """
CREATE TABLE replica (
    job      TEXT PRIMARY KEY,
    name     TEXT NOT NULL,
    module   TEXT NOT NULL,
    spec     TEXT NOT NULL,
    runtime  TEXT NOT NULL,
    term     INTEGER NOT NULL,
    site     TEXT NOT NULL,
    version  INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    voters   TEXT NOT NULL,
    duration REAL NOT NULL,
    owned    INTEGER NOT NULL DEFAULT 0,
    over     INTEGER NOT NULL DEFAULT 0,
    stdout_from INTEGER NOT NULL DEFAULT 0,
    stderr_from INTEGER NOT NULL DEFAULT 0,
    changed  REAL NOT NULL
) STRICT, WITHOUT ROWID
"""
_VERSIONS: Final = (_FIRST, _HEALING, _NEIGHBOURS)
"""What each version adds to the one before."""


class Database:
    """``path`` of its file, made if it is not there. Safe to use from several threads.

    Raises:
        StorageError: it cannot be used, or is a newer agent's. So does every method.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing, self._reading = threading.RLock(), threading.Lock()
        with self._reported():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._writer = self._connect()
            try:
                self._writer.execute("PRAGMA journal_mode = WAL")
                self._writer.execute("PRAGMA synchronous = FULL")
                self._writer.execute("PRAGMA foreign_keys = ON")
                self._upgrade()
                self._reader = self._connect()
                self._reader.execute("PRAGMA query_only = ON")
            except BaseException:
                self._writer.close()
                raise

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        db.row_factory = sqlite3.Row
        return db

    def _upgrade(self) -> None:
        db = self._writer
        version = db.execute("PRAGMA user_version").fetchone()[0]
        application = db.execute("PRAGMA application_id").fetchone()[0]
        if (version or application) and application != _APPLICATION:
            raise StorageError("this is not an agent's database", path=str(self.path))
        if version > len(_VERSIONS):
            raise StorageError(f"the database is of version {version}, newer than {len(_VERSIONS)}",
                               path=str(self.path), hint="use a newer wasmckpt")
        for number in range(version, len(_VERSIONS)):
            db.execute("BEGIN IMMEDIATE")
            for statement in _VERSIONS[number].split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {_APPLICATION}")
            db.execute(f"PRAGMA user_version = {number + 1}")
            db.execute("COMMIT")

    @contextlib.contextmanager
    def transaction(self, then: Callable[[], object] | None = None) -> Iterator[sqlite3.Connection]:
        """All of it is done, or nothing if this raises. ``then`` is called when it is done. Not to be nested."""
        with self._reported():
            with self._writing:
                db = self._writer
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                    point("agent.committing")
                    db.execute("COMMIT")
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                    raise
            point("agent.committed")
        if then is not None:
            then()

    def rows(self, sql: str, given: Sequence[object] = ()) -> list[sqlite3.Row]:
        """What a query gives, of what is committed."""
        with self._reported(), self._reading:
            return self._reader.execute(sql, given).fetchall()

    def row(self, sql: str, given: Sequence[object] = ()) -> sqlite3.Row | None:
        """Its first row."""
        found = self.rows(sql, given)
        return found[0] if found else None

    def value(self, sql: str, given: Sequence[object] = ()) -> Any:
        """The first value of its first row."""
        found = self.row(sql, given)
        return None if found is None else found[0]

    def close(self) -> None:
        """Idempotent."""
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as reason:
            raise StorageError(f"the agent's database cannot be used: {reason}", path=str(self.path),
                               hint="is the disk full, or the folder not writable?") from reason
