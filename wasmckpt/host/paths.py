"""Calls on paths: ``path_*``. Every path goes through `preopens.Place`; no call hands a whole path to the system."""

from __future__ import annotations

import errno
import os
import stat

from .abi import (
    ALL_RIGHTS,
    DIRECTORY_RIGHTS,
    FDFLAG_APPEND,
    FDFLAG_DSYNC,
    FDFLAG_NONBLOCK,
    FDFLAG_RSYNC,
    FDFLAG_SYNC,
    FILE_RIGHTS,
    LOOKUP_SYMLINK_FOLLOW,
    OFLAG_CREAT,
    OFLAG_DIRECTORY,
    OFLAG_EXCL,
    OFLAG_TRUNC,
    STREAM_RIGHTS,
    U32,
    Errno,
    Rights,
    WasiError,
    filestat_bytes,
    filetype_of,
)
from .calls import signature
from .descriptors import Descriptor, DescriptorTable, Directory, File, Stream
from .files import new_times
from .memory import GuestMemory, check_range
from .preopens import Place, decode_path, join
from .streams import open_stream

__all__ = ["PathCalls", "describe", "open_place"]

_ALL_OFLAGS = OFLAG_CREAT | OFLAG_DIRECTORY | OFLAG_EXCL | OFLAG_TRUNC
_ALL_FDFLAGS = FDFLAG_APPEND | FDFLAG_DSYNC | FDFLAG_NONBLOCK | FDFLAG_RSYNC | FDFLAG_SYNC


class PathCalls:
    """Calls on paths below a directory descriptor."""

    def __init__(self, table: DescriptorTable) -> None:
        self._table = table

    @signature("iiiiiIIii")
    def path_open(
        self, memory: GuestMemory, fd: int, lookup: int, address: int, length: int, oflags: int, rights: int,
        inheriting: int, fdflags: int, result: int,
    ) -> int:
        needed = Rights.PATH_OPEN
        if oflags & OFLAG_CREAT:
            needed |= Rights.PATH_CREATE_FILE
        if oflags & OFLAG_TRUNC:
            needed |= Rights.PATH_FILESTAT_SET_SIZE
        base = self._directory(fd, needed)
        # Bits that the interface does not define are ignored: Go sets all 32. Rights to be inherited further are cut
        # down silently: Rust asks for all 64.
        rights &= ALL_RIGHTS
        if rights & ~base.inheriting:
            return int(Errno.NOTCAPABLE)
        if oflags & ~_ALL_OFLAGS or fdflags & ~_ALL_FDFLAGS:
            return int(Errno.INVAL)
        if oflags & OFLAG_DIRECTORY and oflags & (OFLAG_CREAT | OFLAG_EXCL | OFLAG_TRUNC):
            return int(Errno.INVAL)
        path = self._path(memory, address, length)
        check_range(memory, result, 4)
        flags = _open_flags(oflags, fdflags, rights)
        with Place(base.os_fd, path) as place:
            os_fd = open_place(place, flags, follow=bool(lookup & LOOKUP_SYMLINK_FOLLOW))
            below = join(base.path, place.path)
        inheriting &= base.inheriting
        number = self._table.add(describe(os_fd, base.root, below, fdflags, rights, inheriting))
        memory.write(result, U32.pack(number))
        return 0

    @signature("iii")
    def path_create_directory(self, memory: GuestMemory, fd: int, address: int, length: int) -> int:
        with self._place(memory, fd, Rights.PATH_CREATE_DIRECTORY, address, length) as place:
            os.mkdir(place.name, dir_fd=place.parent)
        return 0

    @signature("iii")
    def path_remove_directory(self, memory: GuestMemory, fd: int, address: int, length: int) -> int:
        with self._place(memory, fd, Rights.PATH_REMOVE_DIRECTORY, address, length) as place:
            os.rmdir(place.name, dir_fd=place.parent)
        return 0

    @signature("iii")
    def path_unlink_file(self, memory: GuestMemory, fd: int, address: int, length: int) -> int:
        with self._place(memory, fd, Rights.PATH_UNLINK_FILE, address, length) as place:
            if place.must_be_directory and not stat.S_ISDIR(place.stat().st_mode):
                return int(Errno.NOTDIR)
            os.unlink(place.name, dir_fd=place.parent)
        return 0

    @signature("iiiii")
    def path_filestat_get(
        self, memory: GuestMemory, fd: int, lookup: int, address: int, length: int, result: int
    ) -> int:
        with self._place(memory, fd, Rights.PATH_FILESTAT_GET, address, length) as place:
            if lookup & LOOKUP_SYMLINK_FOLLOW or place.must_be_directory:
                place.follow_all()
            info = place.stat()
            if place.must_be_directory and not stat.S_ISDIR(info.st_mode):
                return int(Errno.NOTDIR)
        memory.write(result, filestat_bytes(info))
        return 0

    @signature("iiiiIIi")
    def path_filestat_set_times(
        self, memory: GuestMemory, fd: int, lookup: int, address: int, length: int, access: int, modified: int,
        flags: int,
    ) -> int:
        with self._place(memory, fd, Rights.PATH_FILESTAT_SET_TIMES, address, length) as place:
            if lookup & LOOKUP_SYMLINK_FOLLOW or place.must_be_directory:
                place.follow_all()
            place.require_directory()
            times = new_times(place.stat(), access, modified, flags)
            os.utime(place.name, ns=times, dir_fd=place.parent, follow_symlinks=False)
        return 0

    @signature("iiiiiii")
    def path_link(
        self, memory: GuestMemory, old_fd: int, lookup: int, old: int, old_length: int, new_fd: int, new: int,
        new_length: int,
    ) -> int:
        if lookup & LOOKUP_SYMLINK_FOLLOW:
            return int(Errno.INVAL)
        with (
            self._place(memory, old_fd, Rights.PATH_LINK_SOURCE, old, old_length) as source,
            self._place(memory, new_fd, Rights.PATH_LINK_TARGET, new, new_length) as target,
        ):
            if source.must_be_directory:
                source.follow_all()
            source.require_directory()
            if target.must_be_directory and target.name != b".":
                return int(Errno.EXIST if target.exists() else Errno.NOENT)
            os.link(
                source.name, target.name, src_dir_fd=source.parent, dst_dir_fd=target.parent, follow_symlinks=False
            )
        return 0

    @signature("iiiiii")
    def path_rename(
        self, memory: GuestMemory, old_fd: int, old: int, old_length: int, new_fd: int, new: int, new_length: int
    ) -> int:
        with (
            self._place(memory, old_fd, Rights.PATH_RENAME_SOURCE, old, old_length) as source,
            self._place(memory, new_fd, Rights.PATH_RENAME_TARGET, new, new_length) as target,
        ):
            source.require_directory()
            if target.must_be_directory and target.name != b"." and not stat.S_ISDIR(source.stat().st_mode):
                return int(Errno.NOTDIR)
            os.rename(source.name, target.name, src_dir_fd=source.parent, dst_dir_fd=target.parent)
        return 0

    @signature("iiiii")
    def path_symlink(
        self, memory: GuestMemory, contents: int, contents_length: int, fd: int, address: int, length: int
    ) -> int:
        target = self._path(memory, contents, contents_length)
        if target.startswith(b"/"):
            return int(Errno.PERM)
        with self._place(memory, fd, Rights.PATH_SYMLINK, address, length) as place:
            if place.must_be_directory:
                return int(Errno.EXIST if place.exists() else Errno.NOENT)
            os.symlink(target, place.name, dir_fd=place.parent)
        return 0

    @signature("iiiiii")
    def path_readlink(
        self, memory: GuestMemory, fd: int, address: int, length: int, buffer: int, size: int, result: int
    ) -> int:
        check_range(memory, buffer, size)
        check_range(memory, result, 4)
        with self._place(memory, fd, Rights.PATH_READLINK, address, length) as place:
            if place.must_be_directory:
                place.follow_all()
                place.require_directory()
            target = os.readlink(place.name, dir_fd=place.parent)
        if target.startswith(b"/"):
            # Where an absolute symlink of the host points is nothing the guest may know.
            return int(Errno.PERM)
        memory.write(buffer, target[:size])
        memory.write(result, U32.pack(min(len(target), size)))
        return 0

    def _directory(self, fd: int, rights: int) -> Directory:
        found = self._table.require(fd)
        if not isinstance(found, Directory):
            raise WasiError(Errno.NOTDIR)
        if rights & ~found.rights:
            raise WasiError(Errno.NOTCAPABLE)
        return found

    @staticmethod
    def _path(memory: GuestMemory, address: int, length: int) -> bytes:
        return decode_path(memory.read(address, length))

    def _place(self, memory: GuestMemory, fd: int, rights: int, address: int, length: int) -> Place:
        base = self._directory(fd, rights)
        return Place(base.os_fd, self._path(memory, address, length))


def open_place(place: Place, flags: int, *, follow: bool) -> int:
    """Open the place on the host, following symlinks below the root if wanted. Raises OSError, `WasiError`."""
    if place.must_be_directory:
        if flags & os.O_CREAT:
            place.require_directory()
            raise WasiError(Errno.ISDIR)
        flags |= os.O_DIRECTORY
        follow = True
    while True:
        try:
            return os.open(place.name, flags, 0o666, dir_fd=place.parent)
        except OSError as error:
            # O_NOFOLLOW met a symlink (said as ENOTDIR where a directory was asked for), or something else is wrong.
            if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) or not follow or not place.follow():
                raise


def describe(os_fd: int, root: bytes, path: bytes, fdflags: int, rights: int, inheriting: int) -> Descriptor:
    """The descriptor for a newly opened ``os_fd``, whatever it turned out to be; closes it if it raises."""
    reading, writing = access_of(rights)
    try:
        mode = os.fstat(os_fd).st_mode
        filetype = filetype_of(mode)
        if stat.S_ISDIR(mode):
            return Directory(os_fd, filetype, rights & DIRECTORY_RIGHTS, inheriting, fdflags, root, path)
        if stat.S_ISREG(mode) or stat.S_ISBLK(mode):
            file = File(os_fd, filetype, rights & FILE_RIGHTS, inheriting & FILE_RIGHTS, fdflags, root, path)
            file.readable, file.writable = reading, writing
            return file
        stream = Stream(os_fd, filetype, rights & STREAM_RIGHTS, inheriting & STREAM_RIGHTS, fdflags, root, path)
        stream.access &= ~((0 if reading else Rights.FD_READ) | (0 if writing else Rights.FD_WRITE))
        open_stream(stream)
        return stream
    except BaseException:
        os.close(os_fd)
        raise


def access_of(rights: int) -> tuple[bool, bool]:
    """Whether a file is opened for reading and for writing if these rights are asked for; always for one of them."""
    writing = bool(rights & Rights.FD_WRITE)
    return bool(rights & Rights.FD_READ) or not writing, writing


def access_flags(*, reading: bool, writing: bool) -> int:
    """Flags of the host's ``open`` that all openings for a guest share."""
    access = os.O_RDONLY if not writing else os.O_RDWR if reading else os.O_WRONLY
    # O_NONBLOCK so that opening a named pipe does not wait where no checkpoint can interrupt it; waits are ours.
    return access | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK


def _open_flags(oflags: int, fdflags: int, rights: int) -> int:
    reading, writing = access_of(rights)
    flags = access_flags(reading=reading, writing=writing)
    for bit, flag in (
        (OFLAG_CREAT, os.O_CREAT), (OFLAG_DIRECTORY, os.O_DIRECTORY), (OFLAG_EXCL, os.O_EXCL),
        (OFLAG_TRUNC, os.O_TRUNC),
    ):
        if oflags & bit:
            flags |= flag
    return flags | descriptor_flags(fdflags)


def descriptor_flags(fdflags: int) -> int:
    """Flags of the host for the descriptor flags of the interface."""
    flags = 0
    for bit, flag in (
        (FDFLAG_APPEND, os.O_APPEND), (FDFLAG_DSYNC, os.O_DSYNC), (FDFLAG_SYNC, os.O_SYNC),
        (FDFLAG_RSYNC, getattr(os, "O_RSYNC", os.O_SYNC)),
    ):
        if fdflags & bit:
            flags |= flag
    return flags
