"""Taking an image apart: pages that the store has already are only referred to, all others go into a new pack.

The index finds a page by the first eight bytes of its SHA-256, and is not believed: the page that it names is read and
compared before anything refers to it. So a wrong index, a damaged pack or two pages with the same key cost a page that
is kept twice, and never the contents of an image.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ..errors import CheckpointError, ImageError
from ..formats import PAGE_SIZE, Image, MemoryState
from ..formats.codec import ImageStream
from ..formats.stream import Readable
from ..lazydata import dataclass, replace
from .packs import PER_BLOCK, Pack, PackReader, PackWriter
from .stored import Place, Stored

__all__ = ["Apart", "Known", "OpenPack", "Sharing", "take_apart"]

Known = Callable[[Sequence[int]], Mapping[int, tuple[bytes, int]]]
"""What the index says of pages, given their keys: in which pack and where in it."""
OpenPack = Callable[[bytes], PackReader]

_OPEN: Final = 16
"""Packs that are kept open at a time."""
_NEW: Final = b""
"""Stands for the new pack, whose name is known when it is finished."""


@dataclass(frozen=True, slots=True)
class Apart:
    """An image that was taken apart.

    Attributes:
        stored: the image. pack: its new pages; None: it has none. keys: of the pages of the new pack, in order.
    """

    stored: Stored
    pack: Pack | None
    keys: tuple[int, ...]


@dataclass(slots=True)
class _Run:
    """Pages of a memory from ``page`` on, that are those of a pack from ``number`` on."""

    memory: int
    page: int
    pack: bytes
    number: int
    count: int


class Sharing:
    """Finds a place for each page of one image.

    Args:
        known: what the store has. open_pack: to look at it. writer: takes new pages.
        avoid: packs that nothing shall refer to.
    """

    def __init__(
        self, known: Known, open_pack: OpenPack, writer: PackWriter, avoid: frozenset[bytes] = frozenset(),
    ) -> None:
        self._known, self._open_pack, self._writer, self._avoid = known, open_pack, writer, avoid
        self._readers: OrderedDict[bytes, PackReader] = OrderedDict()
        self._bad: set[bytes] = set()
        self._own: dict[bytes, int] = {}
        self._runs: list[_Run] = []
        self._keys: list[int] = []

    def __enter__(self) -> Sharing:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers.values():
            reader.close()

    def add(self, memory: int, runs: Iterable[tuple[int, int]], raw: bytes) -> None:
        """The pages of ``runs``, whose contents are one after the other in ``raw``. Raises OSError."""
        numbers = [page for first, count in runs for page in range(first, first + count)]
        for start in range(0, len(numbers), PER_BLOCK):
            part = numbers[start:start + PER_BLOCK]
            pages = [raw[at * PAGE_SIZE:(at + 1) * PAGE_SIZE] for at in range(start, start + len(part))]
            digests = [hashlib.sha256(page).digest() for page in pages]
            keys = [int.from_bytes(digest[:8], "big", signed=True) for digest in digests]
            known = self._known(keys)
            for number, page, digest, key in zip(part, pages, digests, keys, strict=True):
                place = known.get(key)
                if place is None or not self._is_there(page, *place):
                    place = _NEW, self._new(page, digest, key)
                self.refer(memory, number, *place)

    def refer(self, memory: int, page: int, pack: bytes, number: int, count: int = 1) -> None:
        """Pages that are in a pack."""
        if self._runs:
            last = self._runs[-1]
            if (last.memory, last.page + last.count, last.pack, last.number + last.count) == (
                memory, page, pack, number
            ):
                last.count += count
                return
        self._runs.append(_Run(memory, page, pack, number, count))

    def finish(self, image: Image) -> Apart:
        """The image, whose memories have no data of their own. Raises OSError."""
        pack = self._writer.finish()
        names: dict[bytes, int] = {}
        places: list[Place] = []
        for run in sorted(self._runs, key=lambda run: (run.memory, run.page)):
            name = pack.sha256 if pack is not None and run.pack == _NEW else run.pack
            places.append((run.memory, run.page, names.setdefault(name, len(names)), run.number, run.count))
        return Apart(Stored(image, tuple(names), tuple(places)), pack, tuple(self._keys))

    def _new(self, page: bytes, digest: bytes, key: int) -> int:
        number = self._own.get(digest)
        if number is None:
            number = self._own[digest] = self._writer.add(page)
            self._keys.append(key)
        return number

    def _is_there(self, page: bytes, pack: bytes, number: int) -> bool:
        if pack in self._avoid or pack in self._bad:
            return False
        try:
            reader = self._readers.get(pack)
            if reader is None:
                reader = self._readers[pack] = self._open_pack(pack)
                if len(self._readers) > _OPEN:
                    self._readers.popitem(last=False)[1].close()
            self._readers.move_to_end(pack)
            return number < reader.pages and reader.page(number) == page
        except CheckpointError:
            self._bad.add(pack)  # it is of no use, for whatever reason: `verify` says which
            return False


def take_apart(file: Readable, sha256: bytes, sharing: Sharing) -> Apart:
    """Take apart the neutral image in a file, a mebibyte at a time.

    Raises:
        ImageError: it is damaged, or its file does not have the digest ``sha256``. OSError: of the new pack.
    """
    stream = ImageStream(file)
    zero: dict[int, list[tuple[int, int]]] = {memory.index: [] for memory in stream.image.memories}
    for block in stream.blocks():
        if block.kind == "zero":
            zero[block.memory].extend(block.runs)
        else:
            sharing.add(block.memory, block.runs, block.raw)
    if stream.sha256 != sha256:
        raise ImageError("the image is another one than was said", need=sha256.hex(), found=stream.sha256.hex())
    return sharing.finish(replace(stream.image, memories=tuple([
        MemoryState(memory.index, memory.pages, (), tuple(zero[memory.index])) for memory in stream.image.memories
    ])))
