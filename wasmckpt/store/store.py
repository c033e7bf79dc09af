"""What can be done with a store."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from ..errors import ImageError, StorageError, UsageError
from ..faults import point
from ..formats import Image, MemoryState, ParentRef, read_chain, save, write_image
from ..formats.chain import beside, check_link
from ..formats.files import check_kept, is_sealed, load_header, opened
from ..lazydata import dataclass, replace
from .folder import Folder, copy_synced, synced
from .index import Entry, Index, insert_pack, known_pages
from .packs import PER_BLOCK, PackReader, PackWriter
from .retention import Retention
from .sharing import Apart, Sharing, take_apart
from .stored import Stored, read_stored, write_stored
from .whole import Layout, Whole, read_whole, rearranged

__all__ = ["Copy", "Freed", "Problem", "Store", "check_name"]

_LONGEST_NAME: Final = 200
_SMALL_PACKS: Final = 4
"""Packs of less than a block that an image may need when it has been made whole."""
_REACHABLE: Final = """
WITH RECURSIVE reached (sha256) AS (
    SELECT sha256 FROM checkpoint UNION
    SELECT parent FROM image JOIN reached USING (sha256) WHERE parent IS NOT NULL
) SELECT sha256 FROM reached
"""


@dataclass(frozen=True, slots=True)
class Problem:
    """An image that is not what it should be: ``what`` is wrong with it, or with one that it rests on."""

    sha256: bytes
    what: str


@dataclass(frozen=True, slots=True)
class Freed:
    """What `Store.gc` took away: files, and their bytes."""

    files: int
    size: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A checkpoint as it lies in files: it and what its image rests on, their files, its module's; whether all of them
    are sealed images, which others can read."""

    sealed: bool
    chain: Sequence[Entry]
    images: Sequence[BinaryIO]
    module: BinaryIO | None


class Store:
    """Images of many programs in a folder. Any number of processes and threads may use it at once.

    Pages that are in the store already, of whatever program, are not kept again; but for those of sealed images, whose
    files stay as they are.

    Every method raises `StorageError` if the disk fails or is full, or the folder is not readable or writable; then the
    store is as it was before.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = False) -> None:
        """Open a store, or ``create`` it where there is none.

        Raises:
            StorageError: there is none; it is of a newer version; it cannot be made.
        """
        self.path = Path(path)
        self._folder = Folder(self.path)
        self._index = Index(self._folder.index)
        if create:
            with self._reported():
                self._folder.create()
                self._index.create()
        if not self._folder.index.exists():
            raise StorageError("there is no store", path=str(self.path))
        self._index.rows("SELECT 1")

    @property
    def scratch(self) -> Path:
        """A folder for files that are not in the store."""
        return self.path
    def journal(self, job: str, *, create: bool = False) -> Path:
        """Where the journal of a program lies, or would: it follows the program's newest image. ``create``: make room
        for one."""
        with self._reported():
            return self._folder.journal(job, create=create)

    # Looking

    def entries(self, job: str | None = None) -> list[Entry]:
        """Checkpoints of one program, or of all, by name and number."""
        return self._index.entries(job)

    def newest(self, job: str) -> Entry | None:
        """A program's newest checkpoint."""
        return self._index.entry(job)

    def entry(self, job: str, number: int | None = None) -> Entry:
        """A program's checkpoint, by default the newest. Raises `UsageError`: there is none."""
        found = self._index.entry(job, number)
        if found is None:
            what = "no checkpoint of that program" if number is None else "no such checkpoint of that program"
            raise UsageError(f"the store has {what}", name=job, number=number, path=str(self.path))
        return found

    @contextlib.contextmanager
    def reading(self, job: str, number: int | None = None) -> Iterator[tuple[Path, Path | None]]:
        """A checkpoint's whole image as a file (in memory), and (if the store has it) its module; they stay as long as
        this lasts. Raises as `load`."""
        with self._folder.locked():
            entry = self.entry(job, number)
            module = self._folder.module(entry.module)
            with _in_memory(self._load(entry.sha256)) as file:
                yield file, module if module.exists() else None

    @contextlib.contextmanager
    def image_file(self, sha256: bytes) -> Iterator[Path]:
        """As `reading`, for an image by its digest."""
        with self._folder.locked():
            image = self._load(sha256)
        with _in_memory(image) as file:
            yield file

    def image(self, sha256: bytes, *, whole: bool = True) -> Image:
        """An image by its digest; ``whole``: with the pages of those that it rests on. Raises as `load`."""
        with self._folder.locked():
            if whole:
                return self._load(sha256)
            stored = self._stored(sha256)
            return replace(Whole(stored).read(self._open_pack), parent=stored.image.parent)

    def load(self, job: str, number: int | None = None) -> Image:
        """A checkpoint's whole image. Raises `UsageError`, `ImageError`: it, or one that it rests on, is damaged."""
        with self._folder.locked():
            return self._load(self.entry(job, number).sha256)

    def difference(self, job: str, number: int, base: int, parent: ParentRef) -> Image | None:
        """A checkpoint's image as the difference to an earlier one's, which is whole elsewhere and called ``parent``
        there. None: it would not be smaller, or there is none.

        Raises as `load`.
        """
        with self._folder.locked():
            whole = read_whole(self._stored, self.entry(job, number).sha256)
            if not whole.without(read_whole(self._stored, self.entry(job, base).sha256)):
                return None
            return replace(whole.read(self._open_pack), parent=parent)

    def layout(self, job: str, number: int | None = None) -> list[Layout]:
        """Which pages a checkpoint's whole image has something of, by memory. Raises as `load`."""
        with self._folder.locked():
            return read_whole(self._stored, self.entry(job, number).sha256).layout()

    def _load(self, sha256: bytes) -> Image:
        return read_whole(self._stored, sha256).read(self._open_pack)

    def _stored(self, sha256: bytes) -> Stored:
        """An image as it is in its file."""
        path = self._folder.image(sha256)
        if not path.exists():
            raise ImageError("an image is missing from the store", path=str(path))
        with opened(path) as file:
            try:
                stored, found = read_stored(file)
            except ImageError as reason:
                reason.fields.setdefault("path", str(path))
                raise
        if found != sha256:
            raise ImageError("the file of an image in the store holds another one", path=str(path), found=found.hex())
        return stored

    def _open_pack(self, sha256: bytes) -> PackReader:
        return PackReader(self._folder.pack(sha256), sha256)

    # Adding

    def add(
        self, job: str, write: Callable[[Path], bytes], *, module: bytes | None = None, taken: float | None = None,
        after: int = 0, number: int | None = None,
    ) -> Entry:
        """Add a checkpoint of a program.

        Args:
            write: writes and syncs the image to a path, and gives the file's SHA-256.
            module: kept beside, so that a restore needs no other file.
            taken: when, in seconds since 1970; None: now.
            after: its number is larger. number: it is that, which no other one has.

        Raises:
            ImageError: its parent is not in the store, or not what it should be. What ``write`` raises.
        """
        check_name(job)
        with self._folder.locked(), self._reported():
            self._upgrade()
            if module is not None:
                self._folder.put_module(module, hashlib.sha256(module).digest())
            with self._folder.new_file() as path, self._folder.new_file() as new_pages:
                sha256 = write(path)
                apart: Apart | None = None
                if is_sealed(path):  # kept as it is: what is encrypted shares no pages
                    row = self._put_sealed(path, sha256)
                else:
                    with opened(path) as file, self._sharing(new_pages) as sharing:
                        apart = take_apart(file, sha256, sharing)
                    point("store.apart")
                    row = self._put(apart, new_pages)
            with self._index.writing() as db:
                if number is None:
                    (number,) = db.execute("SELECT max(coalesce(max(number), 0), ?) + 1 FROM checkpoint WHERE job = ?",
                                           (after, job)).fetchone()
                elif db.execute("SELECT 1 FROM checkpoint WHERE job = ? AND number = ?", (job, number)).fetchone():
                    raise UsageError("another checkpoint of that program has that number", name=job, number=number,
                                     path=str(self.path))
                entry = Entry(job, number, time.time() if taken is None else taken, *row)
                _insert(db, entry, apart)
                db.execute("INSERT INTO checkpoint VALUES (?, ?, ?, ?)", (job, number, entry.taken, entry.sha256))
                point("store.indexing")
            point("store.indexed")
        return entry

    def _upgrade(self) -> None:
        """Make an older store one of this version."""
        if not self._folder.packs.is_dir():
            self._folder.complete()
        self._index.upgrade()

    @contextlib.contextmanager
    def _sharing(self, new_pages: Path, avoid: frozenset[bytes] = frozenset()) -> Iterator[Sharing]:
        """Finds places for pages, those in packs that are to be avoided excepted."""
        with self._index.reading(one_moment=False) as db, PackWriter(new_pages) as writer, Sharing(
            lambda keys: known_pages(db, keys), self._open_pack, writer, avoid
        ) as sharing:
            yield sharing

    def _put(self, apart: Apart, new_pages: Path) -> tuple[bytes, int, int, bytes | None, bytes, int, str]:
        """Put the files of an image in their places; gives the fields of an `Entry` that are the image's."""
        size = 0
        if apart.pack is not None:
            self._folder.put(new_pages, self._folder.pack(apart.pack.sha256))
            size = apart.pack.size
        with self._folder.new_file() as path:
            with synced(path) as file:
                sha256 = write_stored(apart.stored, file)
            size += path.stat().st_size
            self._folder.put(path, self._folder.image(sha256))
        image = apart.stored.image
        parent = image.parent
        return (
            sha256, size, 0 if parent is None else parent.position, None if parent is None else parent.sha256,
            image.module.sha256, len(image.frames), image.producer.runtime,
        )

    def _put_sealed(self, path: Path, sha256: bytes) -> tuple[bytes, int, int, bytes | None, bytes, int, str]:
        """As `_put`, for a sealed image, whose file it stays."""
        image = load_header(path).image
        parent, size = image.parent, path.stat().st_size
        self._folder.put(path, self._folder.image(sha256))
        return (
            sha256, size, 0 if parent is None else parent.position, None if parent is None else parent.sha256,
            image.module.sha256, len(image.frames), image.producer.runtime,
        )

    def _compact_sealed(self, entry: Entry) -> Entry:
        if not entry.position:
            return entry
        check_kept(self._folder.image(entry.sha256))
        with self._folder.new_file() as path:
            sha256 = save(self._load(entry.sha256), path)
            row = self._put_sealed(path, sha256)
        compacted = Entry(entry.job, entry.number, entry.taken, *row)
        with self._index.writing() as db:
            _insert(db, compacted, None)
            db.execute("UPDATE checkpoint SET sha256 = ? WHERE job = ? AND number = ? AND sha256 = ?",
                       (compacted.sha256, entry.job, entry.number, entry.sha256))
            point("store.indexing")
        point("store.indexed")
        return compacted

    # To and from other stores

    @contextlib.contextmanager
    def opened(self, job: str, number: int | None = None) -> Iterator[Copy]:
        """A checkpoint with all that it rests on, as files that stay of use whoever takes them away meanwhile.

        Raises `UsageError`: there is none.
        """
        with contextlib.ExitStack() as files:
            with self._folder.locked(), self._reported():
                entry = self.entry(job, number)
                chain = [Entry(job, entry.number, entry.taken, *row) for row in self._index.chain(entry.sha256)]
                images = [files.enter_context(open(self._folder.image(one.sha256), "rb")) for one in chain]
                module = None
                with contextlib.suppress(FileNotFoundError):
                    module = files.enter_context(open(self._folder.module(entry.module), "rb"))
            sealed = all(is_sealed(self._folder.image(one.sha256)) for one in chain)
            yield Copy(sealed, chain, images, module)

    def adopt(self, chain: Sequence[Entry], images: Sequence[Path], module: bytes | None) -> Entry:
        """Add a checkpoint of another store, under the number that it has there.

        Args:
            chain: it, then what its image rests on. images: their files, complete and checked. module: its content.

        Raises:
            UsageError: another checkpoint has that number.
        """
        entry = chain[0]
        check_name(entry.job)
        with self._folder.locked(), self._reported():
            if module is not None:
                self._folder.put_module(module, entry.module)
            for one, path in zip(chain, images, strict=True):
                if not self._folder.image(one.sha256).exists():
                    with self._folder.new_file() as target:
                        copy_synced(path, target)
                        self._folder.put(target, self._folder.image(one.sha256))
            with self._index.writing() as db:
                for one in reversed(chain):
                    _insert(db, one, None)
                found = db.execute("SELECT taken FROM checkpoint WHERE job = ? AND number = ?",
                                   (entry.job, entry.number)).fetchone()
                if found is None:
                    db.execute("INSERT INTO checkpoint VALUES (?, ?, ?, ?)",
                               (entry.job, entry.number, entry.taken, entry.sha256))
                elif found != (entry.taken,):
                    raise UsageError("another checkpoint of that program has that number", name=entry.job,
                                     number=entry.number, path=str(self.path))
                point("store.indexing")
            point("store.indexed")
        return entry

    # Keeping it small

    def compact(self, job: str, number: int | None = None) -> Entry:
        """Make a checkpoint's image whole, so that it rests on no other. The program may run on meanwhile.

        Pages stay where they are, but for those in packs of which the image needs less than half, so that it keeps no
        more alive than twice its own size; and many small packs are made one.
        """
        with self._folder.locked(), self._reported():
            entry = self.entry(job, number)
            self._upgrade()
            whole = read_whole(self._stored, entry.sha256)
            moved = self._to_be_moved(whole)
            if not entry.position and not moved:
                return entry
            if is_sealed(self._folder.image(entry.sha256)):
                return self._compact_sealed(entry)
            with self._folder.new_file() as new_pages:
                with self._sharing(new_pages, moved) as sharing:
                    apart = rearranged(whole, self._open_pack, sharing, moved)
                point("store.apart")
                row = self._put(apart, new_pages)
            compacted = Entry(job, entry.number, entry.taken, *row)
            with self._index.writing() as db:
                _insert(db, compacted, apart)
                db.execute("UPDATE checkpoint SET sha256 = ? WHERE job = ? AND number = ? AND sha256 = ?",
                           (compacted.sha256, job, entry.number, entry.sha256))
                point("store.indexing")
            point("store.indexed")
        return compacted

    def _to_be_moved(self, whole: Whole) -> frozenset[bytes]:
        """Packs that a whole image had better not need."""
        moved, small = set(), set()
        for name, used in whole.used().items():
            reader = self._open_pack(name)
            reader.close()
            if 2 * used < reader.pages:
                moved.add(name)
            elif reader.pages < PER_BLOCK:
                small.add(name)
        return frozenset(moved | small if len(small) > _SMALL_PACKS else moved)

    def prune(self, job: str, rule: Retention) -> int:
        """Let go of the checkpoints of a program that a rule does not keep; gives how many. `gc` frees their space."""
        entries = self.entries(job)
        kept = rule.keeps(entries)
        gone = [(job, entry.number) for entry in entries if entry.number not in kept]
        with self._index.writing() as db:
            db.executemany("DELETE FROM checkpoint WHERE job = ? AND number = ?", gone)
        return len(gone)

    def remove(self, job: str, number: int | None = None) -> int:
        """Let go of one checkpoint of a program, or of all; gives how many."""
        with self._index.writing() as db:
            if number is None:
                with self._reported(), contextlib.suppress(FileNotFoundError):
                    self._folder.journal(job).unlink()
                return db.execute("DELETE FROM checkpoint WHERE job = ?", (job,)).rowcount
            return db.execute("DELETE FROM checkpoint WHERE job = ? AND number = ?", (job, number)).rowcount

    def gc(self, timeout: float = 60.0) -> Freed:
        """Take away the files that no checkpoint needs. Raises `RetryLater`: others use the store without a pause."""
        with self._folder.locked(alone=True, timeout=timeout), self._reported():
            self._upgrade()
            with self._index.writing() as db:
                db.execute("PRAGMA defer_foreign_keys = ON")
                db.execute(f"DELETE FROM image WHERE sha256 NOT IN ({_REACHABLE})")
                db.execute("DELETE FROM needs WHERE image NOT IN (SELECT sha256 FROM image)")
                if db.execute("DELETE FROM pack WHERE number NOT IN (SELECT pack FROM needs)").rowcount:
                    db.execute("DELETE FROM page WHERE pack NOT IN (SELECT number FROM pack)")
                point("store.sweeping")
            point("store.swept")
            rows = self._index.rows("SELECT sha256, module FROM image")
            needed = {self._folder.image(sha256) for sha256, _ in rows} | {
                self._folder.module(module) for _, module in rows
            } | {self._folder.pack(sha256) for sha256, in self._index.rows("SELECT sha256 FROM pack")}
            files = size = 0
            for path in set(self._folder.files()) - needed:
                length = path.stat().st_size
                path.unlink()
                point("store.unlinked")
                files, size = files + 1, size + length
        return Freed(files, size)

    # Checking

    def verify(self) -> list[Problem]:
        """Read every image, pack and module that some checkpoint needs, and say what is wrong; nothing is changed."""
        problems: list[Problem] = []
        bad: dict[bytes, str] = {}
        seen: dict[bytes, Image] = {}
        packs: dict[bytes, int | str] = {}
        with self._folder.locked():
            rows = self._index.rows(
                f"SELECT sha256, parent, module FROM image WHERE sha256 IN ({_REACHABLE}) ORDER BY position"
            )
            needs = self._index.needs()
            for sha256, parent, module in rows:
                what = self._problem(sha256, seen, packs, needs.get(sha256, set()))
                if not what and parent in bad:
                    what = f"it rests on an image that is not good: {parent.hex()}"
                if not what:
                    what = self._module_problem(module)
                if what:
                    bad[sha256] = what
                    problems.append(Problem(sha256, what))
        return problems

    def _problem(
        self, sha256: bytes, seen: dict[bytes, Image], packs: dict[bytes, int | str], needs: set[bytes],
    ) -> str:
        try:
            stored = self._stored(sha256)
            image = stored.image
            seen[sha256] = replace(image, frames=(), host={}, memories=tuple(
                MemoryState(memory.index, memory.pages) for memory in image.memories
            ))
            if image.parent is not None and image.parent.sha256 in seen:
                check_link(image, seen[image.parent.sha256], image.parent.sha256)
        except (ImageError, StorageError) as reason:
            return str(reason)
        for name in stored.packs:
            if name not in packs:
                packs[name] = self._pack_problem(name)
            if isinstance(packs[name], str):
                return str(packs[name])
            if name not in needs:
                return f"the index does not know that it needs a pack: {name.hex()}"
        for _, _, which, number, count in stored.places:
            if number + count > packs[stored.packs[which]]:  # type: ignore[operator]
                return f"it has pages behind the end of a pack: {stored.packs[which].hex()}"
        return ""

    def _pack_problem(self, sha256: bytes) -> int | str:
        """How many pages it has, or what is wrong with it."""
        try:
            reader = self._open_pack(sha256)
            try:
                for number in range(reader.blocks):
                    reader.block(number)
            finally:
                reader.close()
        except (ImageError, StorageError) as reason:
            return str(reason)
        return reader.pages

    def _module_problem(self, sha256: bytes) -> str:
        """A module that is not in the store is none: whoever restores has it."""
        path = self._folder.module(sha256)
        try:
            return "" if hashlib.sha256(path.read_bytes()).digest() == sha256 else "the module in the store is damaged"
        except FileNotFoundError:
            return ""
        except OSError as reason:
            return f"the module in the store cannot be read: {reason.strerror}"

    # In and out

    def export(
        self, job: str, path: str | os.PathLike[str], number: int | None = None, *, carry_module: bool = False,
    ) -> Entry:
        """Write a checkpoint as one file that rests on no other; ``carry_module``: with the module inside.

        Raises:
            UsageError: there is none, or no module in the store. ImageError: it is damaged.
        """
        with self._folder.locked(), self._reported():
            entry = self.entry(job, number)
            image = self._load(entry.sha256)
            if carry_module and image.module.content is None:
                try:
                    content = self._folder.module(entry.module).read_bytes()
                except FileNotFoundError:
                    raise UsageError("the store does not have the program's module", name=job) from None
                image = replace(image, module=replace(image.module, content=content))
            save(image, path)
        return entry

    def import_image(self, job: str, path: str | os.PathLike[str], *, module: bytes | None = None) -> Entry:
        """Add the image in a file, whole, parents beside it included; the module, here or inside, is kept apart.

        Raises:
            ImageError: it is damaged.
        """
        with opened(path) as file:
            image = read_chain(file, beside(path))
        return self.add(
            job, lambda target: save(replace(image, module=replace(image.module, content=None)), target),
            module=module or image.module.content,
        )

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Errors of the file system as ours."""
        try:
            yield
        except OSError as reason:
            raise StorageError(f"the store cannot be written: {reason.strerror or reason}", path=str(self.path),
                               hint="free space, or use another folder") from reason


def check_name(job: str) -> None:
    """Raises `UsageError`: a program in a store cannot be called that."""
    if not job or len(job) > _LONGEST_NAME or not job.isprintable():
        raise UsageError("a program's name in a store has 1 to 200 printable characters", name=repr(job))


@contextlib.contextmanager
def _in_memory(image: Image) -> Iterator[Path]:
    """The image as a file that is gone afterwards."""
    with open(os.memfd_create("wasmckpt-image", os.MFD_CLOEXEC), "wb", buffering=1 << 16) as file:
        write_image(image, file, packed=False)
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")


def _insert(db: sqlite3.Connection, entry: Entry, apart: Apart | None) -> None:
    """An image, whose parent must be there, and its new pages; None: it was not taken apart."""
    if entry.parent is not None:
        found = db.execute("SELECT position, module FROM image WHERE sha256 = ?", (entry.parent,)).fetchone()
        if found is None:
            raise ImageError("the image is a difference to another one that is not in the store",
                             parent=entry.parent.hex(), hint="the next one is whole")
        if found != (entry.position - 1, entry.module):
            raise ImageError("the parent of an image is of another program, or has another place in the chain",
                             parent=entry.parent.hex())
    db.execute("INSERT INTO image VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET size = excluded.size", (
        entry.sha256, entry.size, entry.position, entry.parent, entry.module, entry.frames, entry.runtime,
    ))  # the same image may have been sealed in another way
    if apart is None:
        return
    if apart.pack is not None:
        insert_pack(db, apart.pack.sha256, apart.keys)
    for pack in apart.stored.packs:
        db.execute("INSERT OR IGNORE INTO pack (sha256) VALUES (?)", (pack,))
        db.execute("INSERT OR IGNORE INTO needs SELECT ?, number FROM pack WHERE sha256 = ?", (entry.sha256, pack))
