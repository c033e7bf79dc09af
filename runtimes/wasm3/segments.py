"""Active segments and the table, which Wasm3 takes as they come.

Wasm3 0.5.0 has no table but what its element segments reach: it skips the table section, lets a segment make the table
larger, refuses an empty one where there is no table yet, and calls a slot behind the last segment undefined instead of
uninitialized. Segments of the later forms (with flags) it reads as if they were of the first. So what it cannot read
is refused here, segments are measured here, and the module it loads begins with an empty segment at the table's end,
which makes the table as large as it is declared, with empty slots.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from wasmckpt.errors import InvalidModule, NotSupported
from wasmckpt.lazydata import dataclass
from wasmckpt.runtimes import traps
from wasmckpt.runtimes.interface import Section, sections
from wasmckpt.wasm.leb128 import read_s32, read_s33, read_s64, read_u32, sleb, uleb

__all__ = ["Segments", "check_elements", "read_segments", "table_section"]

MAX_TABLE: Final = 100_000
"""Entries of a table at most; Wasm3 stops at a segment that ends behind it."""
_OPERATORS: Final[dict[int, Callable[[int, int], int]]] = {0x6A: operator.add, 0x6B: operator.sub, 0x6C: operator.mul}


@dataclass(frozen=True, slots=True)
class Segments:
    """A module's table, its element segments, and what their offsets may refer to.

    Attributes:
        table: entries of the table at the start; None without a table.
        elements: each segment's offset expression, and how many functions it holds.
        globals_: initial expressions of the module's own globals.
        body: contents of the element section behind its count.
    """

    table: int | None
    elements: tuple[tuple[bytes, int], ...]
    globals_: tuple[bytes, ...]
    body: bytes


def read_segments(wasm: bytes) -> Segments:
    """Raises `NotSupported` for several tables and segments that Wasm3 misreads, `InvalidModule` for nonsense."""
    tables: list[int] = []
    elements: list[tuple[bytes, int]] = []
    globals_: list[bytes] = []
    body = b""
    for section in sections(wasm):
        if section.id not in {4, 6, 9, 11}:
            continue
        count, at = read_u32(wasm, section.body)
        if count > section.end - at:
            raise InvalidModule("more items than bytes", offset=section.body)
        if section.id == 9:
            body = wasm[at:section.end]
        for _ in range(count):
            if section.id == 4:
                minimum, at = _table(wasm, at)
                tables.append(minimum)
            elif section.id == 6:
                init, at = _expression(wasm, at + 2, section.end)
                globals_.append(init)
            elif section.id == 9:
                at = _first_form(wasm, at)
                offset, at = _expression(wasm, at, section.end)
                functions, at = read_u32(wasm, at)
                elements.append((offset, functions))
                for _ in range(functions):
                    if at >= section.end:
                        raise InvalidModule("an element segment is longer than its section", offset=at)
                    at = read_u32(wasm, at)[1]
            else:
                at = _first_form(wasm, at)
                _, at = _expression(wasm, at, section.end)
                size, at = read_u32(wasm, at)
                at += size
        _ends(section, at)
    if len(tables) > 1:
        raise NotSupported("more than one table", need="reference-types", runtime="wasm3")
    if elements and not tables:
        raise InvalidModule("an element segment without a table")
    return Segments(tables[0] if tables else None, tuple(elements), tuple(globals_), body)


def table_section(segments: Segments) -> bytes:
    """Contents of the element section for Wasm3; empty if it needs none."""
    if not segments.table:  # then all segments are empty, or `check_elements` has something to say
        return b""
    # A larger table that no segment reaches beyond the limit works as it did: without its last slots.
    end = sleb(min(segments.table, MAX_TABLE))
    return uleb(len(segments.elements) + 1) + b"\0\x41" + end + b"\x0b\0" + segments.body


def check_elements(segments: Segments, imported: Mapping[int, int], imports: int) -> None:
    """Checks that the element segments fit the table.

    Args:
        segments: the module's.
        imported: bits of the imported globals that are i32, by index.
        imports: how many globals are imported.

    Raises:
        GuestTrap: one does not, as instantiation traps.
        InvalidModule: an offset is not an i32.
    """
    if not segments.elements:
        return
    values: list[int | None] = [imported.get(i) for i in range(imports)]
    if any(b"\x23" in offset for offset, _ in segments.elements):
        for init in segments.globals_:
            values.append(_value(init, values))
    for number, (expression, functions) in enumerate(segments.elements):
        offset = _value(expression, values)
        if offset is None:
            raise InvalidModule("the offset of an element segment is not an i32", segment=number, runtime="wasm3")
        if offset + functions > (segments.table or 0):
            raise traps.guest_trap(traps.UNDEFINED_ELEMENT, runtime="wasm3",
                                   text=f"element segment {number} does not fit its table")


def _table(wasm: bytes, at: int) -> tuple[int, int]:
    if wasm[at:at + 1] != b"\x70":
        raise NotSupported("a table of anything but functions", need="reference-types", runtime="wasm3", offset=at)
    flags, at = read_u32(wasm, at + 1)
    if flags > 1:
        raise NotSupported("limits of a later form", need="memory64", runtime="wasm3", offset=at)
    minimum, at = read_u32(wasm, at)
    return minimum, read_u32(wasm, at)[1] if flags else at


def _first_form(wasm: bytes, at: int) -> int:
    flags, after = read_u32(wasm, at)
    if flags:
        raise NotSupported("a segment that is passive, declared or for another index", need="bulk-memory",
                           runtime="wasm3", offset=at)
    return after


def _ends(section: Section, at: int) -> None:
    if at != section.end:
        raise InvalidModule(f"section {section.id} has another size than its contents", offset=at)


def _expression(wasm: bytes, at: int, end: int) -> tuple[bytes, int]:
    start = at
    while at < end:
        op, at = wasm[at], at + 1
        if op == 0x0B:
            return wasm[start:at], at
        at = _skip(op, wasm, at)
    raise InvalidModule("a constant expression does not end", offset=start)


def _skip(op: int, wasm: bytes, at: int) -> int:
    """Offset behind the immediates of ``op``."""
    if op in _OPERATORS or op in {0x7C, 0x7D, 0x7E}:
        return at
    if op == 0x41:
        return read_s32(wasm, at)[1]
    if op == 0x42:
        return read_s64(wasm, at)[1]
    if op in {0x43, 0x44}:
        return at + (4 if op == 0x43 else 8)
    if op in {0x23, 0xD2}:
        return read_u32(wasm, at)[1]
    if op == 0xD0:
        return read_s33(wasm, at)[1]
    if op == 0xFD:
        return read_u32(wasm, at)[1] + 16
    raise InvalidModule(f"instruction {op:#x} is not constant", offset=at - 1)


def _value(expression: bytes, values: Sequence[int | None]) -> int | None:
    """The i32 (unsigned) that an expression gives, or None if it is of another type or not valid."""
    stack: list[int] = []
    at = 0
    while (op := expression[at]) != 0x0B:
        after = _skip(op, expression, at + 1)
        if op == 0x41:
            stack.append(read_s32(expression, at + 1)[0])
        elif op == 0x23:
            index = read_u32(expression, at + 1)[0]
            found = values[index] if index < len(values) else None
            if found is None:
                return None
            stack.append(found)
        elif op in _OPERATORS and len(stack) > 1:
            right, left = stack.pop(), stack.pop()
            stack.append(_OPERATORS[op](left, right))
        else:
            return None
        at = after
    return stack[0] & 0xFFFF_FFFF if len(stack) == 1 else None
