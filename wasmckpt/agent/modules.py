"""Programs, kept by the digest of their bytes: ``modules/SHA256.wasm``, and a row each.

An upload goes to a file under ``incoming`` piece by piece; at its end the digest is compared, the module validated (in
a process of its own), and only then is the file given its name, and after that the row is written. So what has a row is
whole and valid, and an upload that breaks off leaves nothing; what a kill leaves is cleared away at the next start.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sqlite3
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ..api import ModuleInfo, Page
from ..errors import Conflict, NotFound, StorageError, TooLarge, UsageError
from ..faults import point
from ..formats.files import sync_folder
from .checking import check
from .database import Database

__all__ = ["Modules", "Upload"]


class Upload:
    """Bytes that come in, in a file of their own until they are complete. A context manager: what is not `taken` goes.

    Raises:
        TooLarge, StorageError.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self.path = folder / os.urandom(12).hex()
        self.size = 0
        self._most, self._digest = most, hashlib.sha256()
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as reason:
            raise _full(reason) from reason
        self._file: BinaryIO = os.fdopen(descriptor, "wb")

    def write(self, piece: bytes) -> None:
        """The next bytes."""
        self.size += len(piece)
        if self.size > self._most:
            raise TooLarge(f"more than {self._most} bytes", most=self._most)
        self._digest.update(piece)
        try:
            self._file.write(piece)
        except OSError as reason:
            raise _full(reason) from reason

    def finish(self) -> str:
        """All is there, and on the disk; gives its SHA-256."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as reason:
            raise _full(reason) from reason
        return self._digest.hexdigest()

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


class Modules:
    """Below ``folder``; what is being uploaded lies in ``incoming``."""

    def __init__(self, database: Database, folder: Path, incoming: Path, most: int) -> None:
        self._database, self._folder, self._incoming, self._most = database, folder, incoming, most
        self._one = threading.Lock()
        """Between a file's name and its row nobody deletes."""
        self.read = functools.lru_cache(maxsize=16)(self._read)
        """A module's bytes, the same object for jobs that are started one after the other. Raises `NotFound`."""

    def upload(self) -> Upload:
        """For the bytes of one, which `add` takes."""
        return Upload(self._incoming, self._most)

    def add(self, upload: Upload, expected: str | None = None) -> tuple[ModuleInfo, bool]:
        """A complete upload; gives also whether it was new.

        Raises:
            UsageError: it is not the one that was ``expected``. InvalidModule, NotSupported. StorageError.
        """
        sha256 = upload.finish()
        if expected is not None and sha256 != expected:
            raise UsageError("the bytes have another SHA-256 than the address says", expected=expected, found=sha256,
                             hint="was the upload cut off?")
        try:
            return self.get(sha256), False
        except NotFound:
            pass
        imports, exports = check(upload.path)
        with self._one:
            try:
                os.replace(upload.path, self._folder / f"{sha256}.wasm")
                point("agent.module-named")
                sync_folder(self._folder)
            except OSError as reason:
                raise _full(reason) from reason
            with self._database.transaction() as db:
                new = db.execute(
                    "INSERT INTO module VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    (sha256, upload.size, time.time(), json.dumps(imports), json.dumps(exports)),
                ).rowcount
        return self.get(sha256), bool(new)

    def get(self, sha256: str) -> ModuleInfo:
        """Raises `NotFound`."""
        row = self._database.row(_SELECT + "WHERE sha256 = ?", (sha256,))
        if row is None:
            raise NotFound("there is no such module", module=sha256, hint="PUT /v1/modules/SHA256 uploads it")
        return _info(row)

    def page(self, cursor: str | None, limit: int) -> Page[ModuleInfo]:
        """By digest, those behind the ``cursor``."""
        rows = self._database.rows(_SELECT + "WHERE sha256 > ? ORDER BY sha256 LIMIT ?", (cursor or "", limit + 1))
        found = [_info(row) for row in rows[:limit]]
        return Page[ModuleInfo](items=found, next=found[-1].sha256 if len(rows) > limit else None)

    def path(self, sha256: str) -> Path:
        """Its file. Raises `NotFound`."""
        return self._folder / f"{self.get(sha256).sha256}.wasm"

    def delete(self, sha256: str) -> None:
        """Raises `NotFound`; `Conflict`: jobs are made of it."""
        with self._one:
            found = self.get(sha256)
            with self._database.transaction() as db:
                if db.execute("SELECT 1 FROM replica WHERE module = ? AND NOT over", (sha256,)).fetchone():
                    raise Conflict("other agents' jobs that are looked after here are made of that module",
                                   module=sha256)
                if db.execute("SELECT 1 FROM job WHERE module = ?", (sha256,)).fetchone():
                    raise Conflict("jobs are made of that module", module=sha256, jobs=found.jobs,
                                   hint="delete them first")
                db.execute("DELETE FROM module WHERE sha256 = ?", (sha256,))
            point("agent.module-forgotten")
            with contextlib.suppress(OSError):
                (self._folder / f"{sha256}.wasm").unlink()
        self.read.cache_clear()

    def tidy(self) -> None:
        """Take away files without a row. At the start, while nobody uploads."""
        known = {f"{row[0]}.wasm" for row in self._database.rows("SELECT sha256 FROM module")}
        for path in self._folder.iterdir():
            if path.name not in known:
                path.unlink()

    def _read(self, sha256: str) -> bytes:
        try:
            data = self.path(sha256).read_bytes()
        except OSError as reason:
            raise StorageError(f"the module cannot be read: {reason.strerror}", module=sha256) from reason
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StorageError("the file of a module is damaged", module=sha256, hint="delete it and upload it again")
        return data


_SELECT = ("SELECT *, (SELECT count(*) FROM job WHERE job.module = module.sha256) AS jobs, "
           "(SELECT json_group_array(runtime) FROM lesson WHERE lesson.module = module.sha256) AS avoided FROM module ")


def _info(row: sqlite3.Row) -> ModuleInfo:
    return ModuleInfo(sha256=row["sha256"], size=row["size"], uploaded=row["uploaded"], jobs=row["jobs"],
                      avoided=json.loads(row["avoided"]),
                      imports=json.loads(row["imports"]), exports=json.loads(row["exports"]))


def _full(reason: OSError) -> StorageError:
    return StorageError(f"an upload cannot be written: {reason.strerror or reason}", hint="free space on the node")
