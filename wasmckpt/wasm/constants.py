"""Constant expressions and their values."""

from __future__ import annotations

from collections.abc import Mapping

from .leb128 import read_s32, read_u32
from .module import Module

__all__ = ["constant_offset"]


def constant_offset(module: Module, expr: bytes, imported: Mapping[int, int]) -> int:
    """Value of a constant i32 expression; ``imported``: bits of the imported globals, by index."""
    stack: list[int] = []
    at = 0
    while expr[at] != 0x0B:
        op = expr[at]
        if op == 0x41:
            value, at = read_s32(expr, at + 1)
            stack.append(value)
        elif op == 0x23:
            index, at = read_u32(expr, at + 1)
            own = index - (len(module.globals) - len(module.own_globals))
            value = imported[index] if own < 0 else constant_offset(module, module.own_globals[own].init, imported)
            stack.append(value)
        else:
            b, a = stack.pop(), stack.pop()
            stack.append(a + b if op == 0x6A else a - b if op == 0x6B else a * b)
            at += 1
    return stack[0] & 0xFFFFFFFF
