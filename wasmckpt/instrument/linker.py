"""The linker: what a rewriting adds to a module (types, functions, globals, a control memory), by name, at the end of
each index space, so that no index of the original moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import InvalidModule
from ..wasm.encode import Parts, appended, encode, export_entry, func_type, global_entry, limits, vector
from ..wasm.leb128 import read_u32, sleb, uleb
from ..wasm.module import ElemSegment, ExternKind, FuncType, GlobalType, Limits, Module
from ..wasm.values import FUNCREF, I32, I64
from . import emit
from .options import Options
from .sites import Sites

__all__ = ["CONTROL_BASE", "PREFIX", "WINDOW_PAGES", "Linker"]

PREFIX = "__wasmckpt_"
"""What the names that we export begin with; an input that has one is refused."""

CONTROL_BASE = 64
"""First byte of the window in a control memory; below it lie the control words."""

WINDOW_PAGES = 1024
"""Where the window lies in the guest's memory: pages above the guest's own maximum that spilling may grow into."""

CONTROL_PAGES = 16
"""Initial size of a control memory; the window grows by itself."""

KEPT_CUSTOM = frozenset({"name", "producers", "target_features"})


class Linker:
    """Collects what is added; `assemble` writes the module.

    Attributes:
        sites: the sites, by number.
        added: (type index, body) of each added function; the first one's index is ``len(module.func_types)``.
        reachable: the functions that side modules can call (see `side`); None where there are no such modules.
    """

    def __init__(self, module: Module, options: Options) -> None:
        for item in module.exports:
            if item.name.startswith(PREFIX):
                raise InvalidModule(f"export {item.name!r} uses the reserved prefix {PREFIX}", hint="rename it")
        self.module = module
        self.tabled_imports = {module.signature(f) for f in module.declared_funcs if f < module.imported_funcs}
        """Types of the imported functions that a table may hold."""
        self.options = options
        self.sites = Sites()
        self._bodies: dict[int, bytes] = {}
        self._bodies_from: Callable[[], dict[int, bytes]] | None = None
        self.types: list[FuncType] = list(module.types)
        self._type_index = {kind: i for i, kind in reversed(list(enumerate(module.types)))}
        self.added: list[tuple[int, bytes]] = []
        self.functions: dict[str, int] = {}
        self.globals: dict[str, int] = {}
        self.new_globals: list[tuple[GlobalType, bytes]] = []
        self.exports: list[tuple[str, ExternKind, int]] = []
        self.reachable: tuple[int, ...] | None = None
        self.wrapped: dict[int, int] = {}
        """Original function -> its wrapper, which takes its place in the exports."""
        self.control = options.poll == "atomic-memory"
        self.own_memory = self.control or not module.memories
        """Whether the window lies in a memory of our own, which the guest cannot see."""
        self.memory = len(module.memories) if self.own_memory else 0
        self.window_base = CONTROL_BASE if self.own_memory else 0

    @property
    def bodies(self) -> dict[int, bytes]:
        """Replaced bodies of original functions (locals declaration and code)."""
        if self._bodies_from is not None:
            self._bodies, self._bodies_from = self._bodies_from(), None
        return self._bodies

    def bodies_from(self, source: Callable[[], dict[int, bytes]]) -> None:
        """Take the bodies from there when they are first asked for."""
        self._bodies_from = source

    # Index spaces

    def type_index(self, kind: FuncType) -> int:
        """Index of a function type, added if it is new."""
        if kind not in self._type_index:
            self._type_index[kind] = len(self.types)
            self.types.append(kind)
        return self._type_index[kind]

    def next_function(self) -> int:
        """Index that the next added function gets."""
        return len(self.module.func_types) + len(self.added)

    def add_function(self, name: str, kind: FuncType, locals_: Sequence[int], code: bytes) -> int:
        """Add a function; ``code`` without its ``end``."""
        index = self.next_function()
        self.added.append((self.type_index(kind), emit.local_decl(list(locals_)) + code + emit.END))
        self.functions[name] = index
        return index

    def fill(self, func: int, body: bytes) -> None:
        """Give an added function its body, or another one."""
        at = func - len(self.module.func_types)
        self.added[at] = self.added[at][0], body

    def add_global(self, name: str, kind: int, initial: int, *, export: bool = True) -> int:
        """Add a mutable i32 or i64 global."""
        index = len(self.module.globals) + len(self.new_globals)
        init = emit.i32_const(initial) if kind == I32 else b"\x42" + sleb(initial)
        self.new_globals.append((GlobalType(kind, True), init + emit.END))
        self.globals[name] = index
        if export:
            self.exports.append((PREFIX + name, ExternKind.GLOBAL, index))
        assert kind in (I32, I64)
        return index

    def set_initial(self, index: int, value: int) -> None:
        """Give an added i32 global another initial value."""
        at = index - len(self.module.globals)
        self.new_globals[at] = self.new_globals[at][0], emit.i32_const(value) + emit.END

    def signature(self, func: int) -> FuncType:
        """Type of any function, added ones included."""
        known = len(self.module.func_types)
        return self.module.signature(func) if func < known else self.types[self.added[func - known][0]]

    def all_globals(self) -> list[GlobalType]:
        """Types of all globals, ours included."""
        return self.module.globals + [kind for kind, _ in self.new_globals]

    def all_memories(self) -> list[Limits]:
        """All memories, ours included."""
        return self.module.memories + ([Limits(CONTROL_PAGES, None)] if self.own_memory else [])

    def add_table_items(self) -> None:
        """Add what stands in tables for functions of the host: functions that call them."""
        items = {f for elem in self.module.elems for f in elem.items if f is not None}
        for func in sorted(items & set(range(self.module.imported_funcs))):
            kind = self.module.signature(func)
            code = b"".join(emit.local_get(i) for i in range(len(kind.params))) + emit.call(func)
            self.add_function(f"table item {func}", kind, [], code)

    # Writing

    def assemble(self, end: int | None = None) -> bytes:
        """The rewritten module; ``end``: without the functions that were added from this one on."""
        module = self.module
        added = self.added if end is None else self.added[: end - len(module.func_types)]
        replaced: dict[int, bytes | Parts | None] = {8: None}
        new_types = self.types[len(module.types):]
        if new_types:
            replaced[1] = appended(module, 1, [func_type(kind) for kind in new_types])
        if added:
            replaced[3] = appended(module, 3, [uleb(kind) for kind, _ in added])
        memories = self._memories()
        if memories is not None:
            replaced[5] = memories
        if self.new_globals:
            replaced[6] = appended(module, 6, [global_entry(kind, init) for kind, init in self.new_globals])
        if self.options.own_table_items and module.elems:
            replaced[9] = vector(map(self._segment, module.elems))
        elif self.options.minimal_leb and module.elems and (elements := self._elements()) is not None:
            replaced[9] = elements
        replaced[7] = self._exports()
        replaced[10] = self.code(added)
        keep = KEPT_CUSTOM - {"name"} if self.options.strip_names else KEPT_CUSTOM
        return encode(module, replaced, keep)

    def _memories(self) -> bytes | None:
        module = self.module
        if self.own_memory:
            return appended(module, 5, [limits(Limits(CONTROL_PAGES, None))])
        first = module.memories[0]
        if first.maximum is None:
            return None
        raised = Limits(first.minimum, min(65536, max(first.maximum, first.minimum) + WINDOW_PAGES))
        return vector([limits(raised), *(limits(m) for m in module.memories[1:])])

    def _segment(self, elem: ElemSegment) -> bytes:
        """A segment with our functions in the place of the host's."""
        kind = bytes([elem.element])
        head = {"active": b"\x06" + uleb(elem.table) + elem.offset, "passive": b"\x05", "declarative": b"\x07"}
        items = [
            b"\xd0" + kind if f is None else emit.global_get(-1 - f) if f < 0
            else b"\xd2" + uleb(self.functions.get(f"table item {f}", f))
            for f in elem.items
        ]
        return head[elem.mode] + kind + vector(item + emit.END for item in items)

    def _elements(self) -> bytes | None:
        """Segments in their oldest form where they have one (Wasm3 knows no other); declarative ones are left out,
        since they serve only ``ref.func``, which needs a runtime that knows the newer forms."""
        if not all(_plain(elem) or elem.mode == "declarative" for elem in self.module.elems):
            return None
        return vector(
            b"\0" + elem.offset + vector(uleb(f) for f in elem.items if f is not None)
            for elem in self.module.elems if _plain(elem)
        )

    def _exports(self) -> bytes:
        entries = []
        for item in self.module.exports:
            index = self.wrapped.get(item.index, item.index) if item.kind == ExternKind.FUNC else item.index
            entries.append(export_entry(item.name, item.kind, index))
        entries += [export_entry(*entry) for entry in self.exports]
        return vector(entries)

    def code(self, added: Sequence[tuple[int, bytes]] | None = None) -> Parts:
        """Content of the code section; ``added``: of the functions that were added only these."""
        module, data = self.module, memoryview(self.module.data)
        added = self.added if added is None else added
        out: list[bytes | memoryview] = [uleb(len(module.bodies) + len(added))]
        copied = 0  # bodies that pass unchanged are copied in runs
        entries = module.bodies
        first = module.imported_funcs
        if entries:
            part = next(s for s in module.sections if s.id == 10)
            copied = read_u32(module.data, part.start)[1]
        for func in sorted(self.bodies):
            body = entries[func - first]
            new = self.bodies[func]
            out += [data[copied : body.entry], uleb(len(new)), new]
            copied = body.end
        if entries:
            out.append(data[copied : entries[-1].end])
        for _, new in added:
            out += [uleb(len(new)), new]
        return out


def _plain(elem: ElemSegment) -> bool:
    """Whether a segment can be written as WebAssembly 1.0 writes it."""
    items = all(f is not None and f >= 0 for f in elem.items)
    return elem.mode == "active" and elem.table == 0 and elem.element == FUNCREF and items
