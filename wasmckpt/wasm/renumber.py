"""Function bodies with other indices of functions and globals, for code that moves into another module.

Only the instructions that name a function or a global are touched; types, tables, memories, tags and labels keep their
numbers. A regular expression runs over all others, since a loop in Python over each of them takes ten times as long.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from ..errors import CheckpointError
from .leb128 import read_u32, uleb
from .opcodes import TABLE

__all__ = ["Renumbered", "Unmovable", "renumber"]

_LEB: Final = rb"[\x80-\xff]*[\x00-\x7f]"
_ALIGN: Final = rb"(?:[\x00-\x3f]|[\x80-\xbf]" + _LEB + rb"|(?:[\x40-\x7f]|[\xc0-\xff]" + _LEB + rb")" + _LEB + rb")"
"""The first number of a memory argument; where it has bit 6, a memory's number follows."""


def _prefixed(prefix: int) -> bytes:
    """The instructions behind a prefix whose immediates keep their meaning in another module."""
    form = {
        "-": b"", "memarg": _ALIGN + _LEB, "memarg_lane": _ALIGN + _LEB + b".", "lane": b".", "zero": rb"\x00",
        "lanes16": b".{16}", "v128": b".{16}", "mem": _LEB, "table": _LEB, "mem_mem": _LEB * 2, "table_table": _LEB * 2,
    }
    codes: dict[bytes, list[list[int]]] = {}
    for op in TABLE.values():
        if op.code >> 16 == prefix and op.imm in form:
            high, low = divmod(op.code & 0xFFFF, 0x80)
            codes.setdefault(form[op.imm], [[], []])[high].append(low)
    choices = []
    for immediates, (short, long) in codes.items():  # longer than two bytes is no code of the table
        if short:
            choices.append(b"[" + re.escape(bytes(short)) + b"]" + immediates)
        if long:
            choices.append(b"[" + re.escape(bytes([low | 0x80 for low in long])) + rb"]\x01" + immediates)
    return re.escape(bytes([prefix])) + b"(?:" + b"|".join(choices) + b")"


_REST: Final = re.compile(
    rb"(?:[\x00\x01\x05\x0a\x0b\x0f\x1a\x1b\x45-\xc4\xd1]"
    rb"|[\x02-\x04\x08\x0c\x0d\x20-\x22\x25\x26\x3f-\x42\xd0]" + _LEB
    + rb"|[\x28-\x3e]" + _ALIGN + _LEB
    + rb"|[\x11\x13]" + _LEB * 2
    + rb"|\x43.{4}|\x44.{8}|\x1c\x01.|"
    + b"|".join(map(_prefixed, (0xFC, 0xFD, 0xFE)))
    + rb")*+", re.DOTALL,
)
_NUMBER: Final = re.compile(_LEB)


class Unmovable(CheckpointError):
    """An instruction that means something else in another module."""


class Renumbered:
    """A valid body (locals declaration and code), taken apart at its numbers of functions and globals.

    Attributes:
        functions, globals: the numbers that occur, in the order in which they are first met.

    Raises `Unmovable`: the body names a segment, or a function as a value.
    """

    def __init__(self, body: bytes) -> None:
        self._parts: list[bytes] = []
        self._numbers: list[tuple[dict[int, None], int, int]] = []
        """Between the parts: instructions, as (of a function or a global, its number, the opcode)."""
        self.functions: dict[int, None] = {}
        self.globals: dict[int, None] = {}
        self._take_apart(body)

    def with_numbers(
        self, function: Callable[[int], int], global_: Callable[[int], int],
        before: Callable[[int], bytes] = lambda func: b"",
    ) -> bytes:
        """The body with other numbers; ``before``: what comes before each call of a function (its old number)."""
        new = {id(self.functions): {n: uleb(function(n)) for n in self.functions},
               id(self.globals): {n: uleb(global_(n)) for n in self.globals}}
        put = {id(self.functions): {n: before(n) for n in self.functions},
               id(self.globals): dict.fromkeys(self.globals, b"")}
        out = [self._parts[0]]
        for (space, number, op), part in zip(self._numbers, self._parts[1:], strict=True):
            out += [put[id(space)][number], bytes([op]), new[id(space)][number], part]
        return b"".join(out)

    def _take_apart(self, body: bytes) -> None:
        count, at = read_u32(body, 0)
        for _ in range(count):
            at = read_u32(body, at)[1] + 1
        start, end = 0, len(body)
        while (at := _skip(body, at)) < end:
            op = body[at]
            if op in (0x10, 0x12, 0x23, 0x24):
                number, after = read_u32(body, at + 1)
                space = self.functions if op < 0x20 else self.globals
                space[number] = None
                self._parts.append(body[start:at])
                self._numbers.append((space, number, op))
                start = at = after
            elif op == 0x0E:
                count, at = read_u32(body, at + 1)
                for _ in range(count + 1):
                    at = _number(body, at)
            elif op == 0x1C:
                count, at = read_u32(body, at + 1)
                at += count
            elif op == 0x1F:
                count, at = read_u32(body, _number(body, at + 1))
                for _ in range(count):
                    at = _number(body, at + 1 if body[at] > 1 else _number(body, at + 1))
            else:
                name = TABLE[op << 16 | read_u32(body, at + 1)[0] if op >= 0xFC else op].name
                raise Unmovable(f"{name} names what only its own module has", need=name)
        self._parts.append(body[start:])


def renumber(body: bytes, function: Callable[[int], int], global_: Callable[[int], int]) -> bytes:
    """A body with other numbers. Raises as `Renumbered`."""
    return Renumbered(body).with_numbers(function, global_)


def _skip(body: bytes, at: int) -> int:
    found = _REST.match(body, at)
    assert found is not None
    return found.end()


def _number(body: bytes, at: int) -> int:
    """The end of a number."""
    found = _NUMBER.match(body, at)
    assert found is not None
    return found.end()
