"""What an adapter must know of a module: its imports and exports, with types.

Read from the module's own first sections, so that both runtimes answer alike, checks come before the runtime is touched
(Wasm3 gives 0 for a global that nobody provided), and exports are found by index (Wasm3 looks in the name section
first). Function bodies are not looked at here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from wasmckpt.errors import InvalidModule, NotSupported
from wasmckpt.lazydata import dataclass
from wasmckpt.wasm.values import TYPE_NAMES

__all__ = [
    "Export", "FunctionType", "GlobalType", "Import", "Kind", "Limits", "ModuleInterface", "Section", "read_interface",
    "sections", "unsigned_leb",
]

Kind = Literal["func", "table", "memory", "global", "tag"]
_KINDS: tuple[Kind, ...] = ("func", "table", "memory", "global", "tag")
_PREAMBLE = b"\0asm\x01\0\0\0"
INTERFACE_SECTIONS = frozenset({1, 2, 3, 4, 5, 6, 7})
"""Ids of the sections that the interface is read from."""


@dataclass(frozen=True, slots=True)
class FunctionType:
    params: tuple[int, ...]
    results: tuple[int, ...]

    def __str__(self) -> str:
        return f"({_names(self.params)}) -> ({_names(self.results)})"


@dataclass(frozen=True, slots=True)
class GlobalType:
    type: int
    mutable: bool

    def __str__(self) -> str:
        name = TYPE_NAMES.get(self.type, hex(self.type))
        return f"mut {name}" if self.mutable else name


@dataclass(frozen=True, slots=True)
class Limits:
    minimum: int
    maximum: int | None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Import:
    module: str
    name: str
    kind: Kind
    type: FunctionType | GlobalType | Limits | None


@dataclass(frozen=True, slots=True)
class Export:
    name: str
    kind: Kind
    index: int


@dataclass(frozen=True, slots=True)
class Section:
    """One section: its id, and where in the module its header, its contents and its end lie (byte offsets)."""

    id: int
    start: int
    body: int
    end: int


class ModuleInterface:
    """Imports, exports and the types of everything that can be either."""

    def __init__(self, imports: tuple[Import, ...], exports: tuple[Export, ...], functions: tuple[FunctionType, ...],
                 globals_: tuple[GlobalType, ...], memories: tuple[Limits, ...], source: bytes) -> None:
        self.imports = imports
        self.exports = exports
        self.functions = functions
        """Types by function index, imported ones first."""
        self.globals = globals_
        self.memories = memories
        self.source = source
        """A module of the interface's sections alone; `read_interface` of it gives an equal interface."""
        self._by_name = {export.name: export for export in exports}

    def exported(self, name: str, kind: Kind) -> int | None:
        """Index of what is exported under ``name``, or None if it is nothing of that kind."""
        export = self._by_name.get(name)
        return export.index if export is not None and export.kind == kind else None

    def function_type(self, index: int) -> FunctionType:
        return self.functions[index]

    def global_type(self, index: int) -> GlobalType:
        return self.globals[index]


def unsigned_leb(data: bytes, at: int, end: int, bits: int = 32) -> tuple[int, int]:
    """An unsigned LEB128 number at ``at``: (value, offset behind it). Raises `InvalidModule`."""
    value = shift = 0
    start = at
    while True:
        if at >= end:
            raise InvalidModule("the module ends inside a number", offset=at)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
        if shift >= bits:
            raise InvalidModule("a number has too many bytes", offset=start)
    if value >> bits:
        raise InvalidModule("a number is too large", offset=start)
    return value, at


def sections(wasm: bytes) -> Iterator[Section]:
    """The module's sections in order. Raises `InvalidModule` when header, order or sizes are wrong."""
    if wasm[:4] != _PREAMBLE[:4]:
        raise InvalidModule("not a WebAssembly module (no magic number)", offset=0)
    if wasm[4:8] != _PREAMBLE[4:]:
        raise InvalidModule("not a core module of version 1", offset=4)
    at, last = 8, -1
    order = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 13: 6, 6: 7, 7: 8, 8: 9, 9: 10, 12: 11, 10: 12, 11: 13}
    while at < len(wasm):
        start, number = at, wasm[at]
        size, body = unsigned_leb(wasm, at + 1, len(wasm))
        if body + size > len(wasm):
            raise InvalidModule("a section is longer than the module", offset=start)
        if number:
            place = order.get(number)
            if place is None:
                raise InvalidModule(f"unknown section {number}", offset=start)
            if place <= last:
                raise InvalidModule(f"section {number} is out of order or there twice", offset=start)
            last = place
        yield Section(number, start, body, body + size)
        at = body + size


def read_interface(wasm: bytes, *, complete: bool = True) -> ModuleInterface:
    """Reads a module's interface. Raises `InvalidModule` or `NotSupported`, both with the offset.

    ``complete=False`` takes a module without function bodies (`ModuleInterface.source`).
    """
    return _Reader(wasm).read(complete)


class _Reader:
    def __init__(self, wasm: bytes) -> None:
        self.wasm = wasm
        self.at = self.end = 0
        self.types: list[FunctionType] = []
        self.functions: list[FunctionType] = []
        self.globals: list[GlobalType] = []
        self.memories: list[Limits] = []
        self.imports: list[Import] = []
        self.exports: list[Export] = []

    def read(self, complete: bool) -> ModuleInterface:
        parts = [_PREAMBLE]
        own_functions = bodies = 0
        for section in sections(self.wasm):
            self.at, self.end = section.body, section.end
            if section.id in INTERFACE_SECTIONS:
                parts.append(self.wasm[section.start:section.end])
            if section.id == 1:
                self.types = [self.function_type() for _ in range(self.count())]
            elif section.id == 2:
                for _ in range(self.count()):
                    self.one_import()
            elif section.id == 3:
                own_functions = self.count()
                self.own_functions(own_functions)
            elif section.id == 5:
                self.memories.extend(self.limits() for _ in range(self.count()))
            elif section.id == 6:
                self.own_globals()
            elif section.id == 7:
                self.all_exports()
            elif section.id == 10:
                bodies = self.count()
                for _ in range(bodies):
                    size = self.count()
                    self.at += size
                if self.at > self.end:
                    raise InvalidModule("a function body is longer than the code section", offset=self.at)
                if bodies != own_functions:
                    raise InvalidModule("function and code section have different lengths", offset=section.start)
            if section.id in {1, 2, 3, 5, 6, 7, 10} and self.at != self.end:
                raise InvalidModule(f"section {section.id} has another size than its contents", offset=self.at)
        if own_functions and not bodies and complete:
            raise InvalidModule("functions without bodies", offset=len(self.wasm))
        return ModuleInterface(tuple(self.imports), tuple(self.exports), tuple(self.functions), tuple(self.globals),
                               tuple(self.memories), b"".join(parts))

    def byte(self) -> int:
        if self.at >= self.end:
            raise InvalidModule("the section ends too early", offset=self.at)
        self.at += 1
        return self.wasm[self.at - 1]

    def number(self, bits: int = 32) -> int:
        value, self.at = unsigned_leb(self.wasm, self.at, self.end, bits)
        return value

    def count(self) -> int:
        """A number of items; each takes a byte at least, which bounds it before anything is allocated."""
        at = self.at
        value = self.number()
        if value > self.end - self.at:
            raise InvalidModule("more items than bytes", offset=at)
        return value

    def name(self) -> str:
        size = self.count()
        at, self.at = self.at, self.at + size
        try:
            return self.wasm[at:self.at].decode()
        except UnicodeDecodeError as problem:
            raise InvalidModule("a name is not UTF-8", offset=at) from problem

    def value_type(self) -> int:
        at = self.at
        code = self.byte()
        if code in TYPE_NAMES:
            return code
        if code in {0x63, 0x64} or 0x65 <= code <= 0x78:
            raise NotSupported("a reference type beyond funcref and externref", need="gc", offset=at)
        raise InvalidModule(f"unknown value type {code:#x}", offset=at)

    def function_type(self) -> FunctionType:
        at = self.at
        form = self.byte()
        if form in {0x4E, 0x4F, 0x50, 0x5E, 0x5F}:
            raise NotSupported("types other than functions", need="gc", offset=at)
        if form != 0x60:
            raise InvalidModule(f"unknown type form {form:#x}", offset=at)
        params = tuple(self.value_type() for _ in range(self.count()))
        return FunctionType(params, tuple(self.value_type() for _ in range(self.count())))

    def type_index(self) -> FunctionType:
        at = self.at
        index = self.number()
        if index >= len(self.types):
            raise InvalidModule("no such function type", offset=at)
        return self.types[index]

    def own_functions(self, count: int) -> None:
        """Types of functions, which may be tens of thousands: most have numbers of one or two bytes."""
        wasm, types, at = self.wasm, self.types, self.at
        for _ in range(count):
            start, index = at, len(types)
            if at + 1 < self.end and wasm[at] >= 0x80 > wasm[at + 1]:
                index, at = wasm[at] & 0x7F | wasm[at + 1] << 7, at + 2
            elif at < self.end and wasm[at] < 0x80:
                index, at = wasm[at], at + 1
            if index < len(types):
                self.functions.append(types[index])
            else:
                self.at = start
                self.functions.append(self.type_index())
                at = self.at
        self.at = at

    def limits(self) -> Limits:
        at = self.at
        flags = self.byte()
        if flags & 4:
            raise NotSupported("64-bit memories and tables", need="memory64", offset=at)
        if flags & 8:
            raise NotSupported("custom page sizes", need="custom-page-sizes", offset=at)
        if flags > 3:
            raise InvalidModule(f"unknown limits flag {flags:#x}", offset=at)
        low = self.number()
        return Limits(low, self.number() if flags & 1 else None, bool(flags & 2))

    def global_type(self) -> GlobalType:
        kind = self.value_type()
        at = self.at
        mutable = self.byte()
        if mutable > 1:
            raise InvalidModule("mutability is neither 0 nor 1", offset=at)
        return GlobalType(kind, bool(mutable))

    def one_import(self) -> None:
        module, name = self.name(), self.name()
        at = self.at
        code = self.byte()
        kind_type: FunctionType | GlobalType | Limits | None = None
        if code == 0:
            kind_type = self.type_index()
            self.functions.append(kind_type)
        elif code == 1:
            self.value_type()
            kind_type = self.limits()
        elif code == 2:
            kind_type = self.limits()
            self.memories.append(kind_type)
        elif code == 3:
            kind_type = self.global_type()
            self.globals.append(kind_type)
        elif code == 4:
            self.byte()
            kind_type = self.type_index()
        else:
            raise InvalidModule(f"unknown import kind {code}", offset=at)
        self.imports.append(Import(module, name, _KINDS[code], kind_type))

    def own_globals(self) -> None:
        for _ in range(self.count()):
            self.globals.append(self.global_type())
            self.skip_constant_expression()

    def skip_constant_expression(self) -> None:
        while (op := self.byte()) != 0x0B:
            if op in {0x41, 0x42}:
                self.skip_signed()
            elif op in {0x43, 0x44}:
                self.at += 4 if op == 0x43 else 8
            elif op in {0x23, 0xD2}:
                self.number()
            elif op == 0xD0:
                self.skip_signed()
            elif op == 0xFD:
                if self.number() != 12:
                    raise InvalidModule("only v128.const is constant", offset=self.at)
                self.at += 16
            elif op not in {0x6A, 0x6B, 0x6C, 0x7C, 0x7D, 0x7E}:
                raise InvalidModule(f"instruction {op:#x} is not constant", offset=self.at - 1)

    def skip_signed(self) -> None:
        while self.byte() & 0x80:
            pass

    def all_exports(self) -> None:
        sizes = {0: len(self.functions), 2: len(self.memories), 3: len(self.globals)}
        seen: set[str] = set()
        for _ in range(self.count()):
            at = self.at
            name = self.name()
            code = self.byte()
            if code >= len(_KINDS):
                raise InvalidModule(f"unknown export kind {code}", offset=at)
            index = self.number()
            if index >= sizes.get(code, index + 1):
                raise InvalidModule("an export names what is not there", offset=at)
            if name in seen:
                raise InvalidModule(f"two exports are named {name!r}", offset=at)
            seen.add(name)
            self.exports.append(Export(name, _KINDS[code], index))


def _names(types: tuple[int, ...]) -> str:
    return ", ".join(TYPE_NAMES.get(t, hex(t)) for t in types)
