"""A function made ready to run: one entry for each instruction, branch targets resolved, operand types known.

Read anew from the bytes, without the package's own validator, so that the two check each other. Only the table of
opcodes is shared. Code that cannot be reached has no operand types; its entries are `DEAD` and never run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

from wasmckpt.errors import NotSupported
from wasmckpt.wasm.leb128 import read_s32, read_s33, read_s64, read_u32
from wasmckpt.wasm.module import FuncType, Module
from wasmckpt.wasm.opcodes import BLOCKS, TABLE, Op
from wasmckpt.wasm.values import EXNREF, FUNCREF, I32, TYPE_NAMES

from .atomics import ATOMICS
from .floats import NanPolicy, float_operations
from .integers import Operation, integer_operations, sign_extension
from .rest import REST, memory_load, memory_store
from .simd import VECTOR_REST, vector_operations

__all__ = ["Branch", "Code", "Entry", "Handler", "compile_function", "numeric_operations", "parse"]

# Kinds of entries, the frequent ones first: the machine asks in about this order.
(LOCAL_GET, CONST, BINARY, LOCAL_SET, LOCAL_TEE, LOAD, BR_IF, STORE, NOP, UNARY, LOOP, BR, IF, JUMP, GLOBAL_GET,
 GLOBAL_SET, LOAD_SIGNED, DROP, SELECT, OTHER, UNREACHABLE, RETURN, CALL, CALL_INDIRECT, RETURN_CALL,
 RETURN_CALL_INDIRECT, RETURN_IF, BR_TABLE, THROW, THROW_REF, DEAD) = range(31)

CALLS: Final = frozenset({CALL, CALL_INDIRECT})

OUT: Final = -1

Entry = tuple[int, Any, Any]


class Branch(NamedTuple):
    """Where a branch goes: the index of the next instruction (`OUT`: out of the function), how many values it carries,
    the height that it cuts the stack to, and whether it goes to a loop's header."""

    target: int
    arity: int
    height: int
    loop: bool


class Handler(NamedTuple):
    """A clause of a ``try_table``: the tag that it is for (-1: all), whether it takes the exception, too, and where it
    goes, with the payload and the exception as the values of the branch."""

    tag: int
    reference: bool
    branch: Branch


class Instruction(NamedTuple):
    """An instruction as it stands in the bytes: code, immediates, offset from the start of the body expression."""

    op: int
    imm: Any
    offset: int


@dataclass(slots=True)
class Code:
    """A function ready to run.

    Attributes:
        entries: one for each instruction, (kind, operand, operand).
        offsets: of each instruction, from the start of the body expression.
        locals: type codes of all locals, parameters first.
        handlers: (index of the ``try_table``, of its ``end``, its clauses), inner ones first.
        types: operand types before each instruction, None where it cannot be reached.
        live: for `liveness.live_locals`, which computes it when it is first asked for.
    """

    type: FuncType
    locals: list[int]
    entries: list[Entry]
    offsets: list[int]
    types: list[tuple[int, ...] | None]
    handlers: list[tuple[int, int, tuple[Handler, ...]]] = field(default_factory=list)
    live: list[int] | None = None
    _indices: dict[int, int] = field(default_factory=dict)

    def index(self, offset: int) -> int | None:
        """Index of the instruction at an offset, None if none starts there."""
        if not self._indices:
            self._indices = {offset: i for i, offset in enumerate(self.offsets)}
        return self._indices.get(offset)


@cache
def numeric_operations(policy: NanPolicy) -> dict[int, Operation]:
    """Opcode to function for all instructions that only compute."""
    return integer_operations() | float_operations(policy) | vector_operations(policy)


_COMPILED: Final[dict[int, dict[tuple[int, NanPolicy], Code]]] = {}


def compile_function(module: Module, func: int, policy: NanPolicy = "canonical") -> Code:
    """Make a defined function ready to run; once for each module, since a resume at every instruction asks often."""
    known = _COMPILED.get(id(module))
    if known is None:
        known = _COMPILED[id(module)] = {}
        weakref.finalize(module, _COMPILED.pop, id(module), None)
    code = known.get((func, policy))
    if code is None:
        code = known[func, policy] = _Compiler(module, func, policy).code()
    return code


def parse(module: Module, func: int) -> list[Instruction]:
    """The instructions of a defined function, the final ``end`` included."""
    data, body = module.data, module.body(func)
    at = body.expr
    out: list[Instruction] = []
    while at < body.end:
        offset = at - body.expr
        op = data[at]
        at += 1
        if op >= 0xFC:
            sub, at = read_u32(data, at)
            op = op << 16 | sub
        if op not in TABLE:
            raise NotSupported(f"instruction {op:#x}", need="gc", function=func, offset=at)
        imm, at = _immediate(module, TABLE[op].imm, at)
        out.append(Instruction(op, imm, offset))
    return out


def _immediate(module: Module, what: str, at: int) -> tuple[Any, int]:
    data = module.data
    if what == "-":
        return None, at
    if what == "i32":
        value, at = read_s32(data, at)
        return value & 0xFFFF_FFFF, at
    if what == "i64":
        value, at = read_s64(data, at)
        return value & 0xFFFF_FFFF_FFFF_FFFF, at
    if what in ("f32", "f64", "v128"):
        size = {"f32": 4, "f64": 8, "v128": 16}[what]
        return int.from_bytes(data[at:at + size], "little"), at + size
    if what == "block":
        if data[at] == 0x40:
            return FuncType((), ()), at + 1
        if data[at] in TYPE_NAMES:
            return FuncType((), (data[at],)), at + 1
        index, at = read_s33(data, at)
        return module.types[index], at
    if what == "try_table":
        kind, at = _immediate(module, "block", at)
        count, at = read_u32(data, at)
        clauses = []
        for _ in range(count):
            form, tag = data[at], -1
            at += 1
            if form < 2:
                tag, at = read_u32(data, at)
            depth, at = read_u32(data, at)
            clauses.append((tag, form in (1, 3), depth))
        return (kind, clauses), at
    if what in ("memarg", "memarg_lane"):
        flags, at = read_u32(data, at)
        memory = 0
        if flags & 0x40:
            memory, at = read_u32(data, at)
        offset, at = read_u32(data, at)
        return ((memory, offset), at) if what == "memarg" else ((memory, offset, data[at]), at + 1)
    if what in ("lane", "zero"):
        return data[at], at + 1
    if what == "lanes16":
        return tuple(data[at:at + 16]), at + 16
    if what == "reftype":
        return data[at], at + 1
    if what == "types":
        count, at = read_u32(data, at)
        return tuple(data[at:at + count]), at + count
    if what == "br_table":
        count, at = read_u32(data, at)
        depths = []
        for _ in range(count + 1):
            depth, at = read_u32(data, at)
            depths.append(depth)
        return tuple(depths), at
    indices = []  # one or two indices
    for _ in what.split("_"):
        index, at = read_u32(data, at)
        indices.append(index)
    return tuple(indices) if len(indices) > 1 else indices[0], at


class _Block(NamedTuple):
    op: int
    start: int
    type: FuncType
    below: tuple[int, ...]
    """Operand types under the block."""
    dead: bool
    """Whether the block as a whole cannot be reached."""
    handlers: tuple[Handler, ...] = ()


class _Compiler:
    def __init__(self, module: Module, func: int, policy: NanPolicy) -> None:
        self.module = module
        self.kind = module.signature(func)
        self.locals = module.local_types(func)
        self.body = parse(module, func)
        self.operations = numeric_operations(policy)
        self.ends, self.elses = self._match()
        self.stack: list[int] | None = []  # None where code cannot be reached
        self.blocks: list[_Block] = [_Block(0x02, -1, self.kind, (), False)]
        self.handlers: list[tuple[int, int, tuple[Handler, ...]]] = []

    def _match(self) -> tuple[dict[int, int], dict[int, int]]:
        """Index of each opening instruction (-1: the function) to that of its ``end``, and of its ``else``."""
        ends: dict[int, int] = {}
        elses: dict[int, int] = {}
        open_: list[int] = [-1]
        for i, (op, _, _) in enumerate(self.body):
            if op in BLOCKS:
                open_.append(i)
            elif op == 0x05:
                elses[open_[-1]] = i
            elif op == 0x0B:
                ends[open_.pop()] = i
        return ends, elses

    def code(self) -> Code:
        entries: list[Entry] = []
        types: list[tuple[int, ...] | None] = []
        for i, (op, imm, _) in enumerate(self.body):
            types.append(None if self.stack is None else tuple(self.stack))
            if op in BLOCKS:
                entries.append(self._open(i, op, *(imm if op == 0x1F else (imm, ()))))
            elif op == 0x05:
                entries.append(self._else())
            elif op == 0x0B:
                entries.append(self._end())
            elif self.stack is None:
                entries.append(_DEAD)
            else:
                entries.append(self._plain(op, imm))
        return Code(self.kind, self.locals, entries, [item.offset for item in self.body], types, self.handlers)

    # Operand types

    def _take(self, *wanted: int) -> None:
        """Take operands of known types off the stack."""
        assert self.stack is not None
        if wanted:
            assert tuple(self.stack[-len(wanted):]) == wanted, "the module is not valid"
            del self.stack[-len(wanted):]

    def _put(self, *made: int) -> None:
        assert self.stack is not None
        self.stack += made

    # Structure

    def _open(self, i: int, op: int, kind: FuncType, clauses: Sequence[tuple[int, bool, int]]) -> Entry:
        if self.stack is None:
            self.blocks.append(_Block(op, i, kind, (), True))
            return _DEAD
        if op == 0x04:
            self._take(I32)
        self._take(*kind.params)
        handlers = tuple(Handler(tag, reference, self._branch(depth)) for tag, reference, depth in clauses)
        self.blocks.append(_Block(op, i, kind, tuple(self.stack), False, handlers))
        self._put(*kind.params)
        if op == 0x04:
            return IF, (self.elses[i] if i in self.elses else self.ends[i]) + 1, None
        return (LOOP if op == 0x03 else NOP), None, None

    def _else(self) -> Entry:
        block = self.blocks[-1]
        if block.dead:
            return _DEAD
        reached = self.stack is not None
        self.stack = [*block.below, *block.type.params]
        return (JUMP, self.ends[block.start] + 1, None) if reached else _DEAD

    def _end(self) -> Entry:
        block = self.blocks.pop()
        if block.dead:
            return _DEAD
        if block.handlers:
            self.handlers.append((block.start, self.ends[block.start], block.handlers))
        reached = self.stack is not None
        self.stack = [*block.below, *block.type.results]
        if block.start < 0:
            return RETURN, len(self.kind.results), None
        return (NOP, None, None) if reached else _DEAD

    def _branch(self, depth: int) -> Branch:
        block = self.blocks[-1 - depth]
        if block.op == 0x03:
            return Branch(block.start + 1, len(block.type.params), len(block.below), True)
        target = OUT if block.start < 0 else self.ends[block.start] + 1
        return Branch(target, len(block.type.results), len(block.below), False)

    # All other instructions, in reachable code

    def _plain(self, op: int, imm: Any) -> Entry:
        row = TABLE[op]
        if row.pops is not None and row.pushes is not None:
            self._take(*row.pops)
            self._put(*row.pushes)
            return self._typed(op, imm, row)
        return _SPECIAL[op](self, op, imm)

    def _typed(self, op: int, imm: Any, row: Op) -> Entry:
        if row.imm in ("i32", "i64", "f32", "f64", "v128"):
            return CONST, imm, None
        if (operation := self.operations.get(op)) is not None:
            assert row.pops is not None
            if len(row.pops) == 3:
                return OTHER, _ternary, operation
            return (BINARY if len(row.pops) == 2 else UNARY), operation, None
        if row.imm == "memarg" and op <= 0xFF:
            memory, offset = imm
            width, bits, signed, store = _access(row)
            if memory:
                return OTHER, memory_store if store else memory_load, (memory, offset, bits // 8, signed, width)
            if store:
                return STORE, offset, (bits // 8, (1 << bits) - 1)
            if signed:
                return LOAD_SIGNED, offset, (bits // 8, sign_extension(bits, width))
            return LOAD, offset, bits // 8
        return OTHER, _REST[op], imm

    def _control(self, op: int, imm: Any) -> Entry:
        assert self.stack is not None
        if op == 0x0D:
            self._take(I32)
            branch = self._branch(imm)
            return (RETURN_IF, branch.arity, None) if branch.target == OUT else (BR_IF, branch, None)
        entry: Entry
        if op == 0x00:
            entry = UNREACHABLE, None, None
        elif op == 0x08:
            self._take(*self.module.payload(imm))
            entry = THROW, imm, len(self.module.payload(imm))
        elif op == 0x0A:
            self._take(EXNREF)
            entry = THROW_REF, None, None
        elif op == 0x0C:
            branch = self._branch(imm)
            entry = (RETURN, branch.arity, None) if branch.target == OUT else (BR, branch, None)
        elif op == 0x0E:
            entry = BR_TABLE, tuple(self._branch(depth) for depth in imm), None
        else:
            entry = RETURN, len(self.kind.results), None
        self.stack = None
        return entry

    def _call(self, op: int, imm: Any) -> Entry:
        tail = op in (0x12, 0x13)
        entry: Entry
        if op in (0x10, 0x12):
            kind = self.module.signature(imm)
            entry = (RETURN_CALL if tail else CALL), imm, None
        else:
            self._take(I32)
            kind = self.module.types[imm[0]]
            entry = (RETURN_CALL_INDIRECT if tail else CALL_INDIRECT), imm[1], kind
        self._take(*kind.params)
        if tail:
            self.stack = None
        else:
            self._put(*kind.results)
        return entry

    def _variable(self, op: int, imm: int) -> Entry:
        if op in (0x23, 0x24):
            kind = self.module.globals[imm].type
            if op == 0x23:
                self._put(kind)
                return GLOBAL_GET, imm, None
            self._take(kind)
            return GLOBAL_SET, imm, None
        kind = self.locals[imm]
        if op == 0x20:
            self._put(kind)
            return LOCAL_GET, imm, None
        self._take(kind)
        if op == 0x21:
            return LOCAL_SET, imm, None
        self._put(kind)
        return LOCAL_TEE, imm, None

    def _parametric(self, op: int, imm: Any) -> Entry:
        assert self.stack is not None
        if op == 0x01:
            return NOP, None, None
        if op == 0x1A:
            self.stack.pop()
            return DROP, None, None
        self._take(I32)
        self._take(self.stack[-1])  # of both values one stays
        return SELECT, None, None

    def _reference(self, op: int, imm: Any) -> Entry:
        assert self.stack is not None
        tables = self.module.tables
        if op == 0xD0:
            self._put(imm)
            return CONST, None, None
        if op == 0xD1:
            self.stack.pop()
            self._put(I32)
        elif op == 0xD2:
            self._put(FUNCREF)
        elif op == 0x25:
            self._take(I32)
            self._put(tables[imm].element)
        elif op == 0x26:
            self._take(I32, tables[imm].element)
        elif op == 0xFC000F:  # table.grow
            self._take(tables[imm].element, I32)
            self._put(I32)
        elif op == 0xFC0010:  # table.size
            self._put(I32)
        else:  # table.fill
            self._take(I32, tables[imm].element, I32)
        return OTHER, REST[op], imm


def _ternary(_: object, stack: list[Any], operation: Operation) -> None:
    third, second, first = stack.pop(), stack.pop(), stack.pop()
    stack.append(operation(first, second, third))


_REST: Final = {**REST, **ATOMICS, **VECTOR_REST}
_DEAD: Final[Entry] = (DEAD, None, None)

_SPECIAL: Final[dict[int, Callable[[_Compiler, int, Any], Entry]]] = {
    **dict.fromkeys((0x00, 0x08, 0x0A, 0x0C, 0x0D, 0x0E, 0x0F), _Compiler._control),
    **dict.fromkeys((0x10, 0x11, 0x12, 0x13), _Compiler._call),
    **dict.fromkeys((0x20, 0x21, 0x22, 0x23, 0x24), _Compiler._variable),
    **dict.fromkeys((0x01, 0x1A, 0x1B, 0x1C), _Compiler._parametric),
    **dict.fromkeys((0x25, 0x26, 0xD0, 0xD1, 0xD2, 0xFC000F, 0xFC0010, 0xFC0011), _Compiler._reference),
}


def _access(row: Op) -> tuple[int, int, bool, bool]:
    """Of a load or store: bits of the value, bits in memory, whether the sign is extended, whether it stores."""
    kind, _, rest = row.name.partition(".")
    width = int(kind[1:])
    store = rest.startswith("store")
    size, _, sign = rest.removeprefix("store" if store else "load").partition("_")
    return width, int(size or width), sign == "s", store
