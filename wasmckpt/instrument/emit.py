"""Bytes of the few instructions that the rewriter emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..wasm.leb128 import sleb, uleb
from ..wasm.module import FuncType
from ..wasm.validate import Catch
from ..wasm.values import EXNREF, EXTERNREF, F32, F64, FUNCREF, I32, I64, NULL, REFERENCES, V128, WIDTH

__all__ = [
    "BLOCK", "DROP", "ELSE", "END", "IF", "LOOP", "RETURN", "UNREACHABLE", "atomic_load", "block", "br", "br_if",
    "call", "constant", "global_get", "global_set", "i32_const", "load", "local_decl", "local_get", "local_set",
    "local_tee", "memory_grow", "memory_size", "return_call", "store", "try_table", "zero",
]

BLOCK: Final = b"\x02\x40"
LOOP: Final = b"\x03\x40"
IF: Final = b"\x04\x40"
ELSE: Final = b"\x05"
END: Final = b"\x0b"
RETURN: Final = b"\x0f"
UNREACHABLE: Final = b"\x00"
DROP: Final = b"\x1a"

_ZERO: Final = {
    I32: b"\x41\0", I64: b"\x42\0", F32: b"\x43" + bytes(4), F64: b"\x44" + bytes(8), V128: b"\xfd\x0c" + bytes(16),
    FUNCREF: b"\xd0\x70", EXTERNREF: b"\xd0\x6f",
}
_STORE: Final = {I32: b"\x36", I64: b"\x37", F32: b"\x38", F64: b"\x39", V128: b"\xfd\x0b"}
_LOAD: Final = {I32: b"\x28", I64: b"\x29", F32: b"\x2a", F64: b"\x2b", V128: b"\xfd\x00"}


def block(results: tuple[int, ...], type_index: Callable[[FuncType], int]) -> bytes:
    """``block`` with results."""
    if not results:
        return BLOCK
    return b"\x02" + (bytes(results) if len(results) == 1 else sleb(type_index(FuncType((), results))))


def i32_const(value: int) -> bytes:
    """``i32.const`` of an unsigned or signed 32-bit number."""
    return b"\x41" + sleb(value - (1 << 32) if value >= 1 << 31 else value)


def constant(kind: int, bits: int) -> bytes:
    """The constant with these bits (`Value`'s); of references only to functions, and null ones."""
    if kind == I32:
        return i32_const(bits)
    if kind == I64:
        return b"\x42" + sleb(bits - (1 << 64) if bits >> 63 else bits)
    if kind in REFERENCES:
        null = bits == (0 if kind == EXNREF else NULL)
        assert null or kind == FUNCREF
        return b"\xd0" + bytes([kind]) if null else b"\xd2" + uleb(bits)
    head = {F32: b"\x43", F64: b"\x44", V128: b"\xfd\x0c"}[kind]
    return head + bits.to_bytes(WIDTH[kind], "little")


def local_get(index: int) -> bytes:
    """``local.get``"""
    return b"\x20" + uleb(index)


def local_set(index: int) -> bytes:
    """``local.set``"""
    return b"\x21" + uleb(index)


def local_tee(index: int) -> bytes:
    """``local.tee``"""
    return b"\x22" + uleb(index)


def global_get(index: int) -> bytes:
    """``global.get``"""
    return b"\x23" + uleb(index)


def global_set(index: int) -> bytes:
    """``global.set``"""
    return b"\x24" + uleb(index)


def call(index: int) -> bytes:
    """``call``"""
    return b"\x10" + uleb(index)


def return_call(index: int) -> bytes:
    """``return_call``"""
    return b"\x12" + uleb(index)


def br(depth: int) -> bytes:
    """``br``"""
    return b"\x0c" + uleb(depth)


def br_if(depth: int) -> bytes:
    """``br_if``"""
    return b"\x0d" + uleb(depth)


def try_table(kind: bytes, clauses: Sequence[Catch]) -> bytes:
    """``try_table`` of a block type in its binary form."""
    return b"\x1f" + kind + uleb(len(clauses)) + b"".join(
        bytes([clause.kind]) + (uleb(clause.tag) if clause.tag >= 0 else b"") + uleb(clause.depth) for clause in clauses
    )


def zero(kind: int) -> bytes:
    """The constant zero (null) of a type."""
    return _ZERO[kind]


def _memarg(align: int, memory: int, offset: int) -> bytes:
    return (uleb(align | 0x40) + uleb(memory) if memory else uleb(align)) + uleb(offset)


def store(kind: int, memory: int, offset: int = 0) -> bytes:
    """An unaligned store of a value of type ``kind``."""
    return _STORE[kind] + _memarg(0, memory, offset)


def load(kind: int, memory: int, offset: int = 0) -> bytes:
    """An unaligned load of a value of type ``kind``."""
    return _LOAD[kind] + _memarg(0, memory, offset)


def atomic_load(memory: int, offset: int = 0) -> bytes:
    """``i32.atomic.load``: no compiler lifts it out of a loop."""
    return b"\xfe\x10" + _memarg(2, memory, offset)


def memory_grow(memory: int) -> bytes:
    """``memory.grow``"""
    return b"\x40" + uleb(memory)


def memory_size(memory: int) -> bytes:
    """``memory.size``"""
    return b"\x3f" + uleb(memory)


def local_decl(types: list[int]) -> bytes:
    """The locals declaration of a body, as runs of equal types."""
    runs: list[list[int]] = []
    for kind in types:
        if runs and runs[-1][1] == kind:
            runs[-1][0] += 1
        else:
            runs.append([1, kind])
    return uleb(len(runs)) + b"".join(uleb(n) + bytes([kind]) for n, kind in runs)
