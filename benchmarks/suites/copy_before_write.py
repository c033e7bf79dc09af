"""A third way to let a program run on, beside forking it and copying its memory while it stands still: protect its
memory against writing, let it run, and copy each page before the first write to it (synchronous userfaultfd).

A prototype, not in the product: it does not pay. *Protect* is what the program would stand still for. A first write
waits for a thread that copies the page and takes the protection away, which costs several times what the kernel's own
copy costs beside a forked process; and without privileges it cannot see what the kernel itself writes into the memory
(a read of a file into it fails). Where forking is refused, copying while the program stands still is over sooner."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import threading
import time

from wasmckpt.dirty import kernel

from ..measure import percentile
from ..report import Report, Table
from ..settings import Settings

PAGE = 4096
MIB = 1 << 20
WRITE_PROTECTED_EVENTS = 1 << 0
PROTECT = 0xC018AA06
MESSAGE = 32
PAGEFAULT = 0x12


def run(settings: Settings, report: Report) -> None:
    """A row for each size."""
    table = Table(
        "milliseconds; medians",
        [("MiB", ",d"), ("protect all", ".2f"), ("copy all into memory made ready", ".1f"),
         ("fork, with all that this process has", ".2f"), ("first write to a protected page, us", ".1f"),
         ("beside a forked copy, us", ".1f"), ("undisturbed, us", ".2f")],
    )
    for mib in (4,) if settings.quick else (64, 256):
        with report.kept(f"{mib} MiB"):
            _row(settings, table, mib)
    report.tables.append(table)


def _row(settings: Settings, table: Table, mib: int) -> None:
    size = mib * MIB
    area, target = (mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2))
    for one in (area, target):
        one.madvise(mmap.MADV_NOHUGEPAGE)
    base, copy = (ctypes.addressof(ctypes.c_char.from_buffer(one)) for one in (area, target))
    pages = min(size // PAGE, 4096)
    columns: list[list[float]] = [[] for _ in range(6)]
    ctypes.memset(base, 1, size)
    ctypes.memset(copy, 1, size)
    for _ in range(settings.few(7)):
        columns[5].append(_touch(base, pages) * 1e6 / pages)
        began = time.perf_counter()
        ctypes.memmove(copy, base, size)
        columns[1].append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        columns[2].append((time.perf_counter() - began) * 1e3)
        columns[4].append(_touch(base, pages) * 1e6 / pages)
        os.kill(child, 9)
        os.waitpid(child, 0)
        _touch(base, pages)
        fd = kernel.open_userfaultfd(WRITE_PROTECTED_EVENTS)
        kernel.register(fd, base, size)
        began = time.perf_counter()
        fcntl.ioctl(fd, PROTECT, bytearray(struct.pack("=3Q", base, size, 1)))
        columns[0].append((time.perf_counter() - began) * 1e3)
        saver = threading.Thread(target=_save, args=(fd, base, copy, pages))
        saver.start()
        columns[3].append(_touch(base, pages) * 1e6 / pages)
        saver.join()
        os.close(fd)
    table.rows.append([mib, *(percentile(column, 0.5) for column in columns)])
    settings.progress(table.rows[-1])


def _touch(base: int, pages: int) -> float:
    """Write a byte of each page; seconds. Lets go of the GIL at each."""
    memset = ctypes.memset
    began = time.perf_counter()
    for page in range(pages):
        memset(base + page * PAGE, 2, 1)
    return time.perf_counter() - began


def _save(fd: int, base: int, copy: int, pages: int) -> None:
    """Copy each page before it is written."""
    os.set_blocking(fd, True)
    for _ in range(pages):
        message = os.read(fd, MESSAGE)
        if message[0] != PAGEFAULT:
            continue
        address = struct.unpack_from("=Q", message, 16)[0] & -PAGE
        ctypes.memmove(copy + address - base, address, PAGE)
        fcntl.ioctl(fd, PROTECT, bytearray(struct.pack("=3Q", address, PAGE, 0)))
