"""Chains of images: each one's pages are the difference to its parent's, the first one's to the fresh module.

A chain is read in one pass, from the newest image back: a page is taken from the first image that has it, and no image
is read twice. Only pages come from parents, all else is complete in each image. Three states of a page are apart: in no
block, it is as in the parent (where the parent's memory ended before it: zero, as growing makes it); in a block
``zero``, it is zero now; in a block ``pages``, it is that.

Each link is named by the digest of the parent's whole file, which is checked as the file is read, and by its place,
which falls by one from link to link: so a chain has no cycles and ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final

from wasmckpt.errors import ImageError, StorageError
from wasmckpt.formats.codec import read_linked
from wasmckpt.formats.files import opened
from wasmckpt.formats.image import PAGE_SIZE, WASM_PAGE_SIZE, Image, MemoryState
from wasmckpt.formats.limits import DEFAULT_LIMITS, Limits
from wasmckpt.formats.stream import Readable
from wasmckpt.lazydata import dataclass, field, replace

__all__ = ["Parents", "Taken", "beside", "check_link", "file_name", "load_chain", "read_chain"]

Parents = Callable[[bytes], AbstractContextManager[BinaryIO]]
"""Opens the image with a SHA-256. Raises `ImageError` where there is none."""

_PER_WASM_PAGE: Final = WASM_PAGE_SIZE // PAGE_SIZE


def file_name(sha256: bytes) -> str:
    """How an image's file is called in a folder where children look for it."""
    return f"{sha256.hex()}.wckpt"


def beside(path: str | os.PathLike[str]) -> Parents:
    """Parents that lie in the same folder as the image ``path``, called by `file_name`."""
    folder = Path(os.path.realpath(path)).parent

    def open_parent(sha256: bytes) -> AbstractContextManager[BinaryIO]:
        try:
            return opened(folder / file_name(sha256))
        except StorageError as reason:
            raise ImageError("the image is a difference to another one, which is not there", parent=sha256.hex(),
                             path=str(folder), hint="put its parent beside it, or export it whole from its store"
                             ) from reason

    return open_parent


def load_chain(path: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS) -> Image:
    """The whole image in a file, its parents lying `beside` it.

    Raises:
        StorageError: the file cannot be read. ImageError: as `read_chain`, with the ``path``.
    """
    with opened(path) as file:
        try:
            return read_chain(file, beside(path), limits=limits)
        except ImageError as reason:
            reason.fields.setdefault("path", os.fspath(path))
            raise


def read_chain(
    file: Readable, parents: Parents | None, *, sha256: bytes | None = None, limits: Limits = DEFAULT_LIMITS,
) -> Image:
    """A whole image, without a parent, from one and all that it rests on.

    Args:
        file: the newest image. parents: opens the others; None: there are none at hand.
        sha256: what the newest one's file must have.
        limits: of each image, and of the pages of the whole.

    Raises:
        ImageError: as `read_image`, for any of them; a parent is missing, is not the one that is named, is of another
            program, or has another place in the chain; the chain is longer than the limit.
    """
    image, found = read_linked(file, limits=limits)
    if sha256 is not None and found != sha256:
        raise ImageError("the image is another one than its name says", need=sha256.hex(), found=found.hex())
    if image.parent is None:
        return image
    if image.parent.position > limits.chain:
        raise ImageError("the chain of images is longer than the reader allows", limit="chain",
                         position=image.parent.position)
    memories = [_Whole(memory, limits) for memory in image.memories]
    content = image.module.content
    link = image
    while link.parent is not None:
        if parents is None:
            raise ImageError("the image is a difference to another one, which is not at hand",
                             parent=link.parent.sha256.hex(), hint="give it as a file, with its parents beside it")
        with parents(link.parent.sha256) as older:
            below, found = read_linked(older, limits=limits)
        check_link(link, below, found)
        for whole, memory in zip(memories, below.memories, strict=True):
            whole.add(memory)
        content = content or below.module.content
        link = below
    return replace(image, parent=None, module=replace(image.module, content=content),
                   memories=tuple([whole.state() for whole in memories]))


def check_link(child: Image, parent: Image, sha256: bytes) -> None:
    """Whether ``parent``, whose file has the digest ``sha256``, is what ``child`` rests on.

    Raises:
        ImageError: why not.
    """
    named = child.parent
    assert named is not None
    where = named.sha256.hex()
    if sha256 != named.sha256:
        raise ImageError("the parent of an image is another one than it names", parent=where, found=sha256.hex())
    if (0 if parent.parent is None else parent.parent.position) != named.position - 1:
        raise ImageError("the parent of an image has another place in the chain than it should", parent=where,
                         position=named.position)
    if (child.module.sha256, child.module.size) != (parent.module.sha256, parent.module.size):
        raise ImageError("the parent of an image is of another program", parent=where)
    sizes = [(memory.index, memory.pages) for memory in parent.memories]
    if [index for index, _ in sizes] != [memory.index for memory in child.memories] or any(
        before > memory.pages for (_, before), memory in zip(sizes, child.memories, strict=True)
    ):
        raise ImageError("the parent of an image has other or larger memories", parent=where)


class Taken:
    """The pages of a memory that an image has which is newer than those that are looked at now."""

    __slots__ = ("_pages",)

    def __init__(self, pages: int) -> None:
        self._pages = bytearray(pages)  # one byte for each: 1 if it was taken

    def take(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """The runs of pages that nobody has taken, which are taken now."""
        pages, end = self._pages, first + count
        at = pages.find(0, first, end)
        while at >= 0:
            stop = pages.find(1, at, end)
            stop = end if stop < 0 else stop
            pages[at:stop] = b"\1" * (stop - at)
            yield at, stop - at
            at = pages.find(0, stop, end)


@dataclass(slots=True)
class _Whole:
    """A memory that is put together from the newest image back."""

    newest: MemoryState
    limits: Limits
    _taken: Taken = field(init=False)
    _data: list[tuple[int, bytes]] = field(init=False, default_factory=list)
    _zero: list[tuple[int, int]] = field(init=False, default_factory=list)
    _pages: int = 0

    def __post_init__(self) -> None:
        self._taken = Taken(self.newest.pages * _PER_WASM_PAGE)
        self.add(self.newest)

    def add(self, memory: MemoryState) -> None:
        """What an older image has, where no newer one had anything."""
        for first, count in memory.zero:
            self._zero.extend(self._taken.take(first, count))
        for first, raw in memory.data:
            for start, count in self._taken.take(first, len(raw) // PAGE_SIZE):
                at = (start - first) * PAGE_SIZE
                self._data.append((start, raw[at:at + count * PAGE_SIZE]))
                self._pages += count
        if self._pages * PAGE_SIZE > self.limits.memory:
            raise ImageError("the chain holds more pages than the reader allows", limit="memory")

    def state(self) -> MemoryState:
        """All of it; runs that touch are not joined, which the file does not show."""
        return MemoryState(self.newest.index, self.newest.pages, tuple(sorted(self._data, key=lambda run: run[0])),
                           tuple(sorted(self._zero)))
