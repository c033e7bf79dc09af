"""Huge pages for a program's memories, where the kernel gives them on request: page tables are what a fork copies, and
one entry then stands for 512. The stop of a gigabyte falls from ten milliseconds and more to one.

What it costs: memory that is touched here and there takes up to 2 MiB for each such place; and where it is followed
what was written (`wasmckpt.dirty`), the first write after a look splits a huge page, which then costs a fork as much as
without. So it is asked for, not the default.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

from ..dirty import kernel

__all__ = ["advise"]

_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", 14)
_COLLAPSE = 25
"""MADV_COLLAPSE, which Python has no name for."""
_HUGE = 2 << 20
_LARGEST = 8 << 30
"""Bytes of address space that a runtime keeps free for one memory, at most."""


def advise(base: int, length: int, *, collapse: bool = True) -> bool:
    """Ask for huge pages for the memory at ``base``, and for where it may grow to; False: the kernel refuses.

    Args:
        collapse: what has been touched becomes huge at once; else in the background, and what is touched from now on.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    done = [not madvise(start, end - start, _HUGEPAGE) for start, end in _mappings(base, length)]
    for start, end in _touched(base, length) if collapse else ():
        madvise(start, end - start, _COLLAPSE)  # if that fails, they stay what they are
    return all(done)


def _touched(base: int, length: int) -> Iterator[tuple[int, int]]:
    """Where the runtime has written already: one makes its memory by filling it with zeros. Others get their huge pages
    when they are first touched, and collapsing what nobody has touched would take memory for it."""
    pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        page = mmap.PAGESIZE
        for start, end in kernel.present(pagemap, base - base % page, -(-(base + length) // page) * page):
            low, high = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
            if low < high:
                yield low, high
    finally:
        os.close(pagemap)


def _mappings(base: int, length: int) -> Iterator[tuple[int, int]]:
    """The memory itself, and the mappings without access that follow it without a gap."""
    with open("/proc/self/maps", "rb") as maps:
        lines = [line.split(None, 5) for line in maps]
    at = base - base % mmap.PAGESIZE
    end = base + length
    for fields in lines:
        start, _, stop = (int(part, 16) if part != b"-" else 0 for part in fields[0].partition(b"-"))
        if stop <= at:
            continue
        if start > at or (at >= end and (fields[1] != b"---p" or at - base > _LARGEST)):
            return
        if at < end:
            stop = min(stop, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE) if fields[1] != b"---p" else stop
        yield at, stop
        at = stop
