"""How blocks of an image are compressed: zstd's level and threads, for the whole process and the workers it starts.

=========================  =========  ==================================================================================
environment variable       default    meaning
=========================  =========  ==================================================================================
WASMCKPT_ZSTD_LEVEL        3          1 (fast) to 22 (small)
WASMCKPT_ZSTD_THREADS      1          blocks that are compressed at a time; the bytes are the same with any number
=========================  =========  ==================================================================================

A level is no part of the format: a reader needs to know neither. Two images of one state are the same bytes if they
were made at the same level.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import zstandard

from wasmckpt.errors import UsageError
from wasmckpt.lazydata import dataclass

__all__ = ["LEVELS", "MOST_THREADS", "Compression", "Compressor", "current"]

LEVELS: Final = range(1, 23)
MOST_THREADS: Final = 64
_BLOCKS_A_THREAD: Final = 4
"""Blocks that wait for each thread: with fewer the threads wait for one another, more are only memory."""


@dataclass(frozen=True, slots=True)
class Compression:
    """As in this module's table."""

    level: int = 3
    threads: int = 1


def current() -> Compression:
    """What counts now. Raises `UsageError`: a variable holds what it cannot."""
    return Compression(_number("WASMCKPT_ZSTD_LEVEL", LEVELS, 3),
                       _number("WASMCKPT_ZSTD_THREADS", range(1, MOST_THREADS + 1), 1))


def _number(variable: str, allowed: range, default: int) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) not in allowed:
        raise UsageError(f"{variable} is {text!r}", hint=f"{allowed.start} to {allowed.stop - 1}")
    return int(text)


class Compressor:
    """Compresses blocks one by one or several at a time, each to a zstd frame that tells its size.

    Raises:
        UsageError: as `current`.
    """

    def __init__(self, compression: Compression | None = None) -> None:
        self._how = current() if compression is None else compression
        self._zstd = zstandard.ZstdCompressor(level=self._how.level, write_checksum=False, write_content_size=True)
        self.at_a_time = 1 if self._how.threads == 1 else self._how.threads * _BLOCKS_A_THREAD
        """Blocks to collect for `all`."""

    def one(self, raw: bytes) -> bytes:
        """A block's frame."""
        return self._zstd.compress(raw)

    def all(self, blocks: Sequence[bytes]) -> list[bytes]:
        """Their frames, the same as of `one`."""
        if self._how.threads == 1 or len(blocks) < 2 or not all(blocks):  # the library refuses empty ones here
            return [self.one(raw) for raw in blocks]
        frames = self._zstd.multi_compress_to_buffer(list(blocks), threads=self._how.threads)
        return [frames[i].tobytes() for i in range(len(frames))]
