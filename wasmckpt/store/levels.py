"""Stores by name, and checkpoints from one level to the next: a folder here, a bucket behind it.

The nearer level is written first and read first. A checkpoint keeps its number, and is known again by its time, for a
compaction on one level changes its image and not what it is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Final

from ..errors import CheckpointError, ImageError, UsageError
from ..formats import Image, ParentRef, load_chain, save
from ..formats.chain import file_name
from ..formats.files import is_sealed
from ..formats.sealing import Sealing
from ..lazydata import replace
from .index import Entry
from .interface import ImageStore
from .records import ImageObject, Record, new_token
from .remote import Adding, RemoteStore
from .store import Store

__all__ = ["MOST_LINKS", "SCHEME", "nearest", "open_store", "pull", "push"]

SCHEME: Final = "s3://"
MOST_LINKS: Final = 16
"""Images, one a difference to the other, that a checkpoint in a bucket takes: each is a request when it is read."""


def open_store(where: str | os.PathLike[str], *, create: bool = False) -> Store | RemoteStore:
    """A folder's store, or for ``s3://BUCKET/PREFIX`` a bucket's. Raises as those do."""
    name = os.fspath(where)
    if name.startswith(SCHEME):
        return RemoteStore(name, create=create)
    return Store(name, create=create)


def push(store: Store, remote: RemoteStore, entry: Entry) -> Entry | None:
    """Copy a checkpoint from a folder to a bucket. Sealed images go as they are, what they rest on first, and what is
    there already not again. Others, whose pages lie in packs here, go as the difference to the newest earlier one that
    is there, or whole: where there is none, where it would be most of the pages, and after `MOST_LINKS`.

    Returns:
        What it is there: under its number, or under a free one if somebody else's checkpoint has that. None: it was
        there.

    Raises:
        UsageError: it is not in the folder (any more). `StorageError`, `RetryLater`.
    """
    adding = remote.adding(entry.job)
    if adding.has(entry):
        return None
    with store.opened(entry.job, entry.number) as copy:
        images = []
        module = adding.module(entry.module, None if copy.module is None else copy.module.read())
        if copy.sealed:
            for one, file in reversed(list(zip(copy.chain, copy.images, strict=True))):
                images.append(adding.found(one.sha256) or adding.image(one.sha256, file, one.frames, one.runtime))
    if not images:  # its pages lie in packs of that folder
        below, image = _difference(store, adding, entry)
        with remote.folder() as folder:
            sha256 = save(image or store.load(entry.job, entry.number), folder / "image", sealing=Sealing())
            with (folder / "image").open("rb") as file:
                images = [*reversed(below), adding.image(sha256, file, entry.frames, entry.runtime)]
    number = entry.number
    if number in adding.numbers:
        number = max(adding.numbers) + 1
    images.reverse()
    moved = replace(
        entry, number=number, size=images[0].size, sha256=images[0].sha256, position=len(images) - 1,
        parent=images[1].sha256 if len(images) > 1 else None,
    )
    return adding.commit(Record(moved, tuple(images), module, new_token()))


def _difference(store: Store, adding: Adding, entry: Entry) -> tuple[Sequence[ImageObject], Image | None]:
    """A checkpoint as a difference to one that is in the bucket: that one's images there, and the image; or none."""
    here = {(one.taken, one.module): one.number for one in store.entries(entry.job) if one.number < entry.number}
    known = [(here[key], record) for record in adding.records
             if (key := (record.entry.taken, record.entry.module)) in here
             and all(image.sha256 == image.object_sha256 for image in record.images)]  # none is sealed
    base, record = max(known, key=lambda one: one[0], default=(0, None))
    if record is not None and len(record.images) < MOST_LINKS:
        parent = ParentRef(record.entry.sha256, len(record.images))
        with contextlib.suppress(ImageError, UsageError):  # the folder lets go of it, or it is damaged
            if (image := store.difference(entry.job, entry.number, base, parent)) is not None:
                return record.images, image
    return (), None


def pull(remote: RemoteStore, store: Store, job: str, number: int | None = None) -> Entry | None:
    """Copy a checkpoint from a bucket to a folder, by default the newest; None: it was there.

    Raises:
        UsageError: there is none, or the folder has another one of that number. `StorageError`, `RetryLater`.
    """
    record = remote.known(job, number)
    entry = record.entry
    if any((one.number, one.taken) == (entry.number, entry.taken) for one in store.entries(job)):
        return None
    with remote.folder() as folder:
        newest, module = remote.fetch(record, folder)
        content = None if module is None else module.read_bytes()
        if not all(is_sealed(folder / file_name(image.sha256)) for image in record.images):
            image = load_chain(newest)
            return store.add(job, lambda path: save(image, path, sealing=Sealing()), module=content,
                             taken=entry.taken, number=entry.number)
        chain = [replace(
            entry, sha256=image.sha256, size=image.size, position=len(record.images) - 1 - n, frames=image.frames,
            parent=record.images[n + 1].sha256 if n + 1 < len(record.images) else None, runtime=image.runtime,
        ) for n, image in enumerate(record.images)]
        return store.adopt(chain, [newest.parent / file_name(one.sha256) for one in chain],
                           content)


def nearest(
    levels: Sequence[Callable[[], ImageStore]], job: str, number: int | None = None,
    say: Callable[[CheckpointError], None] = lambda problem: None,
) -> ImageStore:
    """The first of several levels that has a checkpoint; without a number, the newest of all of them.

    Args:
        levels: open the stores, the nearest first. say: is told why a level could not be asked, if another one has it.

    Raises:
        UsageError: none has it. What the levels raise, if none that could be asked has it.
    """
    found: list[tuple[int, ImageStore]] = []
    problems: list[CheckpointError] = []
    for level in levels:
        try:
            store = level()
            entry = store.entry(job, number)
        except CheckpointError as problem:
            problems.append(problem)
            continue
        if number is not None:
            return store
        found.append((entry.number, store))
    failed = [problem for problem in problems if not isinstance(problem, UsageError)]
    if not found:
        raise (failed or problems)[0]
    for unasked in failed:
        say(unasked)
    return max(found, key=lambda one: one[0])[1]  # of equal ones the first
