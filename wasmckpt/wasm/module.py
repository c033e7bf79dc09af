"""A decoded module: the specification's words in the specification's order, with the bytes kept beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from ..lazydata import dataclass, field

__all__ = [
    "Body", "CustomSection", "DataSegment", "ElemSegment", "Export", "ExternKind", "FuncType", "Global", "GlobalType",
    "Import", "Limits", "Module", "Section", "TableType",
]


class ExternKind(IntEnum):
    """What an import or export is."""

    FUNC = 0
    TABLE = 1
    MEMORY = 2
    GLOBAL = 3
    TAG = 4


class FuncType(NamedTuple):
    """A function type: type codes of parameters and results."""

    params: tuple[int, ...]
    results: tuple[int, ...]


class Limits(NamedTuple):
    """Limits of a memory (64 KiB pages) or table (slots); ``maximum`` None where none is declared."""

    minimum: int
    maximum: int | None


class TableType(NamedTuple):
    """A table: element type code and limits."""

    element: int
    limits: Limits


class GlobalType(NamedTuple):
    """A global's type code and whether it can be changed."""

    type: int
    mutable: bool


class Import(NamedTuple):
    """An import; ``type`` is a type index (functions, tags), `TableType`, `Limits` or `GlobalType` by kind."""

    module: str
    name: str
    kind: ExternKind
    type: int | TableType | Limits | GlobalType


@dataclass(frozen=True, slots=True)
class Export:
    """An export: name, kind, index in that kind's index space."""

    name: str
    kind: ExternKind
    index: int


class Global(NamedTuple):
    """A global defined here; ``init`` is its constant expression, ``end`` included."""

    type: GlobalType
    init: bytes


class ElemSegment(NamedTuple):
    """An element segment: mode "active", "passive" or "declarative"; each item a function index or None (null).

    An item that is a ``global.get`` is kept as its (negative) marker -1 - global index.
    """

    mode: str
    table: int
    offset: bytes
    element: int
    items: tuple[int | None, ...]


class DataSegment(NamedTuple):
    """A data segment: ``active`` with memory and offset expression, or passive; ``data`` its bytes."""

    active: bool
    memory: int
    offset: bytes
    data: bytes


class Body(NamedTuple):
    """Where a function body lies in the module: size field at ``entry``, locals at ``start``, code up to ``end``.

    ``expr`` is the first byte after the locals declaration: relative bytecode offset 0. ``locals`` are runs of
    (count, type code), parameters not included.
    """

    entry: int
    start: int
    expr: int
    end: int
    locals: tuple[tuple[int, int], ...]


class Section(NamedTuple):
    """A section as it lies in the file: id, first byte of its header, first byte of its content, end."""

    id: int
    header: int
    start: int
    end: int


class CustomSection(NamedTuple):
    """A custom section: its name, and the content behind the name as offsets into the module."""

    name: str
    start: int
    end: int


@dataclass(slots=True, weakref_slot=True)
class Module:
    """A decoded module. Index spaces start with the imports, as in the specification."""

    data: bytes
    sections: list[Section] = field(default_factory=list)
    types: list[FuncType] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    defined: list[int] = field(default_factory=list)
    """Type index of each function defined here."""
    tables: list[TableType] = field(default_factory=list)
    """All tables, the imported ones first."""
    memories: list[Limits] = field(default_factory=list)
    """All memories, the imported ones first."""
    own_globals: list[Global] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)
    start: int | None = None
    elems: list[ElemSegment] = field(default_factory=list)
    data_count: int | None = None
    bodies: list[Body] = field(default_factory=list)
    datas: list[DataSegment] = field(default_factory=list)
    customs: list[CustomSection] = field(default_factory=list)
    func_types: list[int] = field(default_factory=list)
    """Type index of every function, imports first."""
    globals: list[GlobalType] = field(default_factory=list)
    """Type of every global, imports first."""
    tags: list[int] = field(default_factory=list)
    """Type index of every tag of exceptions, imports first."""
    declared_funcs: set[int] = field(default_factory=set)
    """Functions that may be named by ``ref.func``: those in element segments, exports and globals."""
    _sha256: bytes = field(default=b"", init=False, repr=False, compare=False)

    @property
    def imported_funcs(self) -> int:
        """Number of imported functions, the index of the first defined one."""
        return len(self.func_types) - len(self.defined)

    def imported(self, kind: ExternKind) -> Iterator[Import]:
        """The imports of one kind, in index order."""
        return (item for item in self.imports if item.kind == kind)

    def signature(self, func: int) -> FuncType:
        """The type of function ``func``."""
        return self.types[self.func_types[func]]

    def payload(self, tag: int) -> tuple[int, ...]:
        """Types of the values that an exception with tag ``tag`` carries."""
        return self.types[self.tags[tag]].params

    def body(self, func: int) -> Body:
        """The body of defined function ``func``."""
        return self.bodies[func - self.imported_funcs]

    def export(self, name: str, kind: ExternKind = ExternKind.FUNC) -> int | None:
        """Index of what is exported as ``name``, or None."""
        return next((e.index for e in self.exports if e.name == name and e.kind == kind), None)

    def local_types(self, func: int) -> list[int]:
        """Type codes of all locals of ``func``, parameters first."""
        types = list(self.signature(func).params)
        for count, code in self.body(func).locals:
            types += [code] * count
        return types

    def sha256(self) -> bytes:
        """The module's name: SHA-256 of its bytes."""
        if not self._sha256:
            self._sha256 = hashlib.sha256(self.data).digest()
        return self._sha256
