"""Memory to be tracked: mapped, grown, moved and thrown away as runtimes do it, and written at will."""

from __future__ import annotations

import ctypes
import random

__all__ = ["Area", "pages_of"]

PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_RW, _ANONYMOUS, _FIXED = 3, 0x22, 0x10
_MAYMOVE, _TO = 1, 2
_DONTNEED, _HUGEPAGE, _NOHUGEPAGE = 4, 14, 15
_RESERVED = 64 << 20


def pages_of(runs: tuple[tuple[int, int], ...]) -> set[int]:
    """The pages of some runs."""
    return {page for first, number in runs for page in range(first, first + number)}


class Area:
    """A linear memory of ``pages`` 4 KiB pages inside a reservation; its first byte ``skew`` bytes into a page."""

    def __init__(self, pages: int, *, skew: int = 0, huge: bool = False) -> None:
        self._at = self._map(None, _RESERVED, 0)
        self._at += -self._at % (2 << 20)
        self.skew = skew
        self.pages = 0
        _libc.madvise(self._at, _RESERVED - (2 << 20), _HUGEPAGE if huge else _NOHUGEPAGE)
        self.grow(pages)

    @staticmethod
    def _map(at: int | None, length: int, protection: int = _RW) -> int:
        flags = _ANONYMOUS | (_FIXED if at is not None else 0)
        got = int(_libc.mmap(at, length, protection, flags, -1, 0))
        assert got != ctypes.c_void_p(-1).value
        return got

    def extent(self) -> tuple[int, int]:
        """As `wasmckpt.runtimes.Memory.extent`."""
        return self._at + self.skew, self.pages * PAGE

    def grow(self, pages: int) -> None:
        """More pages, in place."""
        self.pages += pages
        assert not _libc.mprotect(self._at, self.pages * PAGE + (PAGE if self.skew else 0), _RW)

    def move(self, *, occupy: bool = False, copy: bool = False) -> None:
        """To another address, by mremap or by a copy; ``occupy``: something else is mapped at the old one."""
        before, size = self._at, self.pages * PAGE + (PAGE if self.skew else 0)
        target = self._map(None, size)
        if copy:
            ctypes.memmove(target, before, size)
            _libc.munmap(before, size)
        else:
            assert int(_libc.mremap(before, size, size, _MAYMOVE | _TO, target)) == target
        if occupy:
            self._map(before, size)
        self._at = target

    def write(self, page: int, value: int | None = None) -> None:
        """One byte somewhere in a page."""
        at = self._at + self.skew + page * PAGE + random.randrange(PAGE)
        cell = ctypes.c_uint8.from_address(at)
        cell.value = (cell.value + 1) & 255 if value is None else value

    def discard(self, page: int) -> None:
        """Throw a page away; it reads as zero."""
        assert not _libc.madvise(self._at + page * PAGE, PAGE, _DONTNEED)

    def bytes(self) -> bytes:
        """All of it."""
        return ctypes.string_at(self._at + self.skew, self.pages * PAGE)
