"""Images as a store keeps them: without their pages, but with the places in packs where these are.

::

    stored  = magic head image
    magic   = 89 57 43 4B 53 54 0D 0A
    head    = msgpack [1, [SHA-256 of a pack, ...], runs, zstd frame]
    frame   = of ``runs`` times five numbers of 4 bytes, little-endian, column by column:
              memory, first page there, which pack, first page in it, pages
    image   = of the neutral format, without any block ``pages``

Its name is the SHA-256 of all its bytes, which is what children call their parent by. Packs are named by their digest
in turn, so an image in a store is as safe from being changed unseen as one in a file. What the file of a store holds
that begins like a neutral image is one, with its pages: so stores of version 1 kept them all.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Final

import zstandard

from ..errors import ImageError
from ..formats import Image, MemoryState, write_image
from ..formats.codec import read_image, read_linked
from ..formats.compression import Compressor
from ..formats.features import MAGIC as NEUTRAL
from ..formats.features import STORED as MAGIC
from ..formats.limits import DEFAULT_LIMITS, Budget, Limits
from ..formats.node import Node
from ..formats.packed import pack, unpack
from ..formats.shape import check
from ..formats.stream import FileSource, Readable, Sink, Writable
from ..lazydata import dataclass, replace

__all__ = ["MAGIC", "Place", "Stored", "read_stored", "write_stored"]

_VERSION: Final = 1
_COLUMNS: Final = 5
_WINDOW: Final = 1 << 20

Place = tuple[int, int, int, int, int]
"""A run of pages: memory, first page there, number of the pack, first page in the pack, how many."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An image in a store.

    Attributes:
        image: the image, whose memories' ``data`` are those pages that are not in packs: none, or all.
        packs: SHA-256 of the packs that it needs, each once. places: its pages, ascending by memory and page.
    """

    image: Image
    packs: tuple[bytes, ...] = ()
    places: tuple[Place, ...] = ()


def write_stored(stored: Stored, file: Writable) -> bytes:
    """Write a stored image. Gives the SHA-256 of all that was written. Raises `ImageError` as `write_image`."""
    columns = array("I", [number for column in range(_COLUMNS) for number in [p[column] for p in stored.places]])
    frame = Compressor().one(_little(columns).tobytes())
    sink = Sink(file)
    sink.write(MAGIC + pack([_VERSION, list(stored.packs), len(stored.places), frame]))
    write_image(stored.image, sink)
    return sink.sha.digest()


def read_stored(file: Readable, *, limits: Limits = DEFAULT_LIMITS) -> tuple[Stored, bytes]:
    """Read a file of a store, and give its SHA-256.

    Raises:
        ImageError: neither a stored nor a neutral image, damaged, hostile, or above the limits.
    """
    source = FileSource(file)
    magic = source.take(len(MAGIC))
    if magic == NEUTRAL:
        image, sha256 = read_linked(_After(magic, file), limits=limits)
        return Stored(image), sha256
    if magic != MAGIC:
        raise ImageError("this is not an image of a store", offset=0)
    packs, places = _read_head(source, limits)
    image = read_image(_Hashed(file, source), limits=limits)
    stored = Stored(image, packs, places)
    _check(stored, limits)
    return stored, source.sha.digest()


def _read_head(source: FileSource, limits: Limits) -> tuple[tuple[bytes, ...], tuple[Place, ...]]:
    start = source.offset
    most = limits.runs * _COLUMNS * 4
    version, names, runs, frame = Node(unpack(source, Budget(limits, text=most)), "head", start).row(4)
    if version.uint() != _VERSION:
        raise version.error("the image in the store is of a newer version")
    packs = tuple([name.binary(32) for name in names.items()])
    if len(set(packs)) != len(packs):
        raise names.error("an image in the store names a pack twice")
    size = runs.uint(limits.runs) * _COLUMNS * 4
    payload = frame.binary()
    try:
        if zstandard.frame_content_size(payload) != size:
            raise frame.error("the places of an image's pages unpack to another size than it says")
        raw = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompress(
            payload, max_output_size=max(size, 1), allow_extra_data=False
        )
    except zstandard.ZstdError as reason:
        raise frame.error(f"the places of an image's pages do not unpack: {reason}") from None
    if len(raw) != size:
        raise frame.error("the places of an image's pages unpack to another size than it says")
    numbers = _little(array("I", raw))
    count = len(numbers) // _COLUMNS
    columns = [numbers[n * count:(n + 1) * count] for n in range(_COLUMNS)]
    return packs, tuple(zip(*columns, strict=True))


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _check(stored: Stored, limits: Limits) -> None:
    """The places are of pages that the image has, each once, in packs that it names."""
    image = stored.image
    if any(memory.data for memory in image.memories):
        raise ImageError("an image in a store has pages in packs and outside", field="memories")
    if not {which for _, _, which, _, _ in stored.places} <= set(range(len(stored.packs))):
        raise ImageError("an image in a store has pages in a pack that it does not name", field="places")
    limits.check("memory", sum([count for *_, count in stored.places]) * 4096, 0)
    left = list(_by_memory(stored.places, image.memories))
    if sum([len(runs) for _, runs in left]) != len(stored.places):
        raise ImageError("the places of an image's pages are out of order, or of no memory", field="places")
    # overlaps and bounds: the places count as zero pages here, of which the same is asked
    check(replace(image, memories=tuple([
        replace(memory, zero=tuple(sorted([*memory.zero, *runs]))) for memory, runs in left
    ])))


def _by_memory(
    places: Sequence[Place], memories: Sequence[MemoryState],
) -> Iterator[tuple[MemoryState, list[tuple[int, int]]]]:
    at = 0
    for memory in memories:
        runs: list[tuple[int, int]] = []
        while at < len(places) and places[at][0] == memory.index and (not runs or runs[-1][0] < places[at][1]):
            runs.append((places[at][1], places[at][4]))
            at += 1
        yield memory, runs


class _After:
    """A file, some of whose bytes have been read already."""

    def __init__(self, before: bytes, file: Readable) -> None:
        self._before, self._file = before, file

    def read(self, n: int, /) -> bytes | None:
        if self._before:
            part, self._before = self._before[:n], self._before[n:]
            return part
        return self._file.read(n)


class _Hashed:
    """The rest of a file whose beginning a source has read; it goes on with the source's digest."""

    def __init__(self, file: Readable, source: FileSource) -> None:
        self._file, self._sha = file, source.sha

    def read(self, n: int, /) -> bytes | None:
        data = self._file.read(n)
        self._sha.update(data or b"")
        return data
