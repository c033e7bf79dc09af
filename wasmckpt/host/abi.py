"""Numbers and layouts of ``wasi_snapshot_preview1``, and the way from the host's errno to the guest's.

Only what the interface fixes stands here: every other module of the host layer imports its numbers from this one.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from enum import IntEnum
from typing import Final

MODULE_NAME: Final = "wasi_snapshot_preview1"


class Errno(IntEnum):
    """Results of calls; the names are those of the interface."""

    SUCCESS = 0
    TOOBIG = 1
    ACCES = 2
    ADDRINUSE = 3
    ADDRNOTAVAIL = 4
    AFNOSUPPORT = 5
    AGAIN = 6
    ALREADY = 7
    BADF = 8
    BADMSG = 9
    BUSY = 10
    CANCELED = 11
    CHILD = 12
    CONNABORTED = 13
    CONNREFUSED = 14
    CONNRESET = 15
    DEADLK = 16
    DESTADDRREQ = 17
    DOM = 18
    DQUOT = 19
    EXIST = 20
    FAULT = 21
    FBIG = 22
    HOSTUNREACH = 23
    IDRM = 24
    ILSEQ = 25
    INPROGRESS = 26
    INTR = 27
    INVAL = 28
    IO = 29
    ISCONN = 30
    ISDIR = 31
    LOOP = 32
    MFILE = 33
    MLINK = 34
    MSGSIZE = 35
    MULTIHOP = 36
    NAMETOOLONG = 37
    NETDOWN = 38
    NETRESET = 39
    NETUNREACH = 40
    NFILE = 41
    NOBUFS = 42
    NODEV = 43
    NOENT = 44
    NOEXEC = 45
    NOLCK = 46
    NOLINK = 47
    NOMEM = 48
    NOMSG = 49
    NOPROTOOPT = 50
    NOSPC = 51
    NOSYS = 52
    NOTCONN = 53
    NOTDIR = 54
    NOTEMPTY = 55
    NOTRECOVERABLE = 56
    NOTSOCK = 57
    NOTSUP = 58
    NOTTY = 59
    NXIO = 60
    OVERFLOW = 61
    OWNERDEAD = 62
    PERM = 63
    PIPE = 64
    PROTO = 65
    PROTONOSUPPORT = 66
    PROTOTYPE = 67
    RANGE = 68
    ROFS = 69
    SPIPE = 70
    SRCH = 71
    STALE = 72
    TIMEDOUT = 73
    TXTBSY = 74
    XDEV = 75
    NOTCAPABLE = 76


_HOST_NAMES: Final = {"TOOBIG": "E2BIG", "NOTSUP": "EOPNOTSUPP"}

FROM_HOST: Final[dict[int, int]] = {
    number: int(code)
    for code in Errno
    if (number := getattr(errno, _HOST_NAMES.get(code.name, "E" + code.name), None)) is not None
}
"""Host errno -> guest errno; a host error without a counterpart becomes `Errno.IO`."""
FROM_HOST[errno.EWOULDBLOCK] = int(Errno.AGAIN)
if hasattr(errno, "ENOTSUP"):
    FROM_HOST[errno.ENOTSUP] = int(Errno.NOTSUP)


def from_os_error(error: OSError) -> int:
    """The guest's errno for an error of the operating system."""
    return FROM_HOST.get(error.errno or 0, int(Errno.IO))


class WasiError(Exception):
    """A call ends with ``errno``; never leaves the host layer."""

    def __init__(self, errno: int) -> None:
        super().__init__(errno)
        self.errno = int(errno)


class Rights:
    """What a descriptor may be used for. Plain ints: operations on an IntFlag cost a microsecond each."""

    FD_DATASYNC: Final = 1 << 0
    FD_READ: Final = 1 << 1
    FD_SEEK: Final = 1 << 2
    FD_FDSTAT_SET_FLAGS: Final = 1 << 3
    FD_SYNC: Final = 1 << 4
    FD_TELL: Final = 1 << 5
    FD_WRITE: Final = 1 << 6
    FD_ADVISE: Final = 1 << 7
    FD_ALLOCATE: Final = 1 << 8
    PATH_CREATE_DIRECTORY: Final = 1 << 9
    PATH_CREATE_FILE: Final = 1 << 10
    PATH_LINK_SOURCE: Final = 1 << 11
    PATH_LINK_TARGET: Final = 1 << 12
    PATH_OPEN: Final = 1 << 13
    FD_READDIR: Final = 1 << 14
    PATH_READLINK: Final = 1 << 15
    PATH_RENAME_SOURCE: Final = 1 << 16
    PATH_RENAME_TARGET: Final = 1 << 17
    PATH_FILESTAT_GET: Final = 1 << 18
    PATH_FILESTAT_SET_SIZE: Final = 1 << 19
    PATH_FILESTAT_SET_TIMES: Final = 1 << 20
    FD_FILESTAT_GET: Final = 1 << 21
    FD_FILESTAT_SET_SIZE: Final = 1 << 22
    FD_FILESTAT_SET_TIMES: Final = 1 << 23
    PATH_SYMLINK: Final = 1 << 24
    PATH_REMOVE_DIRECTORY: Final = 1 << 25
    PATH_UNLINK_FILE: Final = 1 << 26
    POLL_FD_READWRITE: Final = 1 << 27
    SOCK_SHUTDOWN: Final = 1 << 28
    SOCK_ACCEPT: Final = 1 << 29


ALL_RIGHTS: Final = (1 << 30) - 1
FILE_RIGHTS: Final = (
    Rights.FD_DATASYNC | Rights.FD_READ | Rights.FD_SEEK | Rights.FD_FDSTAT_SET_FLAGS | Rights.FD_SYNC
    | Rights.FD_TELL | Rights.FD_WRITE | Rights.FD_ADVISE | Rights.FD_ALLOCATE | Rights.FD_FILESTAT_GET
    | Rights.FD_FILESTAT_SET_SIZE | Rights.FD_FILESTAT_SET_TIMES | Rights.POLL_FD_READWRITE
)
"""What makes sense for a regular file."""
STREAM_RIGHTS: Final = FILE_RIGHTS & ~(
    Rights.FD_SEEK | Rights.FD_TELL | Rights.FD_ADVISE | Rights.FD_ALLOCATE | Rights.FD_FILESTAT_SET_SIZE
)
"""What makes sense for a terminal or pipe. No FD_SEEK and FD_TELL: C libraries take that for "is a terminal"."""
DIRECTORY_RIGHTS: Final = ALL_RIGHTS & ~(
    Rights.FD_READ | Rights.FD_SEEK | Rights.FD_TELL | Rights.FD_WRITE | Rights.FD_ADVISE | Rights.FD_ALLOCATE
    | Rights.FD_FILESTAT_SET_SIZE | Rights.POLL_FD_READWRITE | Rights.SOCK_SHUTDOWN | Rights.SOCK_ACCEPT
)
"""What makes sense for a directory."""
CHANGING_RIGHTS: Final = (
    Rights.FD_DATASYNC | Rights.FD_WRITE | Rights.FD_ALLOCATE | Rights.PATH_CREATE_DIRECTORY | Rights.PATH_CREATE_FILE
    | Rights.PATH_LINK_SOURCE | Rights.PATH_LINK_TARGET | Rights.PATH_RENAME_SOURCE | Rights.PATH_RENAME_TARGET
    | Rights.PATH_FILESTAT_SET_SIZE | Rights.PATH_FILESTAT_SET_TIMES | Rights.FD_FILESTAT_SET_SIZE
    | Rights.FD_FILESTAT_SET_TIMES | Rights.PATH_SYMLINK | Rights.PATH_REMOVE_DIRECTORY | Rights.PATH_UNLINK_FILE
)
"""What a read-only preopen does not grant."""

FDFLAG_APPEND: Final = 1
FDFLAG_DSYNC: Final = 2
FDFLAG_NONBLOCK: Final = 4
FDFLAG_RSYNC: Final = 8
FDFLAG_SYNC: Final = 16

OFLAG_CREAT: Final = 1
OFLAG_DIRECTORY: Final = 2
OFLAG_EXCL: Final = 4
OFLAG_TRUNC: Final = 8

LOOKUP_SYMLINK_FOLLOW: Final = 1

FSTFLAG_ATIM: Final = 1
FSTFLAG_ATIM_NOW: Final = 2
FSTFLAG_MTIM: Final = 4
FSTFLAG_MTIM_NOW: Final = 8

CLOCK_REALTIME: Final = 0
CLOCK_MONOTONIC: Final = 1
CLOCK_PROCESS_CPUTIME: Final = 2
CLOCK_THREAD_CPUTIME: Final = 3

EVENT_CLOCK: Final = 0
EVENT_FD_READ: Final = 1
EVENT_FD_WRITE: Final = 2
EVENT_HANGUP: Final = 1
SUBSCRIPTION_ABSTIME: Final = 1

FILETYPE_UNKNOWN: Final = 0
FILETYPE_BLOCK_DEVICE: Final = 1
FILETYPE_CHARACTER_DEVICE: Final = 2
FILETYPE_DIRECTORY: Final = 3
FILETYPE_REGULAR_FILE: Final = 4
FILETYPE_SOCKET_DGRAM: Final = 5
FILETYPE_SOCKET_STREAM: Final = 6
FILETYPE_SYMBOLIC_LINK: Final = 7

_FILETYPES: Final = {
    stat.S_IFBLK: FILETYPE_BLOCK_DEVICE,
    stat.S_IFCHR: FILETYPE_CHARACTER_DEVICE,
    stat.S_IFDIR: FILETYPE_DIRECTORY,
    stat.S_IFREG: FILETYPE_REGULAR_FILE,
    stat.S_IFSOCK: FILETYPE_SOCKET_STREAM,
    stat.S_IFLNK: FILETYPE_SYMBOLIC_LINK,
}


def filetype_of(mode: int) -> int:
    """The guest's file type for a host ``st_mode``; ``FILETYPE_UNKNOWN`` for a pipe."""
    return _FILETYPES.get(stat.S_IFMT(mode), FILETYPE_UNKNOWN)


IOVEC: Final = struct.Struct("<II")
"""Address and length of one buffer."""
U64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")
FDSTAT: Final = struct.Struct("<BxHxxxxQQ")
"""File type, flags, base rights, inheriting rights."""
FILESTAT: Final = struct.Struct("<QQBxxxxxxxQQQQQ")
"""Device, inode, file type, links, size, times of access, modification, status change in nanoseconds."""
DIRENT: Final = struct.Struct("<QQIBxxx")
"""Cookie of the next entry, inode, length of the name that follows, file type."""
SUBSCRIPTION: Final = struct.Struct("<QBxxxxxxxIxxxxQQHxxxxxx")
"""User data, kind, clock or descriptor, timeout, precision, flags."""
EVENT: Final = struct.Struct("<QHBxxxxxQHxxxxxx")
"""User data, errno, kind, bytes available, flags."""


def filestat_bytes(info: os.stat_result) -> bytes:
    """A guest ``filestat`` record from the host's; times before 1970 become 0, the interface has no sign."""
    return FILESTAT.pack(
        info.st_dev & U64_MAX, info.st_ino & U64_MAX, filetype_of(info.st_mode), info.st_nlink, info.st_size,
        max(0, info.st_atime_ns), max(0, info.st_mtime_ns), max(0, info.st_ctime_ns),
    )
