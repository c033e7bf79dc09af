"""Core dumps: an image in the form that WebAssembly's tool conventions define for debuggers ("Coredump").

A core dump is a module that nobody instantiates::

    custom "core"            the program's name
    custom "coremodules"     one module, by name
    custom "coreinstances"   one instance of it: its memories and globals, by index into those below
    custom "corestack"       the frames of one thread, youngest first
    memory, global, data     the memories, as large as they were; all globals, as constants; what is not zero

A frame has its function's index, a code offset, locals and operands. The convention says that the offset is the
instruction's "relative to the function's start", and not where a function starts. Wasmtime, which makes such dumps of
traps, counts from the first byte of the function's body behind its size, where the declaration of locals begins, and
so do we (tests compare with what it says of a trap); images count from behind that declaration. A frame that waits in a
call has the offset of that call.

What the form cannot hold: vectors and references among the values (written as missing, as are dead locals) and
references in globals (null); tables; dropped segments; whether a frame stands before its instruction or waits in it, or
repeats it; what the entry was, and all of the host's state.
"""

from __future__ import annotations

from collections.abc import Callable

from ..formats import Frame, Image
from ..instrument import emit
from ..wasm.encode import global_entry, limits, name, section, vector
from ..wasm.leb128 import read_s32, read_s64, read_u32, sleb, uleb
from ..wasm.module import GlobalType, Limits, Module
from ..wasm.values import EXNREF, F32, F64, NULL, REFERENCES, V128, WIDTH, Value
from .contents import contents, data_segment, segments
from .original import checked_module

__all__ = ["coredump"]

_MISSING = b"\x01"
_THREAD = "main"
_ARITHMETIC: dict[int, Callable[[int, int], int]] = {0: int.__add__, 1: int.__sub__, 2: int.__mul__}


def coredump(image: Image, module: bytes | None = None, *, program: str = "") -> bytes:
    """The core dump of an image.

    Args:
        module: the program's original module; None: the image carries it.
        program: its name in the dump; empty: the first of the program's arguments, else the module's SHA-256.

    Raises:
        ImageError: the image is of another module, does not fit it, or is a difference to another one.
        InvalidModule: ``module`` is none. NotSupported: it imports a constant, which images do not hold.
        UsageError: no module is at hand.
    """
    source, _ = checked_module(image, module)
    program = (program or _program(image)).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    memories = range(len(source.memories))
    instance = b"\0" + uleb(0) + vector(map(uleb, memories)) + vector(map(uleb, range(len(source.globals))))
    frames = vector(_frame(frame, source) for frame in reversed(image.frames))
    out = [
        b"\0asm\1\0\0\0",
        _custom("core", b"\0" + name(program)),
        _custom("coremodules", vector([b"\0" + name(program)])),
        _custom("coreinstances", vector([instance])),
        _custom("corestack", b"\0" + name(_THREAD) + frames),
    ]
    if image.memories:
        out.append(section(5, vector(
            limits(Limits(state.pages, source.memories[state.index].maximum)) for state in image.memories
        )))
    if source.globals:
        out.append(section(6, vector(
            global_entry(GlobalType(value.type, False), emit.constant(value.type, value.bits) + emit.END)
            for value in _globals(image, source)
        )))
    data = [
        data_segment(state.index, offset, content)
        for state in image.memories for offset, content in segments(contents(source, state))
    ]
    if data:
        out.append(section(11, vector(data)))
    return b"".join(out)


def _program(image: Image) -> str:
    arguments = image.host.get("args")
    first = arguments[0] if isinstance(arguments, list | tuple) and arguments else None
    return first.decode("utf-8", "replace") if isinstance(first, bytes) else image.module.sha256.hex()


def _custom(title: str, content: bytes) -> bytes:
    return section(0, name(title) + content)


def _frame(frame: Frame, module: Module) -> bytes:
    point, body = frame.point, module.body(frame.point.func)
    live = frame.locals()
    values = [live.get(i) for i in range(len(module.local_types(point.func)))]
    return (
        b"\0" + uleb(0) + uleb(point.func) + uleb(body.expr - body.start + point.offset)
        + vector(map(_value, values)) + vector(map(_value, frame.operands()))
    )


def _value(value: Value | None) -> bytes:
    if value is None or value.type == V128 or value.type in REFERENCES:
        return _MISSING
    if value.type in (F32, F64):
        return bytes([value.type]) + value.bits.to_bytes(WIDTH[value.type], "little")
    top = 1 << (8 * WIDTH[value.type] - 1)
    return bytes([value.type]) + sleb((value.bits ^ top) - top)


def _globals(image: Image, module: Module) -> list[Value]:
    """All globals by index; references as null: there is nothing in a dump that they could be to."""
    present = {state.index: Value(state.type, state.bits) for state in image.globals}
    first = len(module.globals) - len(module.own_globals)
    found: list[Value] = []
    for i, kind in enumerate(module.globals):
        if kind.type in REFERENCES:
            found.append(Value(kind.type, 0 if kind.type == EXNREF else NULL))
        elif i in present:
            found.append(present[i])
        else:
            found.append(Value(kind.type, _constant(module.own_globals[i - first].init, found)))
    return found


def _constant(expr: bytes, before: list[Value]) -> int:
    """Bits of a constant expression of a type of numbers; ``before``: the globals that it may name."""
    stack: list[int] = []
    at = 0
    while (op := expr[at]) != 0x0B:
        at += 1
        if op == 0x41:
            value, at = read_s32(expr, at)
            stack.append(value & 0xFFFFFFFF)
        elif op == 0x42:
            wide, at = read_s64(expr, at)
            stack.append(wide & 0xFFFFFFFFFFFFFFFF)
        elif op == 0x23:
            index, at = read_u32(expr, at)
            stack.append(before[index].bits)
        elif op in (0x43, 0x44, 0xFD):
            at += op == 0xFD  # the one instruction of this prefix that is constant: v128.const
            end = at + {0x43: 4, 0x44: 8, 0xFD: 16}[op]
            stack.append(int.from_bytes(expr[at:end], "little"))
            at = end
        else:
            mask, first = (0xFFFFFFFF, 0x6A) if op < 0x7C else (0xFFFFFFFFFFFFFFFF, 0x7C)
            right, left = stack.pop(), stack.pop()
            stack.append(_ARITHMETIC[op - first](left, right) & mask)
    return stack[0]
