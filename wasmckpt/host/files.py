"""Calls on descriptors: ``fd_*``."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable

from .abi import (
    DIRENT,
    FDFLAG_APPEND,
    FDFLAG_NONBLOCK,
    FDSTAT,
    FILETYPE_DIRECTORY,
    FILETYPE_REGULAR_FILE,
    FILETYPE_SYMBOLIC_LINK,
    FILETYPE_UNKNOWN,
    FSTFLAG_ATIM,
    FSTFLAG_ATIM_NOW,
    FSTFLAG_MTIM,
    FSTFLAG_MTIM_NOW,
    IOVEC,
    U32,
    U64,
    Errno,
    Rights,
    WasiError,
    filestat_bytes,
    filetype_of,
)
from .calls import signature
from .descriptors import DescriptorTable, Directory, Entry, File, Stream
from .memory import GuestMemory, MemoryFault, check_range, read_iovecs
from .streams import read_stream, write_stream
from .waiting import Waiter

__all__ = ["FileCalls", "list_directory", "new_times"]

_FD_READ = Rights.FD_READ
_FD_WRITE = Rights.FD_WRITE
_FD_SEEK = Rights.FD_SEEK
_FD_TELL = Rights.FD_TELL
_BADF = int(Errno.BADF)
_NOTCAPABLE = int(Errno.NOTCAPABLE)
_PIECE = 1 << 20
_MOST_AT_ONCE = 64 << 20
_LARGEST_OFFSET = (1 << 63) - 1
_SEEK_SET, _SEEK_CUR, _SEEK_END = 0, 1, 2
_ADVICE = ("POSIX_FADV_NORMAL", "POSIX_FADV_SEQUENTIAL", "POSIX_FADV_RANDOM", "POSIX_FADV_WILLNEED",
           "POSIX_FADV_DONTNEED", "POSIX_FADV_NOREUSE")


class FileCalls:
    """Calls on descriptors."""

    def __init__(self, table: DescriptorTable, waiter: Waiter) -> None:
        self._table = table
        self._get = table.get
        self._waiter = waiter

    # Reading and writing

    @signature("iiii")
    def fd_write(self, memory: GuestMemory, fd: int, iovecs: int, count: int, result: int) -> int:
        descriptor = self._get(fd)
        if descriptor is None:
            return _BADF
        if not descriptor.rights & _FD_WRITE:
            return descriptor.refusal(_FD_WRITE)
        data = gather(memory, iovecs, count)
        check_range(memory, result, 4)
        if isinstance(descriptor, Stream):
            done = write_stream(descriptor, data, self._waiter) if data else 0
        elif isinstance(descriptor, File):
            done = _write_file(descriptor, data)
        else:
            return _BADF
        memory.write(result, done.to_bytes(4, "little"))
        return 0

    @signature("iiii")
    def fd_read(self, memory: GuestMemory, fd: int, iovecs: int, count: int, result: int) -> int:
        descriptor = self._get(fd)
        if descriptor is None:
            return _BADF
        if not descriptor.rights & _FD_READ:
            return descriptor.refusal(_FD_READ)
        buffers = read_iovecs(memory, iovecs, count)
        check_range(memory, result, 4)
        if isinstance(descriptor, Stream):
            total = sum(length for _, length in buffers)
            data = read_stream(descriptor, total, self._waiter) if total else b""
            done = _scatter(memory, buffers, data)
        elif isinstance(descriptor, File):
            done = _read_file(memory, descriptor, buffers, descriptor.offset)
            descriptor.offset += done
        else:
            return _BADF
        memory.write(result, done.to_bytes(4, "little"))
        return 0

    @signature("iiiIi")
    def fd_pread(self, memory: GuestMemory, fd: int, iovecs: int, count: int, offset: int, result: int) -> int:
        file = self._seekable(fd, _FD_READ | _FD_SEEK)
        _check_offset(offset)
        buffers = read_iovecs(memory, iovecs, count)
        check_range(memory, result, 4)
        memory.write(result, U32.pack(_read_file(memory, file, buffers, offset)))
        return 0

    @signature("iiiIi")
    def fd_pwrite(self, memory: GuestMemory, fd: int, iovecs: int, count: int, offset: int, result: int) -> int:
        file = self._seekable(fd, _FD_WRITE | _FD_SEEK)
        _check_offset(offset)
        data = gather(memory, iovecs, count)
        check_range(memory, result, 4)
        memory.write(result, U32.pack(_write_at(file, data, offset)))
        return 0

    @signature("iIii")
    def fd_seek(self, memory: GuestMemory, fd: int, delta: int, whence: int, result: int) -> int:
        if delta >> 63:
            delta -= 1 << 64
        # Asking for the position is no seek: FD_TELL is enough for it.
        needed = _FD_TELL if whence == _SEEK_CUR and delta == 0 else _FD_SEEK
        file = self._seekable(fd, needed)
        check_range(memory, result, 8)
        if whence == _SEEK_SET:
            position = delta
        elif whence == _SEEK_CUR:
            position = file.offset + delta
        elif whence == _SEEK_END:
            position = os.fstat(file.os_fd).st_size + delta
        else:
            return int(Errno.INVAL)
        if not 0 <= position <= _LARGEST_OFFSET:
            return int(Errno.INVAL)
        file.offset = position
        memory.write(result, U64.pack(position))
        return 0

    @signature("ii")
    def fd_tell(self, memory: GuestMemory, fd: int, result: int) -> int:
        memory.write(result, U64.pack(self._seekable(fd, _FD_TELL).offset))
        return 0

    # Descriptors themselves

    @signature("i")
    def fd_close(self, _memory: GuestMemory, fd: int) -> int:
        self._table.remove(fd)
        return 0

    @signature("ii")
    def fd_renumber(self, _memory: GuestMemory, source: int, target: int) -> int:
        self._table.renumber(source, target)
        return 0

    @signature("ii")
    def fd_fdstat_get(self, memory: GuestMemory, fd: int, result: int) -> int:
        found = self._table.require(fd)
        memory.write(result, FDSTAT.pack(found.filetype, found.flags, found.rights, found.inheriting))
        return 0

    @signature("ii")
    def fd_fdstat_set_flags(self, _memory: GuestMemory, fd: int, flags: int) -> int:
        found = self._table.require(fd, Rights.FD_FDSTAT_SET_FLAGS)
        changed = found.flags ^ flags
        if changed & ~(FDFLAG_APPEND | FDFLAG_NONBLOCK):
            # The system cannot change how an open file is synchronised.
            return int(Errno.INVAL)
        if changed & FDFLAG_APPEND and isinstance(found, File):
            old = fcntl.fcntl(found.os_fd, fcntl.F_GETFL)
            fcntl.fcntl(found.os_fd, fcntl.F_SETFL, old ^ os.O_APPEND)
        found.flags = flags
        return 0

    @signature("iII")
    def fd_fdstat_set_rights(self, _memory: GuestMemory, fd: int, rights: int, inheriting: int) -> int:
        found = self._table.require(fd)
        if rights & ~found.rights or inheriting & ~found.inheriting:
            return _NOTCAPABLE
        found.rights, found.inheriting = rights, inheriting
        return 0

    # The files behind them

    @signature("iIIi")
    def fd_advise(self, _memory: GuestMemory, fd: int, offset: int, length: int, advice: int) -> int:
        file = self._seekable(fd, Rights.FD_ADVISE)
        if advice >= len(_ADVICE):
            return int(Errno.INVAL)
        _check_offset(offset)
        _check_offset(length)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.os_fd, offset, length, getattr(os, _ADVICE[advice]))
        return 0

    @signature("iII")
    def fd_allocate(self, _memory: GuestMemory, fd: int, offset: int, length: int) -> int:
        file = self._seekable(fd, Rights.FD_ALLOCATE)
        _check_offset(offset)
        _check_offset(length)
        if not hasattr(os, "posix_fallocate"):
            return int(Errno.NOTSUP)
        os.posix_fallocate(file.os_fd, offset, length)
        return 0

    @signature("i")
    def fd_datasync(self, _memory: GuestMemory, fd: int) -> int:
        found = self._table.require(fd, Rights.FD_DATASYNC)
        getattr(os, "fdatasync", os.fsync)(found.os_fd)
        return 0

    @signature("i")
    def fd_sync(self, _memory: GuestMemory, fd: int) -> int:
        os.fsync(self._table.require(fd, Rights.FD_SYNC).os_fd)
        return 0

    @signature("ii")
    def fd_filestat_get(self, memory: GuestMemory, fd: int, result: int) -> int:
        found = self._table.require(fd, Rights.FD_FILESTAT_GET)
        memory.write(result, filestat_bytes(os.fstat(found.os_fd)))
        return 0

    @signature("iI")
    def fd_filestat_set_size(self, _memory: GuestMemory, fd: int, size: int) -> int:
        file = self._seekable(fd, Rights.FD_FILESTAT_SET_SIZE)
        _check_offset(size)
        os.ftruncate(file.os_fd, size)
        return 0

    @signature("iIIi")
    def fd_filestat_set_times(self, _memory: GuestMemory, fd: int, access: int, modified: int, flags: int) -> int:
        found = self._table.require(fd, Rights.FD_FILESTAT_SET_TIMES)
        os.utime(found.os_fd, ns=new_times(os.fstat(found.os_fd), access, modified, flags))
        return 0

    # Directories

    @signature("ii")
    def fd_prestat_get(self, memory: GuestMemory, fd: int, result: int) -> int:
        memory.write(result, U64.pack(len(self._preopen(fd).root) << 32))
        return 0

    @signature("iii")
    def fd_prestat_dir_name(self, memory: GuestMemory, fd: int, buffer: int, length: int) -> int:
        name = self._preopen(fd).root
        if length < len(name):
            return int(Errno.NAMETOOLONG)
        memory.write(buffer, name)
        return 0

    @signature("iiiIi")
    def fd_readdir(self, memory: GuestMemory, fd: int, buffer: int, length: int, cookie: int, result: int) -> int:
        found = self._table.require(fd)
        if not isinstance(found, Directory):
            return int(Errno.NOTDIR)
        self._table.require(fd, Rights.FD_READDIR)
        check_range(memory, buffer, length)
        check_range(memory, result, 4)
        if cookie == 0 or found.listing is None:
            found.listing = list_directory(found.os_fd)
        used = 0
        pieces = []
        for number in range(cookie, len(found.listing)):
            if used >= length:
                break
            entry = found.listing[number]
            try:
                entry.name.decode()
            except UnicodeDecodeError:
                if used:
                    break
                return int(Errno.ILSEQ)
            piece = DIRENT.pack(number + 1, entry.inode, len(entry.name), entry.filetype) + entry.name
            pieces.append(piece)
            used += len(piece)
        memory.write(buffer, b"".join(pieces)[:length])
        memory.write(result, U32.pack(min(used, length)))
        return 0

    def _seekable(self, fd: int, rights: int) -> File:
        found = self._table.require(fd)
        if isinstance(found, Stream):
            raise WasiError(Errno.SPIPE)
        held = found.rights | (_FD_TELL if found.rights & _FD_SEEK else 0)  # the right to seek implies that to tell
        if rights & ~held:
            raise WasiError(found.refusal(rights))
        if not isinstance(found, File):
            raise WasiError(Errno.BADF)
        return found

    def _preopen(self, fd: int) -> Directory:
        found = self._get(fd)
        if not isinstance(found, Directory) or not found.preopen:
            raise WasiError(Errno.BADF)
        return found


def list_directory(fd: int) -> list[Entry]:
    """Names in a directory, ordered, ``.`` and ``..`` first.

    Both carry the directory's own inode: the one above may lie outside of what the guest may know.
    """
    own = os.fstat(fd).st_ino
    entries = [Entry(name, own, FILETYPE_DIRECTORY) for name in (b".", b"..")]
    found = []
    with os.scandir(fd) as scan:
        for entry in scan:
            found.append(Entry(os.fsencode(entry.name), entry.inode(), _entry_type(entry)))
    found.sort(key=lambda entry: entry.name)
    return entries + found


def _entry_type(entry: os.DirEntry[str]) -> int:
    # The first three cost no system call where the directory itself tells the kind.
    if entry.is_symlink():
        return FILETYPE_SYMBOLIC_LINK
    if entry.is_dir(follow_symlinks=False):
        return FILETYPE_DIRECTORY
    if entry.is_file(follow_symlinks=False):
        return FILETYPE_REGULAR_FILE
    try:
        return filetype_of(entry.stat(follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return FILETYPE_UNKNOWN


def new_times(info: os.stat_result, access: int, modified: int, flags: int) -> tuple[int, int]:
    """Times to set, in nanoseconds. Raises `WasiError` (``EINVAL``) if a time is to be both given and now."""
    times = []
    for given, now, value, old in (
        (FSTFLAG_ATIM, FSTFLAG_ATIM_NOW, access, info.st_atime_ns),
        (FSTFLAG_MTIM, FSTFLAG_MTIM_NOW, modified, info.st_mtime_ns),
    ):
        if flags & given and flags & now:
            raise WasiError(Errno.INVAL)
        times.append(value if flags & given else time.time_ns() if flags & now else old)
    return times[0], times[1]


def _check_offset(offset: int) -> None:
    if offset > _LARGEST_OFFSET:
        raise WasiError(Errno.INVAL)


def gather(memory: GuestMemory, iovecs: int, count: int) -> bytes:
    """Contents of the buffers, at most `_MOST_AT_ONCE` bytes: overlapping buffers can name far more than there is."""
    if count == 1:
        address, length = IOVEC.unpack(memory.read(iovecs, 8))
        if length > _MOST_AT_ONCE:
            if address + length > memory.size:
                raise MemoryFault
            length = _MOST_AT_ONCE
        return memory.read(address, length)
    pieces = []
    room = _MOST_AT_ONCE
    for address, length in read_iovecs(memory, iovecs, count):
        pieces.append(memory.read(address, min(length, room)))
        room -= len(pieces[-1])
        if not room:
            break
    return b"".join(pieces)


def _scatter(memory: GuestMemory, buffers: list[tuple[int, int]], data: bytes) -> int:
    start = 0
    for address, length in buffers:
        if start >= len(data):
            break
        memory.write(address, data[start : start + length])
        start += length
    return len(data)


def _read_file(memory: GuestMemory, file: File, buffers: list[tuple[int, int]], offset: int) -> int:
    done = 0
    for address, length in buffers:
        filled = 0
        while filled < length:
            data = os.pread(file.os_fd, min(_PIECE, length - filled), offset + done)
            if not data:
                return done
            memory.write(address + filled, data)
            filled += len(data)
            done += len(data)
    return done


def _write_file(file: File, data: bytes) -> int:
    if file.flags & FDFLAG_APPEND:
        done = os.write(file.os_fd, data)
        if done < len(data):
            done = _write_rest(data, done, lambda rest, _: os.write(file.os_fd, rest))
        # The system appends where the end is now, and that is where the position goes.
        file.offset = os.lseek(file.os_fd, 0, os.SEEK_CUR)
        return done
    done = _write_at(file, data, file.offset)
    file.offset += done
    return done


def _write_at(file: File, data: bytes, offset: int) -> int:
    done = os.pwrite(file.os_fd, data, offset)
    if done < len(data):
        return _write_rest(data, done, lambda rest, at: os.pwrite(file.os_fd, rest, offset + at))
    return done


def _write_rest(data: bytes, done: int, write: Callable[[memoryview, int], int]) -> int:
    """Go on after a short write; an error now (disk full) ends it with what was done."""
    view = memoryview(data)
    try:
        while done < len(data):
            done += write(view[done:], done)
    except OSError:
        pass
    return done
