"""Where the frames' records lie in a module that goes on by itself, and how the guest's own bytes come back there."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..formats import PAGE_SIZE
from ..instrument import emit
from ..instrument.linker import Linker
from ..instrument.records import pack_frames
from ..lazydata import dataclass
from ..wasm.module import FuncType
from ..wasm.values import I64
from .contents import Pages, write

__all__ = ["Window", "choose_window"]

_WORD = 8
_STORES = 512
"""Stores in one function: engines bound a function's size, and compile small ones faster."""


@dataclass(slots=True)
class Window:
    """A stretch of memory that records are read from.

    Attributes:
        memory: index of the memory. borrowed: whether it is the guest's own.
        base: first byte. pieces: the records that are there at first, and those that take their place in turn.
        kept: the guest's own bytes, as long as the longest piece, in whole words. Empty if it is not borrowed.
    """

    memory: int
    borrowed: bool
    base: int
    pieces: list[bytes]
    kept: bytes = b""

    def lay(self, pages: Pages) -> None:
        """Put the first piece into the memory's contents."""
        write(pages, self.base, self.pieces[0].ljust(len(self.kept), b"\0"))

    def put_back(self, linker: Linker) -> bytes:
        """Code, with one local of type i32 at index 0, that puts the guest's bytes back."""
        if not self.borrowed:
            return b""
        end = self.base + len(self.kept)
        clear = (
            emit.i32_const(self.base) + emit.local_set(0) + emit.LOOP
            + emit.local_get(0) + emit.constant(I64, 0) + emit.store(I64, self.memory)
            + emit.local_get(0) + emit.i32_const(_WORD) + b"\x6a" + emit.local_tee(0)
            + emit.i32_const(end & 0xFFFFFFFF) + b"\x47" + emit.br_if(0) + emit.END  # until i32.ne: 4 GiB is 0
        )
        return clear + self._stores(linker, "put back", self.kept, skip_zero=True)

    def refill(self, linker: Linker, rp: int, rend: int, piece: int) -> bytes:
        """Code that brings the next piece of records and sets the globals that say where they are."""
        code = [emit.global_get(piece) + emit.i32_const(1) + b"\x6a" + emit.global_set(piece)]
        for number, records in enumerate(self.pieces[1:], 1):
            padded = records.ljust(-(-len(records) // _WORD) * _WORD, b"\0")
            code += [
                emit.global_get(piece), emit.i32_const(number), b"\x46", emit.IF,
                self._stores(linker, f"piece {number}", padded, skip_zero=False),
                emit.i32_const(self.base + len(records)), emit.global_set(rend), emit.END,
            ]
        code.append(emit.i32_const(self.base) + emit.global_set(rp))
        return b"".join(code)

    def _stores(self, linker: Linker, name: str, data: bytes, *, skip_zero: bool) -> bytes:
        """Code that stores ``data`` at the base, word by word, by functions that it adds."""
        words = [
            (offset, word) for offset, (word,) in zip(range(0, len(data), _WORD), struct.iter_unpack("<Q", data),
                                                      strict=True)
            if word or not skip_zero
        ]
        calls = []
        for first in range(0, len(words), _STORES):
            code = b"".join([
                emit.i32_const(0) + emit.constant(I64, word) + emit.store(I64, self.memory, self.base + offset)
                for offset, word in words[first : first + _STORES]
            ])
            calls.append(emit.call(linker.add_function(f"{name} {first}", FuncType((), ()), [], code)))
        return b"".join(calls)


def choose_window(frames: Sequence[tuple[int, bytes]], memories: Sequence[int], pages: Pages) -> Window:
    """The place for records.

    Args:
        frames: (continuation, values), outermost first. memories: sizes of the guest's memories in bytes.
        pages: contents of the first one.
    """
    size = memories[0] if memories else 0
    total = sum([4 + len(values) for _, values in frames])
    longest = max([4 + len(values) for _, values in frames])
    if longest > size:
        return Window(len(memories), False, 0, [_all(frames)])
    wanted = -(-total // _WORD) * _WORD
    base = _zeros(wanted, size, pages)
    if base < 0:
        base = max(0, size - wanted)
    pieces: list[bytes] = []
    pack_frames(frames, min(wanted, size - base), pieces.append)
    used = -(-max(map(len, pieces)) // _WORD) * _WORD
    return Window(0, True, base, pieces, _read(pages, base, used))


def _all(frames: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join([struct.pack("<I", number) + values for number, values in frames])


def _zeros(length: int, size: int, pages: Pages) -> int:
    """Where the highest stretch of so many zeros begins, in whole pages; -1: there is none."""
    needed = -(-length // PAGE_SIZE)
    above = size // PAGE_SIZE
    for page in sorted(pages, reverse=True):
        if above - page - 1 >= needed:
            break
        above = page
    else:
        page = -1
        if above < needed:
            return -1
    return (page + 1) * PAGE_SIZE


def _read(pages: Pages, at: int, length: int) -> bytes:
    first, last = at // PAGE_SIZE, (at + length - 1) // PAGE_SIZE
    joined = b"".join([pages.get(page, bytes(PAGE_SIZE)) for page in range(first, last + 1)])
    return joined[at - first * PAGE_SIZE :][:length]
