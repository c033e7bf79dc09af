"""The kernel's interfaces, as <linux/userfaultfd.h> and <linux/fs.h> define them. All errors are OSError."""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import struct
from collections.abc import Iterator
from typing import Final

__all__ = [
    "ASYNC_WP", "MACHINE_PAGE", "PagemapScanner", "clear_soft_dirty", "exclusive", "is_mapped", "open_userfaultfd",
    "present", "read_own", "register", "soft_dirty",
]

MACHINE_PAGE: Final = os.sysconf("SC_PAGESIZE")

_USERFAULTFD: Final = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY: Final = 1
"""Without this flag an unprivileged user is refused; writes by the kernel itself are counted all the same."""
_API: Final = 0xAA
_UFFDIO_API, _UFFDIO_REGISTER = 0xC018AA3F, 0xC020AA00
_REGISTER_WP: Final = 2
ASYNC_WP: Final = 1 << 0 | 1 << 13 | 1 << 15
"""Features: write-protection, of pages that are not there yet too, and without anybody who answers faults."""

_PAGEMAP_SCAN: Final = 0xC0606610
_SCAN_ARGUMENT: Final = struct.Struct("=12Q")
_PROTECT, _CHECK_REGISTERED = 1, 2
_WRITTEN: Final = 2
_REGIONS: Final = 4096
"""Regions of one call; a call ends early when they are used up."""

_SOFT_DIRTY: Final = 6, bytes(0x31 if value & 0x80 else 0x30 for value in range(256))
"""Which byte of an entry of pagemap, and what becomes of it: "1" where bit 55 of the little-endian word is set."""
_EXCLUSIVE: Final = 7, bytes(0x31 if value & 0x41 else 0x30 for value in range(256))
"""The same for bits 56 (mapped by this process alone) and 62 (swapped out: then nobody can tell)."""
_PRESENT: Final = 7, bytes(0x31 if value & 0xC0 else 0x30 for value in range(256))
"""The same for bits 63 (there) and 62 (swapped out)."""
_ONES: Final = re.compile(b"1+")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MS_ASYNC: Final = 1


def open_userfaultfd(features: int) -> int:
    """A new userfaultfd with these features; the caller closes it, which ends all that was registered with it.

    Raises OSError: the kernel has no such call, forbids it, or (EINVAL) lacks a feature.
    """
    number = _USERFAULTFD.get(os.uname().machine)
    if number is None:
        raise OSError(38, "the number of this system call is not known on this machine")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    fd = int(libc.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        fcntl.ioctl(fd, _UFFDIO_API, bytearray(struct.pack("=3Q", _API, features, 0)))
    except BaseException:
        os.close(fd)
        raise
    return fd


def register(fd: int, start: int, length: int) -> None:
    """Have writes to a range counted; both numbers multiples of the machine's page. What is registered already may be
    in it. Raises OSError (EBUSY: another userfaultfd has it)."""
    fcntl.ioctl(fd, _UFFDIO_REGISTER, bytearray(struct.pack("=4Q", start, length, _REGISTER_WP, 0)))


def is_mapped(start: int, end: int) -> bool:
    """Whether something is mapped everywhere between two addresses, multiples of the machine's page."""
    return end <= start or not _libc.msync(start, end - start, _MS_ASYNC)  # which has done nothing else since 2.6.19


def read_own(memory: int, address: int, target: memoryview) -> None:
    """Fill ``target`` from this process's own memory, through /proc/self/mem. (process_vm_readv would give this process
    a copy of its own of each page that it shares with a forked one.) Raises OSError where nothing is mapped."""
    done = 0
    while done < len(target):
        count = os.preadv(memory, [target[done:]], address + done)
        if not count:
            raise OSError(14, "nothing is mapped there")
        done += count


class PagemapScanner:
    """PAGEMAP_SCAN on this process's own pagemap."""

    def __init__(self, pagemap: int) -> None:
        self._pagemap = pagemap
        self._regions = (ctypes.c_uint64 * (3 * _REGIONS))()

    def written(self, start: int, end: int, *, protect: bool = True) -> list[tuple[int, int]]:
        """Regions (start, end) that were written since they were protected, and protect them again in the same step.

        Raises OSError: EPERM if a part of the range is not registered (any more).
        """
        found: list[tuple[int, int]] = []
        flags = _CHECK_REGISTERED | (_PROTECT if protect else 0)
        at = start
        while at < end:
            argument = bytearray(_SCAN_ARGUMENT.pack(
                _SCAN_ARGUMENT.size, flags, at, end, 0, ctypes.addressof(self._regions), _REGIONS, 0, 0, _WRITTEN, 0,
                _WRITTEN,
            ))
            number = fcntl.ioctl(self._pagemap, _PAGEMAP_SCAN, argument)
            found += [(self._regions[i], self._regions[i + 1]) for i in range(0, 3 * number, 3)]
            (ended,) = struct.unpack_from("=Q", argument, 32)
            if ended <= at:
                raise OSError(5, "PAGEMAP_SCAN does not get on")
            at = ended
        return found


def clear_soft_dirty() -> None:
    """Clear the soft-dirty bits of the whole process."""
    with open("/proc/self/clear_refs", "wb", buffering=0) as file:
        file.write(b"4")


def soft_dirty(pagemap: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Regions (start, end) with soft-dirty bits; both limits multiples of the machine's page."""
    return _marked(pagemap, start, end, *_SOFT_DIRTY)


def exclusive(pagemap: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Regions that the process of this pagemap shares with no other. In a forked copy these are, among others, all
    that it has written since."""
    return _marked(pagemap, start, end, *_EXCLUSIVE)


def present(pagemap: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Regions of pages that are there, or swapped out; others, in memory of no file, are zero."""
    return _marked(pagemap, start, end, *_PRESENT)


def _marked(pagemap: int, start: int, end: int, byte: int, marks: bytes) -> Iterator[tuple[int, int]]:
    chunk = 1 << 20
    first, last = start // MACHINE_PAGE, end // MACHINE_PAGE
    for page in range(first, last, chunk):
        wanted = min(chunk, last - page) * 8
        entries = b""
        while len(entries) < wanted:
            piece = os.pread(pagemap, wanted - len(entries), page * 8 + len(entries))
            if not piece:
                raise OSError(5, "pagemap ends early")
            entries += piece
        for run in _ONES.finditer(entries[byte::8].translate(marks)):
            yield (page + run.start()) * MACHINE_PAGE, (page + run.end()) * MACHINE_PAGE
