"""A side module: what a resume adds, in a module of its own beside the one that every run uses.

Aim: a resume pays for its frames, not for the module. The rewritten module is compiled once, by its first run, and
kept; continuations are compiled alone and import all that they name from the running instance of it:

    the main module                      the side module
    memories, tables, globals, tags  ->  imports under the same numbers (globals: the used ones)
    functions (a passive segment)    ->  imports, the used ones: the host takes them out one by one
                                         continuations, and what else the resume added

Functions are not exported: thirty thousand names would have to be read at each start, which costs as much again as the
trampolines that both ways make a compiler write (docs/side-modules.md has the figures). They stand in a passive element
segment, and `TAKE` puts one of them into a table from which the host gets it. A call from the side module is the call
of an import; what is called runs in the main module, as ever. Nothing else tells the two apart: numbers of records,
sites and images are those of the module that has all of it, and `Side.functions` maps the functions of the side module
to numbers there.

What names a segment or a function as a value means something else in another module. A body that does so, or that calls
what the segment does not have (it names only what functions with safepoints call), is not moved: then the whole module
is linked and compiled anew, as where a runtime has no side modules.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from ..lazydata import dataclass
from ..wasm.encode import export_entry, func_type, limits, name, section, vector
from ..wasm.leb128 import uleb
from ..wasm.module import ExternKind, FuncType
from ..wasm.renumber import Renumbered, Unmovable
from ..wasm.validate import Code
from ..wasm.values import I32
from . import emit
from .linker import PREFIX, Linker

__all__ = ["NAME", "TAKE", "TAKEN", "Side", "add_segment", "callees", "needed_functions", "side_module"]

FUNCTION = PREFIX + "function"
"""Module name of the side module's imported functions; their names are their numbers in the main module."""
MAIN = PREFIX + "main"
"""Module name of all else that it imports: exports of the main module."""
NAME = PREFIX + "side"
"""What a side module is called in its name section."""
TAKE, TAKEN = PREFIX + "take", PREFIX + "taken"
"""Exports of the main module: a function that puts function ``n`` of the segment into the table, and the table."""


@dataclass(frozen=True, slots=True)
class Side:
    """A side module.

    Attributes:
        wasm: the binary. functions: for each function of its index space the number that it has in the module that
            contains all of it. first: number of the first one that is not in the main module.
        taken: for each imported one its place in the main module's segment.
    """

    wasm: bytes
    functions: tuple[int, ...]
    first: int
    taken: tuple[int, ...]


def callees(code: Code) -> set[int]:
    """The functions that a function calls by number."""
    called = (code.imms[i] for i in (*code.calls, *code.tail_calls))
    return {imm for imm in called if isinstance(imm, int)}


def needed_functions(linker: Linker, called: Set[int]) -> tuple[int, ...]:
    """What continuations may call: what functions that can suspend call by number, and our helpers."""
    return tuple(sorted({*called, *range(len(linker.module.func_types), linker.next_function())}))


def add_segment(linker: Linker, functions: tuple[int, ...]) -> None:
    """Prepare a main module: the segment of ``functions``, `TAKE`, and exports of all that a side module may name."""
    module = linker.module
    table, segment = len(module.tables), len(module.elems)
    code = emit.i32_const(0) + emit.local_get(0) + emit.i32_const(1) + b"\xfc\x0c" + uleb(segment) + uleb(table)
    take = linker.add_function("take", FuncType((I32,), ()), [], code)
    linker.segment = functions
    linker.exports += [(TAKE, ExternKind.FUNC, take), (TAKEN, ExternKind.TABLE, table)]
    linker.exports += [(f"{PREFIX}table{i}", ExternKind.TABLE, i) for i in range(table)]
    linker.exports += [(f"{PREFIX}tag{i}", ExternKind.TAG, i) for i in range(len(module.tags))]
    exported = {index for _, kind, index in linker.exports if kind == ExternKind.GLOBAL}
    linker.exports += [
        (f"{PREFIX}plain{i}", ExternKind.GLOBAL, i) for i in range(len(module.globals)) if i not in exported
    ]


def side_module(linker: Linker, first: int, exports: Sequence[tuple[str, ExternKind, int]]) -> Side:
    """The side module of the functions that were added from ``first`` on.

    Raises `Unmovable`: one of them cannot be moved.
    """
    return _Writer(linker, first, exports).run()


class _Writer:
    def __init__(self, linker: Linker, first: int, exports: Sequence[tuple[str, ExternKind, int]]) -> None:
        assert linker.segment is not None
        self.linker, self.first, self.exports = linker, first, exports
        self.own = range(first, linker.next_function())
        self.places = {func: n for n, func in enumerate(linker.segment)}
        self.imported: dict[int, int] = {}
        self.globals: dict[int, int] = {}

    def run(self) -> Side:
        linker = self.linker
        added = linker.added[self.first - len(linker.module.func_types):]
        apart = [Renumbered(body) for _, body in added]
        # Own functions are numbered behind the imported ones, whose number shows only now.
        for func in sorted({func for body in apart for func in body.functions if func not in self.own}):
            if func not in self.places:
                raise Unmovable(f"function {func} is not one that side modules can call", need=f"function {func}")
            self.imported[func] = len(self.imported)
        bodies = [body.with_numbers(self._function, self._global) for body in apart]
        parts = {
            1: vector(map(func_type, linker.types)),
            2: vector(self._imports()),
            3: vector(uleb(kind) for kind, _ in added),
            7: vector(export_entry(text, kind, self._function(index)) for text, kind, index in self.exports),
            10: vector(uleb(len(body)) + body for body in bodies),
        }
        parts[0] = name("name") + section(0, name(NAME))
        wasm = b"\0asm\1\0\0\0" + b"".join(section(number, content) for number, content in parts.items())
        taken = tuple([self.places[func] for func in self.imported])
        return Side(wasm, (*self.imported, *self.own), self.first, taken)

    def _function(self, func: int) -> int:
        return self.imported[func] if func not in self.own else len(self.imported) + func - self.first

    def _global(self, index: int) -> int:
        return self.globals.setdefault(index, len(self.globals))

    def _imports(self) -> list[bytes]:
        linker = self.linker
        names: dict[tuple[ExternKind, int], str] = {(kind, index): text for text, kind, index in linker.exports}
        types = linker.all_globals()
        out = [
            name(FUNCTION) + name(str(func)) + b"\0" + uleb(linker.type_index(linker.signature(func)))
            for func in self.imported
        ]

        def add(kind: ExternKind, index: int, described: bytes) -> None:
            out.append(name(MAIN) + name(names[kind, index]) + bytes([kind]) + described)

        for i, table in enumerate(linker.module.tables):
            add(ExternKind.TABLE, i, bytes([table.element]) + limits(table.limits))
        for i, memory in enumerate(linker.all_memories()):
            add(ExternKind.MEMORY, i, limits(memory))
        for i in self.globals:
            add(ExternKind.GLOBAL, i, bytes([types[i].type, types[i].mutable]))
        for i, kind in enumerate(linker.module.tags):
            add(ExternKind.TAG, i, b"\0" + uleb(kind))
        return out
