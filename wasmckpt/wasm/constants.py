"""Constant expressions and their values."""

from __future__ import annotations

from collections.abc import Iterator

from .leb128 import read_s32, read_u32
from .module import Module

__all__ = ["constant_offset"]


def constant_offset(module: Module, expr: bytes, values: dict[int, int]) -> int:
    """Value of a constant i32 expression.

    Args:
        values: bits of the imported globals, by index. Those of other globals that are met are added: each may be made
            of others a million times over.
    """
    first = len(module.globals) - len(module.own_globals)
    needed: set[int] = set()
    todo = [expr]
    while todo:
        for index in _globals_in(todo.pop()):
            if index not in values and index not in needed:
                needed.add(index)
                todo.append(module.own_globals[index - first].init)
    for index in sorted(needed):  # each is made of earlier ones
        values[index] = _value(module.own_globals[index - first].init, values)
    return _value(expr, values)


def _value(expr: bytes, values: dict[int, int]) -> int:
    stack: list[int] = []
    at = 0
    while expr[at] != 0x0B:
        op = expr[at]
        if op == 0x41:
            value, at = read_s32(expr, at + 1)
            stack.append(value)
        elif op == 0x23:
            index, at = read_u32(expr, at + 1)
            stack.append(values[index])
        else:
            b, a = stack.pop(), stack.pop()
            stack.append((a + b if op == 0x6A else a - b if op == 0x6B else a * b) & 0xFFFFFFFF)
            at += 1
    return stack[0] & 0xFFFFFFFF


def _globals_in(expr: bytes) -> Iterator[int]:
    at = 0
    while expr[at] != 0x0B:
        if expr[at] == 0x41:
            at = read_s32(expr, at + 1)[1]
        elif expr[at] == 0x23:
            index, at = read_u32(expr, at + 1)
            yield index
        else:
            at += 1
