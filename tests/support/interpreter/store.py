"""What exists while programs run: functions, tables, memories, globals, and the instance that ties them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from wasmckpt.wasm.leb128 import read_s32, read_s64, read_u32
from wasmckpt.wasm.module import ExternKind, FuncType, GlobalType, Limits, Module, TableType
from wasmckpt.wasm.values import REFERENCES

from .code import Code, compile_function
from .floats import NanPolicy
from .traps import LinkError, trap

if TYPE_CHECKING:
    from .machine import Machine

__all__ = [
    "Caller", "Extern", "Function", "Global", "HostBody", "HostFunction", "Import", "Instance", "Memory", "Table",
    "Tag", "Thrown", "WasmFunction",
]

WASM_PAGE: Final = 65536

Cell = Any
"""What a local, an operand or a global holds: an int of bits; a reference's null is None, a function reference the
function, an external reference whatever the embedder gave."""


class Memory:
    """A linear memory."""

    def __init__(self, limits: Limits) -> None:
        self.data = bytearray(limits.minimum * WASM_PAGE)  # the same object for ever: growth extends it
        self.maximum = limits.maximum

    @property
    def pages(self) -> int:
        return len(self.data) // WASM_PAGE

    def grow(self, count: int) -> bool:
        """Grow by ``count`` pages of 64 KiB, if that is allowed."""
        if self.pages + count > min(65536, self.maximum if self.maximum is not None else 65536):
            return False
        self.data.extend(bytes(count * WASM_PAGE))
        return True


class Table:
    """A table of references."""

    def __init__(self, kind: TableType) -> None:
        self.element = kind.element
        self.slots: list[Cell] = [None] * kind.limits.minimum
        self.maximum = kind.limits.maximum

    def grow(self, count: int, value: Cell) -> bool:
        if len(self.slots) + count > min(10_000_000, self.maximum if self.maximum is not None else 10_000_000):
            return False
        self.slots.extend([value] * count)
        return True


@dataclass(frozen=True, eq=False, slots=True)
class Tag:
    """A tag of exceptions: what it is is that it is no other."""

    payload: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Thrown:
    """An exception. It cannot be changed, and nothing tells two of one tag and payload apart."""

    tag: Tag
    values: tuple[Cell, ...]


class Global:
    """A global variable."""

    def __init__(self, kind: GlobalType, value: Cell) -> None:
        self.kind = kind
        self.value = value


@dataclass(slots=True)
class Caller:
    """What a host function is given first: who called it."""

    machine: Machine
    instance: Instance

    def memory(self, index: int = 0) -> bytearray:
        """The bytes of the calling instance's memory; not to be kept."""
        return self.instance.memories[index].data

    def call(self, export: str, *args: Cell) -> tuple[Cell, ...]:
        """Call back into the calling instance, from the host function."""
        return self.machine.nested(self.instance).invoke(export, *args)


HostBody = Callable[..., Any]
"""A host function: takes the `Caller` and bits, returns None, bits, or a sequence of bits, by its type's results."""


@dataclass(slots=True, eq=False)
class HostFunction:
    """A function of the embedder."""

    type: FuncType
    body: HostBody


@dataclass(slots=True, eq=False)
class WasmFunction:
    """A function of an instance; compiled at its first call."""

    instance: Instance
    index: int
    type: FuncType
    _code: Code | None = field(default=None, repr=False)

    @property
    def code(self) -> Code:
        if self._code is None:
            self._code = compile_function(self.instance.module, self.index, self.instance.nan)
        return self._code


Function = HostFunction | WasmFunction
Extern = Function | Table | Memory | Global | Tag
Import = Extern | HostBody


class Instance:
    """An instance of a module. The start function is not run here.

    Args:
        module: decoded and valid.
        imports: (module, name) to a function of another instance, a callable of the host, or a table, memory, global.
        nan: which NaNs arithmetic makes.

    Raises:
        LinkError: an import is missing or has another type.
        GuestTrap: an active segment does not fit.
    """

    def __init__(self, module: Module, imports: Mapping[tuple[str, str], Import], nan: NanPolicy = "canonical") -> None:
        self.module = module
        self.nan: NanPolicy = nan
        self.functions: list[Function] = []
        self.tables: list[Table] = []
        self.memories: list[Memory] = []
        self.globals: list[Global] = []
        self.tags: list[Tag] = []
        self.dropped_data: set[int] = set()
        self.dropped_elem: set[int] = set()
        self._link(imports)
        for i in range(module.imported_funcs, len(module.func_types)):
            self.functions.append(WasmFunction(self, i, module.signature(i)))
        self.tables += [Table(kind) for kind in module.tables[len(self.tables):]]
        self.tags += [Tag(module.payload(i)) for i in range(len(self.tags), len(module.tags))]
        self.memories += [Memory(limits) for limits in module.memories[len(self.memories):]]
        for item in module.own_globals:
            self.globals.append(Global(item.type, self._constant(item.init)))
        self._fill()
        self.fresh_dropped = (frozenset(self.dropped_data), frozenset(self.dropped_elem))
        self.fresh_tables = [list(table.slots) for table in self.tables]
        self.fresh_memories = [bytes(memory.data) for memory in self.memories]

    def export(self, name: str) -> Extern | None:
        """What is exported as ``name``."""
        for item in self.module.exports:
            if item.name == name:
                spaces: dict[ExternKind, Sequence[Extern]] = {
                    ExternKind.FUNC: self.functions, ExternKind.TABLE: self.tables,
                    ExternKind.MEMORY: self.memories, ExternKind.GLOBAL: self.globals,
                    ExternKind.TAG: self.tags,
                }
                return spaces[item.kind][item.index]
        return None

    def _link(self, imports: Mapping[tuple[str, str], Import]) -> None:
        for item in self.module.imports:
            given = imports.get((item.module, item.name))
            if given is None:
                raise LinkError("unknown import", field=f"{item.module}.{item.name}")
            fits = False
            if item.kind == ExternKind.TAG:
                if isinstance(given, Tag):
                    fits = given.payload == self.module.payload(len(self.tags))
                    self.tags.append(given)
            elif isinstance(item.type, int):
                kind = self.module.types[item.type]
                if callable(given):
                    given = HostFunction(kind, given)
                if isinstance(given, HostFunction | WasmFunction):
                    fits = given.type == kind
                    self.functions.append(given)
            elif isinstance(item.type, TableType):
                if isinstance(given, Table):
                    fits = given.element == item.type.element and _within(
                        len(given.slots), given.maximum, item.type.limits)
                    self.tables.append(given)
            elif isinstance(item.type, Limits):
                if isinstance(given, Memory):
                    fits = _within(given.pages, given.maximum, item.type)
                    self.memories.append(given)
            elif isinstance(given, Global):
                fits = given.kind == item.type
                self.globals.append(given)
            if not fits:
                raise LinkError("incompatible import type", field=f"{item.module}.{item.name}")

    def _fill(self) -> None:
        """Active segments, in order; what an earlier one wrote stays if a later one traps."""
        for i, elem in enumerate(self.module.elems):
            if elem.mode == "active":
                items, at = self.elements(i), self._constant(elem.offset)
                slots = self.tables[elem.table].slots
                if at + len(items) > len(slots):
                    raise trap("out of bounds table access")
                slots[at:at + len(items)] = items
            if elem.mode != "passive":
                self.dropped_elem.add(i)
        for i, data in enumerate(self.module.datas):
            if data.active:
                at = self._constant(data.offset)
                memory = self.memories[data.memory].data
                if at + len(data.data) > len(memory):
                    raise trap("out of bounds memory access")
                memory[at:at + len(data.data)] = data.data
                self.dropped_data.add(i)

    def elements(self, segment: int) -> list[Cell]:
        """The references of an element segment."""
        made: list[Cell] = []
        for item in self.module.elems[segment].items:
            if item is None:
                made.append(None)
            else:
                made.append(self.functions[item] if item >= 0 else self.globals[-1 - item].value)
        return made

    def _constant(self, expr: bytes) -> Cell:
        stack: list[Cell] = []
        at = 0
        while (op := expr[at]) != 0x0B:
            at += 1
            if op == 0x41:
                value, at = read_s32(expr, at)
                stack.append(value & 0xFFFF_FFFF)
            elif op == 0x42:
                value, at = read_s64(expr, at)
                stack.append(value & 0xFFFF_FFFF_FFFF_FFFF)
            elif op in (0x43, 0x44):
                size = 4 if op == 0x43 else 8
                stack.append(int.from_bytes(expr[at:at + size], "little"))
                at += size
            elif op == 0xFD:  # v128.const
                at = read_u32(expr, at)[1]
                stack.append(int.from_bytes(expr[at:at + 16], "little"))
                at += 16
            elif op == 0x23:
                index, at = read_u32(expr, at)
                stack.append(self.globals[index].value)
            elif op == 0xD2:
                index, at = read_u32(expr, at)
                stack.append(self.functions[index])
            elif op == 0xD0:
                at += 1
                stack.append(None)
            else:
                right, left = stack.pop(), stack.pop()
                mask = 0xFFFF_FFFF if op in (0x6A, 0x6B, 0x6C) else 0xFFFF_FFFF_FFFF_FFFF
                add, subtract = op in (0x6A, 0x7C), op in (0x6B, 0x7D)
                stack.append((left + right if add else left - right if subtract else left * right) & mask)
        return stack.pop()


def _within(size: int, maximum: int | None, wanted: Limits) -> bool:
    if size < wanted.minimum:
        return False
    return wanted.maximum is None or (maximum is not None and maximum <= wanted.maximum)


def zero_of(kind: int) -> Cell:
    """The value that a declared local starts with."""
    return None if kind in REFERENCES else 0
