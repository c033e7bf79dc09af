"""The neutral module, put together from the original's sections and what is added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...lazydata import dataclass, field
from ...wasm.codes import Codes
from ...wasm.constants import constant_offset
from ...wasm.decode import decode
from ...wasm.encode import Parts, appended, encode, func_type, global_entry, limits, name, vector
from ...wasm.leb128 import read_s32, read_s64, read_u32, sleb, uleb
from ...wasm.module import ElemSegment, ExternKind, FuncType, GlobalType, Limits, Module, TableType
from ...wasm.values import F32, F64, FUNCREF, I32, I64, V128, WIDTH
from .. import emit
from .code import neutral_body
from .exceptions import ExceptionValues
from .offsets import OffsetMap
from .plan import MAX_SLOTS, NEUTRAL, Plan, make_plan, neutral_type
from .tables import TableFunctions

__all__ = ["Neutral", "neutralize"]

_PAGE_SLOTS = 16384


@dataclass(slots=True)
class Neutral:
    """A module and its neutral form.

    Attributes:
        source, module: the original, the neutral one.
        universe: functions by number; number 1 is the first.
        tables: the original's tables that are arrays now. Their memories begin at ``len(source.memories)``, the globals
            with their lengths at ``len(source.globals)``, in the same order.
        segments: passive element segments. The globals that say that they were dropped follow.
        offsets: function -> map, of those whose offsets differ.
        returning: (function, neutral offset) of places behind calls of imports that are tail calls in the original: a
            frame that stands there has returned.
        same_code: what is known of the original's functions holds for the neutral ones (only imports have changed).
    """

    source: Module
    module: Module
    universe: tuple[int, ...] = ()
    tables: tuple[int, ...] = ()
    segments: tuple[int, ...] = ()
    offsets: dict[int, OffsetMap] = field(default_factory=dict)
    returning: frozenset[tuple[int, int]] = frozenset()
    same_code: bool = False

    @property
    def added(self) -> range:
        """The functions that were added: they are never suspended."""
        return range(len(self.source.func_types), len(self.module.func_types))

    def original_offset(self, func: int, offset: int) -> int:
        """The original's offset for one in the neutral body of ``func``."""
        return self.offsets[func].to_original(offset) if func in self.offsets else offset

    def neutral_offset(self, func: int, offset: int, *, in_call: bool) -> int:
        """The neutral offset for an original one: of the instruction, or of the call that a frame waits in."""
        return self.offsets[func].to_neutral(offset, in_call=in_call) if func in self.offsets else offset

    def pack(self) -> list[Any]:
        """Plain data for `unpack`."""
        maps = {func: (item.original, item.neutral) for func, item in self.offsets.items()}
        return [self.module.data, self.universe, self.tables, self.segments, maps, sorted(self.returning)]

    @classmethod
    def unpack(cls, source: Module, packed: Sequence[Any]) -> Neutral:
        """What `pack` gave, with the original."""
        data, universe, tables, segments, maps, returning = packed
        offsets = {func: OffsetMap(list(a), list(b)) for func, (a, b) in maps.items()}
        return cls(source, decode(data), tuple(universe), tuple(tables), tuple(segments), offsets,
                   frozenset((func, offset) for func, offset in returning))


def neutralize(module: Module, codes: Codes, imported: Mapping[int, int]) -> Neutral | None:
    """Make the neutral module; None where the module is neutral already.

    Args:
        codes: the validated bodies of all functions. imported: bits of the imported globals; 0 where they are not
            known (the module can then be looked at, but not be run).

    Raises:
        NotSupported: see `make_plan`.
    """
    plan = make_plan(module, codes)
    return None if plan is None else _Builder(module, codes, plan, imported).run()


class _Builder:
    def __init__(self, module: Module, codes: Codes, plan: Plan, imported: Mapping[int, int]) -> None:
        self.source, self.codes, self.plan = module, codes, plan
        self.imported_globals = [item.type for item in module.imported(ExternKind.GLOBAL)]
        self.imported = {i: imported.get(i, 0) for i in range(len(self.imported_globals))}
        self.values = dict(self.imported)
        """Of globals, as far as they are known."""
        self.held: dict[int, int | None] = {}
        """The functions that globals hold, as far as they are known."""
        self.numbers = {func: number for number, func in enumerate(plan.universe, 1)}
        self.types: list[FuncType] = [neutral_type(kind) for kind in module.types]
        self.functions: list[tuple[int, bytes]] = []
        self.universe = len(module.tables)

    def run(self) -> Neutral:
        source, plan = self.source, self.plan
        memory = {table: len(source.memories) + n for n, table in enumerate(plan.tables)}
        first = len(source.globals)
        length = {table: first + n for n, table in enumerate(plan.tables)}
        first += len(plan.tables)
        dropped = {segment: first + n for n, segment in enumerate(plan.segments)}
        data = {segment: (len(source.datas) + n, len(source.elems[segment].items))
                for n, segment in enumerate(plan.segments)}
        tables = TableFunctions(
            plan, self.add_function, self.type_index, self.universe, memory, length,
            {table: self._maximum(table) for table in plan.tables}, dropped, data, len(plan.universe) + 1,
        )
        exceptions = ExceptionValues(source, self.add_function, self.type_index)
        bodies: dict[int, bytes] = {}
        offsets: dict[int, OffsetMap] = {}
        returning: set[tuple[int, int]] = set()
        for func, code in self.codes.items():
            made = neutral_body(source, code, plan, self.numbers, tables, exceptions)
            if made is not None:
                bodies[func] = made.code
                returning.update((func, offset) for offset in made.returning)
                if made.offsets is not None:
                    offsets[func] = made.offsets
        wasm = self._assemble(bodies)
        return Neutral(source, decode(wasm), plan.universe, plan.tables, plan.segments, offsets, frozenset(returning),
                       not plan.references and not bodies)

    # What is added

    def type_index(self, kind: FuncType) -> int:
        """Index of a type, added if it is new."""
        if kind not in self.types:
            self.types.append(kind)
        return self.types.index(kind)

    def add_function(self, kind: FuncType, locals_: Sequence[int], code: bytes) -> int:
        """Add a function; ``code`` without its ``end``."""
        self.functions.append((self.type_index(kind), emit.local_decl(list(locals_)) + code + emit.END))
        return len(self.source.func_types) + len(self.functions) - 1

    def _poison(self) -> int:
        """A function of a type that no ambiguous call asks for."""
        taken = {neutral_type(kind) for kind in self.plan.ambiguous}
        kind = FuncType((), ())
        while kind in taken:
            kind = FuncType((*kind.params, I64), ())
        return self.add_function(kind, [], emit.UNREACHABLE)

    def _maximum(self, table: int) -> int:
        declared = self.source.tables[table].limits.maximum
        return min(MAX_SLOTS, MAX_SLOTS if declared is None else declared)

    # Sections

    def _assemble(self, bodies: Mapping[int, bytes]) -> bytes:
        source, plan = self.source, self.plan
        replaced: dict[int, bytes | Parts | None] = {2: self._imports()}
        members = list(plan.universe)
        if plan.references:
            if plan.ambiguous:
                members.append(self._poison())
            replaced[9] = self._elements(members)
            replaced[4] = self._tables(len(members))
            if plan.tables or any(elem.mode != "active" for elem in source.elems):
                replaced[11], count = self._datas()
                if plan.segments or source.data_count is not None:
                    replaced[12] = uleb(count)
        elif any(source.imported(ExternKind.TABLE)):
            replaced[4] = vector(_table(kind) for kind in source.tables)
        if self.types != source.types:
            replaced[1] = vector(func_type(kind) for kind in self.types)
        if plan.tables or any(source.imported(ExternKind.MEMORY)):
            replaced[5] = self._memories()
        if source.globals or plan.tables or plan.segments:
            replaced[6] = self._globals()
        if self.imported_globals:
            replaced[11] = replaced.get(11) or self._datas()[0]
            replaced[9] = replaced.get(9) or self._elements(())
        if any(source.imported(ExternKind.TAG)):
            replaced[13] = vector(b"\0" + uleb(kind) for kind in source.tags)
        if self.functions:
            replaced[3] = appended(source, 3, [uleb(kind) for kind, _ in self.functions])
        if self.functions or bodies:
            replaced[10] = self._code(bodies)
        for number in (9, 11):
            if replaced.get(number) == b"\0":
                replaced[number] = None
        return encode(source, replaced)

    def _imports(self) -> bytes | None:
        functions = [item for item in self.source.imports if item.kind == ExternKind.FUNC]
        if not functions:
            return None
        return vector(
            name(item.module) + name(item.name) + bytes([item.kind]) + uleb(item.type)  # type: ignore[arg-type]
            for item in functions
        )

    def _tables(self, members: int) -> bytes:
        """A table that is an array now leaves an empty one in its place, for the indices."""
        kept = [
            TableType(FUNCREF, Limits(0, 0)) if i in self.plan.tables else kind
            for i, kind in enumerate(self.source.tables)
        ]
        return vector(_table(kind) for kind in [*kept, TableType(FUNCREF, Limits(members + 1, members + 1))])

    def _memories(self) -> bytes:
        own = [limits(kind) for kind in self.source.memories]
        for table in self.plan.tables:
            least, most = self.source.tables[table].limits.minimum, self._maximum(table)
            own.append(limits(Limits(-(-least // _PAGE_SLOTS), -(-max(least, most) // _PAGE_SLOTS))))
        return vector(own)

    def _globals(self) -> bytes:
        source, plan = self.source, self.plan
        entries = [
            global_entry(kind, _constant(kind.type, self.imported[i]) + emit.END)  # type: ignore[union-attr,arg-type]
            for i, kind in enumerate(self.imported_globals)
        ]
        for item in source.own_globals:
            kind = GlobalType(NEUTRAL.get(item.type.type, item.type.type), item.type.mutable)
            entries.append(global_entry(kind, self._expression(item.init)))
        first = [source.tables[table].limits.minimum for table in plan.tables] + [0] * len(plan.segments)
        entries += [global_entry(GlobalType(I32, True), emit.i32_const(value) + emit.END) for value in first]
        return vector(entries)

    def _elements(self, members: Sequence[int]) -> bytes:
        """Active segments of tables that stay, and the universe. A segment of an array that does not fit goes to the
        array's empty table, where it traps as it did."""
        out = []
        for elem in self.source.elems:
            if elem.mode == "active" and (elem.table not in self.plan.tables or not self._fits(elem)):
                out.append(_element(elem.table, self._expression(elem.offset), [self._function(f) for f in elem.items]))
            elif elem.mode == "declarative" and not self.plan.references:
                out.append(b"\x03\x00" + vector(uleb(f) for f in elem.items if f is not None and f >= 0))
            elif elem.mode == "passive" and not self.plan.references:
                items = b"".join(_reference(self._function(f), elem.element) for f in elem.items)
                out.append(b"\x05" + bytes([elem.element]) + uleb(len(elem.items)) + items)
        if members:
            out.append(_element(self.universe, emit.i32_const(1) + emit.END, list(members)))
        return vector(out)

    def _fits(self, elem: ElemSegment) -> bool:
        return self._offset(elem.offset) + len(elem.items) <= self.source.tables[elem.table].limits.minimum

    def _datas(self) -> tuple[bytes, int]:
        """Data segments: the module's own, the passive element segments, the active ones of arrays."""
        source, plan = self.source, self.plan
        out = []
        for data in source.datas:
            if not data.active:
                head = b"\1"
            else:
                head = (b"\2" + uleb(data.memory) if data.memory else b"\0") + self._expression(data.offset)
            out.append(head + uleb(len(data.data)) + data.data)
        out += [b"\1" + self._slots(source.elems[segment]) for segment in plan.segments]
        for elem in source.elems:
            if elem.mode == "active" and elem.table in plan.tables and self._fits(elem):
                memory = len(source.memories) + plan.tables.index(elem.table)
                at = emit.i32_const(4 * self._offset(elem.offset)) + emit.END
                out.append((b"\2" + uleb(memory) if memory else b"\0") + at + self._slots(elem))
        return vector(out), len(out)

    def _slots(self, elem: ElemSegment) -> bytes:
        functions = [self._function(item) for item in elem.items]
        return uleb(4 * len(functions)) + b"".join(
            (0 if f is None else self.numbers[f]).to_bytes(4, "little") for f in functions
        )

    def _code(self, bodies: Mapping[int, bytes]) -> Parts:
        source, data = self.source, memoryview(self.source.data)
        out: list[bytes | memoryview] = [uleb(len(source.bodies) + len(self.functions))]
        for func in self.codes:
            body = bodies.get(func) or data[source.body(func).start : source.body(func).end]
            out += [uleb(len(body)), body]
        for _, body in self.functions:
            out += [uleb(len(body)), body]
        return out

    # Constant expressions

    def _offset(self, expr: bytes) -> int:
        return constant_offset(self.source, expr, self.values)

    def _function(self, item: int | None) -> int | None:
        """The function that an item of an element segment is; None: null."""
        if item is None or item >= 0:
            return item
        index, path = -1 - item, []
        while index not in self.held:
            path.append(index)
            expr = self.source.own_globals[index - len(self.imported_globals)].init
            if expr[0] != 0x23:
                self.held[index] = read_u32(expr, 1)[0] if expr[0] == 0xD2 else None
                break
            index = read_u32(expr, 1)[0]
        self.held.update(dict.fromkeys(path, self.held[index]))
        return self.held[index]

    def _expression(self, expr: bytes) -> bytes:
        """A constant expression with numbers for references, and values for imported globals."""
        out = []
        at = 0
        while expr[at] != 0x0B:
            start, op = at, expr[at]
            at += 1
            new = b""
            if op == 0x41:
                at = read_s32(expr, at)[1]
            elif op == 0x42:
                at = read_s64(expr, at)[1]
            elif op == 0x23:
                index, at = read_u32(expr, at)
                if index in self.imported:
                    kind: GlobalType = self.imported_globals[index]  # type: ignore[assignment]
                    new = _constant(kind.type, self.imported[index])
            elif op == 0xD2:
                index, at = read_u32(expr, at)
                new = emit.i32_const(self.numbers[index])
            elif op == 0xD0:
                new = emit.zero(NEUTRAL[expr[at]])
                at += 1
            elif op in (0x43, 0x44):
                at += 4 if op == 0x43 else 8
            elif op == 0xFD:
                at = read_u32(expr, at)[1] + 16
            out.append(new or expr[start:at])
        return b"".join(out) + emit.END


def _constant(kind: int, bits: int) -> bytes:
    """The instruction that gives a value."""
    if kind == I32:
        return emit.i32_const(bits)
    if kind == I64:
        return b"\x42" + sleb(bits - (1 << 64) if bits >> 63 else bits)
    return {F32: b"\x43", F64: b"\x44", V128: b"\xfd\x0c"}[kind] + bits.to_bytes(WIDTH[kind], "little")


def _table(kind: TableType) -> bytes:
    return bytes([kind.element]) + limits(kind.limits)


def _reference(func: int | None, kind: int = FUNCREF) -> bytes:
    return (bytes([0xD0, kind]) if func is None else b"\xd2" + uleb(func)) + emit.END


def _element(table: int, offset: bytes, items: Sequence[int | None]) -> bytes:
    """An active segment of a table of functions."""
    if None in items:
        head = b"\x06" + uleb(table) + offset + bytes([FUNCREF]) if table else b"\x04" + offset
        return head + vector(_reference(f) for f in items)
    head = b"\x02" + uleb(table) + offset + b"\0" if table else b"\x00" + offset
    return head + vector(uleb(f) for f in items if f is not None)
