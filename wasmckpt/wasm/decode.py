"""Bytes to `Module`: every section's structure, total over any input; function bodies are checked by `validate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..errors import InvalidModule, NotSupported
from .leb128 import read_s32, read_s64, read_u32
from .limits import MAX_BODY, MAX_COUNTS, MAX_ITEMS, MAX_LOCALS, MAX_PARAMS, MAX_RESULTS, MAX_TEXT, most_locals, within
from .module import (
    Body,
    CustomSection,
    DataSegment,
    ElemSegment,
    Export,
    ExternKind,
    FuncType,
    Global,
    GlobalType,
    Import,
    Limits,
    Module,
    Section,
    TableType,
)
from .values import FUNCREF, REFERENCES, TYPE_NAMES

__all__ = ["decode"]

_ORDER = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 13: 6, 6: 7, 7: 8, 8: 9, 9: 10, 12: 11, 10: 12, 11: 13}


def decode(data: bytes) -> Module:
    """Decode a binary module.

    Raises:
        InvalidModule: not WebAssembly, truncated or malformed, with the byte offset.
        NotSupported: a component, or a section or type of a proposal outside WebAssembly 2.0.
    """
    return _Decoder(bytes(data)).module()


class _Decoder:
    """One pass over the sections; ``at`` is the next byte, ``end`` the end of the present section."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.end = len(data)
        self.out = Module(data)

    # Basic readers

    def fail(self, what: str, at: int | None = None) -> InvalidModule:
        return InvalidModule(what, offset=self.at if at is None else at)

    def byte(self) -> int:
        if self.at >= self.end:
            raise self.fail("unexpected end")
        self.at += 1
        return self.data[self.at - 1]

    def u32(self) -> int:
        value, self.at = read_u32(self.data, self.at)
        if self.at > self.end:
            raise self.fail("unexpected end")
        return value

    def take(self, count: int) -> bytes:
        if count > self.end - self.at:
            raise self.fail("unexpected end: length out of bounds")
        self.at += count
        return self.data[self.at - count : self.at]

    def name(self) -> str:
        start = self.at
        length = self.u32()
        within(length, MAX_TEXT, "bytes of a name", offset=start)
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail("malformed UTF-8 encoding", start) from None

    def count(self, what: str = "", most: int = 0) -> int:
        """How many items follow: ``what`` of the module, or of something in it that may have ``most``."""
        start = self.at
        count = self.u32()
        if count > self.end - self.at:  # every item takes at least a byte: checked before anything is allocated
            raise self.fail("unexpected end: more items announced than bytes left", start)
        if what:
            within(count, most or MAX_COUNTS[what], what, offset=start)
        return count

    def value_type(self) -> int:
        code = self.byte()
        if code not in TYPE_NAMES:
            if code in (0x63, 0x64, 0x6A, 0x6B, 0x6C, 0x6D, 0x6E, 0x71, 0x72, 0x73, 0x74):
                raise NotSupported("reference types of the GC proposal", need="gc", offset=self.at - 1)
            raise self.fail(f"malformed value type {code:#x}", self.at - 1)
        return code

    def reference_type(self) -> int:
        code = self.value_type()
        if code not in REFERENCES:
            raise self.fail("malformed reference type", self.at - 1)
        return code

    def limits(self, top: int, what: str) -> Limits:
        start = self.at
        flags = self.byte()
        if flags & 4:
            raise NotSupported("64-bit memories and tables", need="memory64", offset=start)
        if flags & 2:
            raise NotSupported("shared memories", need="threads", offset=start)
        if flags & 8:
            raise NotSupported("custom page sizes", need="custom-page-sizes", offset=start)
        if flags > 1:
            raise self.fail("malformed limits flags", start)
        low = self.u32()
        high = self.u32() if flags & 1 else None
        if low > top or (high is not None and high > top):
            raise self.fail(f"{what} size must be at most {top}", start)
        if high is not None and low > high:
            raise self.fail("size minimum must not be greater than maximum", start)
        return Limits(low, high)

    def table_type(self) -> TableType:
        if self.at < self.end and self.data[self.at] == 0x40:
            raise NotSupported("a table with an initial value", need="function-references", offset=self.at)
        return TableType(self.reference_type(), self.limits(0xFFFFFFFF, "table"))

    def global_type(self) -> GlobalType:
        code = self.value_type()
        mutable = self.byte()
        if mutable > 1:
            raise self.fail("malformed mutability", self.at - 1)
        return GlobalType(code, bool(mutable))

    def const_expr(self) -> bytes:
        """Skip a constant expression, its instructions' meaning is checked by `validate`."""
        start = self.at
        while True:
            op = self.byte()
            if op == 0x0B:
                return self.data[start : self.at]
            if op == 0x41:
                self.at = read_s32(self.data, self.at)[1]
            elif op == 0x42:
                self.at = read_s64(self.data, self.at)[1]
            elif op == 0x43:
                self.take(4)
            elif op == 0x44:
                self.take(8)
            elif op in (0x23, 0xD2):
                self.u32()
            elif op == 0xD0:
                self.reference_type()
            elif op == 0xFD:
                if self.u32() != 12:
                    raise self.fail("constant expression required")
                self.take(16)
            elif op in (0x6A, 0x6B, 0x6C, 0x7C, 0x7D, 0x7E):
                pass
            elif op == 0xFB:
                raise NotSupported("GC instructions", need="gc", offset=self.at - 1)
            else:
                raise self.fail("constant expression required", self.at - 1)

    # Sections

    def module(self) -> Module:
        data = self.data
        if data[:4] != b"\0asm":
            raise InvalidModule("not a WebAssembly module: magic header not detected", offset=0)
        if len(data) >= 8 and data[4:8] == b"\x0d\0\1\0":
            raise NotSupported("a component, not a core module", need="component-model", offset=4)
        if data[4:8] != b"\1\0\0\0":
            raise InvalidModule("unknown binary version", offset=4)
        self.at = 8
        last = 0
        while self.at < len(data):
            self.end = len(data)
            header = self.at
            number = self.byte()
            size = self.u32()
            start, end = self.at, self.at + size
            if end > len(data):
                raise self.fail("unexpected end: length out of bounds", header)
            if number not in _ORDER:
                raise self.fail(f"malformed section id {number}", header)
            if number:
                if _ORDER[number] <= last:
                    raise self.fail("unexpected content after last section: section out of order", header)
                last = _ORDER[number]
            self.out.sections.append(Section(number, header, start, end))
            self.end = end
            _READERS[number](self)
            if self.at != end:
                raise self.fail("section size mismatch")
        out = self.out
        if len(out.bodies) != len(out.defined):
            raise InvalidModule("function and code section have inconsistent lengths", offset=len(data))
        if out.data_count is not None and out.data_count != len(out.datas):
            raise InvalidModule("data count and data section have inconsistent lengths", offset=len(data))
        for item in out.exports:
            if item.kind == ExternKind.FUNC:
                out.declared_funcs.add(item.index)
        return out

    def custom(self) -> None:
        name = self.name()
        self.out.customs.append(CustomSection(name, self.at, self.end))
        self.at = self.end

    def types(self) -> None:
        for _ in range(self.count("types")):
            form = self.byte()
            if form in (0x4E, 0x4F, 0x50, 0x5E, 0x5F):
                raise NotSupported("types of the GC proposal", need="gc", offset=self.at - 1)
            if form != 0x60:
                raise self.fail("malformed function type", self.at - 1)
            params = tuple([self.value_type() for _ in range(self.count("parameters", MAX_PARAMS))])
            results = tuple([self.value_type() for _ in range(self.count("results", MAX_RESULTS))])
            self.out.types.append(FuncType(params, results))

    def type_index(self) -> int:
        start = self.at
        index = self.u32()
        if index >= len(self.out.types):
            raise self.fail("unknown type", start)
        return index

    def imports(self) -> None:
        out = self.out
        for _ in range(self.count("imports")):
            module, name = self.name(), self.name()
            start = self.at
            kind = self.byte()
            kind_type: int | TableType | Limits | GlobalType
            if kind == ExternKind.FUNC:
                kind_type = self.type_index()
                out.func_types.append(kind_type)
            elif kind == ExternKind.TABLE:
                kind_type = self.table_type()
                out.tables.append(kind_type)
            elif kind == ExternKind.MEMORY:
                kind_type = self.limits(65536, "memory")
                out.memories.append(kind_type)
            elif kind == ExternKind.GLOBAL:
                kind_type = self.global_type()
                out.globals.append(kind_type)
            elif kind == ExternKind.TAG:
                kind_type = self.tag_type()
                out.tags.append(kind_type)
            else:
                raise self.fail("malformed import kind", start)
            out.imports.append(Import(module, name, ExternKind(kind), kind_type))

    def functions(self) -> None:
        count, types = self.count("functions"), len(self.out.types)
        first = len(self.out.func_types)
        raw = self.data[self.at : self.at + count]
        if count and max(raw) < min(types, 0x80) and self.at + count == self.end:  # a byte for each
            self.out.func_types += raw
            self.at = self.end
        else:
            self.out.func_types += [self.type_index() for _ in range(count)]
        self.out.defined += self.out.func_types[first:]

    def table_section(self) -> None:
        for _ in range(self.count("tables")):
            self.out.tables.append(self.table_type())

    def memory_section(self) -> None:
        for _ in range(self.count("memories")):
            self.out.memories.append(self.limits(65536, "memory"))

    def tag_type(self) -> int:
        start = self.at
        if self.byte() != 0:
            raise self.fail("malformed tag attribute", start)
        index = self.type_index()
        if self.out.types[index].results:
            raise self.fail("non-empty tag result type", start)
        return index

    def tag_section(self) -> None:
        for _ in range(self.count("tags")):
            self.out.tags.append(self.tag_type())

    def global_section(self) -> None:
        for _ in range(self.count("globals")):
            kind = self.global_type()
            init = self.const_expr()
            self.out.own_globals.append(Global(kind, init))
            self.out.globals.append(kind)
            self._declare(init)

    def _declare(self, expr: bytes) -> None:
        if expr[:1] == b"\xd2":
            self.out.declared_funcs.add(read_u32(expr, 1)[0])

    def export_section(self) -> None:
        seen: set[str] = set()
        out = self.out
        sizes = (len(out.func_types), len(out.tables), len(out.memories), len(out.globals), len(out.tags))
        for _ in range(self.count("exports")):
            start = self.at
            name = self.name()
            if name in seen:
                raise self.fail("duplicate export name", start)
            seen.add(name)
            kind = self.byte()
            if kind > ExternKind.TAG:
                raise self.fail("malformed export kind", self.at - 1)
            index = self.u32()
            if index >= sizes[kind]:
                raise self.fail(f"unknown {ExternKind(kind).name.lower()} {index}", start)
            out.exports.append(Export(name, ExternKind(kind), index))

    def start_section(self) -> None:
        start = self.at
        self.out.start = self.u32()
        if self.out.start >= len(self.out.func_types):
            raise self.fail("unknown function", start)
        if self.out.signature(self.out.start) != FuncType((), ()):
            raise self.fail("start function", start)

    def elem_section(self) -> None:
        out = self.out
        for _ in range(self.count("element segments")):
            start = self.at
            flags = self.u32()
            if flags > 7:
                raise self.fail("malformed elements segment kind", start)
            active = not flags & 1
            mode = "active" if active else "declarative" if flags & 2 else "passive"
            table = self.u32() if active and flags & 2 else 0
            offset = self.const_expr() if active else b""
            element = FUNCREF
            if flags & 3 and flags & 4:
                element = self.reference_type()
            elif flags & 3 and self.byte() != 0:
                raise self.fail("malformed element kind", self.at - 1)
            items: list[int | None] = []
            for _ in range(self.count("items of an element segment", MAX_ITEMS)):
                items.append(self._elem_expr(element) if flags & 4 else self._func_index())
            out.declared_funcs.update(i for i in items if i is not None and i >= 0)
            if active and (table >= len(out.tables) or out.tables[table].element != element):
                raise self.fail("unknown table" if table >= len(out.tables) else "type mismatch", start)
            out.elems.append(ElemSegment(mode, table, offset, element, tuple(items)))

    def _func_index(self) -> int:
        start = self.at
        index = self.u32()
        if index >= len(self.out.func_types):
            raise self.fail("unknown function", start)
        return index

    def _elem_expr(self, element: int) -> int | None:
        start = self.at
        expr = self.const_expr()
        if expr[0] == 0xD2 and element == FUNCREF:
            index, end = read_u32(expr, 1)
            if index >= len(self.out.func_types):
                raise self.fail("unknown function", start)
            if end == len(expr) - 1:
                return index
        elif expr[0] == 0xD0 and expr[1] == element and len(expr) == 3:
            return None
        elif expr[0] == 0x23:
            index, end = read_u32(expr, 1)
            if index < len(self.out.globals) and self.out.globals[index].type == element and end == len(expr) - 1:
                return -1 - index
        raise self.fail("type mismatch in element expression", start)

    def data_count(self) -> None:
        self.out.data_count = self.u32()

    def code(self) -> None:
        out = self.out
        count = self.count()
        if count != len(out.defined):
            raise self.fail("function and code section have inconsistent lengths")
        data, section_end = self.data, self.end
        params = [len(kind.params) for kind in out.types]
        known: dict[bytes, tuple[tuple[tuple[int, int], ...], int]] = {}
        """Declarations of locals in their shortest form, read before: functions are many, declarations are few."""
        bodies, defined, at = out.bodies, out.defined, self.at
        all_locals = 0
        for i in range(count):
            entry = at
            if at + 1 < section_end and data[at] >= 0x80 > data[at + 1]:  # as most sizes are
                size, start = data[at] & 0x7F | data[at + 1] << 7, at + 2
            else:
                self.at = at
                size = self.u32()
                start = self.at
            within(size, MAX_BODY, "bytes of a function body", offset=entry)
            end = start + size
            if end > section_end:
                raise self.fail("unexpected end: function body out of bounds", entry)
            declared = data[start : start + 2 * data[start] + 1] if size else b""
            expr = start + len(declared)
            found = known.get(declared)
            if found is None or expr >= end or params[defined[i]] + found[1] > MAX_LOCALS:
                self.at, self.end = start, end
                found = self.locals(params[defined[i]])
                if len(declared) == self.at - start:
                    known[declared] = found
                expr, self.end = self.at, section_end
            if end <= expr or data[end - 1] != 0x0B:
                raise self.fail("END opcode expected", end - 1)
            bodies.append(Body(entry, start, expr, end, found[0]))
            all_locals += found[1]
            at = end
        self.at = at
        within(all_locals, most_locals(len(data)), "locals of all functions")

    def locals(self, params: int) -> tuple[tuple[tuple[int, int], ...], int]:
        """A declaration of locals: runs of (count, type), and how many there are."""
        runs = []
        total = 0
        for _ in range(self.count()):
            number = self.u32()
            total += number
            if params + total > MAX_LOCALS:
                raise self.fail("too many locals")
            runs.append((number, self.value_type()))
        return tuple(runs), total

    def data_section(self) -> None:
        for _ in range(self.count("data segments")):
            start = self.at
            flags = self.u32()
            if flags > 2:
                raise self.fail("malformed data segment kind", start)
            memory = self.u32() if flags == 2 else 0
            if flags != 1 and memory >= len(self.out.memories):
                raise self.fail(f"unknown memory {memory}", start)
            offset = self.const_expr() if flags != 1 else b""
            self.out.datas.append(DataSegment(flags != 1, memory, offset, self.take(self.u32())))


_READERS: Final[dict[int, Callable[[_Decoder], None]]] = {
    0: _Decoder.custom, 1: _Decoder.types, 2: _Decoder.imports, 3: _Decoder.functions, 4: _Decoder.table_section,
    5: _Decoder.memory_section, 6: _Decoder.global_section, 7: _Decoder.export_section, 8: _Decoder.start_section,
    9: _Decoder.elem_section, 10: _Decoder.code, 11: _Decoder.data_section, 12: _Decoder.data_count,
    13: _Decoder.tag_section,
}
