"""The neutral body of one function: the original's bytes, but for the instructions that deal with references."""

from __future__ import annotations

from ...wasm.leb128 import uleb
from ...wasm.module import Module
from ...wasm.validate import Code
from ...wasm.values import I32, REFERENCES
from .. import emit
from .offsets import OffsetMap
from .plan import Plan
from .tables import TableFunctions

__all__ = ["neutral_body"]

_BLOCKS = frozenset({0x02, 0x03, 0x04})
_ON_TABLES = frozenset({0x25, 0x26, 0xFC000C, 0xFC000D, 0xFC000E, 0xFC000F, 0xFC0010, 0xFC0011, 0x11, 0x13})
_CHANGED = _ON_TABLES | {0x1C, 0xD0, 0xD1, 0xD2}


def neutral_body(
    module: Module, code: Code, plan: Plan, numbers: dict[int, int], tables: TableFunctions,
) -> tuple[bytes, OffsetMap | None] | None:
    """Locals and code of the neutral function, with its map of offsets (None: they are equal); None: as it is."""
    body = module.body(code.func)
    locals_changed = any(t in REFERENCES for _, t in body.locals)
    blocks = code.label_values
    if not locals_changed and not blocks and _CHANGED.isdisjoint(code.ops):
        return None
    instead = _Instead(module, code, plan, numbers, tables)
    raw = module.data[body.expr : body.end]
    pos = code.pos
    out: list[bytes] = []
    offsets = OffsetMap()
    cursor = size = 0
    for i, op in enumerate(code.ops):
        if op in _BLOCKS:
            if not blocks or raw[pos[i] + 1] not in REFERENCES:
                continue
            new: tuple[bytes, bytes] | None = (bytes([op, I32]), b"")
        elif op in _CHANGED:
            new = instead(i)
        else:
            continue
        if new is None:
            continue
        size += pos[i] - cursor
        out += [raw[cursor : pos[i]], *new]
        offsets.mark(pos[i], size)
        if new[1]:
            offsets.mark(pos[i], size + len(new[0]))
        size += len(new[0]) + len(new[1])
        cursor = pos[i + 1]
        offsets.mark(cursor, size)
    if not out and not locals_changed:
        return None
    out.append(raw[cursor:])
    runs = [(n, I32 if t in REFERENCES else t) for n, t in body.locals]
    declared = uleb(len(runs)) + b"".join(uleb(n) + bytes([t]) for n, t in runs)
    return declared + b"".join(out), offsets if len(offsets.original) > 1 else None


class _Instead:
    """What stands instead of an instruction: (code, code of the call in which a frame may wait); None: itself."""

    def __init__(self, module: Module, code: Code, plan: Plan, numbers: dict[int, int], tables: TableFunctions) -> None:
        self.module, self.code, self.plan, self.numbers, self.tables = module, code, plan, numbers, tables
        self.arrays = frozenset(plan.tables)

    def __call__(self, i: int) -> tuple[bytes, bytes] | None:
        op = self.code.ops[i]
        imm: object = self.code.imms[i]
        if op == 0x1C:
            return (b"\x1c\x01" + bytes([I32]), b"") if imm[0] in REFERENCES else None  # type: ignore[index]
        if op in _ON_TABLES:
            return self._on_table(op, imm)
        if op == 0xD0:
            return emit.i32_const(0), b""
        if op == 0xD1:
            return b"\x45", b""
        return emit.i32_const(self.numbers[imm]), b""  # type: ignore[index]

    def _on_table(self, op: int, imm: object) -> tuple[bytes, bytes] | None:
        tables = self.tables
        if isinstance(imm, int):
            return (tables.get if op == 0x25 else tables.set)(imm), b""
        numbers: tuple[int, ...] = imm  # type: ignore[assignment]
        if op in (0x11, 0x13):
            type_index, table = numbers
            if table not in self.arrays:
                return None
            call = bytes([op]) + uleb(type_index) + uleb(tables.universe)
            return tables.resolve(table, self.module.types[type_index]), call
        if op == 0xFC000C:
            return tables.init(numbers[1], numbers[0]), b""
        if op == 0xFC000D:
            return tables.drop(numbers[0]), b""
        if op == 0xFC000E:
            return tables.copy(*numbers), b""
        if op == 0xFC0010:
            return (tables.size(numbers[0]), b"") if numbers[0] in self.arrays else None
        return (tables.grow if op == 0xFC000F else tables.fill)(numbers[0]), b""
