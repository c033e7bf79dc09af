"""Sections of a module that goes on by itself: the original's, with the frozen contents."""

from __future__ import annotations

from collections.abc import Sequence

from ..formats import Image
from ..instrument import emit
from ..wasm.encode import func_type, global_entry, limits, name, vector
from ..wasm.leb128 import uleb
from ..wasm.module import ElemSegment, ExternKind, FuncType, GlobalType, Limits, Module
from ..wasm.values import FUNCREF

__all__ = ["active_elements", "elements", "globals_section", "imports", "memories", "passive_data", "tables", "tags",
           "types"]


def types(module: Module, all_types: Sequence[FuncType]) -> bytes | None:
    """The type section, where types have been added."""
    if len(all_types) == len(module.types):
        return None
    return vector(func_type(kind) for kind in all_types)


def imports(module: Module) -> bytes | None:
    """The functions only: all else is defined. None: nothing else is imported."""
    kept = [item for item in module.imports if item.kind == ExternKind.FUNC]
    if len(kept) == len(module.imports):
        return None
    return vector(
        name(item.module) + name(item.name) + bytes([ExternKind.FUNC]) + uleb(item.type)  # type: ignore[arg-type]
        for item in kept
    )


def tables(module: Module, image: Image, added: Sequence[tuple[int, int]]) -> bytes | None:
    """All tables, those that grew as large as they are; ``added``: (element type, slots) of ours."""
    sizes = {state.index: state.size for state in image.tables}
    entries = [
        bytes([kind.element]) + limits(Limits(sizes.get(i, kind.limits.minimum), kind.limits.maximum))
        for i, kind in enumerate(module.tables)
    ]
    entries += [bytes([element]) + limits(Limits(slots, slots)) for element, slots in added]
    return vector(entries) if entries else None


def memories(module: Module, image: Image, added: Sequence[int]) -> bytes | None:
    """All memories, as large as they are; ``added``: pages of ours."""
    sizes = {state.index: state.pages for state in image.memories}
    entries = [limits(Limits(sizes[i], kind.maximum)) for i, kind in enumerate(module.memories)]
    entries += [limits(Limits(pages, pages)) for pages in added]
    return vector(entries) if entries else None


def tags(module: Module) -> bytes | None:
    """All tags, imported ones too."""
    return vector(b"\0" + uleb(kind) for kind in module.tags) if module.tags else None


def globals_section(module: Module, image: Image, added: Sequence[tuple[GlobalType, bytes]]) -> bytes | None:
    """All globals, the mutable ones with their present values; ``added`` are ours."""
    values = {state.index: state.bits for state in image.globals}
    first = len(module.globals) - len(module.own_globals)
    entries = []
    for i, kind in enumerate(module.globals):
        init = emit.constant(kind.type, values[i]) + emit.END if kind.mutable else module.own_globals[i - first].init
        entries.append(global_entry(kind, init))
    entries += [global_entry(kind, init) for kind, init in added]
    return vector(entries) if entries else None


def elements(module: Module, image: Image, added: Sequence[bytes]) -> bytes | None:
    """The module's element segments, the dropped ones empty, then ``added``."""
    dropped = set(image.dropped_elem)
    entries = [
        _segment(elem._replace(items=()) if i in dropped else elem) for i, elem in enumerate(module.elems)
    ]
    entries += added
    return vector(entries) if entries else None


def active_elements(table: int, kind: int, slots: Sequence[tuple[int, int | None]]) -> list[bytes]:
    """Segments that put functions, or null, into slots (ascending)."""
    runs: list[tuple[int, list[int | None]]] = []
    for slot, func in slots:
        if runs and runs[-1][0] + len(runs[-1][1]) == slot and (runs[-1][1][-1] is None) == (func is None):
            runs[-1][1].append(func)
        else:
            runs.append((slot, [func]))
    return [
        _segment(ElemSegment("active", table, emit.i32_const(slot) + emit.END, kind, tuple(items)))
        for slot, items in runs
    ]


def passive_data(data: bytes) -> bytes:
    """A passive data segment, as an entry of the data section."""
    return b"\1" + uleb(len(data)) + data


def _segment(elem: ElemSegment) -> bytes:
    """An element segment, in the oldest of its forms that can hold it."""
    if elem.element == FUNCREF and all(item is not None and item >= 0 for item in elem.items):
        items = vector(uleb(item) for item in elem.items if item is not None)
        if elem.mode == "active" and not elem.table:
            return b"\0" + elem.offset + items
        head = {"active": b"\2" + uleb(elem.table) + elem.offset, "passive": b"\1", "declarative": b"\3"}[elem.mode]
        return head + b"\0" + items
    kind = bytes([elem.element])
    head = {"active": b"\6" + uleb(elem.table) + elem.offset, "passive": b"\5", "declarative": b"\7"}[elem.mode]
    return head + kind + vector(
        (b"\xd0" + kind if f is None else emit.global_get(-1 - f) if f < 0 else b"\xd2" + uleb(f)) + emit.END
        for f in elem.items
    )
