"""Descriptors: what a guest's numbers stand for.

Three kinds. A `Stream` has no position (terminal, pipe, standard input and output even if they are files: the position
belongs to whoever opened them). A `File` has its position HERE, not in the operating system: reads and writes name
their offset, so that a snapshot needs no system call and a copy of the worker cannot move it. A `Directory` is a root
of its own: nothing outside it can be reached through it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol, Self

from ..lazydata import dataclass, field_names
from .abi import DIRECTORY_RIGHTS, FILE_RIGHTS, STREAM_RIGHTS, Errno, Rights, WasiError

__all__ = ["Descriptor", "DescriptorTable", "Directory", "Entry", "File", "Stream", "Tap"]


class Tap(Protocol):
    """Moves the bytes of streams in such a way that it is known how many have gone, whatever kills this process."""

    def sending(self, stream: Stream, data: bytes) -> None:
        """All of ``data`` is about to be sent, perhaps in pieces."""

    def send(self, stream: Stream, fd: int, at: int, length: int) -> int:
        """Send ``length`` bytes of it, from ``at`` on, to a descriptor of the host. Raises OSError."""

    def take(self, stream: Stream, length: int) -> bytes:
        """What can be read, at most ``length`` bytes. Raises OSError."""


@dataclass(slots=True)
class Descriptor:
    """Common to all kinds.

    Attributes:
        os_fd: descriptor of the host.
        filetype: file type code of the interface.
        rights: what it may be used for.
        inheriting: what descriptors opened through it may be used for.
        flags: descriptor flags (append, non-blocking ...).
        root: guest name of the preopen it was opened below; empty for standard streams.
        path: path below that preopen, symlinks resolved; empty for the preopen itself.
        owned: whether closing it closes ``os_fd``.
    """

    os_fd: int
    filetype: int
    rights: int
    inheriting: int = 0
    flags: int = 0
    root: bytes = b""
    path: bytes = b""
    owned: bool = True

    def __copy__(self) -> Self:
        # The copy module's own way takes four times as long, and `Wasi.mark` copies while the source stands still.
        twin = object.__new__(type(self))
        for name in field_names(self):
            setattr(twin, name, getattr(self, name))
        return twin

    def refusal(self, rights: int) -> int:
        """The errno for a use without these rights: ``EBADF`` if this is no descriptor for it at all (a directory
        cannot be written, nor a file that was opened for reading), else ``ENOTCAPABLE``."""
        return int(Errno.BADF if rights & ~self.possible() else Errno.NOTCAPABLE)

    def possible(self) -> int:
        """The rights that make sense for such a descriptor, held or not."""
        raise NotImplementedError


@dataclass(slots=True)
class Stream(Descriptor):
    """Bytes in order, without a position to set.

    Attributes:
        name: ``stdin``, ``stdout``, ``stderr``, or empty for one that the guest opened (a named pipe, a device).
        consumed: bytes read so far.
        produced: bytes written so far.
        may_block: whether a read or write can wait; false for files and for a closed descriptor.
        piece: largest write that cannot block once the descriptor is reported writable; 0 if there is no such bound.
        write_fd: our own, non-blocking opening of the same terminal, made when first written to; -1 before.
        start: the host descriptor's position when it was handed over, in bytes; None if it has none (a pipe).
        access: the rights that make sense for the direction in which it was opened.
        tap: what moves its bytes so that a journal knows how many went, and come; None: the plain calls of the system.
    """

    name: str = ""
    consumed: int = 0
    produced: int = 0
    may_block: bool = True
    piece: int = 0
    write_fd: int = -1
    start: int | None = None
    access: int = STREAM_RIGHTS
    tap: Tap | None = None

    def possible(self) -> int:
        return self.access


@dataclass(slots=True)
class File(Descriptor):
    """A regular file.

    Attributes:
        offset: position of the next read or write, in bytes.
        readable, writable: what ``os_fd`` was opened for.
    """

    offset: int = 0
    readable: bool = True
    writable: bool = False

    def possible(self) -> int:
        refused = (0 if self.readable else Rights.FD_READ) | (0 if self.writable else Rights.FD_WRITE)
        return FILE_RIGHTS & ~refused


@dataclass(slots=True, frozen=True)
class Entry:
    """One name in a directory: its inode and file type as they were when the directory was listed."""

    name: bytes
    inode: int
    filetype: int


@dataclass(slots=True)
class Directory(Descriptor):
    """A directory.

    Attributes:
        preopen: whether it is announced to the guest as a preopened folder.
        listing: names as of the last rewind; a cookie is an index into it, so cookies stay good whatever happens to
            the directory, and over a move. None before the first reading.
    """

    preopen: bool = False
    listing: list[Entry] | None = None

    def possible(self) -> int:
        return DIRECTORY_RIGHTS


class DescriptorTable:
    """Descriptors by number; a new one gets the lowest free number."""

    def __init__(self) -> None:
        self._entries: dict[int, Descriptor] = {}
        self._lowest = 0
        self._holds = 0
        self._closing: list[int] = []
        self.get = self._entries.get
        """The descriptor of a number, or None."""
        self.tap: Tap | None = None
        """Of the streams here, and of those to come."""

    def __iter__(self) -> Iterator[tuple[int, Descriptor]]:
        return iter(sorted(self._entries.items()))

    def __len__(self) -> int:
        return len(self._entries)

    def require(self, number: int, rights: int = 0) -> Descriptor:
        """The descriptor, if it has all of ``rights``. Raises `WasiError` (``EBADF``, ``ENOTCAPABLE``)."""
        descriptor = self._entries.get(number)
        if descriptor is None:
            raise WasiError(Errno.BADF)
        if rights & ~descriptor.rights:
            raise WasiError(descriptor.refusal(rights))
        return descriptor

    def add(self, descriptor: Descriptor) -> int:
        """Its number."""
        number = self._lowest
        while number in self._entries:
            number += 1
        self._entries[number] = descriptor
        self._lowest = number + 1
        if isinstance(descriptor, Stream):
            descriptor.tap = self.tap
        return number

    def root_fd(self, root: bytes) -> int | None:
        """The host's descriptor of a preopened folder, by its name in the guest."""
        for found in self._entries.values():
            if isinstance(found, Directory) and found.preopen and found.root == root:
                return found.os_fd
        return None

    def root_fds(self) -> list[int]:
        """The host's descriptors of all preopened folders."""
        return [found.os_fd for found in self._entries.values() if isinstance(found, Directory) and found.preopen]

    def set_tap(self, tap: Tap) -> None:
        """Have the bytes of all streams moved by ``tap``."""
        self.tap = tap
        for descriptor in self._entries.values():
            if isinstance(descriptor, Stream):
                descriptor.tap = tap

    def place(self, number: int, descriptor: Descriptor) -> None:
        """Put it at a number of one's own choice, which must be free."""
        assert number not in self._entries
        self._entries[number] = descriptor

    def remove(self, number: int) -> None:
        """Close it. Raises `WasiError` (``EBADF``)."""
        descriptor = self._entries.pop(number, None)
        if descriptor is None:
            raise WasiError(Errno.BADF)
        self._lowest = min(self._lowest, number)
        self._close(descriptor)

    def renumber(self, source: int, target: int) -> None:
        """Give ``source`` the number of ``target``, which is closed. Raises `WasiError` (``EBADF``)."""
        if source not in self._entries or target not in self._entries:
            raise WasiError(Errno.BADF)
        if source == target:
            return
        replaced = self._entries[target]
        self._entries[target] = self._entries.pop(source)
        self._lowest = min(self._lowest, source)
        self._close(replaced)

    def hold(self) -> None:
        """From now on, until `release`, host descriptors that the guest closes stay open (see `Wasi.mark`)."""
        self._holds += 1

    def release(self) -> None:
        """Undo one `hold`."""
        self._holds -= 1
        if not self._holds:
            closing, self._closing = self._closing, []
            for fd in closing:
                os.close(fd)

    def close_all(self) -> None:
        """Close every host descriptor that is ours."""
        for number in list(self._entries):
            self.remove(number)

    def _close(self, descriptor: Descriptor) -> None:
        fds = [descriptor.os_fd] if descriptor.owned else []
        if isinstance(descriptor, Stream) and descriptor.write_fd >= 0:
            fds.append(descriptor.write_fd)
        if self._holds:
            self._closing += fds
            return
        for fd in fds:
            os.close(fd)

