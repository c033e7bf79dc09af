"""Which pages an image has to hold if its reader has an earlier one of the same program.

A tracker (`wasmckpt.dirty`) tells what was written since it was asked last, and forgets that at once. An image may yet
be lost: the copy did not spill, the disk was full, the store did not take it. So what the tracker told is kept here,
for each of the last images that the other side may have, as the pages written *since that one*; it is let go when the
other side names a later one. Sets only ever get larger than need be.

The order around a fork, where the guest may run while it is looked at (userfaultfd)::

    look                        what was written up to here; protected again
    fork                        the moment of the image, but for what the copy itself does until it has spilled
    begin                       from here on pages count for the next image as well ...
    look                        ... so what was written between the first look and the fork counts for both
    add(exclusive to the copy)  what the copy wrote: it belongs to this image, and the source may do something else

Without the last, one page in a hundred was missed. A copy that was made in a host function does nothing but spill,
which writes to no page of the guest's, and need not be asked: with a gigabyte that takes as long as the fork. Where the
guest must stand still to be looked at (soft-dirty bits, comparison), the source does so from the fork until it has been
looked at, once; frozen in place it stands anyway.
A program that goes on in place is in a new instance, whose memory is what its image says: it is looked at before it
runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from ..dirty import Runs, Tracker, TrackingLost, choose, count, kernel, merge, within
from ..formats import ParentRef
from ..instrument.linker import PREFIX
from ..lazydata import dataclass
from .program import Increment, Program

__all__ = ["Changes", "Wanted", "own_pages"]

_KEPT = 2
"""Images that the other side may have: the last one, and the one before, if the last did not arrive."""
_COMING = b""
"""Stands for the image that is being made, whose digest is not known yet."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An image as the difference to one that was made before.

    Attributes:
        since: SHA-256 of that one, as this worker wrote it.
        parent: what the new image names as its parent: the same one, or another of the same state.
    """

    since: bytes
    parent: ParentRef


@dataclass(slots=True)
class _Since:
    """Pages written since an image, by memory, and how large the memories were in it, in pages of 64 KiB."""

    runs: list[Runs]
    sizes: list[int]


class Changes:
    """What was written to the memories of one program since its last images. For one thread at a time.

    Args:
        backend: name of a tracker's backend, or "auto".
    """

    def __init__(self, backend: str = "auto") -> None:
        self._backend = backend
        self._tracker: Tracker | None = None
        self._program: Program | None = None
        self._since: dict[bytes, _Since] = {}

    @property
    def needs_stop(self) -> bool:
        """Whether the guest must stand still while it is looked at."""
        return self._tracker is not None and self._tracker.needs_stop

    @property
    def followed(self) -> Program | None:
        """The program whose memories are watched now."""
        return self._program

    def follow(self, program: Program) -> None:
        """Watch this program's memories from now on. If it is another instance than before, its memories must be what
        they were when the one before was looked at last. Where nothing can be watched, images are whole."""
        if program is self._program:
            return
        self.leave()
        number = len(program.module.memories)
        extents = [program.instance.memory(f"{PREFIX}memory{i}").extent for i in range(number)]
        try:
            self._tracker = choose(extents, self._backend)
            self._program = program
            self._tracker.collect()
        except TrackingLost:
            self.lost()

    def leave(self) -> None:
        """The instance goes; what is known stays."""
        if self._tracker is not None:
            self._tracker.close()
        self._tracker = self._program = None

    def lost(self) -> None:
        """Nothing is known any more: the next image is whole."""
        self.leave()
        self._since.clear()

    def look(self) -> None:
        """Take from the tracker what was written."""
        if self._tracker is None:
            return
        try:
            self.add(self._tracker.collect())
        except TrackingLost:
            self.lost()

    def add(self, written: Sequence[Iterable[tuple[int, int]]]) -> None:
        """These pages count as written, by memory."""
        for since in self._since.values():
            since.runs = [merge([*known, *new]) for known, new in zip(since.runs, written, strict=True)]

    def begin(self) -> None:
        """This is the moment of an image: what is told from now on is written since."""
        if self._tracker is not None:
            number = len(self._tracker.memories)
            self._since[_COMING] = _Since([()] * number, [0] * number)

    def so_far(self, sha256: bytes) -> list[Runs]:
        """Pages written since an image, by memory, as far as can be told while the program runs; empty: it cannot."""
        if not self.needs_stop:
            self.look()
        since = self._since.get(sha256)
        return [] if since is None else list(since.runs)

    def due(self, wanted: Wanted | None) -> int | None:
        """How many pages an image would hold, as far as is known now; None: all."""
        since = None if wanted is None else self._since.get(wanted.since)
        return None if since is None else sum([count(runs) for runs in since.runs])

    def increment(self, wanted: Wanted | None, sizes: Sequence[int]) -> Increment | None:
        """What the image that was begun has to hold; None: everything, because the earlier image is not known here, or
        all of it was written.

        Args:
            sizes: of the memories in the new image, in pages of 64 KiB.
        """
        coming = self._since.get(_COMING)
        if coming is not None:
            coming.sizes = list(sizes)
        since = None if wanted is None or coming is None else self._since.get(wanted.since)
        if since is None or wanted is None:
            return None
        runs = [tuple(_up_to(known, size << 4)) for known, size in zip(since.runs, sizes, strict=True)]
        if all(known == (((0, size << 4),) if size else ()) for known, size in zip(runs, sizes, strict=True)):
            return None
        for sha256 in [sha256 for sha256 in self._since if sha256 not in (wanted.since, _COMING)]:
            del self._since[sha256]
        return Increment(wanted.parent, tuple(runs), tuple(since.sizes))

    def written(self, sha256: bytes, left_out: Iterable[tuple[int, int]]) -> None:
        """The image that was begun is there; it left out pages of the first memory that somebody may want later."""
        coming = self._since.pop(_COMING, None)
        if coming is None:
            return
        if coming.runs:
            coming.runs[0] = merge([*coming.runs[0], *left_out])
        self._since[sha256] = coming
        while len(self._since) > _KEPT:
            del self._since[next(iter(self._since))]


def _up_to(runs: Runs, end: int) -> Iterable[tuple[int, int]]:
    """Runs without the pages from ``end`` on: there our own window may lie."""
    return ((first, min(number, end - first)) for first, number in runs if first < end)


def own_pages(pid: int, memories: Sequence[tuple[int, int]]) -> list[Runs]:
    """Pages that a forked copy shares with nobody: all that it has written itself, and some more.

    Args:
        memories: native address and length in bytes of each.

    Raises:
        OSError: it is gone.
    """
    fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        page = kernel.MACHINE_PAGE
        return [
            within(kernel.exclusive(fd, base - base % page, -(-(base + length) // page) * page), base, length)
            if length else () for base, length in memories
        ]
    finally:
        os.close(fd)
