"""Bytes in and out: exact reads that know their offset, and a digest of all that passed."""

from __future__ import annotations

import hashlib
import time
from typing import Protocol

from wasmckpt.errors import ImageError
from wasmckpt.faults import slow
from wasmckpt.formats import meter

__all__ = ["BytesSource", "FileSource", "Readable", "Sink", "Source", "Writable"]


class Readable(Protocol):
    """Anything with ``read(n)``: a file, a pipe, a socket's file. Short reads are fine; b"" means the end."""

    def read(self, n: int, /) -> bytes | None: ...


class Writable(Protocol):
    """Anything with ``write(data)`` that takes all of the data."""

    def write(self, data: bytes, /) -> object: ...


class Source(Protocol):
    """Where a decoder takes its bytes from."""

    offset: int
    """Bytes taken so far."""

    def take(self, n: int) -> bytes:
        """Exactly ``n`` bytes; `ImageError` if there are fewer. The caller has bounded ``n``."""
        ...

    def error(self, what: str, limit: str | None = None) -> ImageError:
        """An error at this place."""
        ...


class FileSource:
    """A file read once, from front to back; never reads further than asked."""

    __slots__ = ("_file", "offset", "sha")

    def __init__(self, file: Readable) -> None:
        self._file = file
        self.offset = 0
        self.sha = hashlib.sha256()

    def take(self, n: int) -> bytes:
        data = self._file.read(n) or b""
        while len(data) < n:
            more = self._file.read(n - len(data))
            if not more:
                raise self.error(f"the image is cut short: {n} bytes needed, {len(data)} left")
            data += more
        self.offset += n
        self.sha.update(data)
        return data

    def at_end(self) -> bool:
        """Whether nothing follows."""
        return not self._file.read(1)

    def error(self, what: str, limit: str | None = None) -> ImageError:
        return ImageError(what, offset=self.offset, limit=limit)


class BytesSource:
    """A part of the image that was unpacked in memory. ``start`` is where it stands in the file, for messages."""

    __slots__ = ("_data", "_field", "_start", "offset")

    def __init__(self, data: bytes, field: str, start: int) -> None:
        self._data = data
        self._field = field
        self._start = start
        self.offset = 0

    def take(self, n: int) -> bytes:
        end = self.offset + n
        if end > len(self._data):
            left = len(self._data) - self.offset
            raise self.error(f"a part of the image is cut short: {n} bytes needed, {left} left")
        data = self._data[self.offset:end]
        self.offset = end
        return data

    def at_end(self) -> bool:
        """Whether nothing follows."""
        return self.offset == len(self._data)

    def error(self, what: str, limit: str | None = None) -> ImageError:
        return ImageError(what, offset=self._start, field=self._field, byte=self.offset, limit=limit)


class Sink:
    """Writes and keeps the digest of what was written."""

    __slots__ = ("_file", "_spent", "sha")

    def __init__(self, file: Writable) -> None:
        self._file = file
        self._spent = meter.now()
        self.sha = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.sha.update(data)
        if self._spent is None:
            self._file.write(data)
            return
        since = time.perf_counter()
        slow("image.write")
        self._file.write(data)
        self._spent.handed(since)
