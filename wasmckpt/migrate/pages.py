"""Pages on the wire, by digest: what the target has already is not sent again.

The target keeps the pages in a file in memory, the mirror, and the source knows what is in it: what it has sent, and
what the target said in the beginning that it has (of an image that it keeps of the same program, say). So a page that
is there already costs nothing, one that is there in another place costs a few bytes (*copy*), and a page of zeros as
much as a run of them. All else goes as it is, compressed if that brings it there sooner: `Squeeze` measures both.

A frame ``pages``: memory; runs ``same``, ``zero`` and ``data``; ``copy``, (page, memory, page) each; the body has the
pages of ``data``, as a zstd frame if ``packed`` has their length. Copies are of what the mirror held before the frame.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import zstandard

from ..dirty import Runs, merge
from ..errors import CheckpointError
from ..formats import PAGE_SIZE, Image
from ..formats.pages import PageBlock, runs_of_pages
from ..snapshot.moving import SPAN, Part
from .wire import Frame, Wire, nonsense, runs_of

__all__ = ["DIGEST", "Mirror", "Outbox", "Squeeze"]

DIGEST: Final = 20
"""Bytes of SHA-256 that stand for a page."""
_ZERO: Final = b"zero"
_FAST: Final = 5e7
"""Bytes a second that a wire takes, from which on the digest of a page is not worth its time, if there is hurry."""
_MOST_PAGES: Final = 1 << 20
"""Of a memory: 4 GiB."""
_HAVE_PAGES: Final = 1 << 15
"""Whose digests go in one frame."""


def digest_of(page: bytes | memoryview) -> bytes:
    """What stands for a page."""
    return hashlib.sha256(page).digest()[:DIGEST]


class Squeeze:
    """Whether to compress: as long as the wire takes longer for the bytes than compressing them and sending the rest.

    Both are measured, smoothed; now and then the other way is tried, since either may have changed.
    """

    _AGAIN: Final = 16

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=1, write_checksum=False, write_content_size=True)
        self.wire = 0.0
        """Bytes a second that it takes; 0: not known yet."""
        self._speed, self._ratio = 0.0, 0.0
        self._number = 0

    def pack(self, data: bytes) -> bytes | None:
        """The data as a zstd frame; None: to be sent as it is."""
        if len(data) < PAGE_SIZE:
            return None
        self._number += 1
        if self._speed and self._number % self._AGAIN and not self._pays():
            return None
        began = time.perf_counter()
        packed = self._zstd.compress(data)
        spent = max(time.perf_counter() - began, 1e-6)
        self._speed = _smooth(self._speed, len(data) / spent)
        self._ratio = _smooth(self._ratio, len(packed) / len(data))
        return packed if len(packed) < len(data) else None

    def _pays(self) -> bool:
        if not self.wire:
            return True
        return 1 / self._speed + self._ratio / self.wire < 1 / self.wire


def _smooth(before: float, now: float) -> float:
    return now if not before else 0.7 * before + 0.3 * now


class Outbox:
    """The source's side: what the target's mirror holds, and what it has still to be sent."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._held: dict[tuple[int, int], bytes] = {}
        self._where: dict[bytes, tuple[int, int]] = {}
        self.squeeze = Squeeze()
        self.pages = self.literal = self.spared = 0
        """Pages told of so far; of these sent with their bytes; of these that were there already."""
        self._later: list[set[int]] = []

    def leave(self, memories: Iterable[Runs]) -> None:
        """These pages, by memory, need not be sent from here on: a later image has them again."""
        self._later = [{page for first, count in runs for page in range(first, first + count)} for runs in memories]

    def has(self, frame: Frame) -> None:
        """The target says what its mirror holds. Raises `CheckpointError`."""
        memory = frame.number("memory", 1 << 16)
        runs = runs_of(frame.fields.get("runs"), _MOST_PAGES)
        pages = [page for first, count in runs for page in range(first, first + count)]
        if len(frame.body) != len(pages) * DIGEST:
            raise nonsense("have", "digests")
        for n, page in enumerate(pages):
            digest = frame.body[n * DIGEST:(n + 1) * DIGEST]
            self._held[memory, page] = digest
            self._where[digest] = memory, page

    def send(self, block: PageBlock, *, small: bool = False) -> int:
        """Bring a block's pages there; gives how many bytes that took. Raises `Lost`.

        Args:
            small: there are few of them, which were written lately: where the wire takes a page as soon as its digest
                is made, nothing is gained by looking whether it is there already.
        """
        memory, held, where = block.memory, self._held, self._where
        pages = [page for first, count in block.runs for page in range(first, first + count)]
        self.pages += len(pages)
        before = self._wire.sent
        if not block.raw:
            self._wire.send("pages", memory=memory, same=[], data=[], copy=[], zero=_flat(block.runs))
            for page in pages:
                held[memory, page] = _ZERO
            return self._wire.sent - before
        if small and self.squeeze.wire >= _FAST:
            return self._send_as_they_are(block, pages)
        view = memoryview(block.raw)
        same: list[int] = []
        data: list[int] = []
        copy: list[tuple[int, int, int]] = []
        literal = bytearray()
        fresh: dict[int, bytes] = {}
        later = self._later[memory] if memory < len(self._later) else ()
        for n, page in enumerate(pages):
            if page in later:
                continue
            raw = view[n * PAGE_SIZE:(n + 1) * PAGE_SIZE]
            digest = digest_of(raw)
            if held.get((memory, page)) == digest:
                same.append(page)
                continue
            place = where.get(digest)
            if place is not None and held.get(place) == digest:
                copy.append((page, *place))
            else:
                data.append(page)
                literal += raw
            fresh[page] = digest
        self.literal += len(data)
        self.spared += len(same) + len(copy)
        body = bytes(literal)
        packed = self.squeeze.pack(body)
        self._wire.send(
            "pages", body if packed is None else packed, memory=memory, same=_flat(runs_of_pages(same)), zero=[],
            data=_flat(runs_of_pages(data)), copy=copy, **({} if packed is None else {"packed": len(body)}),
        )
        for page, digest in fresh.items():
            held[memory, page] = digest
            where[digest] = memory, page
        return self._wire.sent - before


    def _send_as_they_are(self, block: PageBlock, pages: Sequence[int]) -> int:
        before = self._wire.sent
        self.literal += len(pages)
        packed = self.squeeze.pack(block.raw)
        self._wire.send("pages", block.raw if packed is None else packed, memory=block.memory, same=[], zero=[],
                        data=_flat(block.runs), copy=[], **({} if packed is None else {"packed": len(block.raw)}))
        for page in pages:
            self._held.pop((block.memory, page), None)
        return self._wire.sent - before


class Mirror:
    """The target's side: the file that the worker shares. ``descriptor``: of it, the caller's."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._unpack = zstandard.ZstdDecompressor()
        self._round: dict[int, list[tuple[int, int]]] = {}

    def load(self, image: Image, wire: Wire) -> None:
        """Put in what an image has, and tell the source. Raises `Lost`."""
        for state in image.memories:
            for first, raw in state.data:
                self._write(state.index, first, raw)
                count = len(raw) // PAGE_SIZE
                for start in range(0, count, _HAVE_PAGES):
                    number = min(_HAVE_PAGES, count - start)
                    digests = b"".join([
                        digest_of(memoryview(raw)[n * PAGE_SIZE:(n + 1) * PAGE_SIZE])
                        for n in range(start, start + number)
                    ])
                    wire.send("have", digests, memory=state.index, runs=[first + start, number])

    def take(self, frame: Frame, sizes: Mapping[int, int]) -> None:
        """A frame ``pages``. ``sizes``: of the memories, in pages of 64 KiB. Raises `CheckpointError`."""
        memory = frame.number("memory", 1 << 16)
        most = sizes.get(memory, 0) * 16
        same, zero, data = (runs_of(frame.fields.get(name), most) for name in ("same", "zero", "data"))
        body = frame.body
        length = sum(count for _, count in data) * PAGE_SIZE
        if (packed := frame.fields.get("packed")) is not None:
            if packed != length:
                raise nonsense("pages", "packed")
            try:
                body = self._unpack.decompress(body, max_output_size=length)
            except zstandard.ZstdError:
                raise nonsense("pages", "packed") from None
        if len(body) != length:
            raise nonsense("pages", "body")
        copies = [(page, self._read(from_, source, sizes)) for page, from_, source in _copies(frame, most)]
        view, at = memoryview(body), 0
        for page, raw in copies:
            self._write(memory, page, raw)
        for first, count in zero:
            self._write(memory, first, bytes(count * PAGE_SIZE))
        for first, count in data:
            self._write(memory, first, view[at:at + count * PAGE_SIZE])
            at += count * PAGE_SIZE
        self._round.setdefault(memory, []).extend([*same, *zero, *data, *((page, 1) for page, _ in copies)])

    def put(self, memory: int, first: int, data: bytes) -> None:
        """Pages that are known here."""
        self._write(memory, first, data)

    def parts(self, sizes: Mapping[int, int]) -> list[Part]:
        """What has come since this was asked last, of all memories."""
        found = [(memory, pages, merge(self._round.get(memory, ()))) for memory, pages in sizes.items()]
        self._round.clear()
        return found

    def runs(self, part: Part) -> Iterable[tuple[int, bytes]]:
        """The bytes of a part, run by run."""
        memory, _, runs = part
        for first, count in runs:
            yield first, self._get(memory, first, count)

    def _read(self, memory: int, page: int, sizes: Mapping[int, int]) -> bytes:
        if page >= max(sizes.get(memory, 0) * 16, 1):
            raise nonsense("pages", "copy")
        return self._get(memory, page, 1)

    def _get(self, memory: int, first: int, count: int) -> bytes:
        length, at = count * PAGE_SIZE, memory * SPAN + first * PAGE_SIZE
        data = os.pread(self._fd, length, at)
        while len(data) < length:
            more = os.pread(self._fd, length - len(data), at + len(data))
            if not more:
                raise CheckpointError("a page that was to be there already is not", memory=memory, page=first)
            data += more
        return data

    def _write(self, memory: int, first: int, data: bytes | memoryview) -> None:
        at, view = memory * SPAN + first * PAGE_SIZE, memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, at)
            view, at = view[done:], at + done


def _copies(frame: Frame, most: int) -> list[tuple[int, int, int]]:
    found = frame.fields.get("copy")
    if not isinstance(found, list) or not all(
        isinstance(one, (list, tuple)) and len(one) == 3 and all(isinstance(n, int) and n >= 0 for n in one)
        and one[0] < most for one in found
    ):
        raise nonsense("pages", "copy")
    return [(page, memory, source) for page, memory, source in found]


def _flat(runs: Iterable[tuple[int, int]]) -> list[int]:
    return [number for run in runs for number in run]
