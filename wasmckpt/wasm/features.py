"""Which proposals beyond WebAssembly 1.0 a module uses, and where first: what a runtime must be able to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .codes import Codes
from .leb128 import read_s32, read_s64, read_u32
from .module import ExternKind, FuncType, Module
from .opcodes import TABLE

__all__ = ["Use", "used_features"]

_COPY_FILL = frozenset({0xFC000A, 0xFC000B})


def _feature(op: int) -> str:
    return "memory-copy-fill" if op in _COPY_FILL else TABLE[op].feature


def _features_by_byte() -> dict[int, set[str]]:
    """First bytes of instructions -> features beyond WebAssembly 1.0 that instructions with them need."""
    found: dict[int, set[str]] = {}
    for op in TABLE:
        found.setdefault(op if op < 0x100 else op >> 16, set()).add(_feature(op))
    return {byte: features - {"mvp"} for byte, features in found.items() if features != {"mvp"}}


_FEATURES = _features_by_byte()


class Use(NamedTuple):
    """The first use of a feature: what it is, function (-1: none) and byte offset in the module (0: unknown)."""

    what: str
    function: int = -1
    offset: int = 0


def used_features(module: Module, codes: Codes) -> dict[str, Use]:
    """Names as adapters declare them ("simd", "tail-calls", "multi-memory"...) -> first use.

    Args:
        codes: the validated bodies of all defined functions.
    """
    found: dict[str, Use] = {}

    def note(feature: str, what: str, function: int = -1, offset: int = 0) -> None:
        if feature not in found:
            found[feature] = Use(what, function, offset)

    for kind in module.types:
        if len(kind.results) > 1:
            note("multi-value", "a function type with several results")
    if len(module.memories) > 1:
        note("multi-memory", "several memories")
    if len(module.tables) > 1:
        note("reference-types", "several tables")
    if module.tags:
        note("exceptions", "a tag of exceptions")
    exported = {item.index for item in module.exports if item.kind == ExternKind.GLOBAL}
    own = len(module.globals) - len(module.own_globals)
    if any(kind.mutable and (i < own or i in exported) for i, kind in enumerate(module.globals)):
        note("mutable-globals", "a mutable global that is imported or exported")
    constants = [glob.init for glob in module.own_globals]
    constants += [elem.offset for elem in module.elems if elem.mode == "active"]
    constants += [data.offset for data in module.datas if data.active]
    if any(_first_end(expr) != len(expr) - 1 for expr in constants):
        note("extended-const", "arithmetic in a constant expression")
    for elem in module.elems:
        if elem.mode == "passive":
            note("bulk-memory", "a passive element segment")
        elif elem.mode == "active" and any(f is None or f < 0 for f in elem.items):
            note("reference-types", "an element segment of expressions")
    if any(not data.active for data in module.datas):
        note("bulk-memory", "a passive data segment")
    if "multi-value" not in found:
        _note_blocks(module, codes, note)
    first = {byte for byte, features in _FEATURES.items() if not features <= found.keys()}
    for func, code in codes.using(first):
        for op in set(code.ops):
            feature = _feature(op)
            if feature != "mvp" and feature not in found:
                note(feature, TABLE[op].name, func, module.body(func).expr + code.pos[code.ops.index(op)])
                first -= {byte for byte, features in _FEATURES.items() if features <= found.keys()}
    return found


def _note_blocks(module: Module, codes: Codes, note: Callable[[str, str, int, int], None]) -> None:
    """The first block with parameters or several results."""
    functions = [func for kind, func in codes.block_types.items() if kind.params or len(kind.results) > 1]
    if functions:
        func = min(functions)
        code = codes[func]
        for i, imm in enumerate(code.imms):
            if isinstance(imm, FuncType) and (imm.params or len(imm.results) > 1):
                note("multi-value", "a block with parameters or several results", func,
                     module.body(func).expr + code.pos[i])
                return


def _first_end(expr: bytes) -> int:
    """Where the first instruction of a constant expression ends; a plain one has nothing behind it but its ``end``."""
    op = expr[0]
    if op == 0x43:
        return 5
    if op == 0x44:
        return 9
    if op == 0xFD:
        return 18
    if op == 0xD0:
        return 2
    return (read_s64(expr, 1) if op == 0x42 else read_s32(expr, 1) if op == 0x41 else read_u32(expr, 1))[1]
