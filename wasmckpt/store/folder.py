"""The folder of a store: its files, put in place so that a kill at any moment leaves none half there, and its locks."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from ..errors import RetryLater, StorageError
from ..faults import point
from ..formats.chain import file_name
from ..formats.files import sync_folder

__all__ = ["POINTS", "Folder", "copy_synced", "synced"]

_PARTS: Final = ("images", "packs", "modules", "incoming")
_STEPS: Final = {
    part: (f"store.{part}written", f"store.{part}renamed", f"store.{part}synced")
    for part in ("images", "packs", "modules")
}
POINTS: Final = tuple([name for names in _STEPS.values() for name in names])
"""Names of the faults of `Folder.put`."""
_LOCKS: Final = ("lock", "turn")
_PAUSE: Final = 0.005


class Folder:
    """Names in a store's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.images, self.packs, self.modules, self.incoming = (path / part for part in _PARTS)
        self.journals = path / "journals"
        self.index = path / "index.sqlite"

    def create(self) -> None:
        """Make what is not there yet. Raises OSError."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.complete()
        for name in _LOCKS:
            os.close(os.open(self.path / name, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        sync_folder(self.path)

    def complete(self) -> None:
        """Make the folders that stores of older versions do not have. Raises OSError."""
        for part in _PARTS:
            (self.path / part).mkdir(mode=0o700, exist_ok=True)
        sync_folder(self.path)

    def image(self, sha256: bytes) -> Path:
        """Where an image lies."""
        return self.images / file_name(sha256)

    def pack(self, sha256: bytes) -> Path:
        """Where a pack of pages lies."""
        return self.packs / f"{sha256.hex()}.pack"

    def module(self, sha256: bytes) -> Path:
        """Where a module lies."""
        return self.modules / f"{sha256.hex()}.wasm"

    def journal(self, job: str, *, create: bool = False) -> Path:
        """Where a program's journal lies: names of programs need not be names of files. ``create``: make room for it;
        raises OSError."""
        if create:
            self.journals.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.path)
        return self.journals / f"{hashlib.sha256(job.encode()).hexdigest()[:32]}.journal"

    @contextlib.contextmanager
    def new_file(self) -> Iterator[Path]:
        """A name for a file that is being written; whatever is left of it afterwards goes."""
        path = self.incoming / os.urandom(12).hex()
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):
                path.unlink()

    def put(self, written: Path, target: Path) -> None:
        """Give a file that was written and synced its name for good. Raises OSError."""
        after_writing, after_renaming, after_syncing = _STEPS[target.parent.name]
        point(after_writing)
        os.replace(written, target)
        point(after_renaming)
        sync_folder(target.parent)
        point(after_syncing)

    def put_module(self, module: bytes, sha256: bytes) -> None:
        """Keep a module, unless it is there. Raises OSError."""
        target = self.module(sha256)
        if target.exists():
            return
        with self.new_file() as path:
            with synced(path) as file:
                file.write(module)
            self.put(path, target)

    def files(self) -> Iterator[Path]:
        """All files of images, packs, modules, and those that were never finished."""
        for folder in (self.images, self.packs, self.modules, self.incoming):
            if not folder.is_dir():
                continue  # of an older store
            with os.scandir(folder) as found:
                yield from (Path(item.path) for item in found)

    @contextlib.contextmanager
    def locked(self, *, alone: bool = False, timeout: float = 60.0) -> Iterator[None]:
        """Keep files from being taken away; ``alone``: be the one who may. Not to be nested.

        Raises:
            RetryLater: others keep it for longer than ``timeout`` seconds. StorageError: the folder is not a store's.
        """
        until = time.monotonic() + timeout
        with contextlib.ExitStack() as opened:
            try:
                lock, turn = (os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC) for name in _LOCKS)
            except OSError as reason:
                raise StorageError(f"the store cannot be used: {reason.strerror}", path=str(self.path)) from reason
            opened.callback(os.close, lock)
            try:
                _lock(turn, fcntl.LOCK_EX, until)
                _lock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, until)
            finally:
                os.close(turn)
            yield


@contextlib.contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """A new file to write to, which lasts when this is over. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def copy_synced(source: Path, target: Path) -> None:
    """Copy a file to a new one that only its owner can read. Raises OSError."""
    with open(source, "rb") as file, synced(target) as copy:
        shutil.copyfileobj(file, copy, 1 << 20)


def _lock(descriptor: int, how: int, until: float) -> None:
    while True:
        try:
            return fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise RetryLater("the store is in use by others", hint="try again when they are done") from None
            time.sleep(_PAUSE)
