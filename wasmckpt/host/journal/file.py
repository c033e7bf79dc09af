"""A journal as a file: frames that are appended, a cell that the kernel keeps, a place for input.

::

    0       "WCKPTJNL", u32 version, u32 length and u32 CRC-32 of the header, the header (a msgpack map)
    4032    two cells: u64, mapped into the memory of whoever writes the journal
    4096    the inbox: up to 64 KiB of input, as the kernel moved it here
    69632   frames, one after the other, to the end:
            "WJFR", u32 length of the payload, u32 CRC-32 of what follows, u64 calls before this frame, payload

All numbers are little-endian. A payload is a sequence of msgpack arrays (`items` says which), the first one about
the moment in which the frame was written. A frame is written with one call, so a kill leaves it whole, or cut at the
end of the file: what stands there and is no frame was never committed and is cut off. A frame that is no frame with
good ones behind it is damage, and refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import time
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from wasmckpt.errors import ImageError, RetryLater, StorageError
from wasmckpt.faults import hot_point, point

from ...lazydata import dataclass, replace

__all__ = ["INBOX", "INBOX_SIZE", "MAGIC", "Frame", "Header", "JournalFile", "Moment", "read_journal"]

MAGIC: Final = b"WCKPTJNL"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sIII")
_CELL: Final = 4032
INBOX: Final = 4096
"""Offset of the inbox."""
INBOX_SIZE: Final = 1 << 16
_FRAMES: Final = INBOX + INBOX_SIZE
_FRAME: Final = struct.Struct("<4sIIQ")
_FRAME_MAGIC: Final = b"WJFR"
_LONGEST: Final = 1 << 30
_LOCKED_FOR: Final = 5.0
"""Seconds that a process which was just killed gets to be gone."""

Moment = list[Any]
"""What a frame says of the moment in which it was written: see `items`."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a journal follows.

    Attributes:
        module: SHA-256 of the original module. image: SHA-256 of the image's file that it was begun at; None: the
            image was not known by its file (that of the program's beginning).
        line: 16 random bytes that name the life in which it was begun. base: calls before its first one.
    """

    module: bytes
    image: bytes | None
    line: bytes
    base: int

    def to_plain(self) -> dict[str, object]:
        """Plain data for msgpack."""
        return {"module": self.module, "image": self.image, "line": self.line, "base": self.base}


@dataclass(frozen=True, slots=True)
class Frame:
    """What was written at once: from ``at`` to ``end`` in the file, ``before`` calls, the moment, and the items."""

    at: int
    end: int
    before: int
    moment: Moment
    items: list[Any]


class JournalFile:
    """The file of one journal, locked for the one process that writes it. Made by `create` and `open`.

    Attributes:
        header: what it follows. calls: calls that stand in it, its base included.
    """

    def __init__(self, path: str, fd: int, header: Header, end: int, calls: int) -> None:
        self.path, self._fd, self.header, self._end, self.calls = path, fd, header, end, calls
        pages = mmap.mmap(fd, INBOX)
        self.cells = [ctypes.c_uint64.from_buffer(pages, _CELL + 8 * n) for n in range(2)]
        """Positions in this file that the kernel moves on, see the package's text. They keep the mapping alive."""
        self._frames = array("Q")
        self._before = array("Q")
        """Offset of each frame, and calls before it."""
        self._synced = True

    @property
    def fd(self) -> int:
        """Its descriptor."""
        return self._fd

    @property
    def end(self) -> int:
        """Where the next frame will begin."""
        return self._end

    # Making one

    @classmethod
    def create(cls, path: str, header: Header) -> JournalFile:
        """A new one, in the place of what may be there. Raises `StorageError`."""
        with _reported(path):
            return cls._put(path, header, b"")

    @classmethod
    def _put(cls, path: str, header: Header, frames: bytes, *, cutting: bool = False) -> JournalFile:
        folder = os.path.dirname(path) or "."
        temporary = os.path.join(folder, f".wckpt-{os.urandom(8).hex()}.part")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            plain = msgpack.packb(header.to_plain())
            _write(fd, _HEAD.pack(MAGIC, _VERSION, len(plain), zlib.crc32(plain)) + plain, 0)
            _write(fd, frames, _FRAMES)
            os.ftruncate(fd, _FRAMES + len(frames))
            made = cls(path, fd, header, _FRAMES + len(frames), header.base)
            os.fsync(fd)
            point("journal.written")
            os.replace(temporary, path)
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        try:
            point("journal.renamed")
            _sync_folder(folder)
        except OSError:
            # It is in its place; after a power cut the old one may be there again, which does as well.
            if not cutting:
                made.close()
                with contextlib.suppress(OSError):
                    os.unlink(path)
                raise
        return made

    @classmethod
    def open(cls, path: str) -> tuple[JournalFile, list[Frame]]:
        """An existing one, and its frames; what was not committed is cut off.

        Raises:
            StorageError: it cannot be read or written. ImageError: it is damaged, of a newer version, or none.
            RetryLater: another process writes it.
        """
        with _reported(path):
            fd = _locked(path)
            try:
                header, frames, end = _read(fd, path)
                os.ftruncate(fd, end)
                made = cls(path, fd, header, end, header.base)
            except BaseException:
                os.close(fd)
                raise
        for frame in frames:
            made._frames.append(frame.at)
            made._before.append(frame.before)
            made.calls = frame.before + _calls_in(frame.items)
        return made, frames

    # Writing

    def append(self, calls: int, moment: Moment, items: list[bytes], added: int) -> int:
        """Write a frame; gives the offset behind it. Raises `StorageError`: then nothing of it counts.

        Args:
            calls: before the frame. moment: see `Moment`. items: packed. added: calls that are among them.
        """
        payload = b"".join([_PACK(moment), *items])
        number = calls.to_bytes(8, "little")
        frame = b"".join([_FRAME_MAGIC, len(payload).to_bytes(4, "little"),
                          zlib.crc32(payload, zlib.crc32(number)).to_bytes(4, "little"), number, payload])
        at = self._end
        try:
            hot_point("journal.appending")
            _write(self._fd, frame, at)
        except OSError as reason:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, at)
            raise _unwritable(self.path, reason) from reason
        self._frames.append(at)
        self._before.append(calls)
        self._end = at + len(frame)
        self.calls = calls + added
        self._synced = False
        return self._end

    def frame_end(self, moment: Moment, items: list[bytes]) -> int:
        """Where the next frame would end."""
        return self._end + _FRAME.size + len(_PACK(moment)) + sum(map(len, items))

    def sync(self) -> None:
        """Make all that was written survive a power cut. Raises `StorageError`."""
        if not self._synced:
            self._synced = True
            try:
                os.fdatasync(self._fd)
            except OSError as reason:
                raise _unwritable(self.path, reason) from reason

    def inbox(self, length: int) -> bytes:
        """What the kernel put there."""
        return os.pread(self._fd, length, INBOX)

    def cut(self, calls: int, image: bytes | None, line: bytes) -> JournalFile:
        """One that begins behind so many calls, at an image, in the place of this one, which is closed.

        Raises `StorageError`: then this one is as it was.
        """
        header = replace(self.header, image=image, line=line, base=calls)
        with _reported(self.path):
            tail = self._after(calls)
            new = JournalFile._put(self.path, header, b"".join(frame for _, frame in tail), cutting=True)
        at = _FRAMES
        for before, frame in tail:
            new._frames.append(at)
            new._before.append(before)
            at += len(frame)
        new.calls = max(self.calls, calls)
        self.close()
        point("journal.cut")
        return new

    def _after(self, calls: int) -> list[tuple[int, bytes]]:
        """What comes after so many calls, as frames, and the calls before each."""
        found = []
        start = max(0, bisect_left(self._before, calls) - 1)  # its end may belong to the first call behind
        for at in self._frames[start:]:
            _, length, _, before = _FRAME.unpack(os.pread(self._fd, _FRAME.size, at))
            moment, *items = _unpacked(os.pread(self._fd, length, at + _FRAME.size))
            kept = []
            number = before
            for item in items:
                if number >= calls:
                    kept.append(item)
                number += _is_call(item)
            if kept:
                first = max(before, calls)
                found.append((first, _frame(first, moment, kept)))
        return found

    def close(self) -> None:
        """Give it, and the lock, back. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            fcntl.flock(fd, fcntl.LOCK_UN)  # the mapping has a duplicate of the descriptor
            os.close(fd)


_PACK: Final = msgpack.Packer(autoreset=True).pack


def _is_call(item: Any) -> bool:
    return bool(item[0] >= 0)


def _calls_in(items: list[Any]) -> int:
    return sum(map(_is_call, items))


def _frame(calls: int, moment: Moment, items: list[Any]) -> bytes:
    payload = b"".join([_PACK(moment), *map(_PACK, items)])
    number = calls.to_bytes(8, "little")
    return _FRAME.pack(_FRAME_MAGIC, len(payload), zlib.crc32(payload, zlib.crc32(number)), calls) + payload


def _write(fd: int, data: bytes, at: int) -> None:
    done = os.pwrite(fd, data, at)
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], at + done)


def _locked(path: str) -> int:
    """The file, locked; whoever was killed a moment ago may still hold it."""
    until = time.monotonic() + _LOCKED_FOR
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            here, there = os.fstat(fd), os.stat(path)
            if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
                return fd  # else it was cut meanwhile
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise RetryLater("another process writes this journal: the program runs", path=path,
                                 hint="end that one first, or go on with --no-journal") from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        time.sleep(0.005)


def read_journal(path: str) -> tuple[Header, list[Frame], int]:
    """Look at a journal, which may be in use: its header, its frames, the bytes that count.

    Raises `StorageError`, `ImageError`.
    """
    with _reported(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read(fd, path)
        finally:
            os.close(fd)


def _read(fd: int, path: str) -> tuple[Header, list[Frame], int]:
    """The header, the frames, and where the last one ends."""
    size = os.fstat(fd).st_size
    head = os.pread(fd, INBOX, 0)
    if len(head) < _HEAD.size or head[:8] != MAGIC:
        raise ImageError("this is not a journal", path=path)
    _, version, length, check = _HEAD.unpack_from(head)
    if version > _VERSION:
        raise ImageError(f"the journal is of version {version}, newer than {_VERSION}", path=path,
                         hint="use a newer wasmckpt")
    plain = head[_HEAD.size : _HEAD.size + length]
    if zlib.crc32(plain) != check or size < _FRAMES:
        raise _damaged(path, 0)
    header = _header(plain, path)
    frames: list[Frame] = []
    at, calls = _FRAMES, header.base
    while at < size:
        found = _frame_at(fd, at, size)
        if found is None:
            if _more_behind(fd, at + 1, size):
                raise _damaged(path, at)
            break
        length, before, payload = found
        if before < calls:
            raise _damaged(path, at)
        try:
            moment, *items = _unpacked(payload)
            _check_items(items)
            if not isinstance(moment, list):
                raise TypeError
        except (ValueError, TypeError, IndexError, msgpack.UnpackException):
            raise _damaged(path, at) from None
        frames.append(Frame(at, at + _FRAME.size + length, before, moment, items))
        calls = before + _calls_in(items)
        at += _FRAME.size + length
    return header, frames, at


def _header(plain: bytes, path: str) -> Header:
    try:
        match msgpack.unpackb(plain):
            case {"module": bytes(module), "image": None | bytes() as image, "line": bytes(line), "base": int(base)}:
                return Header(module, image, line, base)
    except (ValueError, msgpack.UnpackException):
        pass
    raise _damaged(path, 0)


def _frame_at(fd: int, at: int, size: int) -> tuple[int, int, bytes] | None:
    """Length of the payload, calls before it, payload; None if there is no whole frame."""
    head = os.pread(fd, _FRAME.size, at)
    if len(head) < _FRAME.size:
        return None
    magic, length, check, before = _FRAME.unpack(head)
    if magic != _FRAME_MAGIC or length > min(_LONGEST, size - at - _FRAME.size):
        return None
    payload = os.pread(fd, length, at + _FRAME.size)
    if len(payload) != length or zlib.crc32(payload, zlib.crc32(head[12:])) != check:
        return None
    return length, before, payload


def _more_behind(fd: int, at: int, size: int) -> bool:
    """Whether a good frame begins anywhere from here on."""
    step = 1 << 20
    while at < size:
        piece = os.pread(fd, step + len(_FRAME_MAGIC) - 1, at)
        found = piece.find(_FRAME_MAGIC)
        while found >= 0:
            if _frame_at(fd, at + found, size) is not None:
                return True
            found = piece.find(_FRAME_MAGIC, found + 1)
        at += step
    return False


def _check_items(items: list[Any]) -> None:
    """Raises TypeError: one is none that `items` knows."""
    for item in items:
        match item:
            case [int(number), int(), None | int() | list(), list(writes), *more] if number >= 0 and (
                all(map(_is_write, writes)) and (not more or isinstance(more[0], dict))
            ):
                pass
            case [-1, int(), int(), "out", int(cell), int(), [int(), int(), int()], None | [int(), int(), int()],
                  bytes()] if -1 <= cell <= 1:
                pass
            case [-1, int(), int(), "in", 0 | 1, int(), list(), [int(), int(), int()]]:
                pass
            case [-1, int(), int(), "do", _] | [-1, int(), int(), "user"] | [-3] | [-4, bytes()]:
                pass
            case [-2, str(), list(), list(writes)] if all(map(_is_write, writes)):
                pass
            case _:
                raise TypeError


def _is_write(item: Any) -> bool:
    match item:
        case [int(), bytes()]:
            return True
    return False


def _unpacked(payload: bytes) -> Iterator[Any]:
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    unpacker.feed(payload)
    yield from unpacker
    if unpacker.tell() != len(payload):
        raise ValueError


def _damaged(path: str, at: int) -> ImageError:
    return ImageError("the journal is damaged", path=path, offset=at,
                      hint="the image alone can be gone on from: with --no-journal, what came after it is repeated")


def _unwritable(path: str, reason: OSError) -> StorageError:
    return StorageError(
        f"the journal cannot be written: {reason.strerror or reason}", path=path,
        hint="the program was stopped before it did anything that is not in the journal; free space and restore it",
    )


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _reported(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as reason:
        raise StorageError(f"the journal cannot be used: {reason.strerror or reason}", path=path) from reason
