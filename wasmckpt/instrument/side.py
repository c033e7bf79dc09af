"""A side module: what a resume adds, in a module of its own beside the one that every run uses.

Aim: a resume pays for its frames, not for the module. The rewritten module is compiled once, by its first run, and
kept; continuations are compiled alone and import all that they name from the running instance of it:

    the main module                      the side module
    memories, tables, globals, tags  ->  imports under the same numbers (globals: the used ones)
    doors (exported functions)       ->  imports, the used ones
                                         continuations, and what else the resume added

A door is how a side module calls functions of the main one: it takes the arguments of a type and a number, and calls
the function of that number.

    call $f   ->   i32.const 5  call $door       ;; in the side module
    (func $door (param ... i32) (result ...)  block block ...  local.get N  br_table 0 1 2 ...
      end  local.get 0 ... call $a return  end  local.get 0 ... call $b return ...)

The functions themselves are neither exported nor in a table (but for those of a type that hardly any other has): for
each one that can be reached from outside a compiler writes an entry of its own, of 300 bytes with what describes it,
which came to a sixth of all compiled code (docs/side-modules.md has the figures); in a door a function costs what a
call costs. What is called runs in the main module, as ever. Nothing else tells the two apart: numbers of records, sites
and images are those of the module that has all of it, and `Side.functions` maps the functions of the side module to
numbers there.

What names a segment or a function as a value means something else in another module. A body that does so, or that calls
what no door leads to (only what functions with safepoints call has one), is not moved: then the whole module
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

__all__ = ["NAME", "Side", "add_doors", "callees", "needed_functions", "side_module"]

MAIN = PREFIX + "main"
"""Module name of what a side module imports: exports of the main module."""
NAME = PREFIX + "side"
"""What a side module is called in its name section."""
_MOST_BEHIND_A_DOOR = 256
"""So deep blocks nest in it; compilers compile several doors at once."""
_FEWEST_BEHIND_A_DOOR = 3
"""A door, its type and the entry from outside cost as much as two entries."""


@dataclass(frozen=True, slots=True)
class Side:
    """A side module.

    Attributes:
        wasm: the binary. functions: for each function of its index space the number that it has in the module that
            contains all of it. first: number of the first one that is not in the main module.
    """

    wasm: bytes
    functions: tuple[int, ...]
    first: int


def callees(code: Code) -> set[int]:
    """The functions that a function calls by number."""
    called = (code.imms[i] for i in (*code.calls, *code.tail_calls))
    return {imm for imm in called if isinstance(imm, int)}


def needed_functions(linker: Linker, called: Set[int]) -> tuple[int, ...]:
    """What continuations may call: what functions that can suspend call by number, and our helpers."""
    return tuple(sorted({*called, *range(len(linker.module.func_types), linker.next_function())}))


def _behind_doors(linker: Linker, functions: Sequence[int]) -> list[list[int]]:
    """The functions behind each door: of one type, in the order of their numbers. One alone is exported itself."""
    by_type: dict[FuncType, list[int]] = {}
    for func in functions:
        by_type.setdefault(linker.signature(func), []).append(func)
    out = []
    for funcs in by_type.values():
        most = _MOST_BEHIND_A_DOOR if len(funcs) >= _FEWEST_BEHIND_A_DOOR else 1
        out += [funcs[at : at + most] for at in range(0, len(funcs), most)]
    return out


def _door(kind: FuncType, functions: Sequence[int]) -> bytes:
    """The code of a door to functions of a type; its own has a number more as its last parameter."""
    count = len(functions)
    arguments = b"".join(emit.local_get(i) for i in range(len(kind.params)))
    code = emit.BLOCK * count + emit.local_get(len(kind.params))
    code += b"\x0e" + uleb(count - 1) + b"".join(map(uleb, range(count)))
    return code + b"".join(emit.END + arguments + emit.call(func) + emit.RETURN for func in functions)[:-1]


def add_doors(linker: Linker, functions: tuple[int, ...]) -> None:
    """Prepare a main module: doors to ``functions``, and exports of all that a side module may name."""
    module = linker.module
    linker.reachable = functions
    for n, behind in enumerate(_behind_doors(linker, functions)):
        if len(behind) == 1:
            linker.exports.append((f"{PREFIX}door{n}", ExternKind.FUNC, behind[0]))
            continue
        kind = linker.signature(behind[0])
        outer = FuncType((*kind.params, I32), kind.results)
        index = linker.add_function(f"door {n}", outer, [], _door(kind, behind))
        linker.exports.append((f"{PREFIX}door{n}", ExternKind.FUNC, index))
    linker.exports += [(f"{PREFIX}table{i}", ExternKind.TABLE, i) for i in range(len(module.tables))]
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
        assert linker.reachable is not None
        self.linker, self.first, self.exports = linker, first, exports
        self.own = range(first, linker.next_function())
        self.doors: dict[int, tuple[int, bytes]] = {}
        """How to call a function: the door's index in the main module, and what pushes its number there."""
        for door, behind in enumerate(_behind_doors(linker, linker.reachable)):
            if len(behind) == 1:
                self.doors[behind[0]] = behind[0], b""
            else:
                index = linker.functions[f"door {door}"]
                self.doors.update((func, (index, emit.i32_const(n))) for n, func in enumerate(behind))
        self.imported: dict[int, int] = {}
        self.globals: dict[int, int] = {}

    def run(self) -> Side:
        linker = self.linker
        added = linker.added[self.first - len(linker.module.func_types):]
        apart = [Renumbered(body) for _, body in added]
        # Own functions are numbered behind the imported ones, whose number shows only now.
        for func in sorted({func for body in apart for func in body.functions if func not in self.own}):
            if func not in self.doors:
                raise Unmovable(f"function {func} is not one that side modules can call", need=f"function {func}")
            self.imported.setdefault(self.doors[func][0], len(self.imported))
        bodies = [body.with_numbers(self._function, self._global, self._number) for body in apart]
        parts = {
            1: vector(map(func_type, linker.types)),
            2: vector(self._imports()),
            3: vector(uleb(kind) for kind, _ in added),
            7: vector(export_entry(text, kind, self._function(index)) for text, kind, index in self.exports),
            10: vector(uleb(len(body)) + body for body in bodies),
        }
        parts[0] = name("name") + section(0, name(NAME))
        wasm = b"\0asm\1\0\0\0" + b"".join(section(number, content) for number, content in parts.items())
        return Side(wasm, (*self.imported, *self.own), self.first)

    def _function(self, func: int) -> int:
        return self.imported[self.doors[func][0]] if func not in self.own else len(self.imported) + func - self.first

    def _number(self, func: int) -> bytes:
        """What a call of a function needs before it."""
        return self.doors[func][1] if func not in self.own else b""

    def _global(self, index: int) -> int:
        return self.globals.setdefault(index, len(self.globals))

    def _imports(self) -> list[bytes]:
        linker = self.linker
        names: dict[tuple[ExternKind, int], str] = {(kind, index): text for text, kind, index in linker.exports}
        types = linker.all_globals()
        out: list[bytes] = []

        def add(kind: ExternKind, index: int, described: bytes) -> None:
            out.append(name(MAIN) + name(names[kind, index]) + bytes([kind]) + described)

        for func in self.imported:
            add(ExternKind.FUNC, func, uleb(linker.type_index(linker.signature(func))))
        for i, table in enumerate(linker.module.tables):
            add(ExternKind.TABLE, i, bytes([table.element]) + limits(table.limits))
        for i, memory in enumerate(linker.all_memories()):
            add(ExternKind.MEMORY, i, limits(memory))
        for i in self.globals:
            add(ExternKind.GLOBAL, i, bytes([types[i].type, types[i].mutable]))
        for i, kind in enumerate(linker.module.tags):
            add(ExternKind.TAG, i, b"\0" + uleb(kind))
        return out
