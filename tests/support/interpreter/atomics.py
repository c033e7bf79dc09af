"""Atomic instructions of one thread: each access is whole anyway; a wrong alignment is a trap, and so is waiting."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from wasmckpt.wasm.opcodes import BY_NAME, TABLE

from .rest import Rest
from .traps import trap

if TYPE_CHECKING:
    from .store import Instance

__all__ = ["ATOMICS"]

_OPERATIONS: Final[dict[str, Callable[[int, int], int]]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "xchg": lambda a, b: b,
}


def _place(instance: Instance, stack: list[Any], imm: tuple[int, int], size: int) -> tuple[bytearray, int]:
    memory, offset = imm
    start = stack.pop() + offset
    data = instance.memories[memory].data
    if start % size:
        raise trap("unaligned atomic")
    if start + size > len(data):
        raise trap("out of bounds memory access")
    return data, start


def _read(data: bytearray, start: int, size: int) -> int:
    return int.from_bytes(data[start:start + size], "little")


def _write(data: bytearray, start: int, size: int, value: int) -> None:
    data[start:start + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def _access(name: str) -> Rest:
    found = re.fullmatch(r"i(\d\d)\.atomic\.(load|store|rmw)(\d*)(?:\.(\w+?))?(?:_u)?", name)
    assert found is not None
    what, operation = found[2], found[4]
    size = int(found[3] or found[1]) // 8

    def load(instance: Instance, stack: list[Any], imm: tuple[int, int]) -> None:
        data, start = _place(instance, stack, imm, size)
        stack.append(_read(data, start, size))

    def store(instance: Instance, stack: list[Any], imm: tuple[int, int]) -> None:
        value = stack.pop()
        data, start = _place(instance, stack, imm, size)
        _write(data, start, size, value)

    def change(instance: Instance, stack: list[Any], imm: tuple[int, int]) -> None:
        value = stack.pop()
        data, start = _place(instance, stack, imm, size)
        stack.append(_read(data, start, size))
        _write(data, start, size, _OPERATIONS[operation](stack[-1], value))

    def exchange(instance: Instance, stack: list[Any], imm: tuple[int, int]) -> None:
        value, expected = stack.pop(), stack.pop()
        data, start = _place(instance, stack, imm, size)
        stack.append(_read(data, start, size))
        if stack[-1] == expected & (1 << 8 * size) - 1:  # of a narrow access the expected value is wrapped, too
            _write(data, start, size, value)

    return {"load": load, "store": store}.get(what) or (exchange if operation == "cmpxchg" else change)


def _notify(instance: Instance, stack: list[Any], imm: tuple[int, int]) -> None:
    stack.pop()
    _place(instance, stack, imm, 4)
    stack.append(0)


def _wait(instance: Instance, stack: list[Any], imm: tuple[int, int]) -> None:
    raise trap("other")


def _fence(instance: Instance, stack: list[Any], imm: object) -> None:
    pass


ATOMICS: Final[dict[int, Rest]] = {
    **{op.code: _access(op.name) for op in TABLE.values() if op.code >= 0xFE0010},
    BY_NAME["memory.atomic.notify"].code: _notify, BY_NAME["memory.atomic.wait32"].code: _wait,
    BY_NAME["memory.atomic.wait64"].code: _wait, BY_NAME["atomic.fence"].code: _fence,
}
