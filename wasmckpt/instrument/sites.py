"""Sites: what a spilled record's number stands for, in terms of the original module.

A record in the window is the site's number (u32) and then its slots, little-endian in natural width, sorted by type.
A site says which slot, or which constant, is which local or operand. Sources are ints: a slot's number, or
``-1 - bits`` for a constant that the site knows and nobody stores.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, overload

import msgpack  # type: ignore[import-untyped]

__all__ = ["Site", "Sites", "constant"]


class Site(NamedTuple):
    """One safepoint of the rewritten module.

    Attributes:
        func: function of the original module.
        offset: relative bytecode offset: at a loop the first instruction inside, at a call the call instruction.
        after: offset of the instruction after the call; equal to ``offset`` at loops and entries.
        is_import: the call may be one of an import, which a freeze may interrupt: its arguments are kept.
        slots: types of the record's slots. locals: (local, type, source) of the live ones, ascending.
        stack: (type, source) of the waiting operands. results, args: those of the call.
    """

    func: int
    offset: int
    after: int
    is_import: bool
    slots: tuple[int, ...]
    locals: tuple[tuple[int, int, int], ...]
    stack: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, int], ...]
    args: tuple[tuple[int, int], ...]

    @property
    def is_call(self) -> bool:
        """Whether it stands after a call."""
        return self.after != self.offset


def constant(bits: int) -> int:
    """A constant as a source."""
    return -1 - bits


class Sites(Sequence[Site]):
    """The sites of a module, by number. Those that come packed from a cache are unpacked when asked for."""

    def __init__(
        self, packed: tuple[bytes, bytes] = (b"", b""), later: Callable[[], tuple[bytes, bytes]] | None = None,
        count: int = 0,
    ) -> None:
        self._later = later
        self._count = count
        """How many there are packed, which are fetched when the first of them is asked for."""
        self._packed = b""
        self._ends = array("I")
        """Where each packed site ends."""
        if packed[1]:
            self._unpack(packed)
        self._kept: dict[int, Site] = {}
        self._sites: list[Site] = []
        """Those behind the packed ones."""

    def _unpack(self, packed: tuple[bytes, bytes]) -> None:
        self._later = None
        self._packed, self._ends = packed[0], array("I", packed[1])
        self._count = len(self._ends)

    def __len__(self) -> int:
        return self._count + len(self._sites)

    @overload
    def __getitem__(self, index: int) -> Site: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Site]: ...
    def __getitem__(self, index: int | slice) -> Site | Sequence[Site]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index >= self._count:
            return self._sites[index - self._count]
        if self._later is not None:
            self._unpack(self._later())
        site = self._kept.get(index)
        if site is None:
            packed = self._packed[self._ends[index - 1] if index else 0 : self._ends[index]]
            site = self._kept[index] = Site(*msgpack.unpackb(packed, use_list=False, ext_hook=_unpack_big))
        return site

    def append(self, site: Site) -> None:
        """Add a site."""
        self._sites.append(site)

    def packed(self) -> tuple[bytes, bytes]:
        """All sites in the form that the constructor takes: one behind the other, and where each ends."""
        if self._later is not None:
            self._unpack(self._later())
        return self.pack(self._sites, self._packed, self._ends)

    @staticmethod
    def pack(sites: Iterable[Site], packed: bytes = b"", ends: Sequence[int] = ()) -> tuple[bytes, bytes]:
        """Sites in that form, behind others that are in it already."""
        more = [msgpack.packb(tuple(site), default=_pack_big) for site in sites]
        all_ends = array("I", ends)
        for site in more:
            all_ends.append((all_ends[-1] if all_ends else 0) + len(site))
        return b"".join([packed, *more]), all_ends.tobytes()


def _pack_big(number: int) -> msgpack.ExtType:
    """Sources that stand for constants go down to -2^128, beyond the format's integers."""
    return msgpack.ExtType(1, number.to_bytes(17, "little", signed=True))


def _unpack_big(code: int, data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
