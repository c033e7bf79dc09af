"""The functions that stand for instructions on tables, over an array of i32 in a memory and a length in a global.

They trap as the instruction would: a real access beyond U. Nothing may be suspended in them, so they have no loop but
one of 24 turns (`fill` doubles what it has copied), and call each other only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...lazydata import dataclass, field
from ...wasm.leb128 import uleb
from ...wasm.module import FuncType
from ...wasm.values import I32
from .. import emit
from .plan import MAX_SLOTS, Plan

__all__ = ["TableFunctions"]

_PAGE_SLOTS_SHIFT = 14
"""A page of 64 KiB holds 2^14 slots."""
_DOUBLINGS = MAX_SLOTS.bit_length()

_ADD, _SUB, _SHL, _SHR_U, _EQ, _EQZ = b"\x6a", b"\x6b", b"\x74", b"\x76", b"\x46", b"\x45"
_LT_U, _GT_U, _GE_U, _SELECT = b"\x49", b"\x4b", b"\x4f", b"\x1b"
_MINUS_ONE = emit.i32_const(0xFFFFFFFF)


@dataclass(slots=True)
class TableFunctions:
    """Makes the functions on demand.

    Attributes:
        add: adds a function (type, locals, code without ``end``) and returns its index. type_index: index of a type.
        universe: index of table U.
        memory, length: table -> memory that holds it, global with its length.
        maximum: table -> slots at most.
        dropped: element segment -> global that says that it was dropped. data: element segment -> (data segment,
            items).
        poison: number of a function in U whose type no call asks for.
    """

    plan: Plan
    add: Callable[[FuncType, Sequence[int], bytes], int]
    type_index: Callable[[FuncType], int]
    universe: int
    memory: dict[int, int]
    length: dict[int, int]
    maximum: dict[int, int]
    dropped: dict[int, int]
    data: dict[int, tuple[int, int]]
    poison: int
    _made: dict[tuple[object, ...], int] = field(default_factory=dict)

    def _function(self, key: tuple[object, ...], params: int, results: int, locals_: int, code: bytes) -> int:
        if key not in self._made:
            kind = FuncType((I32,) * params, (I32,) * results)
            self._made[key] = self.add(kind, [I32] * locals_, code)
        return self._made[key]

    @property
    def _trap(self) -> bytes:
        """Traps as an access outside a table does."""
        return _MINUS_ONE + b"\x25" + uleb(self.universe) + b"\x1a" + emit.UNREACHABLE

    def _address(self, slot: int) -> bytes:
        return emit.local_get(slot) + emit.i32_const(2) + _SHL

    def _outside(self, start: int, count: int, size: bytes) -> bytes:
        """Trap unless locals ``start`` and ``count`` are a range within ``size``."""
        return (
            emit.local_get(count) + size + _GT_U + emit.IF + self._trap + emit.END
            + emit.local_get(start) + size + emit.local_get(count) + _SUB + _GT_U + emit.IF + self._trap + emit.END
        )

    def size(self, table: int) -> bytes:
        """``table.size``"""
        return emit.global_get(self.length[table])

    def get(self, table: int) -> bytes:
        """``table.get``"""
        code = (
            emit.local_get(0) + self.size(table) + _GE_U + emit.IF + self._trap + emit.END
            + self._address(0) + emit.load(I32, self.memory[table])
        )
        return emit.call(self._function(("get", table), 1, 1, 0, code))

    def set(self, table: int) -> bytes:
        """``table.set``"""
        code = (
            emit.local_get(0) + self.size(table) + _GE_U + emit.IF + self._trap + emit.END
            + self._address(0) + emit.local_get(1) + emit.store(I32, self.memory[table])
        )
        return emit.call(self._function(("set", table), 2, 0, 0, code))

    def fill(self, table: int) -> bytes:
        """``table.fill``: store one, then copy what is there behind it, again and again."""
        at, value, count, done, turns, part = range(6)
        memory = uleb(self.memory[table])
        code = (
            self._outside(at, count, self.size(table))
            + emit.local_get(count) + _EQZ + emit.IF + emit.RETURN + emit.END
            + self._address(at) + emit.local_get(value) + emit.store(I32, self.memory[table])
            + emit.i32_const(1) + emit.local_set(done)
            + emit.i32_const(_DOUBLINGS) + emit.local_set(turns) + emit.LOOP
            + emit.local_get(count) + emit.local_get(done) + _SUB + emit.local_tee(part) + _EQZ
            + emit.IF + emit.RETURN + emit.END
            # part = min(done, part)
            + emit.local_get(done) + emit.local_get(part) + emit.local_get(done) + emit.local_get(part) + _LT_U
            + _SELECT + emit.local_set(part)
            + emit.local_get(at) + emit.local_get(done) + _ADD + emit.i32_const(2) + _SHL
            + self._address(at) + self._address(part) + b"\xfc\x0a" + memory + memory
            + emit.local_get(done) + emit.local_get(part) + _ADD + emit.local_set(done)
            + emit.local_get(turns) + emit.i32_const(1) + _SUB + emit.local_tee(turns) + emit.br_if(0) + emit.END
        )
        return emit.call(self._function(("fill", table), 3, 0, 3, code))

    def grow(self, table: int) -> bytes:
        """``table.grow``"""
        value, count, old, pages = range(4)
        memory = self.memory[table]
        refuse = emit.IF + _MINUS_ONE + emit.RETURN + emit.END
        code = (
            emit.local_get(count) + emit.i32_const(self.maximum[table]) + self.size(table) + emit.local_tee(old) + _SUB
            + _GT_U + refuse
            + emit.local_get(old) + emit.local_get(count) + _ADD + emit.i32_const((1 << _PAGE_SLOTS_SHIFT) - 1) + _ADD
            + emit.i32_const(_PAGE_SLOTS_SHIFT) + _SHR_U + emit.local_tee(pages) + emit.memory_size(memory) + _GT_U
            + emit.IF + emit.local_get(pages) + emit.memory_size(memory) + _SUB + emit.memory_grow(memory)
            + _MINUS_ONE + _EQ + refuse + emit.END
            + emit.local_get(old) + emit.local_get(count) + _ADD + emit.global_set(self.length[table])
            + emit.local_get(old) + emit.local_get(value) + emit.local_get(count) + self.fill(table)
            + emit.local_get(old)
        )
        return emit.call(self._function(("grow", table), 2, 1, 2, code))

    def copy(self, target: int, source: int) -> bytes:
        """``table.copy``"""
        code = (
            self._outside(1, 2, self.size(source)) + self._outside(0, 2, self.size(target))
            + self._address(0) + self._address(1) + self._address(2)
            + b"\xfc\x0a" + uleb(self.memory[target]) + uleb(self.memory[source])
        )
        return emit.call(self._function(("copy", target, source), 3, 0, 0, code))

    def init(self, table: int, segment: int) -> bytes:
        """``table.init``; a segment that is dropped, active or declarative has no items."""
        size, copy = emit.i32_const(0), b""
        if segment in self.data:
            data, items = self.data[segment]
            size = emit.i32_const(0) + emit.i32_const(items) + emit.global_get(self.dropped[segment]) + _SELECT
            copy = (self._address(0) + self._address(1) + self._address(2)
                    + b"\xfc\x08" + uleb(data) + uleb(self.memory[table]))
        code = self._outside(1, 2, size) + self._outside(0, 2, self.size(table)) + copy
        return emit.call(self._function(("init", table, segment), 3, 0, 0, code))

    def drop(self, segment: int) -> bytes:
        """``elem.drop``"""
        if segment not in self.dropped:
            return b"\x01"  # instantiation has dropped it
        return emit.i32_const(1) + emit.global_set(self.dropped[segment])

    def resolve(self, table: int, kind: FuncType) -> bytes:
        """The slot of an indirect call to a number in U; -1, which is beyond U, for a slot beyond the table."""
        code = (
            emit.local_get(0) + self.size(table) + _GE_U + emit.IF + _MINUS_ONE + emit.RETURN + emit.END
            + self._address(0) + emit.load(I32, self.memory[table])
        )
        if kind not in self.plan.ambiguous:
            return emit.call(self._function(("resolve", table), 1, 1, 0, code))
        first, end = self.plan.groups.get(kind, (1, 1))
        code += (
            emit.local_tee(1) + _EQZ + emit.local_get(1) + emit.i32_const(first) + _SUB
            + emit.i32_const(end - first) + _LT_U + b"\x72" + emit.IF + emit.local_get(1) + emit.RETURN + emit.END
            + emit.i32_const(self.poison)
        )
        return emit.call(self._function(("resolve", table, kind), 1, 1, 1, code))
