"""Atomic instructions as plain ones, for runtimes that have none: a program of one thread cannot tell them apart.

A module whose memories are shared is refused before; what is left are programs that were compiled with atomics and run
in one thread (``-matomics`` without threads: C++'s reference counts, locks and lists without locks). An access is a
load, an operation and a store, behind the test of the address that the proposal demands:

    i32.atomic.rmw16.add_u offset=6     local.set $v  local.tee $a  i32.const 6  i32.add  i32.const 1  i32.and
                                        if unreachable end  local.get $a
                                        local.get $a  i32.load16_u offset=6  local.tee $w  local.get $v  i32.add
                                        i32.store16 offset=6  local.get $w

A notification wakes nobody, a fence orders nothing, and to wait is a trap on a memory that is not shared. The one
difference: the traps of a wrong alignment and of waiting are ``unreachable`` here. No safepoint lies within.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..wasm.leb128 import read_u32, uleb
from ..wasm.opcodes import BY_NAME, TABLE
from ..wasm.values import I32, I64
from . import emit

__all__ = ["FIRST_ATOMIC", "plain"]

FIRST_ATOMIC: Final = 0xFE0000
_NOTIFY, _FENCE, _FIRST_ACCESS = 0xFE0000, 0xFE0003, 0xFE0010
_BYTES: Final = {"": 0, "8": 1, "16": 2, "32": 4}


def plain(op: int, raw: bytes, spare: Callable[[str, int], int]) -> bytes:
    """What stands for an atomic instruction.

    Args:
        raw: the instruction as it is. spare: a local that nothing else uses, by its name and type.
    """
    row = TABLE[op]
    if op == _FENCE:
        return b""
    if _NOTIFY < op < _FENCE:
        return emit.UNREACHABLE
    argument = raw[1 + len(uleb(op & 0xFFFF)):]
    flags, at = read_u32(argument, 0)
    if flags & 0x40:
        at = read_u32(argument, at)[1]
    offset = read_u32(argument, at)[0]
    address = spare("address", I32)
    if op == _NOTIFY:
        load = bytes([BY_NAME["i32.load"].code]) + argument
        return (emit.DROP + emit.local_set(address) + _aligned(address, offset, 4) + emit.local_get(address) + load
                + emit.DROP + emit.i32_const(0))
    kind, _, what = row.name.replace(".atomic.", ".").partition(".")
    what, _, operation = what.removesuffix("_u").partition(".")
    width = what.lstrip("loadstremw")
    size = _BYTES[width] or (4 if kind == "i32" else 8)
    type_ = I32 if kind == "i32" else I64
    load = bytes([BY_NAME[f"{kind}.load{width}{'_u' if width else ''}"].code]) + argument
    store = bytes([BY_NAME[f"{kind}.store{width}"].code]) + argument
    here = emit.local_get(address)
    if what.startswith("load"):
        return emit.local_set(address) + _aligned(address, offset, size) + here + load
    value = spare("value", type_)
    if what.startswith("store"):
        return (emit.local_set(value) + emit.local_set(address) + _aligned(address, offset, size) + here
                + emit.local_get(value) + store)
    was = spare("was", type_)
    if operation == "cmpxchg":
        expected = spare("expected", type_)
        equal = bytes([BY_NAME[f"{kind}.eq"].code])
        wrap = b""  # what a narrow access expects is wrapped too, says the proposal's overview, and so compilers do
        if width:
            wrap = emit.constant(type_, (1 << 8 * size) - 1) + bytes([BY_NAME[f"{kind}.and"].code])
        return (
            emit.local_set(value) + wrap + emit.local_set(expected) + emit.local_set(address)
            + _aligned(address, offset, size)
            + here  # stored in any case, the value itself where it is another one: no thread sees that
            + emit.local_get(value) + here + load + emit.local_tee(was)
            + emit.local_get(was) + emit.local_get(expected) + equal + b"\x1b" + store + emit.local_get(was)
        )
    new = b"" if operation == "xchg" else bytes([BY_NAME[f"{kind}.{operation}"].code])
    before = here + load + emit.local_set(was) + here
    made = emit.local_get(value) if operation == "xchg" else emit.local_get(was) + emit.local_get(value) + new
    return (emit.local_set(value) + emit.local_set(address) + _aligned(address, offset, size) + before + made + store
            + emit.local_get(was))


def _aligned(address: int, offset: int, size: int) -> bytes:
    """A trap unless ``address + offset`` is a multiple of ``size``."""
    if size == 1:
        return b""
    sum_ = emit.local_get(address)
    if offset % size:
        sum_ += emit.i32_const(offset % size) + bytes([BY_NAME["i32.add"].code])
    mask = emit.i32_const(size - 1) + bytes([BY_NAME["i32.and"].code])
    return sum_ + mask + emit.IF + emit.UNREACHABLE + emit.END
