"""The module as WAMR loads it. No index changes; what is added stands at the end of its index space.

WAMR finds exports by C strings and imports in a process-wide table, links no globals, and calls host functions of one
plain result only. So, in the module that it loads:

* function 12 and global 3 are exported as ``f12`` and ``g3``, imported function 5 is ``i``/``5``, and the start
  function is an export (else it would run with a stack of WAMR's own);
* an imported global is a defined one with the host's value; a constant expression that names a global holds that
  global's own expression instead (WAMR takes imported globals there only);
* an imported function with several results or with vectors gives nothing, and takes the halves of vectors as i64. A
  function with the original type stands for it everywhere: it calls it, and reads the results from globals ``r0``,
  ``r1`` ..., of type i64, where the host has put them;
* active element segments with null in them, where WAMR puts function 0, are written as runs of functions;
* a function with a vector among several results returns explicitly: WAMR cuts it in half where a function just ends;
* a tail call with a vector among its arguments is a call and a return: WAMR passes a quarter of it. (So such calls take
  stack.)
* a select with its type given is one without for vectors: WAMR has forgotten it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from wasmckpt.errors import NotSupported
from wasmckpt.lazydata import dataclass
from wasmckpt.wasm.constants import constant_offset
from wasmckpt.wasm.encode import appended, encode, export_entry, func_type, global_entry, vector
from wasmckpt.wasm.encode import name as wasm_name
from wasmckpt.wasm.leb128 import read_s32, read_s64, read_u32, sleb, uleb
from wasmckpt.wasm.module import ElemSegment, ExternKind, FuncType, GlobalType, Module
from wasmckpt.wasm.validate import analyze
from wasmckpt.wasm.values import EXTERNREF, F32, F64, FUNCREF, I32, I64, V128

__all__ = ["IMPORT_MODULE", "Shaped", "function_name", "global_name", "import_name", "lane_name", "lanes", "shaped"]

IMPORT_MODULE: Final = "i"
_SELECT_VECTOR: Final = bytes([0x1C, 1, V128])
_TAIL_CALLS: Final = {0x12: 0x10, 0x13: 0x11}
"""return_call, return_call_indirect, and what is no tail call."""
_CALLS: Final = frozenset({0x10, 0xD2, *_TAIL_CALLS})
"""What is looked at: call and ref.func, too."""
_FROM_LANE: Final = {
    I32: b"\xa7",  # i32.wrap_i64
    I64: b"",
    F32: b"\xa7\xbe",  # i32.wrap_i64 f32.reinterpret_i32
    F64: b"\xbf",  # f64.reinterpret_i64
}
_SPLAT, _LOW, _HIGH, _SET_HIGH = b"\xfd\x12", b"\xfd\x1d\0", b"\xfd\x1d\1", b"\xfd\x1e\1"


def function_name(index: int) -> str:
    return f"f{index}"


def global_name(index: int) -> str:
    return f"g{index}"


def import_name(index: int) -> str:
    return str(index)


def lane_name(number: int) -> str:
    return f"r{number}"


def lanes(types: Sequence[int]) -> tuple[int, ...]:
    """``types`` with two i64 for each vector, the low half first."""
    return tuple(lane for kind in types for lane in ((I64, I64) if kind == V128 else (kind,)))


@dataclass(frozen=True, slots=True)
class Shaped:
    """The module for WAMR.

    Attributes:
        code: its bytes.
        wrapped: the imported functions that have a stand-in: what they give goes into the globals ``r0`` ...
    """

    code: bytes
    wrapped: frozenset[int]


def shaped(module: Module, imported: Sequence[int]) -> Shaped:
    """The module for WAMR.

    Args:
        module: what the caller knows; it imports functions and globals only.
        imported: bits of the imported globals, in their order.

    Raises:
        NotSupported: host functions with references, or an imported reference that is not null.
    """
    shaper = _Shaper(module, imported)
    return Shaped(shaper.encode(), frozenset(shaper.wrappers))


class _Shaper:
    def __init__(self, module: Module, imported: Sequence[int]) -> None:
        self.module = module
        self.imported = imported
        self.imports = [module.signature(i) for i in range(module.imported_funcs)]
        wrapped = []
        for index, kind in enumerate(self.imports):
            if not {FUNCREF, EXTERNREF}.isdisjoint(kind.params + kind.results):
                raise NotSupported("a host function with references", need="reference-types", runtime="wamr")
            if len(kind.results) > 1 or V128 in kind.params + kind.results:
                wrapped.append(index)
        self.wrappers = {index: len(module.func_types) + n for n, index in enumerate(wrapped)}
        self.lanes = max((len(lanes(self.imports[index].results)) for index in wrapped), default=0)

    def encode(self) -> bytes:
        module = self.module
        replaced: dict[int, bytes | None] = {7: vector(self.exports()), 8: None}
        if module.imports:
            replaced[2] = vector(self.import_entries()) if self.imports else None
        if module.globals or self.lanes:
            replaced[6] = vector(self.globals())
        if module.elems:
            replaced[9] = vector(self.elements())
        if module.datas:
            replaced[11] = vector(
                (b"\0" + self.constant(data.offset) if data.active else b"\1") + uleb(len(data.data)) + data.data
                for data in module.datas)
        if self.wrappers:
            kinds = [self.imports[index] for index in self.wrappers]
            replaced[1] = appended(module, 1, [func_type(FuncType(lanes(kind.params), ())) for kind in kinds])
            replaced[3] = appended(module, 3, [uleb(module.func_types[index]) for index in self.wrappers])
        if (self.wrappers or _SELECT_VECTOR in module.data
                or any(V128 in kind.params or _halved(kind) for kind in module.types)):
            replaced[10] = vector([*self.bodies(), *map(self.wrapper, self.wrappers)])
        return encode(module, replaced, keep_custom=frozenset())

    def import_entries(self) -> Iterator[bytes]:
        types = dict(zip(self.wrappers, itertools.count(len(self.module.types)), strict=False))
        for index in range(len(self.imports)):
            kind = types.get(index, self.module.func_types[index])
            yield wasm_name(IMPORT_MODULE) + wasm_name(import_name(index)) + b"\0" + uleb(kind)

    def exports(self) -> Iterator[bytes]:
        found = {(e.kind, e.index) for e in self.module.exports}
        if self.module.start is not None:
            found.add((ExternKind.FUNC, self.module.start))
        for kind, index in sorted(found):
            if kind == ExternKind.FUNC and index >= len(self.imports):
                yield export_entry(function_name(index), kind, index)
            elif kind == ExternKind.GLOBAL:
                yield export_entry(global_name(index), kind, index)
        for number in range(self.lanes):
            yield export_entry(lane_name(number), ExternKind.GLOBAL, len(self.module.globals) + number)

    def globals(self) -> Iterator[bytes]:
        for kind, bits in zip(self.module.globals, self.imported, strict=False):
            yield global_entry(kind, _constant(kind.type, bits) + b"\x0b")
        for own in self.module.own_globals:
            yield global_entry(own.type, self.constant(own.init))
        yield from [global_entry(GlobalType(I64, True), b"\x42\0\x0b")] * self.lanes

    def constant(self, expression: bytes) -> bytes:
        """A constant expression without globals."""
        out = b""
        at = 0
        while (op := expression[at]) != 0x0B:
            start, at = at, _after_constant(expression, at)
            if op == 0x23:
                index, _ = read_u32(expression, start + 1)
                own = index - len(self.imported)
                out += (_constant(self.module.globals[index].type, self.imported[index]) if own < 0
                        else self.constant(self.module.own_globals[own].init)[:-1])
            elif op == 0xD2:
                index, _ = read_u32(expression, start + 1)
                out += b"\xd2" + uleb(self.wrappers.get(index, index))
            else:
                out += expression[start:at]
        return out + b"\x0b"

    # Element segments

    def elements(self) -> Iterator[bytes]:
        segments = [segment._replace(offset=self.constant(segment.offset) if segment.offset else b"",
                                     items=tuple(map(self.item, segment.items))) for segment in self.module.elems]
        more: list[ElemSegment] = []
        for table in range(len(self.module.tables)):
            mine = [i for i, s in enumerate(segments) if s.mode == "active" and s.table == table]
            if any(None in segments[i].items for i in mine):
                runs = self.runs(table, [segments[i] for i in mine])
                if runs is not None:
                    more += runs
                    for i in mine:  # an empty segment keeps the index
                        segments[i] = segments[i]._replace(offset=b"\x41\0\x0b", items=())
        return map(_element, segments + more)

    def item(self, item: int | None) -> int | None:
        """A function's index as it is now, or None for null."""
        if item is not None and item < 0:
            expression = self.constant(b"\x23" + uleb(-1 - item) + b"\x0b")
            return read_u32(expression, 1)[0] if expression[0] == 0xD2 else None
        return item if item is None else self.wrappers.get(item, item)

    def runs(self, table: int, segments: Sequence[ElemSegment]) -> list[ElemSegment] | None:
        """What a table's active segments leave in it, without null; None if one does not fit, which then traps."""
        slots: dict[int, int | None] = {}
        for segment in segments:
            offset = constant_offset(self.module, segment.offset, {})
            if offset + len(segment.items) > self.module.tables[table].limits.minimum:
                return None
            slots.update(enumerate(segment.items, offset))
        filled = sorted((slot, item) for slot, item in slots.items() if item is not None)
        found = []
        for _, group in itertools.groupby(enumerate(filled), lambda pair: pair[1][0] - pair[0]):
            run = [slot_and_item for _, slot_and_item in group]
            found.append(ElemSegment("active", table, b"\x41" + sleb(run[0][0]) + b"\x0b", FUNCREF,
                                     tuple(item for _, item in run)))
        return found

    # Functions

    def bodies(self) -> Iterator[bytes]:
        """The module's own functions, with the wrappers' indices in place of those that they stand for."""
        data = self.module.data
        for func, body in enumerate(self.module.bodies, len(self.imports)):
            parts = []
            done = body.start
            for start, end, instead in self.replaced(func):
                parts += [data[done:body.expr + start], instead]
                done = body.expr + end
            parts.append(data[done:body.end - 1])
            yield _body(b"".join(parts) + (b"\x0f\x0b" if _halved(self.module.signature(func)) else b"\x0b"))

    def replaced(self, func: int) -> Iterator[tuple[int, int, bytes]]:
        """Instructions of a function that are others here: (offset, offset behind it, instead)."""
        body = self.module.body(func)
        expression = self.module.data[body.expr:body.end]
        if not self.wrappers and not any(sign in expression for sign in (b"\x12", b"\x13", _SELECT_VECTOR)):
            return  # certainly no tail call and no such select
        code = analyze(self.module, func)
        for i, op in enumerate(code.ops):
            start, end, immediate = code.pos[i], code.pos[i + 1], code.imms[i]
            instead = expression[start:end]
            if instead == _SELECT_VECTOR:
                yield start, end, b"\x1b"
            if op not in _CALLS:
                continue
            if isinstance(immediate, int):  # a function's index
                kind = self.module.signature(immediate)
                if immediate in self.wrappers:
                    instead = bytes([op]) + uleb(self.wrappers[immediate])
            else:  # of a type and of a table
                assert isinstance(immediate, tuple)
                kind = self.module.types[immediate[0]]
            if op in _TAIL_CALLS and V128 in kind.params:
                instead = bytes([_TAIL_CALLS[op]]) + instead[1:] + b"\x0f"  # return
            if instead != expression[start:end]:
                yield start, end, instead

    def wrapper(self, index: int) -> bytes:
        kind = self.imports[index]
        code = b"\0"  # no locals
        for local, param in enumerate(kind.params):
            get = b"\x20" + uleb(local)
            code += get + _LOW + get + _HIGH if param == V128 else get
        code += b"\x10" + uleb(index)
        lane = len(self.module.globals)
        for result in kind.results:
            code += b"\x23" + uleb(lane)
            lane += 1
            if result == V128:
                code += _SPLAT + b"\x23" + uleb(lane) + _SET_HIGH
                lane += 1
            else:
                code += _FROM_LANE[result]
        return _body(code + b"\x0f\x0b")  # return, end


def _halved(kind: FuncType) -> bool:
    """Whether WAMR loses the upper half of a vector at the end of a function."""
    return len(kind.results) > 1 and V128 in kind.results


def _body(contents: bytes) -> bytes:
    return uleb(len(contents)) + contents


def _element(segment: ElemSegment) -> bytes:
    active = segment.mode == "active"
    flags = {"active": 0, "passive": 1, "declarative": 3}[segment.mode]
    plain = segment.element == FUNCREF and None not in segment.items
    explicit = not active or segment.table != 0 or segment.element != FUNCREF
    if active and explicit:
        flags |= 2
    out = uleb(flags | (0 if plain else 4)) + (uleb(segment.table) if active and explicit else b"") + segment.offset
    if explicit:
        out += b"\0" if plain else bytes([segment.element])
    if plain:
        return out + vector(uleb(item) for item in segment.items if item is not None)
    null = bytes([0xD0, segment.element, 0x0B])
    return out + vector(null if item is None else b"\xd2" + uleb(item) + b"\x0b" for item in segment.items)


def _constant(kind: int, bits: int) -> bytes:
    """The instruction that gives a value."""
    if kind == I32:
        return b"\x41" + sleb(bits - (bits >> 31 << 32))
    if kind == I64:
        return b"\x42" + sleb(bits - (bits >> 63 << 64))
    if kind == F32:
        return b"\x43" + struct.pack("<I", bits)
    if kind == F64:
        return b"\x44" + struct.pack("<Q", bits)
    if kind == V128:
        return b"\xfd\x0c" + bits.to_bytes(16, "little")
    if bits:
        raise NotSupported("an imported reference that is not null", need="reference-types", runtime="wamr")
    return bytes([0xD0, kind])


def _after_constant(expression: bytes, at: int) -> int:
    """Offset behind the instruction of a constant expression at ``at``."""
    op, at = expression[at], at + 1
    if op == 0x41:
        return read_s32(expression, at)[1]
    if op == 0x42:
        return read_s64(expression, at)[1]
    if op in (0x23, 0xD2):
        return read_u32(expression, at)[1]
    return at + {0x43: 4, 0x44: 8, 0xD0: 1, 0xFD: 17}.get(op, 0)
