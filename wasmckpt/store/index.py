"""The index of a store: one small SQLite file, whose transactions decide what is in the store.

A connection is opened for each use, by whatever thread: it takes a millisecond, and none is left in a forked process.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ..errors import StorageError
from ..faults import point
from ..lazydata import dataclass

__all__ = ["Entry", "Index", "insert_pack", "known_pages"]

_VERSION: Final = 2
_APPLICATION: Final = 0x57434B50  # "WCKP"
_PATIENCE: Final = 60.0
"""Seconds that one transaction waits for another."""
_SCHEMA: Final = """
CREATE TABLE image (
    sha256   BLOB PRIMARY KEY,
    size     INTEGER NOT NULL,
    position INTEGER NOT NULL,
    parent   BLOB REFERENCES image,
    module   BLOB NOT NULL,
    frames   INTEGER NOT NULL,
    runtime  TEXT NOT NULL
) STRICT;
CREATE INDEX child ON image (parent);
CREATE TABLE checkpoint (
    job    TEXT NOT NULL,
    number INTEGER NOT NULL,
    taken  REAL NOT NULL,
    sha256 BLOB NOT NULL REFERENCES image,
    PRIMARY KEY (job, number)
) STRICT;
CREATE INDEX named ON checkpoint (sha256);
"""
_SECOND: Final = """
CREATE TABLE pack (
    number INTEGER PRIMARY KEY,
    sha256 BLOB NOT NULL UNIQUE
) STRICT;
CREATE TABLE page (
    key    INTEGER PRIMARY KEY,
    pack   INTEGER NOT NULL,
    number INTEGER NOT NULL
) STRICT;
CREATE TABLE needs (
    image BLOB NOT NULL REFERENCES image,
    pack  INTEGER NOT NULL REFERENCES pack,
    PRIMARY KEY (image, pack)
) STRICT, WITHOUT ROWID;
CREATE INDEX needed ON needs (pack);
"""
"""What version 2 has besides: packs, where a page is (20 bytes for one of 4 KiB), which packs an image needs. (A page's
pack is no foreign key, which would cost a look at all pages for each pack that goes.)"""
_ENTRIES: Final = """
SELECT job, number, taken, sha256, size, position, parent, module, frames, runtime
FROM checkpoint JOIN image USING (sha256)
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint in the store.

    Attributes:
        job: the program's name. number: ascending from 1. taken: seconds since 1970, by this machine's clock.
        sha256: of the image's file in the store. size: bytes that it brought to the store, its new pages included.
        position: images that it rests on, one upon the other.
        parent: the next of them. module: SHA-256. frames: how many. runtime: what the image was taken on.
    """

    job: str
    number: int
    taken: float
    sha256: bytes
    size: int
    position: int
    parent: bytes | None
    module: bytes
    frames: int
    runtime: str


class Index:
    """``path`` of the file. All methods raise `StorageError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self) -> None:
        """Make it, unless it is there."""
        with self._connected("rwc") as db:
            db.execute("BEGIN IMMEDIATE")
            if not db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
                for statement in (_SCHEMA + _SECOND).split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {_APPLICATION}")
                db.execute(f"PRAGMA user_version = {_VERSION}")
                point("store.creating")
            db.execute("COMMIT")

    def upgrade(self) -> None:
        """Make a store of an older version one of this: afterwards older programs refuse it."""
        with self._connected("rw") as db:
            if self._version(db) == _VERSION:
                return
            db.execute("BEGIN IMMEDIATE")
            if self._version(db) < _VERSION:
                for statement in _SECOND.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_VERSION}")
                point("store.upgrading")
            db.execute("COMMIT")

    @contextlib.contextmanager
    def reading(self, *, one_moment: bool = True) -> Iterator[sqlite3.Connection]:
        """A look at one moment; or at many, between which others may write."""
        with self._connected("rw") as db:  # where a writer died, the first one who looks puts it right
            self._version(db)
            if one_moment:
                db.execute("BEGIN")
            yield db

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing if this raises."""
        with self._connected("rw") as db:
            self._version(db)
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")

    @contextlib.contextmanager
    def _connected(self, mode: str) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_PATIENCE, isolation_level=None,
            )) as db:
                db.execute("PRAGMA synchronous = EXTRA")  # the journal's folder too
                yield db
        except sqlite3.Error as reason:
            raise StorageError(f"the store's index cannot be used: {reason}", path=str(self._path),
                               hint="is the disk full, or the folder not writable?") from reason

    def _version(self, db: sqlite3.Connection) -> int:
        version: int = db.execute("PRAGMA user_version").fetchone()[0]
        application = db.execute("PRAGMA application_id").fetchone()[0]
        if application != _APPLICATION or not version:
            raise StorageError("this is not the index of a store", path=str(self._path))
        if version > _VERSION:
            raise StorageError(f"the store is of version {version}, newer than {_VERSION}", path=str(self._path),
                               hint="use a newer wasmckpt")
        return version

    def entries(self, job: str | None = None) -> list[Entry]:
        """Checkpoints of one program, or of all, by name and number."""
        where, given = ("", ()) if job is None else ("WHERE job = ?", (job,))
        with self.reading() as db:
            return [Entry(*row) for row in db.execute(f"{_ENTRIES} {where} ORDER BY job, number", given)]

    def entry(self, job: str, number: int | None = None) -> Entry | None:
        """One checkpoint; None: the newest, if there is one."""
        sql, given = ("", [job]) if number is None else (" AND number = ?", [job, number])
        with self.reading() as db:
            row = db.execute(f"{_ENTRIES} WHERE job = ?{sql} ORDER BY number DESC LIMIT 1", given).fetchone()
        return None if row is None else Entry(*row)

    def chain(self, sha256: bytes) -> list[tuple[Any, ...]]:
        """The rows of an image and of all that it rests on, newest first."""
        return self.rows("""
            WITH RECURSIVE below AS (
                SELECT * FROM image WHERE sha256 = ? UNION ALL
                SELECT image.* FROM image JOIN below ON image.sha256 = below.parent
            ) SELECT * FROM below ORDER BY position DESC
        """, (sha256,))

    def rows(self, sql: str, given: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """What a query gives."""
        with self.reading() as db:
            return db.execute(sql, given).fetchall()

    def needs(self) -> dict[bytes, set[bytes]]:
        """The packs that images need, as the index knows it, which says what may be taken away."""
        with self.reading() as db:
            found: dict[bytes, set[bytes]] = {}
            if self._version(db) >= _VERSION:
                for image, pack in db.execute("SELECT image, sha256 FROM needs JOIN pack ON pack = number"):
                    found.setdefault(image, set()).add(pack)
            return found


def known_pages(db: sqlite3.Connection, keys: Sequence[int]) -> dict[int, tuple[bytes, int]]:
    """Where pages with these keys are: in which pack, and where in it."""
    marks = ",".join("?" * len(keys))
    return {key: (sha256, number) for key, sha256, number in db.execute(
        f"SELECT key, sha256, page.number FROM page JOIN pack ON pack = pack.number WHERE key IN ({marks})", keys
    )}


def insert_pack(db: sqlite3.Connection, sha256: bytes, keys: Sequence[int]) -> None:
    """A new pack and its pages. Where another one has some of them, this one is the better: it is used now."""
    db.execute("INSERT OR IGNORE INTO pack (sha256) VALUES (?)", (sha256,))
    (number,) = db.execute("SELECT number FROM pack WHERE sha256 = ?", (sha256,)).fetchone()
    db.executemany("INSERT OR REPLACE INTO page VALUES (?, ?, ?)", sorted(
        [(key, number, n) for n, key in enumerate(keys)]
    ))
