"""The neutral body of one function: the original's bytes, but for the instructions that deal with references."""

from __future__ import annotations

from typing import NamedTuple

from ...lazydata import dataclass
from ...wasm.leb128 import sleb, uleb
from ...wasm.module import FuncType, Module
from ...wasm.opcodes import BLOCKS
from ...wasm.validate import Code
from ...wasm.values import EXNREF, I32, REFERENCES
from .. import emit
from ..pieces import block_type
from .exceptions import ExceptionValues
from .offsets import OffsetMap
from .plan import NEUTRAL, Plan, neutral_types, to_wrap
from .tables import TableFunctions

__all__ = ["NeutralBody", "neutral_body"]

_ON_TABLES = frozenset({0x25, 0x26, 0xFC000C, 0xFC000D, 0xFC000E, 0xFC000F, 0xFC0010, 0xFC0011, 0x11, 0x13})
_BRANCHES = frozenset({0x0C, 0x0D, 0x0E})
_CHANGED = _ON_TABLES | {0x0A, 0x12, 0x1C, 0xD0, 0xD1, 0xD2}
_RETURN = b"\x0f"


@dataclass(slots=True)
class NeutralBody:
    """A function's neutral body.

    Attributes:
        code: declaration of the locals, then the code. offsets: its map; None where it changes nothing.
        returning: offsets behind calls of imports that are tail calls in the original.
    """

    code: bytes
    offsets: OffsetMap | None
    returning: tuple[int, ...]


def neutral_body(
    module: Module, code: Code, plan: Plan, numbers: dict[int, int], tables: TableFunctions,
    exceptions: ExceptionValues,
) -> NeutralBody | None:
    """The neutral body of a function; None where the original's will do."""
    body = module.body(code.func)
    locals_changed = any(t in REFERENCES for _, t in body.locals)
    blocks = code.label_values
    if not locals_changed and not blocks and not code.catches and _CHANGED.isdisjoint(code.ops):
        return None
    instead = _Instead(module, code, plan, numbers, tables, exceptions)
    wrapped = instead.wrapped
    raw = module.data[body.expr : body.end]
    pos = code.pos
    out: list[bytes] = []
    offsets = OffsetMap()
    returning = []
    cursor = size = 0
    for i, op in enumerate(code.ops):
        new: _New | None
        if op == 0x1F and (wrapped or raw[pos[i] + 1] in REFERENCES):
            new = instead.try_table(i, raw)
        elif op in BLOCKS:
            instead.path.append(_Open())
            if not blocks or raw[pos[i] + 1] not in REFERENCES:
                continue
            new = _New(bytes([op, NEUTRAL[raw[pos[i] + 1]]]))
        elif op == 0x0B:
            if not instead.path or not (behind := instead.path.pop().behind):
                continue
            new = _New(emit.END + behind)
        elif wrapped and op in _BRANCHES:
            new = instead.branch(i)
        elif op in _CHANGED:
            new = instead(i)
        else:
            continue
        if new is None:
            continue
        size += pos[i] - cursor
        out += [raw[cursor : pos[i]], *new]
        offsets.mark(pos[i], size)
        size += len(new.first)
        if new.call:
            offsets.mark(pos[i], size)
            size += len(new.call)
        if new.last:
            returning.append(size)
            size += len(new.last)
        cursor = pos[i + 1]
        offsets.mark(cursor, size)
    if not out and not locals_changed:
        return None
    out.append(raw[cursor:])
    runs = [(n, NEUTRAL.get(t, t)) for n, t in body.locals] + [(1, I32)] * instead.temporary
    declared = uleb(len(runs)) + b"".join(uleb(n) + bytes([t]) for n, t in runs)
    changed = len(offsets.original) > 1
    return NeutralBody(declared + b"".join(out), offsets if changed else None, tuple(returning))


class _New(NamedTuple):
    """What stands instead of an instruction; a frame may wait in ``call``, and ``last`` follows a tail call."""

    first: bytes
    call: bytes = b""
    last: bytes = b""


class _Open(NamedTuple):
    """A construct around an instruction: how many blocks it got around it, and what follows its ``end``."""

    blocks: int = 0
    behind: bytes = b""


class _Instead:
    """Gives what stands instead of an instruction; None: itself."""

    def __init__(
        self, module: Module, code: Code, plan: Plan, numbers: dict[int, int], tables: TableFunctions,
        exceptions: ExceptionValues,
    ) -> None:
        self.module, self.code, self.plan, self.numbers, self.tables = module, code, plan, numbers, tables
        self.exceptions = exceptions
        self.path: list[_Open] = []
        self.wrapped = to_wrap(module, code)
        self.arrays = frozenset(plan.tables)
        self.temporary = False
        """Whether a local of type i32 behind the original's is used."""

    def __call__(self, i: int) -> _New | None:
        op = self.code.ops[i]
        imm: object = self.code.imms[i]
        if op == 0x1C:
            kind: int = imm[0]  # type: ignore[index]
            return _New(b"\x1c\x01" + bytes([NEUTRAL[kind]])) if kind in REFERENCES else None
        if op == 0x12:
            # An import needs no frame of its own, so the caller's may stay: a call to be repeated is repeated from it.
            tail = imm < self.module.imported_funcs  # type: ignore[operator]
            return _New(b"", emit.call(imm), _RETURN) if tail else None  # type: ignore[arg-type]
        if op in _ON_TABLES:
            return self._on_table(op, imm)
        if op == 0x0A:
            return _New(self.exceptions.throw_ref())
        if op == 0xD0:
            return _New(emit.zero(NEUTRAL[imm]))  # type: ignore[index]
        if op == 0xD1:
            return _New((b"\xfd\x53" if imm == EXNREF else b"") + b"\x45")
        return _New(emit.i32_const(self.numbers[imm]))  # type: ignore[index]

    def moved(self, depth: int) -> int:
        """The depth of a label, with the blocks that the constructs between got around them; for the label of one that
        got some, the outermost of these."""
        return depth + sum(construct.blocks for construct in self.path[max(0, len(self.path) - depth - 1):])

    def branch(self, i: int) -> _New | None:
        """A branch, where that differs."""
        op, imm = self.code.ops[i], self.code.imms[i]
        depths: tuple[int, ...] = imm if isinstance(imm, tuple) else (imm,)
        moved = tuple(map(self.moved, depths))
        if moved == depths:
            return None
        return _New(bytes([op]) + (uleb(len(moved) - 1) if op == 0x0E else b"") + b"".join(map(uleb, moved)))

    def try_table(self, i: int, raw: bytes) -> _New:
        """A ``try_table``, which is open from now on."""
        clauses = self.code.catches[i]
        start = self.code.pos[i] + 1
        kind = bytes([NEUTRAL[raw[start]]]) if raw[start] in REFERENCES else block_type(raw, start)
        if i not in self.wrapped:
            moved = [clause._replace(depth=self.moved(clause.depth)) for clause in clauses]
            self.path.append(_Open())
            return _New(emit.try_table(kind, moved))
        made = self.exceptions.wrap(self.code, i, kind, self.moved)
        self.path.append(_Open(made.blocks, made.behind))
        return _New(made.before)

    def _on_table(self, op: int, imm: object) -> _New | None:
        tables = self.tables
        if isinstance(imm, int):
            return _New((tables.get if op == 0x25 else tables.set)(imm))
        numbers: tuple[int, ...] = imm  # type: ignore[assignment]
        if op in (0x11, 0x13):
            type_index, table = numbers
            if table not in self.arrays:
                return None
            kind = self.module.types[type_index]
            resolve = tables.resolve(table, kind)
            through = uleb(type_index) + uleb(tables.universe)
            if op == 0x11 or kind not in self.plan.tabled:
                return _New(resolve, bytes([op]) + through)
            return self._tail_call(resolve, kind, through)
        if op == 0xFC000C:
            return _New(tables.init(numbers[1], numbers[0]))
        if op == 0xFC000D:
            return _New(tables.drop(numbers[0])) if self.plan.references else None
        if op == 0xFC000E:
            return _New(tables.copy(*numbers))
        if op == 0xFC0010:
            return _New(tables.size(numbers[0])) if numbers[0] in self.arrays else None
        return _New((tables.grow if op == 0xFC000F else tables.fill)(numbers[0]))

    def _tail_call(self, resolve: bytes, kind: FuncType, through: bytes) -> _New:
        """A tail call that may reach an import: those, which come first among the functions of the type, are called."""
        self.temporary = True
        number = len(self.module.local_types(self.code.func))
        first, _ = self.plan.groups[kind]
        block = self.tables.type_index(FuncType(neutral_types(kind.params), ()))
        is_import = (
            emit.local_tee(number) + emit.i32_const(first) + b"\x6b" + emit.i32_const(self.plan.tabled[kind]) + b"\x49"
        )
        return _New(
            resolve + is_import + b"\x04" + sleb(block) + emit.local_get(number), b"\x11" + through,
            _RETURN + emit.ELSE + emit.local_get(number) + b"\x13" + through + emit.END + emit.UNREACHABLE,
        )
