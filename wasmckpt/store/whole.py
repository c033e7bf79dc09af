"""An image of a store and all that it rests on, put together.

From the newest image back, as in `wasmckpt.formats.chain`; but since images in a store have places instead of pages, no
page is read that a newer image replaces. Then the pages are read in the order in which they lie in their packs: each
block of each pack once, however many images refer to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final

from ..errors import ImageError
from ..formats import PAGE_SIZE, WASM_PAGE_SIZE, Image, MemoryState
from ..formats.chain import Taken, check_link
from ..formats.limits import DEFAULT_LIMITS, Limits
from ..formats.pages import runs_of_pages
from ..lazydata import dataclass, field, replace
from .packs import PER_BLOCK, PackReader
from .sharing import Apart, OpenPack, Sharing
from .stored import Stored

__all__ = ["Extent", "Layout", "Whole", "read_whole", "rearranged"]

_ZERO: Final = 0
_Page = tuple[bytes, int] | bytes | int
"""What a page is: one in a pack, these bytes, or zero."""

_PER_WASM_PAGE: Final = WASM_PAGE_SIZE // PAGE_SIZE


@dataclass(frozen=True, slots=True)
class Extent:
    """Pages of a memory, from ``first`` on: ``count`` pages of a pack from ``number`` on."""

    first: int
    pack: bytes
    number: int
    count: int


@dataclass(frozen=True, slots=True)
class Layout:
    """What an image has of a memory, of ``pages`` of 64 KiB: runs of pages of 4 KiB, (first, count), that differ from
    the module's own (``changed``), and that were made zero."""

    index: int
    pages: int
    changed: list[tuple[int, int]]
    zero: list[tuple[int, int]]


@dataclass(slots=True)
class _Memory:
    state: MemoryState
    taken: Taken = field(init=False)
    zero: list[tuple[int, int]] = field(init=False, default_factory=list)
    data: list[tuple[int, bytes]] = field(init=False, default_factory=list)
    extents: list[Extent] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.taken = Taken(self.state.pages * _PER_WASM_PAGE)

    def add(self, state: MemoryState, extents: list[Extent]) -> int:
        """What an older image has where no newer one had anything; gives how many pages have contents."""
        pages = 0
        for first, count in state.zero:
            self.zero.extend(self.taken.take(first, count))
        for first, raw in state.data:
            for start, count in self.taken.take(first, len(raw) // PAGE_SIZE):
                at = (start - first) * PAGE_SIZE
                self.data.append((start, raw[at:at + count * PAGE_SIZE]))
                pages += count
        for extent in extents:
            for start, count in self.taken.take(extent.first, extent.count):
                self.extents.append(Extent(start, extent.pack, extent.number + start - extent.first, count))
                pages += count
        return pages


    def each(self) -> Iterator[tuple[int, _Page]]:
        """What each page is that is not as in the fresh module."""
        for first, count in self.zero:
            for page in range(first, first + count):
                yield page, _ZERO
        for first, raw in self.data:
            for n in range(len(raw) // PAGE_SIZE):
                yield first + n, raw[n * PAGE_SIZE:(n + 1) * PAGE_SIZE]
        for extent in self.extents:
            for n in range(extent.count):
                yield extent.first + n, (extent.pack, extent.number + n)


class Whole:
    """An image that rests on no other.

    Attributes:
        image: all but the pages. memories: where these are, by memory.
    """

    def __init__(self, newest: Stored, limits: Limits = DEFAULT_LIMITS) -> None:
        self.image = replace(newest.image, parent=None)
        self.memories = [_Memory(MemoryState(memory.index, memory.pages)) for memory in newest.image.memories]
        self._limits = limits
        self._pages = 0
        self.add(newest)

    def add(self, older: Stored) -> None:
        """What it rests on, next. Raises `ImageError`: all together is above the limits."""
        extents: dict[int, list[Extent]] = {memory.index: [] for memory in older.image.memories}
        for memory, first, which, number, count in older.places:
            extents[memory].append(Extent(first, older.packs[which], number, count))
        for whole, state in zip(self.memories, older.image.memories, strict=True):
            self._pages += whole.add(state, extents[state.index])
        if self._pages * PAGE_SIZE > self._limits.memory:
            raise ImageError("the chain holds more pages than the reader allows", limit="memory")
        content = older.image.module.content
        if self.image.module.content is None and content is not None:
            self.image = replace(self.image, module=replace(self.image.module, content=content))

    def layout(self) -> list[Layout]:
        """Which pages of its memories it has something of; no page is read for that."""
        return [
            Layout(memory.state.index, memory.state.pages, sorted(
                [(extent.first, extent.count) for extent in memory.extents]
                + [(first, len(raw) // PAGE_SIZE) for first, raw in memory.data]), sorted(memory.zero))
            for memory in self.memories
        ]

    def used(self) -> dict[bytes, int]:
        """Pages of each pack that it needs."""
        found: dict[bytes, int] = {}
        for memory in self.memories:
            for extent in memory.extents:
                found[extent.pack] = found.get(extent.pack, 0) + extent.count
        return found

    def without(self, base: Whole) -> bool:
        """Leave only what differs from ``base``, an earlier image of the same program. False: that cannot be said by a
        difference (a page is again as in the fresh module), or it would be most of the pages; then it is of no use."""
        before = sum(self.used().values())
        left = 0
        for memory, older in zip(self.memories, base.memories, strict=True):
            if older.state.pages > memory.state.pages:
                return False
            known = dict(older.each())
            here: set[int] = set()
            zero, data, extents = sorted(memory.zero), memory.data, memory.extents
            memory.zero, memory.data, memory.extents = [], [], []
            zeros = [page for first, count in zero for page in range(first, first + count)]
            here.update(zeros)
            memory.zero.extend(runs_of_pages(page for page in zeros if known.get(page) != _ZERO))
            for first, raw in data:
                here.update(range(first, first + len(raw) // PAGE_SIZE))
                memory.data.append((first, raw))
            for extent in extents:
                for n in range(extent.count):
                    page = extent.first + n
                    here.add(page)
                    if known.get(page) != (extent.pack, extent.number + n):
                        memory.extents.append(Extent(page, extent.pack, extent.number + n, 1))
                        left += 1
            if not here.issuperset(known):
                return False
        return left * 2 <= before

    def read(self, open_pack: OpenPack) -> Image:
        """The image with its pages. Raises `ImageError`, `StorageError`: a pack is missing or damaged."""
        buffers: list[list[tuple[int, bytearray]]] = []
        wanted: list[tuple[bytes, int, int, bytearray, int]] = []
        for memory in self.memories:
            buffers.append([])
            pieces: list[tuple[int, int, Extent | bytes]] = [(e.first, e.count, e) for e in memory.extents]
            pieces += [(first, len(raw) // PAGE_SIZE, raw) for first, raw in memory.data]
            end = -1
            for first, count, piece in sorted(pieces, key=lambda one: one[0]):
                if first != end:
                    buffers[-1].append((first, bytearray()))
                begin, buffer = buffers[-1][-1]
                at, end = (first - begin) * PAGE_SIZE, first + count
                if isinstance(piece, Extent):
                    buffer.extend(bytes(count * PAGE_SIZE))
                    wanted.append((piece.pack, piece.number, count, buffer, at))
                else:
                    buffer.extend(piece)
        _fetch(wanted, open_pack)
        wanted.clear()
        memories = []
        for memory, parts in zip(self.memories, buffers, strict=True):
            parts.reverse()
            data = []
            while parts:  # each is let go as it is copied
                first, buffer = parts.pop()
                data.append((first, bytes(buffer)))
            memories.append(replace(memory.state, data=tuple(data), zero=tuple(sorted(memory.zero))))
        return replace(self.image, memories=tuple(memories))


def _fetch(wanted: list[tuple[bytes, int, int, bytearray, int]], open_pack: OpenPack) -> None:
    """Pages into buffers: (pack, page in it, how many, buffer, place there)."""
    wanted.sort(key=lambda one: one[:2])
    for name, group in groupby(wanted, key=lambda one: one[0]):
        reader = open_pack(name)
        try:
            for _, number, count, buffer, at in group:
                for raw in _pages(reader, number, count):
                    buffer[at:at + len(raw)] = raw
                    at += len(raw)
        finally:
            reader.close()


def _pages(reader: PackReader, number: int, count: int) -> Iterator[bytes]:
    """A run of pages out of a pack, a block at a time. Raises `ImageError`, `StorageError`."""
    if number + count > reader.pages:
        raise ImageError("an image in the store has pages behind the end of a pack", pack=reader.sha256.hex())
    while count:
        block, first = divmod(number, PER_BLOCK)
        pages = min(count, PER_BLOCK - first)
        yield reader.block(block)[first * PAGE_SIZE:(first + pages) * PAGE_SIZE]
        number, count = number + pages, count - pages


def read_whole(open_image: Callable[[bytes], Stored], sha256: bytes, limits: Limits = DEFAULT_LIMITS) -> Whole:
    """An image with all that it rests on.

    Args:
        open_image: gives a stored image that has that SHA-256. limits: of the chain and of all its pages.

    Raises:
        ImageError: a parent is missing, of another program, or has another place in the chain; too much of it.
    """
    stored = open_image(sha256)
    whole = Whole(stored, limits)
    link = stored.image
    if link.parent is not None and link.parent.position > limits.chain:
        raise ImageError("the chain of images is longer than the reader allows", limit="chain",
                         position=link.parent.position)
    while link.parent is not None:
        below = open_image(link.parent.sha256)
        check_link(link, below.image, link.parent.sha256)
        whole.add(below)
        link = below.image
    return whole


def rearranged(whole: Whole, open_pack: OpenPack, sharing: Sharing, moved: frozenset[bytes]) -> Apart:
    """A whole image to be kept in a store: its pages stay where they are, but for those in the packs ``moved``, and
    those that are in none. Raises `ImageError`, `StorageError`, OSError."""
    for memory in whole.memories:
        for extent in memory.extents:
            if extent.pack not in moved:
                sharing.refer(memory.state.index, extent.first, extent.pack, extent.number, extent.count)
        for first, raw in memory.data:
            sharing.add(memory.state.index, [(first, len(raw) // PAGE_SIZE)], raw)
        for name, group in groupby(sorted(
            [e for e in memory.extents if e.pack in moved], key=lambda e: (e.pack, e.number)
        ), key=lambda e: e.pack):
            reader = open_pack(name)
            try:
                for extent in group:
                    at = extent.first
                    for raw in _pages(reader, extent.number, extent.count):
                        sharing.add(memory.state.index, [(at, len(raw) // PAGE_SIZE)], raw)
                        at += len(raw) // PAGE_SIZE
            finally:
                reader.close()
    return sharing.finish(replace(whole.image, memories=tuple([
        replace(memory.state, zero=tuple(sorted(memory.zero))) for memory in whole.memories
    ])))
