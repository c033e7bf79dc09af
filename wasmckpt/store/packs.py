"""Packs: files of pages that images refer to, so that equal pages are kept once, whichever programs have them.

::

    pack      = magic block* directory length
    magic     = 89 57 43 4B 50 4B 0D 0A
    block     = a zstd frame that records its size, or the pages as they are where that is shorter
    directory = msgpack [1, [[bytes of the block, pages in it, SHA-256 of the block], ...]]
    length    = of the directory, 4 bytes, little-endian

A pack is called by the SHA-256 of its directory, which names the digest of each block: so a few pages can be read out
of a big pack, and yet nothing in it can be other than what an image means that names the pack. All blocks but the last
hold 256 pages, as in images. Why so many: measured on real programs (`benchmarks what-not-to-save`), blocks of 16 pages
take 1.0 to 2.9 times the bytes of blocks of 256, single pages 1.1 to 2.9 times, with or without a dictionary from the
module's memory; while what is equal is equal by single pages, and much less by pieces of 64 KiB.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Final

import zstandard

from ..errors import ImageError, StorageError
from ..formats import PAGE_SIZE
from ..formats.compression import Compressor
from ..formats.limits import BLOCK_SIZE, DEFAULT_LIMITS, Budget
from ..formats.node import Node
from ..formats.packed import pack, unpack
from ..formats.stream import BytesSource
from ..lazydata import dataclass

__all__ = ["MAGIC", "PER_BLOCK", "Pack", "PackReader", "PackWriter"]

MAGIC: Final = b"\x89WCKPK\r\n"
PER_BLOCK: Final = BLOCK_SIZE // PAGE_SIZE
_VERSION: Final = 1
_TAIL: Final = 4
_LONGEST_DIRECTORY: Final = 1 << 20
"""Bytes; 16 GiB of pages take 700 KiB."""
_CACHED: Final = 8
"""Unpacked blocks, of 1 MiB each, that a reader keeps."""


@dataclass(frozen=True, slots=True)
class Pack:
    """A finished pack: its name, the bytes of its file, its pages."""

    sha256: bytes
    size: int
    pages: int


class PackWriter:
    """Writes a pack to a new file; nothing is there before the first page."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._waiting: list[bytes] = []
        self._directory: list[tuple[int, int, bytes]] = []
        self._blocks: list[tuple[int, bytes]] = []
        self._compressor = Compressor()
        self._size = 0
        self.pages = 0

    def __enter__(self) -> PackWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
                 ) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def add(self, page: bytes) -> int:
        """Append a page; gives its number. Raises OSError."""
        self._waiting.append(page)
        self.pages += 1
        if len(self._waiting) == PER_BLOCK:
            self._close_block()
        return self.pages - 1

    def finish(self) -> Pack | None:
        """Write the rest and sync it; None: there was no page. Raises OSError."""
        if not self.pages:
            return None
        self._close_block()
        self._flush()
        directory = pack([_VERSION, self._directory])
        self._write(directory + len(directory).to_bytes(_TAIL, "little"))
        os.fsync(self._file)
        return Pack(hashlib.sha256(directory).digest(), self._size, self.pages)

    def _close_block(self) -> None:
        if self._waiting:
            self._blocks.append((len(self._waiting), b"".join(self._waiting)))
            self._waiting.clear()
            if len(self._blocks) >= self._compressor.at_a_time:
                self._flush()

    def _flush(self) -> None:
        frames = self._compressor.all([raw for _, raw in self._blocks])
        for (pages, raw), packed in zip(self._blocks, frames, strict=True):
            block = packed if len(packed) < len(raw) else raw
            self._directory.append((len(block), pages, hashlib.sha256(block).digest()))
            self._write(block)
        self._blocks.clear()

    def _write(self, data: bytes) -> None:
        if self._file < 0:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            data = MAGIC + data
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view):]
        self._size += len(data)


class PackReader:
    """Pages out of one pack, each block checked when it is read.

    Raises:
        ImageError: it is damaged, or another one than ``sha256``. StorageError: it cannot be read, or is not there.
    """

    def __init__(self, path: Path, sha256: bytes) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ImageError("a pack of pages is missing from the store", path=str(path)) from None
        except OSError as reason:
            raise self._unreadable(reason) from reason
        try:
            self._blocks = self._read_directory(sha256)
        except BaseException:
            self.close()
            raise
        self.sha256 = sha256
        self.pages = sum([pages for _, _, pages, _ in self._blocks])
        self.blocks = len(self._blocks)
        self._zstd = zstandard.ZstdDecompressor(max_window_size=BLOCK_SIZE)
        self._cache: OrderedDict[int, bytes] = OrderedDict()

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def page(self, number: int) -> bytes:
        """One page."""
        block, inside = divmod(number, PER_BLOCK)
        return self.block(block)[inside * PAGE_SIZE:(inside + 1) * PAGE_SIZE]

    def block(self, number: int) -> bytes:
        """The pages of one block, one after the other."""
        raw = self._cache.get(number)
        if raw is not None:
            self._cache.move_to_end(number)
            return raw
        at, length, pages, digest = self._blocks[number]
        block = self._read(at, length)
        if hashlib.sha256(block).digest() != digest:
            raise self._wrong("a block of a pack is damaged: its digest is not that of its bytes", at)
        raw = block if length == pages * PAGE_SIZE else self._unpacked(block, pages * PAGE_SIZE, at)
        self._cache[number] = raw
        if len(self._cache) > _CACHED:
            self._cache.popitem(last=False)
        return raw

    def _unpacked(self, block: bytes, size: int, at: int) -> bytes:
        try:
            # the library allocates what the frame says, so that is compared before it may
            if zstandard.frame_content_size(block) != size:
                raise self._wrong("a block of a pack unpacks to another size than its directory says", at)
            raw: bytes = self._zstd.decompress(block, max_output_size=size, allow_extra_data=False)
        except zstandard.ZstdError as reason:
            raise self._wrong(f"a block of a pack does not unpack: {reason}", at) from None
        if len(raw) != size:
            raise self._wrong("a block of a pack unpacks to another size than its directory says", at)
        return raw

    def _read_directory(self, sha256: bytes) -> list[tuple[int, int, int, bytes]]:
        """Of each block: where it is, its length, its pages, its digest."""
        size = os.fstat(self._file).st_size
        if size < len(MAGIC) + _TAIL or self._read(0, len(MAGIC)) != MAGIC:
            raise self._wrong("this is not a pack of pages", 0)
        length = int.from_bytes(self._read(size - _TAIL, _TAIL), "little")
        start = size - _TAIL - length
        if length > _LONGEST_DIRECTORY or start < len(MAGIC):
            raise self._wrong("a pack of pages is cut short or damaged", size - _TAIL)
        directory = self._read(start, length)
        if hashlib.sha256(directory).digest() != sha256:
            raise self._wrong("a pack of pages is damaged, or another one than its name says", start)
        source = BytesSource(directory, "directory", start)
        version, rows = Node(unpack(source, Budget(DEFAULT_LIMITS, text=length)), "directory", start).row(2)
        if version.uint() != _VERSION:
            raise self._wrong("a pack of pages is of a newer version", start)
        found: list[tuple[int, int, int, bytes]] = []
        at = len(MAGIC)
        for row in rows.items():
            bytes_, pages, digest = row.row(3)
            number = pages.uint(PER_BLOCK)
            found.append((at, bytes_.uint(number * PAGE_SIZE), number, digest.binary(32)))
            at += found[-1][1]
        full = [pages for _, _, pages, _ in found[:-1]] == [PER_BLOCK] * (len(found) - 1)
        if at != start or not source.at_end() or not found or not full or not found[-1][2]:
            raise self._wrong("a pack of pages has other blocks than its directory says", start)
        return found

    def _read(self, at: int, length: int) -> bytes:
        try:
            data = os.pread(self._file, length, at)
            while len(data) < length:
                more = os.pread(self._file, length - len(data), at + len(data))
                if not more:
                    raise self._wrong("a pack of pages is cut short", at)
                data += more
        except OSError as reason:
            raise self._unreadable(reason) from reason
        return data

    def _wrong(self, what: str, at: int) -> ImageError:
        return ImageError(what, path=str(self._path), offset=at)

    def _unreadable(self, reason: OSError) -> StorageError:
        return StorageError(f"a pack of pages cannot be read: {reason.strerror}", path=str(self._path))
