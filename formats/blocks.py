"""Blocks: what follows the header. Each is ``[kind, encoding, size, where, payload]``; the digest ends them.

The payloads of consecutive blocks of one kind make one stream, so that whatever its size no part of the file needs
more than `BLOCK_SIZE` bytes at a time. A payload is taken from the file only when it is wanted: a reader that stops
before the pages has not touched them.
"""

from __future__ import annotations

from typing import Final

import zstandard

from wasmckpt.errors import ImageError
from wasmckpt.formats.compression import Compressor
from wasmckpt.formats.limits import BLOCK_SIZE, Budget, Limits
from wasmckpt.formats.node import Node
from wasmckpt.formats.packed import pack, read_array_length, read_binary_length, unpack
from wasmckpt.formats.stream import FileSource, Sink
from wasmckpt.lazydata import dataclass

__all__ = ["MAX_RUNS", "ORDER", "Block", "BlockReader", "BlockWriter"]

ORDER: Final = ("host", "points", "frames", "tables", "module", "zero", "pages")
"""Kinds of blocks in the order in which they come. Others are skipped."""

MAX_RUNS: Final = 256
"""Runs of pages that one block names at most."""

_STORED: Final = 0
_ZSTD: Final = 1
_DIGEST_TAG: Final = 0xC4
_DIGEST_SIZE: Final = 32
_ITEMS: Final = 5


class BlockWriter:
    """Writes blocks, packed where that saves bytes (unless ``packed`` is False)."""

    def __init__(self, sink: Sink, *, packed: bool = True) -> None:
        self._sink = sink
        self._compressor = Compressor() if packed else None
        self._waiting: list[tuple[str, list[int], bytes]] = []

    def block(self, kind: str, where: list[int], raw: bytes) -> None:
        """Write one block of at most `BLOCK_SIZE` bytes; several are compressed at a time."""
        self._waiting.append((kind, where, raw))
        if self._compressor is None or len(self._waiting) >= self._compressor.at_a_time:
            self._flush()

    def _flush(self) -> None:
        raws = [raw for _, _, raw in self._waiting]
        frames = raws if self._compressor is None else self._compressor.all(raws)
        for (kind, where, raw), packed in zip(self._waiting, frames, strict=True):
            saves = len(packed) < len(raw)
            self._sink.write(pack([kind, _ZSTD if saves else _STORED, len(raw), where, packed if saves else raw]))
        self._waiting.clear()

    def stream(self, kind: str, raw: bytes) -> None:
        """Write a stream of any length, nothing for an empty one."""
        view = memoryview(raw)
        for at in range(0, len(raw), BLOCK_SIZE):
            self.block(kind, [], bytes(view[at:at + BLOCK_SIZE]))

    def finish(self) -> None:
        """Write the digest of all that was written before."""
        self._flush()
        self._sink.write(bytes([_DIGEST_TAG, _DIGEST_SIZE]) + self._sink.sha.digest())


@dataclass(frozen=True, slots=True)
class Block:
    """The head of a block; the payload is still in the file."""

    kind: str
    encoding: int
    size: int
    where: tuple[int, ...]
    packed: int
    offset: int


class BlockReader:
    """Reads blocks in order, skips unknown kinds, and checks the digest at the end."""

    def __init__(self, source: FileSource, limits: Limits) -> None:
        self._source = source
        self._limits = limits
        self._zstd = zstandard.ZstdDecompressor(max_window_size=BLOCK_SIZE)
        self._next: Block | None = None
        self._ended = False
        self._rank = 0

    def peek(self) -> Block | None:
        """The next block of a known kind, or ``None`` at the end, whose digest was right then."""
        while self._next is None and not self._ended:
            block = self._head()
            if block is None:
                self._ended = True
            elif block.kind in ORDER:
                rank = ORDER.index(block.kind)
                if rank < self._rank:
                    raise ImageError(f"a block {block.kind!r} comes too late", offset=block.offset)
                self._rank = rank
                self._next = block
            else:
                self._source.take(block.packed)
        return self._next

    def take(self) -> bytes:
        """The unpacked payload of the block that `peek` showed."""
        block, self._next = self._next, None
        assert block is not None
        payload = self._source.take(block.packed)
        if block.encoding == _STORED:
            if block.packed != block.size:
                raise ImageError(f"a stored block of {block.packed} bytes says {block.size}", offset=block.offset)
            return payload
        if block.encoding != _ZSTD:
            raise ImageError(f"encoding {block.encoding} of a block is unknown", offset=block.offset)
        try:
            # the library allocates what the frame says, so that is compared before it may
            if block.size == 0 or zstandard.frame_content_size(payload) != block.size:
                raise ImageError("a block and its zstd frame differ about its size", offset=block.offset)
            raw: bytes = self._zstd.decompress(payload, max_output_size=block.size, allow_extra_data=False)
        except zstandard.ZstdError as reason:
            raise ImageError(f"a block does not unpack: {reason}", offset=block.offset) from None
        if len(raw) != block.size:
            raise ImageError("a block unpacks to another size than it says", offset=block.offset)
        return raw

    def stream(self, kind: str, most: int) -> tuple[bytes, int]:
        """All bytes of one kind, at most ``most``, and the offset in the file where they begin."""
        block = self.peek()
        start = self._source.offset if block is None else block.offset
        parts: list[bytes] = []
        total = 0
        while block is not None and block.kind == kind:
            total += block.size
            if total > most:
                raise ImageError(f"the blocks {kind!r} hold more than the {most} bytes that are due or allowed",
                                 offset=block.offset)
            parts.append(self.take())
            block = self.peek()
        return b"".join(parts), start

    def _head(self) -> Block | None:
        source = self._source
        offset = source.offset
        digest = source.sha.copy()
        tag = source.take(1)[0]
        if tag == _DIGEST_TAG:
            self._check_digest(digest.digest())
            return None
        if read_array_length(source, tag) != _ITEMS:
            raise ImageError(f"a block is not an array of {_ITEMS}", offset=offset)
        budget = Budget(self._limits, text=64, nodes=2 * MAX_RUNS + 5)
        kind = Node(unpack(source, budget), "kind", offset).text()
        encoding = Node(unpack(source, budget), "encoding", offset).uint()
        size = Node(unpack(source, budget), "size", offset).uint(BLOCK_SIZE)
        where = Node(unpack(source, budget), "where", offset).uints()
        packed = read_binary_length(source)
        if packed > BLOCK_SIZE:
            raise ImageError(f"a block of {packed} bytes is longer than blocks may be", offset=offset)
        return Block(kind, encoding, size, where, packed, offset)

    def _check_digest(self, digest: bytes) -> None:
        source = self._source
        if source.take(1)[0] != _DIGEST_SIZE:
            raise source.error("the digest at the end has another length than 32")
        if source.take(_DIGEST_SIZE) != digest:
            raise source.error("the image is damaged: its digest is not that of its bytes")
        if not source.at_end():
            raise source.error("bytes follow the end of the image")
