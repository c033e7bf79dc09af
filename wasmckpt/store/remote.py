"""A store in a bucket of object storage, for any number of writers on any number of machines, without a database.

::

    PREFIX/store.json                          that there is one, and its version
    PREFIX/checkpoints/PROGRAM/NUMBER.json     a checkpoint: what it is, and which objects it needs
    PREFIX/images/SHA256.TOKEN                 an image, as `wasmckpt.formats` writes it, sealed or not
    PREFIX/modules/SHA256.TOKEN                a module
    PREFIX/removed/TOKEN.json                  a checkpoint's record as it was before it was removed or compacted

There are no locks and no renames in a bucket; there is one thing that happens as a whole: a small object that is
written if none of its name is there yet (``If-None-Match: *``), or in the place of one that was read (``If-Match``).
So:

*Commit.* Images and modules first, then the record, in one conditional write. Two writers who want one number: one gets
it, the other takes the next. Before its record is there nothing of a checkpoint shows, afterwards all of it is there.

*No name twice.* Each upload has a key of its own, with a random token, so that nobody ever relies on an object that
somebody else is about to take away. A writer shares an object only if a record names it (the parents of its image).

*Taking away.* What a record named stays for a time after the record is gone or names something else: the record goes to
``removed`` first. `RemoteStore.gc` takes away what no record names, none under ``removed`` that is younger than that
time, and what itself is older. Whoever adds a checkpoint has half of the time, from when it has seen the records, until
its own is there, or gives up. So what it has relied on is there: it was named when it looked, and at least for the time
from then on. The clock is the server's.

A writer that dies leaves objects that no record names, and `gc` takes them, or parts of an upload, which buckets forget
by a rule of their own (``AbortIncompleteMultipartUpload``).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import IO, Final

from ..errors import ImageError, RetryLater, StorageError, UsageError
from ..formats import Image, MemoryState, load_header, read_chain, save
from ..formats.chain import beside, check_link, file_name
from ..formats.codec import read_linked
from ..formats.files import check_kept, opened
from ..lazydata import replace
from .index import Entry
from .objects import MARK, Found, NoSuchObject, Objects
from .records import ImageObject, ModuleObject, Record, folder_of, new_token, pack_record, parse_record, record_key
from .retention import Retention
from .store import Freed, Problem, check_name

__all__ = ["GRACE", "Adding", "RemoteStore"]

GRACE: Final = 3600.0
"""Seconds that what was named stays."""
_VERSION: Final = 1
_LARGEST_RECORD: Final = 16 << 20
_AT_ONCE: Final = 8
_MOST_SEEN: Final = 20_000
_NUMBERS: Final = 1000
"""Numbers that a writer tries until it gets one."""


class RemoteStore:
    """Images of many programs below ``s3://BUCKET/PREFIX``; the methods are those of `wasmckpt.store.Store`.

    Every method raises `StorageError` if the object storage refuses, and `RetryLater` if it does not answer in time.
    """

    def __init__(self, url: str, *, create: bool = False, grace: float = GRACE, timeout: float | None = None) -> None:
        """Open a store, or ``create`` it where there is none; ``grace``: seconds, `GRACE` unless writers are quicker,
        or there are none (0); ``timeout`` as of `Objects`.

        Raises:
            StorageError: there is none; it is of a newer version. UsageError, NotSupported: as `Objects`.
        """
        self._objects = Objects(url, timeout=timeout)
        self.path = self._objects.url
        self._grace = timedelta(seconds=grace)
        self._seen: dict[str, tuple[str, Record]] = {}
        """Records that were listed with a version and read, by key."""
        try:
            data, _ = self._objects.read(MARK, 4096)
        except NoSuchObject:
            if not create:
                raise StorageError("there is no store", path=self.path) from None
            self._objects.create(MARK, b'{"wasmckpt": "store", "version": %d}\n' % _VERSION)
            data, _ = self._objects.read(MARK, 4096)
        self._check_version(data)

    def _check_version(self, data: bytes) -> None:
        import json

        try:
            mark = json.loads(data)
            version = mark["version"] if mark["wasmckpt"] == "store" else None
        except (ValueError, KeyError, TypeError):
            version = None
        if type(version) is not int or version < 1:
            raise StorageError("this is not a store", path=self.path)
        if version > _VERSION:
            raise StorageError(f"the store is of version {version}, newer than {_VERSION}", path=self.path,
                               hint="use a newer wasmckpt")

    @property
    def scratch(self) -> Path:
        """A folder here, for files that are not in the store."""
        return Path(tempfile.gettempdir())

    # Looking

    def entries(self, job: str | None = None) -> list[Entry]:
        """Checkpoints of one program, or of all, by name and number."""
        return sorted([record.entry for record in self.records(job)], key=lambda entry: (entry.job, entry.number))

    def records(self, job: str | None = None) -> list[Record]:
        """What is known of the checkpoints of one program, or of all."""
        return self._records(self._objects.listed("checkpoints" if job is None else folder_of(job)))

    def _records(self, listed: Sequence[Found]) -> list[Record]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return [record for record in pool.map(self._seen_or_read, listed) if record is not None]

    def _seen_or_read(self, found: Found) -> Record | None:
        """None: it has been removed since it was listed."""
        seen = self._seen.get(found.key)
        if seen is not None and found.version and seen[0] == found.version:
            return seen[1]
        record = self._record_or_none(found.key)
        if record is not None:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[found.key] = found.version, record
        return record

    def _record_or_none(self, key: str) -> Record | None:
        try:
            return self._record(key)
        except NoSuchObject:
            return None

    def _record(self, key: str) -> Record:
        data, _ = self._objects.read(key, _LARGEST_RECORD)
        record = parse_record(data, f"{self.path}/{key}")
        if key.startswith("checkpoints/") and record_key(record.entry.job, record.entry.number) != key:
            raise StorageError("a checkpoint's record in the store is in the place of another one",
                               path=f"{self.path}/{key}")
        return record

    def newest(self, job: str) -> Entry | None:
        """A program's newest checkpoint."""
        record = self.record(job)
        return None if record is None else record.entry

    def record(self, job: str, number: int | None = None) -> Record | None:
        """What is known of a checkpoint, by default of the newest; None: there is none."""
        if number is not None:
            return self._record_or_none(record_key(job, number)) if number < 10 ** 12 else None
        for found in reversed(self._objects.listed(folder_of(job))):
            if (record := self._seen_or_read(found)) is not None:
                return record
        return None

    def entry(self, job: str, number: int | None = None) -> Entry:
        """A program's checkpoint, by default the newest. Raises `UsageError`: there is none."""
        return self.known(job, number).entry

    def known(self, job: str, number: int | None = None) -> Record:
        """As `entry`, with all that is known."""
        found = self.record(job, number)
        if found is None:
            what = "no checkpoint of that program" if number is None else "no such checkpoint of that program"
            raise UsageError(f"the store has {what}", name=job, number=number, path=self.path)
        return found

    @contextlib.contextmanager
    def reading(self, job: str, number: int | None = None) -> Iterator[tuple[Path, Path | None]]:
        """Files of a checkpoint and (if the store has it) its module, and beside it those that it rests on. They are
        what was put into the store, digest by digest, and go when this is over."""
        with self.folder() as folder:
            yield self.fetch(self.known(job, number), folder)

    def fetch(self, record: Record, folder: Path) -> tuple[Path, Path | None]:
        """As `reading`, into a folder."""
        for image in record.images:
            self._objects.download(image.key, folder / file_name(image.sha256), image.size, image.object_sha256)
        module = None
        if record.module is not None:
            module = folder / "module.wasm"
            self._objects.download(record.module.key, module, record.module.size, record.entry.module)
        return folder / file_name(record.images[0].sha256), module

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder here, for as long as this lasts."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="wckpt-"))
        except OSError as reason:
            raise StorageError(f"there is no place for files that come from the store: {reason.strerror}",
                               path=tempfile.gettempdir()) from reason
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def load(self, job: str, number: int | None = None) -> Image:
        """A checkpoint's whole image. Raises `UsageError`, `ImageError`: it, or one that it rests on, is damaged."""
        record = self.known(job, number)
        with self.folder() as folder:
            return _load(self.fetch(record, folder)[0], record.entry.sha256)

    # Adding

    def add(
        self, job: str, write: Callable[[Path], bytes], *, module: bytes | None = None, taken: float | None = None,
        after: int = 0,
    ) -> Entry:
        """Add a checkpoint of a program; see `Store.add`."""
        check_name(job)
        with self.folder() as folder:
            path = folder / "image"
            sha256 = write(path)
            return self._add(job, path, sha256, module, time.time() if taken is None else taken, after)

    def _add(
        self, job: str, path: Path, sha256: bytes, module: bytes | None, taken: float, after: int,
    ) -> Entry:
        header = load_header(path).image
        with open(path, "rb") as file:
            adding = self.adding(job)
            parents: tuple[ImageObject, ...] = ()
            if header.parent is not None:
                parents = adding.parents(header.parent.sha256, header.parent.position, header.module.sha256)
            kept = adding.module(header.module.sha256, module)
            image = adding.image(sha256, file, len(header.frames), header.producer.runtime)
        number = max([after, *adding.numbers]) + 1
        entry = Entry(job, number, taken, sha256, image.size, len(parents), parents[0].sha256 if parents else None,
                      header.module.sha256, image.frames, image.runtime)
        return adding.commit(Record(entry, (image, *parents), kept, new_token()))

    def adding(self, job: str) -> Adding:
        """Begin to add a checkpoint of a program."""
        since = time.monotonic()
        return Adding(self._objects, self.path, self.records(job), since, self._grace)

    # Keeping it small

    def compact(self, job: str, number: int | None = None) -> Entry:
        """Make a checkpoint's image whole, so that it rests on no other. The program may run on meanwhile.

        Raises as `Store.compact`, and `RetryLater`: somebody else has changed that checkpoint meanwhile.
        """
        record = self.known(job, number)
        if not record.entry.position:
            return record.entry
        with self.folder() as folder:
            old, _ = self.fetch(record, folder)
            check_kept(old)
            path = folder / "whole"
            sha256 = save(_load(old, record.entry.sha256), path)
            with open(path, "rb") as file:
                adding = self.adding(job)
                image = adding.image(sha256, file, record.entry.frames, record.entry.runtime)
        entry = replace(record.entry, sha256=sha256, size=image.size, position=0, parent=None)
        self._bury(record)
        adding.exchange(record, Record(entry, (image,), record.module, new_token()))
        return entry

    def prune(self, job: str, rule: Retention) -> int:
        """Let go of the checkpoints of a program that a rule does not keep; gives how many. `gc` frees their space."""
        records = self.records(job)
        kept = rule.keeps([record.entry for record in records])
        return self._let_go([record for record in records if record.entry.number not in kept])

    def remove(self, job: str, number: int | None = None) -> int:
        """Let go of one checkpoint of a program, or of all; gives how many."""
        if number is None:
            return self._let_go(self.records(job))
        record = self.record(job, number)
        return 0 if record is None else self._let_go([record])

    def _let_go(self, records: Sequence[Record]) -> int:
        for record in records:
            self._bury(record)
        self._objects.delete([record_key(record.entry.job, record.entry.number) for record in records])
        return len(records)

    def _bury(self, record: Record) -> None:
        """Keep what it names for those who have seen it."""
        self._objects.create(f"removed/{new_token()}.json", pack_record(record))

    def gc(self, timeout: float = 60.0) -> Freed:
        """Take away the objects that no checkpoint needs and nobody who adds one can rely on. Others may go on."""
        now = self._objects.now()
        whole = self._objects.listed()  # with the mark, so that none is missing
        old = {found.key: found for found in whole if found.modified + self._grace <= now}
        records = self._records([found for found in whole if found.key.startswith("checkpoints/")])
        removed = self._objects.listed("removed")  # later: what went meanwhile is here
        records += self._records([found for found in removed if found.key not in old])
        needed = {key for record in records for key in record.keys}
        freed = [found for key, found in old.items()
                 if key.startswith(("images/", "modules/")) and key not in needed]
        self._objects.delete([found.key for found in freed])
        self._objects.delete([key for key in old if key.startswith(("removed/", "clock/"))])
        return Freed(len(freed), sum(found.size for found in freed))

    # Checking

    def verify(self) -> list[Problem]:
        """Read every image and module that some checkpoint needs, and say what is wrong; nothing is changed."""
        problems: dict[bytes, str] = {}
        good: dict[str, Image] = {}
        """Images without what is large, by key."""
        modules: dict[str, str] = {}
        for record in self.records():
            what = ""
            below: Image | None = None
            parent = b""
            for image in reversed(record.images):
                if what:
                    what = f"it rests on an image that is not good: {parent.hex()}"
                elif image.key not in good:
                    what = self._problem(image, below, good)
                if not what and record.module is not None:
                    what = self._module_problem(record.module, record.entry.module, modules)
                if what:
                    problems.setdefault(image.sha256, what)
                below, parent = good.get(image.key), image.sha256
        return [Problem(sha256, what) for sha256, what in problems.items()]

    def _problem(self, stored: ImageObject, below: Image | None, good: dict[str, Image]) -> str:
        try:
            with self.folder() as folder:
                path = folder / "image"
                self._objects.download(stored.key, path, stored.size, stored.object_sha256)
                with opened(path) as file:
                    image, found = read_linked(file)
            if found != stored.sha256:
                return "its object holds another image"
            if (image.parent is None) != (below is None):
                return "it rests on another image than the store says"
            if image.parent is not None and below is not None:
                check_link(image, below, image.parent.sha256)
            good[stored.key] = replace(image, frames=(), host={}, memories=tuple(
                MemoryState(memory.index, memory.pages) for memory in image.memories
            ))
        except NoSuchObject:
            return "its object is missing"
        except (ImageError, StorageError) as reason:
            return str(reason)
        return ""

    def _module_problem(self, module: ModuleObject, sha256: bytes, known: dict[str, str]) -> str:
        if module.key not in known:
            known[module.key] = ""
            try:
                with self.folder() as folder:
                    self._objects.download(module.key, folder / "module", module.size, sha256)
            except StorageError as reason:
                known[module.key] = f"the module in the store is damaged: {reason.what}"
        return known[module.key]

    # In and out

    def export(
        self, job: str, path: str | os.PathLike[str], number: int | None = None, *, carry_module: bool = False,
    ) -> Entry:
        """Write a checkpoint as one file that rests on no other; see `Store.export`."""
        record = self.known(job, number)
        with self.folder() as folder:
            found, module = self.fetch(record, folder)
            image = _load(found, record.entry.sha256)
            if carry_module and image.module.content is None:
                if module is None:
                    raise UsageError("the store does not have the program's module", name=job)
                image = replace(image, module=replace(image.module, content=module.read_bytes()))
        save(image, path)
        return record.entry

    def import_image(self, job: str, path: str | os.PathLike[str], *, module: bytes | None = None) -> Entry:
        """Add the image in a file; see `Store.import_image`."""
        with opened(path) as file:
            image = read_chain(file, beside(path))
        return self.add(
            job, lambda target: save(replace(image, module=replace(image.module, content=None)), target),
            module=module or image.module.content,
        )


class Adding:
    """A checkpoint that is being added: uploads what no record names, then commits. Made after a look at the program's
    ``records``.

    Raises:
        RetryLater: it took longer than what others have left alone may be relied on.
    """

    def __init__(self, objects: Objects, path: str, records: Sequence[Record], since: float, grace: timedelta) -> None:
        self._objects, self._path = objects, path
        self.records = records
        self._until = since + grace.total_seconds() / 2 if grace else float("inf")

    @property
    def numbers(self) -> list[int]:
        """Those that are taken."""
        return [record.entry.number for record in self.records]

    def has(self, entry: Entry) -> bool:
        """Whether a checkpoint is there already, under whatever number."""
        return any(record.entry.taken == entry.taken and record.entry.module == entry.module
                   for record in self.records)

    def found(self, sha256: bytes) -> ImageObject | None:
        """An image that a record names."""
        return next((image for record in self.records for image in record.images if image.sha256 == sha256), None)

    def parents(self, sha256: bytes, position: int, module: bytes) -> tuple[ImageObject, ...]:
        """An image in the store that another one, with this position and of this module, rests on, and all below.

        Raises:
            ImageError: it is not there, or cannot be that one's parent.
        """
        for record in self.records:
            for n, image in enumerate(record.images):
                if image.sha256 == sha256:
                    if (len(record.images) - n, record.entry.module) != (position, module):
                        raise ImageError("the parent of an image is of another program, or has another place in the "
                                         "chain", parent=sha256.hex())
                    return record.images[n:]
        raise ImageError("the image is a difference to another one that is not in the store", parent=sha256.hex(),
                         hint="the next one is whole")

    def module(self, sha256: bytes, content: bytes | None) -> ModuleObject | None:
        """The program's module, put there unless a record names it."""
        for record in self.records:
            if record.entry.module == sha256 and record.module is not None:
                return record.module
        if content is None or hashlib.sha256(content).digest() != sha256:
            return None
        key = f"modules/{sha256.hex()}.{new_token()}"
        self._objects.upload(key, io.BytesIO(content))
        return ModuleObject(key, len(content))

    def image(self, sha256: bytes, file: IO[bytes], frames: int, runtime: str) -> ImageObject:
        """Put an image there, from a file that stands at its beginning."""
        key = f"images/{sha256.hex()}.{new_token()}"
        digest = hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
        size = file.tell()
        file.seek(0)
        self._objects.upload(key, file)
        return ImageObject(sha256, key, size, digest, frames, runtime)

    def commit(self, record: Record) -> Entry:
        """Make it a checkpoint: with its number, or the next that nobody has."""
        for number in range(record.entry.number, record.entry.number + _NUMBERS):
            if time.monotonic() > self._until:
                raise RetryLater("adding a checkpoint to the store took too long", path=self._path)
            record = replace(record, entry=replace(record.entry, number=number))
            key = record_key(record.entry.job, number)
            if self._objects.create(key, pack_record(record)) or self._is_mine(key, record):
                return record.entry
        raise RetryLater("others take all numbers of that program", path=self._path, name=record.entry.job)

    def exchange(self, old: Record, new: Record) -> None:
        """Put a record in the place of one that was read. Raises `RetryLater`: somebody else has changed it."""
        key = record_key(old.entry.job, old.entry.number)
        with contextlib.suppress(NoSuchObject):
            data, version = self._objects.read(key, _LARGEST_RECORD)
            if parse_record(data, key) == old and time.monotonic() <= self._until and (
                self._objects.replace(key, pack_record(new), version) or self._is_mine(key, new)
            ):
                return
        raise RetryLater("the checkpoint was changed by somebody else", name=old.entry.job, number=old.entry.number)

    def _is_mine(self, key: str, record: Record) -> bool:
        """Whether it is the same checkpoint that is there: an attempt of which no answer came has written it."""
        with contextlib.suppress(StorageError):
            there = parse_record(self._objects.read(key, _LARGEST_RECORD)[0], key).entry
            return (there.taken, there.module, there.sha256) == (
                record.entry.taken, record.entry.module, record.entry.sha256
            )
        return False


def _load(path: Path, sha256: bytes) -> Image:
    with opened(path) as file:
        return read_chain(file, beside(path), sha256=sha256)
