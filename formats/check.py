"""Whether an image fits its module, so that going on from it can neither crash the tool nor make the guest ill-typed.

What an image must hold whatever its module is in `shape`; here the validator's knowledge of the original module is the
measure: a frame stands before an instruction that can be reached, with exactly the operands that validation has there.

Most images have many frames at few places. So each distinct place is checked once, each distinct pair of neighbours
once, and each function that has places is analyzed once, with all its offsets watched. What needs a look at functions
without frames (tail calls, instructions that change tables or drop segments) is asked only where the answer matters.

Tail calls. A call may have been answered by a function that its callee put in its own place, and the entry's export as
well. So the next frame's function is the called one or one of those reached from it by tail calls alone. Those have
the same results (validation sees to that), which is what makes going on well-typed.

Indirect calls. Which slot the call took is not in an image, and the table may have changed since. So the next frame may
be of any function of the called type that can be in a table: those that elements, exports and ``ref.func`` name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

from wasmckpt.errors import ImageError
from wasmckpt.formats import shape
from wasmckpt.formats.frames import point_numbers
from wasmckpt.formats.image import Entry, Image, MemoryState, Point, StopKind, TableState
from wasmckpt.formats.node import MAX_U32
from wasmckpt.formats.shape import MAX_PAGES
from wasmckpt.wasm.liveness import live_before
from wasmckpt.wasm.module import ExternKind, FuncType, Module
from wasmckpt.wasm.validate import Code, analyze
from wasmckpt.wasm.values import EXNREF, FUNCREF, NULL, TYPE_NAMES, WIDTH, Value, holds_payload

__all__ = ["check"]

START_STEP: Final = "(start)"
_INITIALIZE: Final = "_initialize"

_TABLE_SET, _DATA_DROP, _TABLE_INIT, _ELEM_DROP = 0x26, 0xFC0009, 0xFC000C, 0xFC000D
_TABLE_COPY, _TABLE_GROW, _TABLE_FILL = 0xFC000E, 0xFC000F, 0xFC0011
_CHANGED: Final = {
    _TABLE_SET: 0, _DATA_DROP: 0, _TABLE_INIT: 1, _ELEM_DROP: 0, _TABLE_COPY: 0, _TABLE_GROW: 0, _TABLE_FILL: 0,
}
"""Instructions that change a table or drop a segment -> which of their immediates names it."""


def check(image: Image, module: Module) -> Mapping[int, Code]:
    """Check ``image`` against its module, before anything of it is used.

    Checked: module, entry, globals, memories, tables, dropped segments, and for each frame function, offset, kind,
    locals, operands and the call in which it waits; of values only that function references are to functions that the
    module can refer to, and exceptions have its tags. Not checked: other values, which any bits may be, the host's
    state, the producer, and whether a runtime has room for it all. Values for dead locals are accepted.

    Args:
        image: as `wasmckpt.formats.decode` returns it, or made by hand.
        module: the decoded original module, which must be valid (`wasmckpt.wasm.validate.validate`).

    Returns:
        The bodies that were validated for it, by function: those that have frames, and others.

    Raises:
        ImageError: with ``field``; for frames with ``frame`` (0: the outermost), ``function`` and ``offset`` too.
        InvalidModule, NotSupported: a function's body, as from `wasmckpt.wasm.validate.analyze`.
    """
    shape.check(image)
    points, numbers = point_numbers(image.frames)
    shape.check_points(points)
    _check_identity(image, module)
    functions = _Functions(module, points)
    _check_entry(image.entry, functions)
    _check_globals(image, module)
    _check_memories(image.memories, module)
    _check_tables(image.tables, functions)
    passive = [not data.active for data in module.datas]
    _check_dropped("dropped_data", image.dropped_data, passive, _DATA_DROP, functions)
    passive = [elem.mode == "passive" for elem in module.elems]
    _check_dropped("dropped_elem", image.dropped_elem, passive, _ELEM_DROP, functions)
    for number, point in enumerate(points):
        with _at_frame(numbers, (number,)):
            _check_point(point, functions)
    _check_frame_references(image, points, numbers, module)
    if numbers:
        with _at_frame(numbers, (numbers[0],)):
            _check_outermost(image.entry, points[numbers[0]], functions)
    for pair in dict.fromkeys(pairwise(numbers)):
        with _at_frame(numbers, pair):
            _check_call(points[pair[0]], points[pair[1]], functions)
    return functions.codes


@contextmanager
def _at_frame(numbers: Sequence[int], places: tuple[int, ...]) -> Iterator[None]:
    """Name in an error the first frame at the last of these places that has the others outside of it."""
    try:
        yield
    except ImageError as error:
        last = len(places) - 1
        error.fields["frame"] = next(
            i for i in range(last, len(numbers)) if tuple(numbers[i - last : i + 1]) == places
        )
        raise


class _Functions:
    """What is asked of the module's functions; each body is analyzed at most once, and only if something is asked."""

    def __init__(self, module: Module, points: Iterable[Point]) -> None:
        self.module = module
        self._offsets: dict[int, set[int]] = {}
        for point in points:
            self._offsets.setdefault(point.func, set()).add(point.offset)
        self.codes: dict[int, Code] = {}
        self._locals: dict[int, tuple[list[int], dict[int, int]]] = {}
        self._of_type: dict[FuncType, list[int]] = {}
        self._tails: dict[int, set[int]] = {}
        self._replacing: dict[int | FuncType, set[int]] = {}
        self.steps = {item.name: item.index for item in module.exports if item.kind == ExternKind.FUNC}
        """What steps of an entry call."""
        self.steps.pop(START_STEP, None)
        if module.start is not None:
            self.steps[START_STEP] = module.start

    def is_defined(self, func: int) -> bool:
        """Whether the module has such a function and does not import it."""
        return self.module.imported_funcs <= func < len(self.module.func_types)

    def code(self, func: int) -> Code:
        """The analyzed body of a defined function, the offsets of its points watched."""
        if func not in self.codes:
            self.codes[func] = analyze(self.module, func, self._offsets.get(func))
        return self.codes[func]

    def locals(self, func: int) -> tuple[list[int], dict[int, int]]:
        """Types of all its locals, and for each point's offset that is an instruction's the live ones as a bit set."""
        if func not in self._locals:
            code = self.code(func)
            places = {_index(code, offset) for offset in code.watched}
            live = {code.pos[i]: mask for i, mask in live_before(code, places).items()}
            self._locals[func] = self.module.local_types(func), live
        return self._locals[func]

    def of_type(self, kind: FuncType) -> list[int]:
        """The functions of a type that a table can hold."""
        if kind not in self._of_type:
            signature = self.module.signature
            self._of_type[kind] = [func for func in self.module.declared_funcs if signature(func) == kind]
        return self._of_type[kind]

    def replacing(self, called: int | FuncType) -> set[int]:
        """A called function, or all of a type that a table can hold, and those that tail calls may put in its place."""
        if called not in self._replacing:
            todo = [called] if isinstance(called, int) else list(self.of_type(called))
            found = set(todo)
            while todo:
                new = self._tail_called(todo.pop()) - found
                found |= new
                todo += new
            self._replacing[called] = found
        return self._replacing[called]

    def _tail_called(self, func: int) -> set[int]:
        if func not in self._tails:
            found: set[int] = set()
            if self.is_defined(func):
                code = self._look(func)
                for target in [code.imms[i] for i in code.tail_calls]:
                    if isinstance(target, int):
                        found.add(target)
                    else:
                        found.update(self.of_type(self.module.types[target[0]]))  # type: ignore[index]
            self._tails[func] = found
        return self._tails[func]

    def _look(self, func: int) -> Code:
        """As `code`, but not kept: a look at a function that most likely has no frame."""
        return self.codes.get(func) or analyze(self.module, func)

    def changes(self, first_bytes: bytes) -> Iterator[tuple[int, int]]:
        """Instructions that change a table or drop a segment, with the index of that, from all functions in turn.

        Args:
            first_bytes: what those of interest can begin with; bodies without any of them are passed over.
        """
        module = self.module
        for func in range(module.imported_funcs, len(module.func_types)):
            body = module.body(func)
            if any(module.data.find(byte, body.expr, body.end) >= 0 for byte in first_bytes):
                code = self._look(func)
                for op, imm in zip(code.ops, code.imms, strict=True):
                    if op in _CHANGED:
                        yield op, imm if isinstance(imm, int) else imm[_CHANGED[op]]  # type: ignore[index]


# What does not hang on frames

def _check_identity(image: Image, module: Module) -> None:
    if image.module.size != len(module.data):
        raise ImageError(f"the image is of another module, one of {image.module.size} bytes", field="module.size",
                         hint=f"this one has {len(module.data)}")
    if image.module.sha256 != module.sha256():
        raise ImageError("the image is of another module", field="module.sha256",
                         hint=f"it wants the one with SHA-256 {image.module.sha256.hex()}")


def _check_entry(entry: Entry, functions: _Functions) -> None:
    steps = entry.steps
    params: tuple[int, ...] = ()
    for number, step in enumerate(steps):
        field = f"entry.steps[{number}]"
        if step == START_STEP and number:
            raise ImageError("the start section runs first or not at all", field=field)
        if step == _INITIALIZE and steps[:number] not in ((), (START_STEP,)):
            raise ImageError("_initialize is called before all exports but not before the start section", field=field)
        func = functions.steps.get(step)
        if func is None:
            what = "has no start section" if step == START_STEP else f"exports no function {_shortened(step)}"
            raise ImageError(f"the module {what}", field=field)
        if params:
            raise ImageError("a step that takes arguments is not the last", field=f"entry.steps[{number - 1}]")
        params = functions.module.signature(func).params
    for number, value in enumerate(entry.arguments):
        _check_reference(value, functions.module, f"entry.arguments[{number}]")
    given = tuple([value.type for value in entry.arguments])
    if given != params:
        raise ImageError(f"the arguments are {_names(given)}, the last step takes {_names(params)}",
                         field="entry.arguments")


def _check_globals(image: Image, module: Module) -> None:
    mutable = {index: kind.type for index, kind in enumerate(module.globals) if kind.mutable}
    for state in image.globals:
        field = f"globals[{state.index}]"
        if state.index not in mutable:
            raise ImageError("the module has no such mutable global", field=field)
        if state.type != mutable[state.index]:
            raise ImageError(f"the global is {_name(mutable[state.index])}, not {_name(state.type)}", field=field)
        _check_reference(Value(state.type, state.bits), module, field)
    for index in sorted(mutable.keys() - {state.index for state in image.globals}):
        raise ImageError("a mutable global has no value", field=f"globals[{index}]")


def _check_memories(memories: Sequence[MemoryState], module: Module) -> None:
    for state in memories:
        field = f"memories[{state.index}]"
        if state.index >= len(module.memories):
            raise ImageError("the module has no such memory", field=field)
        limits = module.memories[state.index]
        _check_size(state.pages, limits.minimum, MAX_PAGES if limits.maximum is None else limits.maximum,
                    f"{field}.pages")
    for index in sorted(set(range(len(module.memories))) - {state.index for state in memories}):
        raise ImageError("a memory is missing", field=f"memories[{index}]")


def _check_tables(tables: Sequence[TableState], functions: _Functions) -> None:
    module = functions.module
    imported = sum(1 for _ in module.imported(ExternKind.TABLE))
    open_ = {item.index for item in module.exports if item.kind == ExternKind.TABLE} | set(range(imported))
    for state in tables:
        field = f"tables[{state.index}]"
        if state.index >= len(module.tables):
            raise ImageError("the module has no such table", field=field)
        element, limits = module.tables[state.index]
        _check_size(state.size, limits.minimum, MAX_U32 if limits.maximum is None else limits.maximum, f"{field}.size")
        for func in sorted({func for _, func in state.changed if func is not None}):
            _check_reference(Value(element, func), module, f"{field}.changed")
        if state.index in open_ or (state.size == limits.minimum and not state.changed):
            continue
        changes = functions.changes(b"\x26\xfc")
        if not any(index == state.index for op, index in changes if op not in (_DATA_DROP, _ELEM_DROP)):
            raise ImageError("a table that the module never changes has changed", field=field)


def _check_dropped(field: str, dropped: Sequence[int], passive: Sequence[bool], op: int, functions: _Functions) -> None:
    """Segments that are passive and that some instruction drops; ``passive`` for each segment of the module."""
    for index in dropped:
        if index >= len(passive) or not passive[index]:
            what = "active or declarative, these are not listed" if index < len(passive) else "not in the module"
            raise ImageError(f"segment {index} is {what}", field=field)
    missing = set(dropped)
    for found, index in functions.changes(b"\xfc") if missing else ():
        if found == op:
            missing.discard(index)
        if not missing:
            break
    for index in sorted(missing):
        raise ImageError(f"segment {index} is dropped by no instruction of the module", field=field)


def _check_reference(value: Value, module: Module, field: str) -> None:
    """A function reference is null or to a function that something in the module can refer to; an exception has a tag
    of the module and no more than its payload."""
    if value.type == EXNREF:
        tag, payload = (value.bits & MAX_U32) - 1, value.bits >> 32
        kinds = module.payload(tag) if 0 <= tag < len(module.tags) else None
        width = 8 * sum([WIDTH[kind] for kind in kinds or ()])
        if value.bits and (kinds is None or not holds_payload(kinds) or payload >> width):
            raise ImageError(f"no exception of the module has the bits {value.bits:#x}", field=field)
        return
    if value.type != FUNCREF or value.bits == NULL or value.bits in module.declared_funcs:
        return
    there = value.bits < len(module.func_types)
    raise ImageError(f"a reference is to function {value.bits}, " + (
        "to which nothing in the module can refer" if there else "which is not in the module"), field=field)


def _check_frame_references(image: Image, points: Sequence[Point], numbers: Sequence[int], module: Module) -> None:
    places: list[list[tuple[int, int]]] = []  # for each point (offset, type) of the references among the values
    for point in points:
        places.append([])
        at = 0
        for kind in point.value_types:
            if kind in (FUNCREF, EXNREF):
                places[-1].append((at, kind))
            at += WIDTH[kind]
    if not any(places):
        return
    for index, (frame, number) in enumerate(zip(image.frames, numbers, strict=True)):
        for at, kind in places[number]:
            value = Value(kind, int.from_bytes(frame.values[at : at + WIDTH[kind]], "little"))
            try:
                _check_reference(value, module, "values")
            except ImageError as error:
                error.fields.update(frame=index, function=frame.point.func, offset=frame.point.offset)
                raise


def _check_size(size: int, least: int, most: int, field: str) -> None:
    if not least <= size <= most:
        raise ImageError(f"the size {size} is not from {least} to {most}", field=field)


# Frames

def _check_point(point: Point, functions: _Functions) -> None:
    """Function, offset, kind, locals and operands of a frame."""
    func = point.func
    module = functions.module
    if not functions.is_defined(func):
        raise _wrong("the module defines no such function", point, "func")
    code = functions.code(func)
    if point.offset not in code.watched:
        raise _wrong("no instruction begins at the offset", point, "offset")
    operands = code.watched[point.offset]
    if operands is None:
        raise _wrong("the offset lies in code that is never reached", point, "offset")
    if point.kind is not StopKind.SAFEPOINT:
        index = _index(code, point.offset)
        if index not in code.calls:
            raise _wrong("no call that comes back stands at the offset", point, "kind")
        if point.kind is StopKind.CALL:
            operands = tuple([entry & 0xFF for entry in code.calls[index][0]])
        elif not _may_call_import(module, code, index):
            raise _wrong("the call to be repeated is not one of an import", point, "kind")
    if point.stack != operands:
        raise _wrong(f"the operands are {_names(point.stack)}, but {_names(operands)} at this place", point, "stack")
    _check_locals(point, *functions.locals(func))


def _may_call_import(module: Module, code: Code, index: int) -> bool:
    target = code.imms[index]
    if isinstance(target, int):
        return target < module.imported_funcs
    kind = module.types[target[0]]  # type: ignore[index]
    return any(module.signature(func) == kind for func in range(module.imported_funcs))


def _check_locals(point: Point, types: Sequence[int], live: dict[int, int]) -> None:
    given = 0
    for local, kind in point.live:
        if local >= len(types):
            raise _wrong(f"the function has no local {local}", point, "live")
        if kind != types[local]:
            raise _wrong(f"local {local} is {_name(types[local])}, not {_name(kind)}", point, "live")
        given |= 1 << local
    missing = live[point.offset] & ~given
    if missing:
        local = (missing & -missing).bit_length() - 1
        raise _wrong(f"local {local} is read later, but has no value", point, "live")


def _check_outermost(entry: Entry, point: Point, functions: _Functions) -> None:
    step = entry.steps[entry.current]
    func = functions.steps.get(step)
    if func is None or (point.func != func and point.func not in functions.replacing(func)):
        raise _wrong(f"the outermost frame is not of the function that step {_shortened(step)} calls", point, "func")


def _check_call(outer: Point, inner: Point, functions: _Functions) -> None:
    """Whether the call in which ``outer`` waits can have led to ``inner``."""
    module = functions.module
    code = functions.code(outer.func)
    target = code.imms[_index(code, outer.offset)]
    if isinstance(target, int):
        if target == inner.func or inner.func in functions.replacing(target):
            return
        what = f"function {target}"
    else:
        kind = module.types[target[0]]  # type: ignore[index]
        if module.signature(inner.func) == kind and inner.func in module.declared_funcs:
            return
        if inner.func in functions.replacing(kind):
            return
        what = f"a function {_names(kind.params)} -> {_names(kind.results)} out of a table"
    raise _wrong(f"the frame outside calls {what}, which cannot have led here", inner, "func")


def _index(code: Code, offset: int) -> int:
    return bisect_left(code.pos, offset)


def _wrong(what: str, point: Point, field: str) -> ImageError:
    return ImageError(what, function=point.func, offset=point.offset, field=field)


_SHOWN: Final = 16
"""Types or characters that a message shows at most."""


def _name(type_: int) -> str:
    return TYPE_NAMES.get(type_, hex(type_))


def _names(types: Sequence[int]) -> str:
    more = [f"... {len(types)} in all"] if len(types) > _SHOWN else []
    return "[" + " ".join([_name(type_) for type_ in types[:_SHOWN]] + more) + "]"


def _shortened(name: str) -> str:
    return repr(name if len(name) <= 2 * _SHOWN else name[: 2 * _SHOWN] + "...")
