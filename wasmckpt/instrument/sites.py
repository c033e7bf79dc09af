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
    """The sites of a module, by number. They are kept packed (as objects they take twenty times as much), and unpacked
    when asked for."""

    def __init__(
        self, packed: tuple[bytes, bytes] = (b"", b""), later: Callable[[], tuple[bytes, bytes]] | None = None,
        count: int = 0,
    ) -> None:
        self._packed, self._ends = bytearray(packed[0]), array("I", packed[1])
        """The sites one behind the other, and where each ends."""
        self._later = later
        self._missing = count
        """How many come before those, and are fetched when the first of them is asked for."""
        self._kept: dict[int, Site] = {}

    def _fetch(self) -> None:
        if self._later is not None:
            packed, raw = self._later()
            ends = array("I", raw)
            ends.extend([len(packed) + end for end in self._ends])
            self._packed, self._ends = bytearray(packed) + self._packed, ends
            self._later, self._missing = None, 0

    def __len__(self) -> int:
        return self._missing + len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Site: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Site]: ...
    def __getitem__(self, index: int | slice) -> Site | Sequence[Site]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        site = self._kept.get(index)
        if site is None:
            if index < self._missing:
                self._fetch()
            at = index - self._missing
            packed = self._packed[self._ends[at - 1] if at else 0 : self._ends[at]]
            site = self._kept[index] = Site(*msgpack.unpackb(packed, use_list=False, ext_hook=_unpack_big))
        return site

    def append(self, site: Site) -> None:
        """Add a site."""
        self._packed += msgpack.packb(tuple(site), default=_pack_big)
        self._ends.append(len(self._packed))

    def packed(self) -> tuple[bytes, bytes]:
        """All sites in the form that the constructor takes: one behind the other, and where each ends."""
        self._fetch()
        return bytes(self._packed), self._ends.tobytes()

    @staticmethod
    def pack(sites: Iterable[Site]) -> tuple[bytes, bytes]:
        """Sites in that form."""
        made = Sites()
        for site in sites:
            made.append(site)
        return made.packed()


def _pack_big(number: int) -> msgpack.ExtType:
    """Sources that stand for constants go down to -2^128, beyond the format's integers."""
    return msgpack.ExtType(1, number.to_bytes(17, "little", signed=True))


def _unpack_big(code: int, data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)
