"""What has to be done to a module: which tables become arrays, which functions a reference can name, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from typing import Any

from ...errors import NotSupported
from ...lazydata import dataclass, field
from ...wasm.codes import Codes
from ...wasm.module import ExternKind, FuncType, GlobalType, Module
from ...wasm.opcodes import BLOCKS
from ...wasm.validate import Code
from ...wasm.values import EXNREF, FUNCREF, I32, REFERENCES, V128

__all__ = ["MAX_SLOTS", "NEUTRAL", "Plan", "make_plan", "neutral_type", "neutral_types", "table_of", "to_wrap"]

NEUTRAL = {kind: V128 if kind == EXNREF else I32 for kind in REFERENCES}
"""What becomes of the types of references."""

MAX_SLOTS = 10_000_000
"""Slots that a table may grow to: the limit that web engines share."""

_GET, _SET, _INIT, _COPY, _GROW, _SIZE, _FILL = 0x25, 0x26, 0xFC000C, 0xFC000E, 0xFC000F, 0xFC0010, 0xFC0011
_TOUCHING = frozenset({_GET, _SET, _INIT, _COPY, _GROW, _FILL})
"""Instructions after which a table is no longer one that is only called through."""
_MAKING = _TOUCHING | {0x0A, 0xD0, 0xD1, 0xD2}


def neutral_type(kind: FuncType) -> FuncType:
    """A function type without references."""
    return FuncType(neutral_types(kind.params), neutral_types(kind.results))


def neutral_types(types: tuple[int, ...]) -> tuple[int, ...]:
    """Types without references."""
    return tuple(NEUTRAL.get(t, t) for t in types)


def table_of(op: int, imm: object) -> tuple[int, ...]:
    """The tables that an instruction names."""
    if op in (_GET, _SET):
        return (imm,)  # type: ignore[return-value]
    if op == _INIT:
        return (imm[1],)  # type: ignore[index]
    if op in (_COPY, _GROW, _SIZE, _FILL):
        return imm  # type: ignore[return-value]
    return (imm[1],) if op in (0x11, 0x13) else ()  # type: ignore[index]


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of a module.

    Attributes:
        references: whether it has any, or has to be treated so; else only imports become definitions.
        tables: those that become arrays, ascending. segments: passive element segments, ascending.
        universe: functions by number, number 1 first. groups: their types -> first number and the one behind the last.
        ambiguous: types that differ from another one of the universe by references only.
        tabled: types of imports that a reference can name -> how many there are; they come first in their group.
    """

    references: bool
    tables: tuple[int, ...] = ()
    segments: tuple[int, ...] = ()
    universe: tuple[int, ...] = ()
    groups: dict[FuncType, tuple[int, int]] = field(default_factory=dict)
    ambiguous: frozenset[FuncType] = frozenset()
    tabled: dict[FuncType, int] = field(default_factory=dict)


def make_plan(module: Module, codes: Codes) -> Plan | None:
    """The plan for a module; None where it may stay as it is.

    Raises:
        NotSupported: it imports an immutable global of a reference type, has a table above `MAX_SLOTS`, or has
            exceptions as values where they cannot be kept.
    """
    _refuse_exceptions(module)
    tabled = Counter(module.signature(func) for func in module.declared_funcs if func < module.imported_funcs)
    tails = list(_tail_calls_of_imports(module, codes, tabled))
    references = any(table is not None for table in tails) or _has_references(module, codes)
    foreign = any(_is_foreign(item.type, item.kind) for item in module.imports)
    wrapped = any(to_wrap(module, code) for _, code in codes.using({0x1F}))
    if not references and not tails and not foreign and not wrapped:
        return None
    for item in module.imported(ExternKind.GLOBAL):
        if isinstance(item.type, GlobalType) and item.type.type in REFERENCES:
            raise NotSupported(f"imported global {item.module}.{item.name} of a reference type",
                               need="imported reference", hint="define it in the module, or pass it to a function")
    if not references:
        return Plan(False)
    order: dict[FuncType, list[int]] = {}
    for func in sorted(module.declared_funcs):
        order.setdefault(module.signature(func), []).append(func)
    universe: list[int] = []
    groups = {}
    for kind, functions in order.items():
        groups[kind] = (len(universe) + 1, len(universe) + 1 + len(functions))
        universe += functions
    by_neutral: dict[FuncType, set[FuncType]] = {}
    for kind in {*order, *module.types}:
        by_neutral.setdefault(neutral_type(kind), set()).add(kind)
    ambiguous = frozenset(kind for same in by_neutral.values() if len(same) > 1 for kind in same)
    tables = {i for i, kind in enumerate(module.tables) if kind.element != FUNCREF}
    tables.update(table for table in tails if table is not None)
    for op, imm in _of_interest(codes):
        if op in _TOUCHING or module.types[imm[0]] in ambiguous:
            tables.update(table_of(op, imm))
    for i in sorted(tables):
        if module.tables[i].limits.minimum > MAX_SLOTS:
            raise NotSupported(f"table {i} of {module.tables[i].limits.minimum} slots", need="a huge table",
                               hint=f"at most {MAX_SLOTS}")
    segments = tuple(i for i, elem in enumerate(module.elems) if elem.mode == "passive")
    return Plan(True, tuple(sorted(tables)), segments, tuple(universe), groups, ambiguous, dict(tabled))


def _tail_calls_of_imports(
    module: Module, codes: Codes, tabled: Container[FuncType],
) -> Iterator[int | None]:
    """For each tail call that may reach an import the table that it goes through, None for a direct one."""
    for _, code in codes.using({0x12, 0x13}):
        for i in code.tail_calls:
            imm: Any = code.imms[i]
            if code.ops[i] == 0x12:
                if imm < module.imported_funcs:
                    yield None
            elif module.types[imm[0]] in tabled:
                yield imm[1]


def _is_foreign(kind: object, extern: ExternKind) -> bool:
    """Whether an import is one that becomes a definition."""
    if isinstance(kind, GlobalType):
        return kind.mutable
    return extern in (ExternKind.TABLE, ExternKind.MEMORY, ExternKind.TAG)


def to_wrap(module: Module, code: Code) -> set[int]:
    """The ``try_table`` instructions that get blocks around them (see `exceptions`): those of which a clause takes the
    exception itself, or, being for all tags, has a payload to drop; and those to whose own label a branch leads."""
    if not code.catches:
        return set()
    payloads = any(map(module.payload, range(len(module.tags))))
    found = {
        i for i, clauses in code.catches.items()
        if any(clause.kind & 1 or (clause.kind == 2 and payloads) for clause in clauses)
    }
    path: list[int] = []
    for i, op in enumerate(code.ops):
        depths: Iterable[int] = ()
        if op in BLOCKS:
            depths = [clause.depth for clause in code.catches.get(i, ())]
        elif 0x0C <= op <= 0x0E:
            imm: Any = code.imms[i]
            depths = imm if isinstance(imm, tuple) else (imm,)
        found.update(path[-1 - d] for d in depths if d < len(path) and code.ops[path[-1 - d]] == 0x1F)
        if op in BLOCKS:
            path.append(i)
        elif op == 0x0B and path:
            path.pop()
    return found


def _refuse_exceptions(module: Module) -> None:
    """A place for exceptions that is no local, operand or global; and one tag under two indices, for by its index it
    would be two."""
    what = ""
    if any(kind.element == EXNREF for kind in module.tables) or any(elem.element == EXNREF for elem in module.elems):
        what = "a table of exceptions (exnref)"
    for item in module.imported(ExternKind.FUNC):
        kind = module.types[item.type]  # type: ignore[index]
        if EXNREF in kind.params + kind.results:
            what = f"an exception (exnref) to or from the host: {item.module}.{item.name}"
    tags = Counter((item.module, item.name) for item in module.imported(ExternKind.TAG))
    for (group, name), count in tags.items():
        if count > 1:
            what = f"one tag that is imported {count} times: {group}.{name}"
    if what:
        raise NotSupported(what, need="exceptions")


def _has_references(module: Module, codes: Codes) -> bool:
    if any(REFERENCES & {*kind.params, *kind.results} for kind in module.types):
        return True
    if any(kind.type in REFERENCES for kind in module.globals) or any(t.element != FUNCREF for t in module.tables):
        return True
    if any(t in REFERENCES for body in module.bodies for _, t in body.locals):
        return True
    # What follows may be in code that is never reached, but has to be valid.
    if any(REFERENCES & {*kind.params, *kind.results} for kind in codes.block_types):
        return True
    for _, code in codes.using(_first_bytes(_MAKING) | {0x1F, 0x1C}):
        if not _MAKING.isdisjoint(code.ops) or any(c.kind & 1 for clauses in code.catches.values() for c in clauses):
            return True
        if any(op == 0x1C and not REFERENCES.isdisjoint(imm)  # type: ignore[arg-type]
               for op, imm in zip(code.ops, code.imms, strict=True)):
            return True
    return False


def _first_bytes(ops: Iterable[int]) -> frozenset[int]:
    return frozenset(op if op < 0x100 else op >> 16 for op in ops)


def _of_interest(codes: Codes) -> Iterator[tuple[int, Any]]:
    """All instructions that touch tables, indirect calls among them."""
    wanted = _TOUCHING | {0x11, 0x13}
    for _, code in codes.using(_first_bytes(wanted)):
        if not wanted.isdisjoint(code.ops):
            for op, imm in zip(code.ops, code.imms, strict=True):
                if op in wanted:
                    yield op, imm
