"""What a program writes: its standard output and error, a file each, written by its worker itself.

So nothing is lost when the agent is killed, and a program that writes much costs the agent nothing. Bytes keep their
offset from the beginning of the program's life for ever. The beginning of a file that has become too long is given back
to the file system as a hole, and ``start`` says where it begins now.

An image says how much the program had written. A program that goes on from one, without a journal, does again what it
did after it; so the file is cut back to there first, and in the end holds each byte once. With a journal nothing is
written twice, and nothing is cut.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from pathlib import Path
from typing import Final, Literal

from ..errors import StorageError, UsageError
from ..lazydata import dataclass

__all__ = ["STREAMS", "Logs", "Piece", "Stream", "stream_of"]

Stream = Literal["stdout", "stderr"]
STREAMS: Final[tuple[Stream, Stream]] = ("stdout", "stderr")
_PUNCH: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_BLOCK: Final = 4096


def stream_of(name: str) -> Stream:
    """The one of that name. Raises `UsageError`."""
    for one in STREAMS:
        if one == name:
            return one
    raise UsageError("a job has no such output", stream=name[:40])


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a log, from ``offset`` on; ``end``: where the log ended then."""

    offset: int
    data: bytes
    end: int


class Logs:
    """Of one job, in a folder of their own. All methods raise `StorageError`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, stream: Stream) -> int:
        """For the worker to append to; the caller's to close."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            return os.open(self._folder / stream, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as reason:
            raise _problem(reason) from reason

    def append(self, stream: Stream, data: bytes) -> None:
        """More of it, that did not come from a worker here."""
        descriptor = self.open(stream)
        try:
            with open(descriptor, "wb", buffering=0, closefd=False) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view):]
        except OSError as reason:
            raise _problem(reason) from reason
        finally:
            os.close(descriptor)

    def size(self, stream: Stream) -> int:
        """Where it ends: bytes since the beginning of the program's life."""
        try:
            return (self._folder / stream).stat().st_size
        except FileNotFoundError:
            return 0
        except OSError as reason:
            raise _problem(reason) from reason

    def cut(self, stream: Stream, size: int) -> bool:
        """Make it end there, with a hole at the end if it was shorter; gives whether it was."""
        descriptor = self.open(stream)
        try:
            was = os.fstat(descriptor).st_size
            if was != size:
                os.ftruncate(descriptor, size)
            return was < size
        except OSError as reason:
            raise _problem(reason) from reason
        finally:
            os.close(descriptor)

    def read(self, stream: Stream, start: int, offset: int, limit: int) -> Piece:
        """At most ``limit`` bytes from ``offset`` on, or from ``start`` if that is behind it."""
        offset = max(offset, start)
        try:
            descriptor = os.open(self._folder / stream, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return Piece(offset, b"", 0)
        except OSError as reason:
            raise _problem(reason) from reason
        try:
            data = os.pread(descriptor, limit, offset) if limit else b""
            return Piece(offset, data, os.fstat(descriptor).st_size)
        except OSError as reason:
            raise _problem(reason) from reason
        finally:
            os.close(descriptor)

    def shorten(self, stream: Stream, start: int, most: int) -> int:
        """Give back the beginning of one that is longer than ``most``, so that half of that is left; gives where it
        begins now. A file system that cannot do that keeps all of it."""
        size = self.size(stream)
        if size - start <= most:
            return start
        begin = (size - most // 2) // _BLOCK * _BLOCK
        return begin if self.give_back(stream, begin) else start

    def give_back(self, stream: Stream, begin: int) -> bool:
        """What lies before a byte, in whole blocks; gives whether the file system can do that."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self._folder / stream, os.O_WRONLY | os.O_CLOEXEC)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
                end = begin // _BLOCK * _BLOCK
                return end == 0 or libc.fallocate(descriptor, _PUNCH, 0, end) == 0
            finally:
                os.close(descriptor)
        return False

    def take_the_place_of(self, other: Logs) -> None:
        """Those streams that there are, of the other one."""
        try:
            for stream in STREAMS:
                if (self._folder / stream).exists():
                    other._folder.mkdir(mode=0o700, exist_ok=True)
                    os.replace(self._folder / stream, other._folder / stream)
        except OSError as reason:
            raise _problem(reason) from reason

    def remove(self) -> None:
        """All of it. Idempotent."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _problem(reason: OSError) -> StorageError:
    return StorageError(f"a log cannot be used: {reason.strerror or reason}")
