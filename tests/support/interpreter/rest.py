"""The instructions that the machine's loop does not do itself: other memories, bulk operations, tables, references.

Each takes the instance, the operand stack and the instruction's immediates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from wasmckpt.wasm.opcodes import BY_NAME

from .integers import sign_extension
from .traps import trap

if TYPE_CHECKING:
    from .store import Instance

__all__ = ["REST", "Rest", "memory_load", "memory_store"]

Stack = list[Any]
Rest = Callable[["Instance", Stack, Any], None]

MINUS_ONE: Final = 0xFFFF_FFFF


def memory_load(instance: Instance, stack: Stack, imm: tuple[int, int, int, bool, int]) -> None:
    memory, offset, size, signed, width = imm
    data = instance.memories[memory].data
    start = stack.pop() + offset
    if start + size > len(data):
        raise trap("out of bounds memory access")
    value = int.from_bytes(data[start:start + size], "little")
    stack.append(sign_extension(8 * size, width)(value) if signed else value)


def memory_store(instance: Instance, stack: Stack, imm: tuple[int, int, int, bool, int]) -> None:
    memory, offset, size, _, _ = imm
    data = instance.memories[memory].data
    value = stack.pop()
    start = stack.pop() + offset
    if start + size > len(data):
        raise trap("out of bounds memory access")
    data[start:start + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def memory_size(instance: Instance, stack: Stack, memory: int) -> None:
    stack.append(instance.memories[memory].pages)


def memory_grow(instance: Instance, stack: Stack, memory: int) -> None:
    grown = instance.memories[memory]
    before = grown.pages
    stack.append(before if grown.grow(stack.pop()) else MINUS_ONE)


def memory_init(instance: Instance, stack: Stack, imm: tuple[int, int]) -> None:
    segment, memory = imm
    count, source, target = stack.pop(), stack.pop(), stack.pop()
    content = b"" if segment in instance.dropped_data else instance.module.datas[segment].data
    data = instance.memories[memory].data
    if source + count > len(content) or target + count > len(data):
        raise trap("out of bounds memory access")
    data[target:target + count] = content[source:source + count]


def data_drop(instance: Instance, stack: Stack, segment: int) -> None:
    instance.dropped_data.add(segment)


def memory_copy(instance: Instance, stack: Stack, imm: tuple[int, int]) -> None:
    into, outof = (instance.memories[index].data for index in imm)
    count, source, target = stack.pop(), stack.pop(), stack.pop()
    if source + count > len(outof) or target + count > len(into):
        raise trap("out of bounds memory access")
    into[target:target + count] = outof[source:source + count]  # a slice is a copy: overlap is no matter


def memory_fill(instance: Instance, stack: Stack, memory: int) -> None:
    count, value, target = stack.pop(), stack.pop(), stack.pop()
    data = instance.memories[memory].data
    if target + count > len(data):
        raise trap("out of bounds memory access")
    data[target:target + count] = bytes([value & 0xFF]) * count


def table_get(instance: Instance, stack: Stack, table: int) -> None:
    slots = instance.tables[table].slots
    index = stack.pop()
    if index >= len(slots):
        raise trap("out of bounds table access")
    stack.append(slots[index])


def table_set(instance: Instance, stack: Stack, table: int) -> None:
    slots = instance.tables[table].slots
    value, index = stack.pop(), stack.pop()
    if index >= len(slots):
        raise trap("out of bounds table access")
    slots[index] = value


def table_size(instance: Instance, stack: Stack, table: int) -> None:
    stack.append(len(instance.tables[table].slots))


def table_grow(instance: Instance, stack: Stack, table: int) -> None:
    grown = instance.tables[table]
    count, value = stack.pop(), stack.pop()
    before = len(grown.slots)
    stack.append(before if grown.grow(count, value) else MINUS_ONE)


def table_fill(instance: Instance, stack: Stack, table: int) -> None:
    slots = instance.tables[table].slots
    count, value, target = stack.pop(), stack.pop(), stack.pop()
    if target + count > len(slots):
        raise trap("out of bounds table access")
    slots[target:target + count] = [value] * count


def table_init(instance: Instance, stack: Stack, imm: tuple[int, int]) -> None:
    segment, table = imm
    count, source, target = stack.pop(), stack.pop(), stack.pop()
    content = [] if segment in instance.dropped_elem else instance.elements(segment)
    slots = instance.tables[table].slots
    if source + count > len(content) or target + count > len(slots):
        raise trap("out of bounds table access")
    slots[target:target + count] = content[source:source + count]


def elem_drop(instance: Instance, stack: Stack, segment: int) -> None:
    instance.dropped_elem.add(segment)


def table_copy(instance: Instance, stack: Stack, imm: tuple[int, int]) -> None:
    into, outof = (instance.tables[index].slots for index in imm)
    count, source, target = stack.pop(), stack.pop(), stack.pop()
    if source + count > len(outof) or target + count > len(into):
        raise trap("out of bounds table access")
    into[target:target + count] = outof[source:source + count]


def ref_is_null(instance: Instance, stack: Stack, imm: None) -> None:
    stack.append(1 if stack.pop() is None else 0)


def ref_func(instance: Instance, stack: Stack, func: int) -> None:
    stack.append(instance.functions[func])


_NAMED: Final[dict[str, Rest]] = {
    "memory.size": memory_size, "memory.grow": memory_grow, "memory.init": memory_init, "data.drop": data_drop,
    "memory.copy": memory_copy, "memory.fill": memory_fill, "table.get": table_get, "table.set": table_set,
    "table.size": table_size, "table.grow": table_grow, "table.fill": table_fill, "table.init": table_init,
    "elem.drop": elem_drop, "table.copy": table_copy, "ref.is_null": ref_is_null, "ref.func": ref_func,
}
REST: Final[dict[int, Rest]] = {BY_NAME[name].code: operation for name, operation in _NAMED.items()}
