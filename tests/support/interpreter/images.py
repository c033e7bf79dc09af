"""From a machine to an image and back, at any instruction, in terms of the module alone."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from wasmckpt.errors import ImageError, NotSupported
from wasmckpt.formats.image import (
    PAGE_SIZE,
    Entry,
    GlobalState,
    Image,
    MemoryState,
    ModuleRef,
    Point,
    Producer,
    StopKind,
    TableState,
)
from wasmckpt.formats.image import Frame as FrameState
from wasmckpt.wasm.values import EXNREF, EXTERNREF, F32, F64, I32, I64, NULL, REFERENCES, Value

from .code import CALL, CALL_INDIRECT, CALLS
from .liveness import live_locals
from .machine import Frame, Machine
from .store import WASM_PAGE, Cell, Instance, Memory, Table, Thrown, WasmFunction, zero_of

__all__ = ["capture", "point_at", "restore", "to_bits", "to_cell"]


# Where a frame stands

def point_at(function: WasmFunction, index: int, kind: StopKind, *, all_locals: bool = False) -> Point:
    """The place before instruction ``index`` (of a waiting frame: of the call that it waits for)."""
    code = function.code
    types = code.types[index]
    assert types is not None, "this code cannot be reached"
    after = index
    if kind == StopKind.CALL:
        types = types[:len(types) - _operands_of_call(function, index)]
        after = index + 1
    mask = -1 if all_locals else live_locals(code)[after]
    live = tuple((i, t) for i, t in enumerate(code.locals) if mask >> i & 1)
    return Point(function.index, code.offsets[index], kind, live, types)


def _operands_of_call(function: WasmFunction, index: int) -> int:
    kind, x, y = function.code.entries[index]
    assert kind in CALLS
    return len(function.instance.functions[x].type.params) if kind == CALL else len(y.params) + 1


# Machine to image

def capture(machine: Machine, host: Mapping[str, object], *, all_locals: bool = False) -> Image:
    """The image of a machine that has stopped.

    Raises:
        NotSupported: something holds a reference to what is no function of this instance, or an external one that is
            no number; a frame belongs to another instance.
    """
    instance, module = machine.instance, machine.module
    frames = []
    for frame in machine.frames:
        if frame.function.instance is not instance:
            raise NotSupported("a frame of another instance", need="one instance")
        innermost = frame is machine.frames[-1]
        # A tail call that is made again is an instruction like any other: its frame is gone when it has been made.
        repeat = machine.repeating and frame.function.code.entries[frame.pc][0] in CALLS
        kind = StopKind.CALL if not innermost else StopKind.REPEAT if repeat else StopKind.SAFEPOINT
        point = point_at(frame.function, frame.pc if innermost else frame.pc - 1, kind, all_locals=all_locals)
        cells = [frame.locals[i] for i, _ in point.live] + frame.stack
        frames.append(FrameState.make(point, [
            to_bits(instance, kind, cell) for kind, cell in zip(point.value_types, cells, strict=True)
        ]))
    dropped_data, dropped_elem = instance.fresh_dropped
    kind_ = machine.step_function(machine.steps[-1]).type if machine.steps else None
    arguments = list(zip(kind_.params, machine.arguments, strict=True)) if kind_ else []
    return Image(
        module=ModuleRef(module.sha256(), len(module.data)),
        producer=Producer("wasmckpt", "reference", "0", platform.machine()),
        entry=Entry(machine.steps, machine.current,
                    tuple(Value(t, to_bits(instance, t, cell)) for t, cell in arguments)),
        frames=tuple(frames),
        globals=_globals(instance),
        tables=tuple(state for i, table in enumerate(instance.tables) if (state := _table(instance, i, table))),
        memories=tuple(_memory(instance, i, memory) for i, memory in enumerate(instance.memories)),
        dropped_data=tuple(sorted(instance.dropped_data - dropped_data)),
        dropped_elem=tuple(sorted(instance.dropped_elem - dropped_elem)),
        host=dict(host),
    )


def to_bits(instance: Instance, kind: int, cell: Cell) -> int:
    """What an image holds for the contents of a local, operand or global."""
    if kind not in REFERENCES:
        assert isinstance(cell, int)
        return cell
    if kind == EXNREF:
        return 0 if cell is None else _exception_bits(instance, cell)
    if cell is None:
        return NULL
    if kind == EXTERNREF:
        if not isinstance(cell, int) or not 0 <= cell < NULL:
            raise NotSupported("an external reference that is no number", need="reference-types")
        return cell
    for i, function in enumerate(instance.functions):
        if function is cell:
            return i
    raise NotSupported("a reference to what is no function of this module", need="reference-types")


def to_cell(instance: Instance, value: Value) -> Cell:
    """The contents for a value of an image."""
    if value.type not in REFERENCES:
        return value.bits
    if value.type == EXNREF:
        return _exception(instance, value.bits) if value.bits else None
    if value.bits == NULL:
        return None
    if value.type == EXTERNREF:
        return value.bits
    if value.bits >= len(instance.functions):
        raise ImageError("a reference to a function that the module does not have", function=value.bits)
    return instance.functions[value.bits]


_BYTES = {I32: 4, F32: 4, I64: 8, F64: 8}


def _exception_bits(instance: Instance, thrown: Thrown) -> int:
    """The tag's index + 1, the payload's numbers behind it, as bytes."""
    kinds = thrown.tag.payload
    size = sum(_BYTES.get(kind, 100) for kind in kinds)
    if thrown.tag not in instance.tags or size > 12:
        raise NotSupported("an exception whose tag is not the module's, or whose payload has more than 12 bytes",
                           need="exceptions")
    parts = [cell.to_bytes(_BYTES[kind], "little") for kind, cell in zip(kinds, thrown.values, strict=True)]
    return int.from_bytes((instance.tags.index(thrown.tag) + 1).to_bytes(4, "little") + b"".join(parts), "little")


def _exception(instance: Instance, bits: int) -> Thrown:
    number = bits & 0xFFFF_FFFF
    if not 0 < number <= len(instance.tags):
        raise ImageError("an exception with a tag that the module does not have", field="tags")
    tag = instance.tags[number - 1]
    bits >>= 32
    values = []
    for kind in tag.payload:
        values.append(bits & (1 << 8 * _BYTES[kind]) - 1)
        bits >>= 8 * _BYTES[kind]
    return Thrown(tag, tuple(values))


def _globals(instance: Instance) -> tuple[GlobalState, ...]:
    states = []
    for i, item in enumerate(instance.globals):
        if item.kind.mutable:
            states.append(GlobalState(i, item.kind.type, to_bits(instance, item.kind.type, item.value)))
    return tuple(states)


def _table(instance: Instance, index: int, table: Table) -> TableState | None:
    fresh = instance.fresh_tables[index]
    changed = []
    for slot, value in enumerate(table.slots):
        if value is not (fresh[slot] if slot < len(fresh) else None):
            changed.append((slot, None if value is None else to_bits(instance, table.element, value)))
    if not changed and len(table.slots) == len(fresh):
        return None
    return TableState(index, len(table.slots), tuple(changed))


def _memory(instance: Instance, index: int, memory: Memory) -> MemoryState:
    fresh, now = instance.fresh_memories[index], memory.data
    data: list[tuple[int, bytearray]] = []
    zero: list[tuple[int, int]] = []
    nothing = bytes(PAGE_SIZE)
    for page in range(len(now) // PAGE_SIZE):
        at = page * PAGE_SIZE
        content = bytes(now[at:at + PAGE_SIZE])
        if content == (fresh[at:at + PAGE_SIZE] or nothing):
            continue
        if content == nothing:
            if zero and sum(zero[-1]) == page:
                zero[-1] = (zero[-1][0], zero[-1][1] + 1)
            else:
                zero.append((page, 1))
        elif data and data[-1][0] + len(data[-1][1]) // PAGE_SIZE == page:
            data[-1][1].extend(content)
        else:
            data.append((page, bytearray(content)))
    return MemoryState(index, memory.pages, tuple((page, bytes(run)) for page, run in data), tuple(zero))


# Image to machine

def restore(machine: Machine, image: Image) -> None:
    """Put a machine, which has just been made, where the image says.

    Raises:
        ImageError: the image is of another module, or something in it does not fit this one.
        NotSupported: the image is a difference to a parent.
    """
    if image.module.sha256 != machine.module.sha256():
        raise ImageError("the image is of another module")
    if image.parent is not None:
        raise NotSupported("an image that is a difference to another", need="parent")
    instance = machine.instance
    for state in image.memories:
        _restore_memory(instance.memories[state.index], state)
    for table in image.tables:
        slots, element = instance.tables[table.index].slots, instance.tables[table.index].element
        slots += [None] * (table.size - len(slots))
        for slot, func in table.changed:
            slots[slot] = None if func is None else to_cell(instance, Value(element, func))
    for item in image.globals:
        if instance.globals[item.index].kind != (item.type, True):
            raise ImageError("a global of another type", field=f"globals[{item.index}]")
        instance.globals[item.index].value = to_cell(instance, Value(item.type, item.bits))
    instance.dropped_data.update(image.dropped_data)
    instance.dropped_elem.update(image.dropped_elem)
    machine.steps, machine.current = image.entry.steps, image.entry.current
    machine.arguments = tuple(to_cell(instance, value) for value in image.entry.arguments)
    machine.started = True
    for i, frame in enumerate(image.frames):
        innermost = i == len(image.frames) - 1
        if (frame.point.kind != StopKind.CALL) != innermost:
            raise ImageError("only the innermost frame does not wait", field=f"frames[{i}]")
        machine.frames.append(_restore_frame(instance, frame))
        machine.repeating = frame.point.kind == StopKind.REPEAT


def _restore_memory(memory: Memory, state: MemoryState) -> None:
    memory.data.extend(bytes(state.pages * WASM_PAGE - len(memory.data)))
    for page, content in state.data:
        at = page * PAGE_SIZE
        if at + len(content) > len(memory.data):
            raise ImageError("a page beyond the memory's end", field=f"memories[{state.index}]")
        memory.data[at:at + len(content)] = content
    for page, count in state.zero:
        memory.data[page * PAGE_SIZE:(page + count) * PAGE_SIZE] = bytes(count * PAGE_SIZE)


def _restore_frame(instance: Instance, frame: FrameState) -> Frame:
    point = frame.point
    function = instance.functions[point.func] if point.func < len(instance.functions) else None
    if not isinstance(function, WasmFunction):
        raise ImageError("a frame of a function that the module does not define", function=point.func)
    code = function.code
    index = code.index(point.offset)
    if index is None or code.types[index] is None:
        raise ImageError("no instruction that can be reached starts there", function=point.func, offset=point.offset)
    if point.kind != StopKind.SAFEPOINT and code.entries[index][0] not in (CALL, CALL_INDIRECT):
        raise ImageError("no call starts there", function=point.func, offset=point.offset)
    needed = point_at(function, index, point.kind)
    if needed.stack != point.stack or not set(needed.live) <= set(point.live):
        raise ImageError("values of other types, or too few", function=point.func, offset=point.offset)
    made = Frame(function, [zero_of(kind) for kind in code.locals])
    for local, value in frame.locals().items():
        if local >= len(code.locals) or code.locals[local] != value.type:
            raise ImageError("a local of another type", function=point.func, offset=point.offset)
        made.locals[local] = to_cell(instance, value)
    made.stack = [to_cell(instance, value) for value in frame.operands()]
    made.pc = index + 1 if point.kind == StopKind.CALL else index
    return made
