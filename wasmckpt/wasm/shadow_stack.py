"""The stack that a compiler keeps in linear memory, and how far below its pointer a program may still have data.

WebAssembly has no stack that a program can point into, so compilers built on LLVM keep a second one in linear memory.
It grows down; a mutable global, ``__stack_pointer``, says where it ends. What lies below is dead: the next function
that is called writes over it. An image need not hold it, if all of this can be *proved* from the module:

1. Which global it is: the module names one ``__stack_pointer``, in its name section or by an export. (A global that is
   only used like one may count something else.)
2. That it is a stack's pointer: every function gives it values that are its own value at the function's entry, less
   something, and has put it back when it returns. So a function that waits for another has its frame above the pointer.
3. Where the stack ends below. Linkers put it either first in memory, or behind the program's data. First: then all data
   lies above the pointer's first value, and the stack goes down to address 0 (``--stack-first``). Else the module must
   say so, by exporting ``__stack_low``, or ``__data_end`` where data comes first: between the last data segment and the
   stack lie variables that are zero at first, of which nothing else in the module tells the size.
4. How far below the pointer functions reach. LLVM lets a function that calls nothing use 128 bytes below the pointer
   and never move it (a "red zone"); a function that is frozen in its loop may have live data there. So for each
   function the lowest address is found that it uses while the pointer is above; a frame of it counts that much more.

All this by an abstract run of each function's structured code. A value is a constant, the pointer at the entry plus a
constant, or at most such a sum (an allocation of a size that is not known, an alignment); anything else is unknown. The
address of something in a frame counts as used where anything but moving it, comparing it, or computing another such
address from it is done with it. Where something does not fit, that is the answer, with the reason: nothing is guessed.

What is not proved, since no one could: that the program never reads dead stack, by an index that is out of bounds or
through a pointer to a frame that is gone. One that does reads what an earlier call left there, which the languages that
have such pointers call undefined. Hence only on request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ..errors import InvalidModule, NotSupported
from ..lazydata import dataclass
from .constants import constant_offset
from .leb128 import read_s32, read_u32
from .module import ExternKind, Module
from .opcodes import TABLE
from .validate import Code, analyze
from .values import I32

__all__ = ["NAME", "ShadowStack", "prove"]

NAME: Final = "__stack_pointer"
_HINT: Final = "images keep the dead stack"
_STEP: Final = 10
"""What an instruction costs, where a local that is remembered when one is set costs 1."""
_FREE: Final = 2_000_000
_PER_INSTRUCTION: Final = 1000
"""A function may take `_FREE`, and this for each of its instructions: real ones take a hundredth of it, but a function
can be made that takes the square of its size."""


@dataclass(frozen=True, slots=True)
class ShadowStack:
    """A stack in memory 0.

    Attributes:
        pointer: index of the global. low: lowest address of the stack. high: the pointer's first value.
        below: functions that use memory below the pointer -> how many bytes; all others use none.
    """

    pointer: int
    low: int
    high: int
    below: dict[int, int]

    def dead_until(self, pointer: int, functions: set[int]) -> int:
        """Up to which address, from ``low`` on, the stack is dead: not included, and ``low`` if nothing is.

        Args:
            pointer: the global's value. functions: those that have a frame.
        """
        if not self.low <= pointer <= self.high:
            return self.low  # overrun, or in use for something else: nothing is known
        return max(self.low, pointer - max([self.below.get(func, 0) for func in functions], default=0))


def prove(module: Module, *, low: int | None = None) -> ShadowStack:
    """The module's stack in linear memory. ``low``: where it ends, for who knows how the module was linked.

    Raises:
        NotSupported: it cannot be proved that there is one, with the reason. InvalidModule.
    """
    pointer = _named(module)
    if not module.memories:
        raise _refused("the module has no memory")
    high = _first_value(module, pointer)
    low = _lowest(module, high) if low is None else low
    below: dict[int, int] = {}
    for func in range(module.imported_funcs, len(module.func_types)):
        used = _Walk(module, func, pointer).run()
        if used:
            below[func] = used
    return ShadowStack(pointer, low, high, below)


def _refused(what: str, **fields: object) -> NotSupported:
    return NotSupported(f"it cannot be proved which stack is dead: {what}", need="dead stack", hint=_HINT, **fields)


def _named(module: Module) -> int:
    found = {export.index for export in module.exports if export.kind == ExternKind.GLOBAL and export.name == NAME}
    if not found:
        found = {index for index, name in _global_names(module).items() if name == NAME}
    if len(found) != 1:
        raise _refused(f"the module names no global {NAME}" if not found else f"several globals are called {NAME}")
    (pointer,) = found
    if pointer >= len(module.globals) or module.globals[pointer] != (I32, True):
        raise _refused(f"{NAME} is not a mutable global of type i32")
    return pointer


def _global_names(module: Module) -> dict[int, str]:
    """From the name section; a damaged one names nothing."""
    names: dict[int, str] = {}
    for section in module.customs:
        if section.name != "name":
            continue
        data, at = module.data[section.start:section.end], 0
        try:
            while at < len(data):
                kind = data[at]
                size, at = read_u32(data, at + 1)
                if kind == 7:
                    count, here = read_u32(data, at)
                    for _ in range(count):
                        index, here = read_u32(data, here)
                        length, here = read_u32(data, here)
                        names[index] = data[here:here + length].decode(errors="replace")
                        here += length
                at += size
        except (IndexError, InvalidModule):
            return {}
    return names


def _first_value(module: Module, pointer: int) -> int:
    own = pointer - (len(module.globals) - len(module.own_globals))
    if own < 0:
        raise _refused(f"{NAME} is imported: where the stack lies is decided elsewhere")
    init = module.own_globals[own].init
    if init[0] != 0x41:
        raise _refused(f"the first value of {NAME} is not a constant")
    return constant_offset(module, init, {})


def _exported(module: Module, name: str) -> int | None:
    index = module.export(name, ExternKind.GLOBAL)
    own = -1 if index is None else index - (len(module.globals) - len(module.own_globals))
    if index is None or own < 0 or module.globals[index] != (I32, False):
        return None
    init = module.own_globals[own].init
    return constant_offset(module, init, {}) if init[0] == 0x41 else None


def _lowest(module: Module, high: int) -> int:
    """Where the stack ends below; ``high``: where it begins."""
    if not 0 < high <= module.memories[0].minimum << 16:
        raise _refused(f"the first value of {NAME} lies outside the memory")
    segments = []
    for segment in module.datas:
        if segment.memory == 0 and segment.active and segment.data:
            if segment.offset[0] != 0x41:
                raise _refused("data lies at an address that is not known")
            start = constant_offset(module, segment.offset, {})
            segments.append((start, start + len(segment.data)))
    above = bool(segments) and min(start for start, _ in segments) >= high
    low = _exported(module, "__stack_low")
    if low is None:
        end = _exported(module, "__data_end")
        if end is not None and end < high:
            low = end
        elif above:
            low = 0
        else:
            raise _refused("the module does not say where it ends below; link it with --stack-first, or with "
                           "--export=__data_end")
    if low > high or any(start < high and end > low for start, end in segments):
        raise _refused("data lies where the stack should be")
    return low


class _Value(NamedTuple):
    """What is known of a number: ``kind`` 0: it is ``number``; 1: it is the pointer at the entry plus ``number``; 2: at
    most that. An alignment is made at an instruction (``origin``), and is at least the pointer at the entry plus
    ``least``."""

    kind: int
    number: int
    least: int | None = None
    origin: int = -1


_Known = _Value | None
_CONST, _EXACT, _BELOW = 0, 1, 2
_COMPARISONS: Final = range(0x45, 0x50)
"""Of i32: their result is no address."""
_ENTRY: Final = _Value(_EXACT, 0)


class _State(NamedTuple):
    """The pointer, and the locals of which something is known."""

    pointer: _Value
    locals: dict[int, _Value]


class _Walk:
    """One function, from its beginning to its end, again until nothing changes at the headers of its loops."""

    def __init__(self, module: Module, func: int, pointer: int) -> None:
        self._module, self._func, self._pointer = module, func, pointer
        body = module.body(func)
        self._touches = _touches(module.data[body.expr:body.end], pointer)
        self._headers: dict[int, _State] = {}
        self._used = 0
        self._left = 0

    def run(self) -> int:
        """Bytes below the pointer that the function uses. Raises `NotSupported`: why nothing can be said."""
        if not self._touches:
            return 0
        code = analyze(self._module, self._func)
        if not any(op in (0x23, 0x24) and imm == self._pointer for op, imm in zip(code.ops, code.imms, strict=True)):
            return 0
        self._left = _FREE + _PER_INSTRUCTION * len(code.ops)
        while True:
            self.spend(_STEP * len(code.ops), 0)
            before = dict(self._headers)
            self._used = 0
            _Pass(self._module, code, self._pointer, self._headers, self).run()
            if self._headers == before:
                return self._used

    def use(self, value: _Known, pointer: _Value, at: int) -> None:
        """Something is done with ``value`` while the pointer is ``pointer``."""
        if value is None or value.kind == _CONST or value == pointer:
            return
        least = value.number if value.kind == _EXACT else value.least
        if least is None or least >= pointer.number:
            return  # not below; or of an index, which was used when it was computed
        if pointer.kind != _EXACT:
            raise self.refused("uses memory below it, and it is not known how far", at)
        self._used = max(self._used, pointer.number - least)

    def spend(self, cost: int, at: int) -> None:
        """Work is done. Raises `NotSupported`: it was too much."""
        self._left -= cost
        if self._left < 0:
            raise self.refused("takes too long to be followed", at)

    def refused(self, what: str, at: int) -> NotSupported:
        return _refused(f"a function {what}", function=self._func, offset=at)


def _touches(body: bytes, pointer: int) -> bool:
    """Whether the bytes of a function could hold an access to the global; False is certain."""
    index = bytearray()
    number = pointer
    while True:
        index.append(number & 0x7F | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            break
    if body.find(bytes([0x23]) + index) >= 0 or body.find(bytes([0x24]) + index) >= 0:
        return True
    padded = bytes([index[0] | 0x80])  # an index may be written longer than it need be
    return body.find(bytes([0x23]) + padded) >= 0 or body.find(bytes([0x24]) + padded) >= 0


class _Label:
    __slots__ = ("arrived", "height", "index", "loop", "other", "results")

    def __init__(self, index: int, loop: bool, height: int, results: int) -> None:
        self.index, self.loop, self.height, self.results = index, loop, height, results
        self.arrived: _State | None = None
        self.other: _State | None = None
        """The state in which an ``if`` leaves for its else arm."""

    def arrive(self, state: _State) -> None:
        """Somebody comes to the end."""
        self.arrived = state if self.arrived is None else _join(self.arrived, state)


class _Pass:
    """One walk over a function's instructions."""

    def __init__(self, module: Module, code: Code, pointer: int, headers: dict[int, _State], walk: _Walk) -> None:
        self._module, self._code, self._global, self._headers, self._walk = module, code, pointer, headers, walk
        self._expr = module.body(code.func).expr
        self._stack: list[_Known] = []
        self._state: _State | None = _State(_ENTRY, {})
        self._labels: list[_Label] = []

    def run(self) -> None:
        code = self._code
        results = len(self._module.signature(code.func).results)
        self._labels.append(_Label(-1, False, 0, results))
        for i, op in enumerate(code.ops):
            if self._state is None and op not in (0x02, 0x03, 0x04, 0x1F, 0x05, 0x0B):
                continue  # cannot be reached
            self._step(i, op)

    # One instruction

    def _step(self, i: int, op: int) -> None:
        if op in (0x02, 0x03, 0x04, 0x1F):
            self._open(i, op)
        elif op == 0x05:
            self._else()
        elif op == 0x0B:
            self._end(i)
        elif op in (0x0C, 0x0D, 0x0E):
            self._branch(i, op)
        elif op == 0x0F:
            self._leave(i)
        elif op in (0x00, 0x08, 0x0A):
            self._unreachable()
        elif op in (0x10, 0x11, 0x12, 0x13):
            self._call(i, op)
        else:
            self._plain(i, op)

    def _plain(self, i: int, op: int) -> None:
        code, stack, state = self._code, self._stack, self._state
        assert state is not None
        imm = code.imms[i]
        if op == 0x20:
            stack.append(state.locals.get(imm))  # type: ignore[call-overload]
        elif op in (0x21, 0x22):
            value = stack[-1] if op == 0x22 else stack.pop()
            self._walk.spend(len(state.locals), code.pos[i])
            changed = dict(state.locals)
            changed.pop(imm, None)  # type: ignore[call-overload]
            if value is not None:
                changed[imm] = value  # type: ignore[index]
            self._state = _State(state.pointer, changed)
        elif op == 0x23:
            stack.append(state.pointer if imm == self._global else None)
        elif op == 0x24 and imm == self._global:
            self._set_pointer(stack.pop(), i)
        elif op == 0x41:
            number = read_s32(self._module.data, self._expr + code.pos[i] + 1)[0]
            stack.append(_Value(_CONST, number))
        elif op in (0x6A, 0x6B, 0x71):
            b, a = stack.pop(), stack.pop()
            stack.append(self._computed(op, a, b, i))
        elif op == 0x1A:
            stack.pop()
        elif op == 0x01:
            pass
        else:
            takes, gives = _arity(op)
            for value in stack[len(stack) - takes:]:
                if op not in _COMPARISONS:
                    self._use(value, i)
            del stack[len(stack) - takes:]
            stack.extend([None] * gives)

    def _computed(self, op: int, a: _Known, b: _Known, i: int) -> _Known:
        """``a + b``, ``a - b`` or ``a & b``."""
        if op == 0x6A and a is not None and a.kind == _CONST:
            a, b = b, a
        if op == 0x71 and a is not None and a.kind == _CONST:
            a, b = b, a
        if a is None or a.kind == _CONST:
            self._use(b, i)
            return None
        constant = b.number if b is not None and b.kind == _CONST else None
        if b is not None and b.kind != _CONST:
            self._use(a, i)
            self._use(b, i)
            return None
        if op in (0x6A, 0x6B) and constant is not None and a.kind == _EXACT:
            return _Value(_EXACT, a.number + (constant if op == 0x6A else -constant))
        if op == 0x71 and constant is not None and constant < 0 and a.kind == _EXACT:  # an alignment
            return _Value(_BELOW, a.number, a.number + constant + 1, i)
        self._use(a, i)
        if op == 0x71 and constant is not None and constant < 0:
            return _Value(_BELOW, a.number)
        if op == 0x6B and (constant is None or constant >= 0):  # an allocation, or an index
            return _Value(_BELOW, a.number)
        if op == 0x6A and constant is not None and constant < 0:
            return _Value(_BELOW, a.number)
        return None

    def _set_pointer(self, value: _Known, i: int) -> None:
        if value is None or value.kind == _CONST:
            raise self._refused("sets it to a value whose origin cannot be followed", i)
        if value.number > 0:
            raise self._refused("sets it above where it was when the function was called", i)
        assert self._state is not None
        self._state = _State(value, self._state.locals)

    def _call(self, i: int, op: int) -> None:
        code, module = self._code, self._module
        imm = code.imms[i]
        if op in (0x10, 0x12):
            kind = module.signature(imm)  # type: ignore[arg-type]
        else:
            kind = module.types[imm[0]]  # type: ignore[index]
        height = len(self._stack) - len(kind.params) - (op in (0x11, 0x13))
        given = self._stack[height:]
        del self._stack[height:]
        for value in given:
            self._use(value, i)
        if op in (0x12, 0x13):
            self._check_put_back(i)
            self._unreachable()
        elif op == 0x10 and len(kind.results) == 1 and any(v is not None and v.kind != _CONST for v in given):
            same = _gives_back(module, imm)  # type: ignore[arg-type]
            self._stack.append(None if same is None else given[same])
        else:
            self._stack.extend([None] * len(kind.results))

    # Structure

    def _open(self, i: int, op: int) -> None:
        code = self._code
        if self._state is None:
            self._labels.append(_Label(i, op == 0x03, len(self._stack), 0))
            return
        if op == 0x04:
            self._use(self._stack.pop(), i)
        kind = code.imms[i]
        height = code.heights[i]
        del self._stack[height:]
        params = len(kind.params)  # type: ignore[attr-defined]
        results = params if op == 0x03 else len(kind.results)  # type: ignore[attr-defined]
        label = _Label(i, op == 0x03, height, results)
        self._stack.extend([None] * params)
        if op == 0x03:
            self._arrive_at_loop(i)
        elif op == 0x04:
            label.other = self._state
        elif op == 0x1F:
            self._thrown(i)
        self._labels.append(label)

    def _arrive_at_loop(self, i: int) -> None:
        assert self._state is not None
        known = self._headers.get(i)
        self._headers[i] = self._state = self._state if known is None else _join(known, self._state)

    def _thrown(self, i: int) -> None:
        """The body may throw anywhere: at a clause the pointer may be anything that the body made it, and what the
        body sets is not known."""
        code = self._code
        state = self._state
        assert state is not None
        inside = range(i + 1, code.match[i])
        written = {code.imms[n] for n in inside if code.ops[n] in (0x21, 0x22)}
        pointer = state.pointer
        if any(code.ops[n] == 0x24 and code.imms[n] == self._global for n in inside):
            pointer = _Value(_BELOW, 0)
        elif any(code.ops[n] in (0x10, 0x11) for n in inside):  # which have not put it back
            pointer = _Value(_BELOW, pointer.number)
        caught = _State(pointer, {k: v for k, v in state.locals.items() if k not in written})
        for clause in code.catches[i]:
            self._arrive(clause.depth, caught)

    def _else(self) -> None:
        label = self._labels[-1]
        self._join_into(label)
        self._state, label.other = label.other, None
        del self._stack[label.height:]
        if self._state is not None:
            self._stack.extend([None] * len(self._code.imms[label.index].params))  # type: ignore[attr-defined]

    def _end(self, i: int) -> None:
        label = self._labels.pop()
        self._join_into(label)
        if label.other is not None:  # an if without an else
            label.arrive(label.other)
        if not label.loop:
            self._state = label.arrived
        del self._stack[label.height:]
        if self._state is None:
            return
        if label.index < 0:
            self._check_put_back(i)
        else:
            self._stack.extend([None] * len(self._code.imms[label.index].results))  # type: ignore[attr-defined]

    def _join_into(self, label: _Label) -> None:
        """What falls through to the label's end, and the values with it."""
        if self._state is not None:
            for value in self._stack[label.height:]:
                self._use(value, label.index)
            label.arrive(self._state)

    def _arrive(self, depth: int, state: _State) -> None:
        label = self._labels[-1 - depth]
        if label.loop:
            self._headers[label.index] = _join(self._headers[label.index], state)
        else:
            label.arrive(state)

    def _branch(self, i: int, op: int) -> None:
        imm = self._code.imms[i]
        if op != 0x0C:
            self._use(self._stack.pop(), i)
        assert self._state is not None
        for depth in set(imm) if isinstance(imm, tuple) else (imm,):
            label = self._labels[-1 - depth]  # type: ignore[operator]
            for value in self._stack[len(self._stack) - label.results:]:
                self._use(value, i)
            if label.index < 0:
                self._check_put_back(i)
            self._arrive(depth, self._state)  # type: ignore[arg-type]
        if op != 0x0D:
            self._unreachable()

    def _leave(self, i: int) -> None:
        for value in self._stack[-self._labels[0].results:] if self._labels[0].results else ():
            self._use(value, i)
        self._check_put_back(i)
        self._unreachable()

    def _unreachable(self) -> None:
        self._state = None
        del self._stack[self._labels[-1].height:]

    def _check_put_back(self, i: int) -> None:
        assert self._state is not None
        if self._state.pointer != _ENTRY:
            raise self._refused("returns without having put it back", i)

    def _use(self, value: _Known, i: int) -> None:
        assert self._state is not None
        self._walk.use(value, self._state.pointer, self._code.pos[i])

    def _refused(self, what: str, i: int) -> NotSupported:
        return self._walk.refused(what, self._code.pos[i])


def _gives_back(module: Module, func: int) -> int | None:
    """The parameter that is a function's result, whatever it does: compilers know that of memset and go on with the
    result. Only the plainest form: every way out is a ``local.get`` of that parameter, which is never set."""
    if func < module.imported_funcs:
        return None
    body = module.body(func)
    tail = module.data[body.expr:body.end][-3:]
    if len(tail) < 3 or tail[0] != 0x20 or tail[2] != 0x0B or tail[1] >= len(module.signature(func).params):
        return None
    code, param = analyze(module, func), tail[1]
    for i, op in enumerate(code.ops):
        if (op in (0x21, 0x22) and code.imms[i] == param) or op in (0x12, 0x13):
            return None
        if (op == 0x0F or i in code.outward or i == len(code.ops) - 1) and (
            op in (0x0D, 0x0E) or code.ops[i - 1] != 0x20 or code.imms[i - 1] != param
        ):
            return None
    return param


def _join(a: _State, b: _State) -> _State:
    """What is known where two ways meet."""
    pointer = a.pointer
    if pointer != b.pointer:
        pointer = _Value(_BELOW, max(pointer.number, b.pointer.number))
    return _State(pointer, {k: v for k, v in a.locals.items() if b.locals.get(k) == v})


_ODD: Final = {
    0x1B: (3, 1), 0x1C: (3, 1), 0x23: (0, 1), 0x24: (1, 0), 0x25: (1, 1), 0x26: (2, 0), 0xD0: (0, 1), 0xD1: (1, 1),
    0xD2: (0, 1), 0xFC << 16 | 15: (2, 1), 0xFC << 16 | 17: (3, 0),
}


def _arity(op: int) -> tuple[int, int]:
    """Operands and results of an instruction that is no control instruction."""
    if op in _ODD:
        return _ODD[op]
    row = TABLE[op]
    assert row.pops is not None
    assert row.pushes is not None
    return len(row.pops), len(row.pushes)
