"""The validator: exact operand types at every instruction, in one flat pass over a function's bytes.

Aim: what the rewriter knows about types must be exact, and Python must be fast enough for real programs. So the
specification's algorithm (operand stack with an unknown type in dead code, control stack) runs as a single loop over
bytes, with the common instructions first, and leaves flat arrays behind (`Code`) instead of instruction objects.
A separate decoder beside a validator was the alternative: it reads every byte twice.

An operand stack entry is one int, ``producer << 8 | type``: the index of the instruction that made the value, and its
type code (0 is the unknown type). So a safepoint knows where each waiting operand came from.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple

from ..errors import InvalidModule, NotSupported
from .leb128 import read_s32, read_s33, read_s64, read_u32
from .limits import most_values, within
from .module import FuncType, Module, TableType
from .opcodes import TABLE
from .values import EXNREF, F32, F64, FUNCREF, I32, I64, REFERENCES, TYPE_NAMES, V128

__all__ = ["MOVED", "Catch", "Code", "analyze", "validate", "validate_module"]

MOVED: Final = "values that blocks, branches and calls pass on or keep waiting"
"""What `Code.moved` counts."""
_EMPTY: Final = FuncType((), ())
_Frame = tuple[int, int, int, tuple[int, ...], FuncType]
"""An entry of the control stack: opcode, index of the opening instruction, height, label types, block type."""

# Kinds of single-byte instructions, in the order in which the loop asks.
_UNKNOWN: Final = 0
_UNARY: Final = 1
_BINARY: Final = 2
_LOAD: Final = 3
_STORE: Final = 4
_CONST: Final = 5
_OTHER: Final = 6
_KIND: Final = [_UNKNOWN] * 256
_IN: Final = [0] * 256
_OUT: Final = [0] * 256
_ALIGN: Final[dict[int, int]] = {}


def _natural_alignment(name: str) -> int:
    """log2 of the bytes that a load or store touches, by its name."""
    head, tail = name.split(".", 1)
    tail = tail.split("_lane")[0].replace("atomic.", "")
    for text, log in (("8x8", 3), ("16x4", 3), ("32x2", 3), ("64", 3), ("32", 2), ("16", 1), ("8", 0)):
        if text in tail:
            return log
    return {"i32": 2, "f32": 2, "i64": 3, "f64": 3, "v128": 4, "memory": 2}[head]


def _prepare() -> None:
    for code, op in TABLE.items():
        if op.imm.startswith("memarg"):
            _ALIGN[code] = _natural_alignment(op.name)
        if code > 0xFF:
            continue
        _KIND[code] = _OTHER
        if op.pops is None or op.pushes is None:
            continue
        if op.imm == "memarg":
            _KIND[code] = _LOAD if op.pushes else _STORE
            _OUT[code] = op.pushes[0] if op.pushes else op.pops[1]
        elif op.imm == "-":
            _KIND[code] = _UNARY if len(op.pops) == 1 else _BINARY
            _IN[code], _OUT[code] = op.pops[0], op.pushes[0]
        elif op.name.endswith(".const"):
            _KIND[code], _OUT[code] = _CONST, op.pushes[0]


_prepare()


class Catch(NamedTuple):
    """A clause of a ``try_table``: ``kind`` is its code in the binary format, bit 0 "with the exception itself", bit 1
    "all tags"; ``tag`` -1 where it catches all; ``depth`` of its label, counted from outside of the ``try_table``."""

    kind: int
    tag: int
    depth: int


class Code:
    """A validated function body as flat arrays, one entry an instruction.

    Attributes:
        ops: instruction codes. imms: immediates that the rewriter needs (see `analyze`), None for the rest.
        pos: relative bytecode offsets (bytes from the body expression's first byte), and one more: the end.
        match: index of a block, loop, try_table, if or else -> index of its ``end`` (an if with an else: its ``else``).
        loops: index of each reachable loop -> operands on the stack at its header, parameters included.
        calls: index of each reachable call that returns here -> (waiting operands, arguments; an indirect call's table
            index is the last of them).
        watched: relative offset -> operand types at that instruction (None in dead code), for the offsets asked for.
        padded: indices of instructions with an over-long table or memory index.
        outward: indices of branches to the function's own label.
        special: indices of what changes memories' sizes, tables or segments (memory.grow, table.set, data.drop ...),
            and of atomic instructions.
        label_values: some block has parameters or results.
        tail_calls: indices of reachable tail calls.
        catches: index of each try_table -> its clauses.
        heights: index of each reachable block, loop, if and try_table -> operands that wait under it.
        moved: values that blocks, branches and calls pass on, and that wait at loops and calls (see `limits`).
    """

    __slots__ = (
        "calls", "catches", "func", "heights", "imms", "label_values", "loops", "match", "moved", "ops", "outward",
        "padded", "pos", "special", "tail_calls", "watched",
    )

    def __init__(self, func: int) -> None:
        self.func = func
        self.ops: list[int] = []
        self.imms: list[object] = []
        self.pos: list[int] = []
        self.match: dict[int, int] = {}
        self.loops: dict[int, tuple[int, ...]] = {}
        self.calls: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.tail_calls: list[int] = []
        self.catches: dict[int, tuple[Catch, ...]] = {}
        self.heights: dict[int, int] = {}
        self.padded: list[int] = []
        self.outward: list[int] = []
        self.special: list[int] = []
        self.label_values = False
        self.moved = 0
        self.watched: dict[int, tuple[int, ...] | None] = {}


def _names(types: tuple[int, ...] | list[int]) -> str:
    return "[" + " ".join(TYPE_NAMES.get(t, "?") for t in types) + "]"


def analyze(module: Module, func: int, watch: Container[int] | None = None) -> Code:
    """Validate the body of defined function ``func``.

    Immediates kept: index of locals, globals, functions, tables; depth of branches; (depths..., default) of br_table;
    `FuncType` of blocks; (type index, table index) of indirect calls; types of select; type of what
    ``ref.is_null`` asks about (0: unknown); for prefixed instructions a
    tuple of their indices.

    Args:
        watch: relative offsets whose operand types are wanted in ``Code.watched``.

    Raises:
        InvalidModule: with function and byte offset.
        NotSupported: an instruction outside WebAssembly 2.0, multi-memory and tail calls.
    """
    try:
        return _analyze(module, func, watch)
    except InvalidModule as error:
        error.fields.setdefault("function", func)
        raise
    except NotSupported as error:
        error.fields.setdefault("function", func)
        raise
    except IndexError:
        raise InvalidModule("unexpected end of function body", offset=module.body(func).end, function=func) from None


def _fail(what: str, at: int) -> InvalidModule:
    return InvalidModule(what, offset=at)


def _more(moved: int, more: int, most: int, at: int) -> int:
    """Count values that are passed on or wait."""
    moved += more
    if moved > most:
        within(moved, most, MOVED, offset=at)
    return moved


def _pop(st: list[int], height: int, unreachable: bool, want: int, at: int) -> int:
    """Take an operand of type ``want`` (0: of any) from above ``height``."""
    if len(st) == height:
        if unreachable:
            return 0
        raise _fail(f"type mismatch: expected {TYPE_NAMES.get(want, 'a value')}, found nothing", at)
    entry = st.pop()
    found = entry & 255
    if found != want and found and want:
        raise _fail(f"type mismatch: expected {TYPE_NAMES[want]}, found {TYPE_NAMES.get(found, '?')}", at)
    return entry


def _pops(st: list[int], height: int, unreachable: bool, wanted: tuple[int, ...], at: int) -> list[int]:
    """Take operands of these types, the last one from the top; in the order of ``wanted``."""
    held: list[int] = []
    for t in reversed(wanted):
        held.append(_pop(st, height, unreachable, t, at))
    held.reverse()
    return held


def _label(code: Code, ctrl: list[_Frame], depth: int, n: int, at: int) -> tuple[int, ...]:
    """Types that the label takes to which instruction ``n`` leads."""
    if depth >= len(ctrl):
        raise _fail(f"unknown label {depth}", at)
    if depth == len(ctrl) - 1:
        code.outward.append(n)
    return ctrl[-1 - depth][3]


def _check_memory(index: int, memories: int, at: int) -> None:
    if index >= memories:
        raise _fail(f"unknown memory {index}", at)


def _table(tables: list[TableType], index: int, at: int) -> int:
    """Type of a table's elements."""
    if index >= len(tables):
        raise _fail(f"unknown table {index}", at)
    return tables[index].element


def _tag(module: Module, index: int, at: int) -> tuple[int, ...]:
    """Types of what an exception with this tag carries."""
    if index >= len(module.tags):
        raise _fail(f"unknown tag {index}", at)
    return module.payload(index)


def _memarg(data: bytes, p: int, natural: int, memories: int, at: int) -> int:
    """Check a memory argument; the offset behind it."""
    flags, p = read_u32(data, p)
    index = 0
    if flags & 0x40:
        flags &= ~0x40
        index, p = read_u32(data, p)
    _check_memory(index, memories, at)
    if flags > natural:
        raise _fail("alignment must not be larger than natural", at)
    return read_u32(data, p)[1]


def _block_type(data: bytes, p: int, types: list[FuncType], at: int) -> tuple[FuncType, int]:
    """A block type, and the offset behind it."""
    byte = data[p]
    if byte == 0x40:
        return _EMPTY, p + 1
    if byte in TYPE_NAMES:
        return FuncType((), (byte,)), p + 1
    index, p = read_s33(data, p)
    if index < 0 or index >= len(types):
        raise _fail("unknown type", at)
    return types[index], p


def _analyze(module: Module, func: int, watch: Container[int] | None) -> Code:
    data = module.data
    body = module.body(func)
    base, end = body.expr, body.end
    kind = module.signature(func)
    local_types = module.local_types(func)
    n_locals = len(local_types)
    memories = len(module.memories)
    types, globals_, func_types, tables = module.types, module.globals, module.func_types, module.tables
    code = Code(func)
    ops, imms, pos, match = code.ops, code.imms, code.pos, code.match
    add_op, add_imm, add_pos = ops.append, imms.append, pos.append
    kinds, ins, outs = _KIND, _IN, _OUT

    st: list[int] = []  # operand stack
    push = st.append
    ctrl: list[_Frame] = [(0x02, -1, 0, kind.results, kind)]
    saved: list[tuple[bool, bool]] = []  # (unreachable, dead) of the enclosing blocks
    dead = False  # an enclosing block lies in unreachable code
    height = 0
    unreachable = False
    moved, most_moved = 0, most_values(len(data))
    n = -1  # index of the present instruction
    p = base

    while p < end:
        at = p
        n += 1
        op = data[p]
        p += 1
        if watch is not None and at - base in watch:
            code.watched[at - base] = None if unreachable or dead else tuple([e & 255 for e in st])
        add_op(op)
        add_pos(at - base)
        if op == 0x20:
            x = data[p]
            if x < 128:
                p += 1
            else:
                x, p = read_u32(data, p)
            if x >= n_locals:
                raise _fail(f"unknown local {x}", at)
            push(n << 8 | local_types[x])
            add_imm(x)
            continue
        k = kinds[op]
        if k == _CONST:
            if op == 0x41:
                if data[p] < 128:
                    p += 1
                else:
                    p = read_s32(data, p)[1]
            elif op == 0x42:
                p = read_s64(data, p)[1]
            else:
                p += 4 if op == 0x43 else 8
                if p > end:
                    raise _fail("unexpected end", at)
            push(n << 8 | outs[op])
            add_imm(None)
        elif k == _BINARY:
            want = ins[op]
            if len(st) - height >= 2 and st[-1] & 255 == want and st[-2] & 255 == want:
                st.pop()
                st[-1] = n << 8 | outs[op]
            else:
                _pop(st, height, unreachable, want, at)
                _pop(st, height, unreachable, want, at)
                push(n << 8 | outs[op])
            add_imm(None)
        elif k == _LOAD:
            if data[p] < 64 and data[p + 1] < 128 and memories:
                if data[p] > _ALIGN[op]:
                    raise _fail("alignment must not be larger than natural", at)
                p += 2
            else:
                p = _memarg(data, p, _ALIGN[op], memories, at)
            if len(st) > height and st[-1] & 255 == I32:
                st[-1] = n << 8 | outs[op]
            else:
                _pop(st, height, unreachable, I32, at)
                push(n << 8 | outs[op])
            add_imm(None)
        elif op == 0x21 or op == 0x22:
            x = data[p]
            if x < 128:
                p += 1
            else:
                x, p = read_u32(data, p)
            if x >= n_locals:
                raise _fail(f"unknown local {x}", at)
            t = local_types[x]
            if len(st) > height and st[-1] & 255 == t:
                st.pop()
            else:
                _pop(st, height, unreachable, t, at)
            if op == 0x22:
                push(n << 8 | t)
            add_imm(x)
        elif k == _STORE:
            if data[p] < 64 and data[p + 1] < 128 and memories:
                if data[p] > _ALIGN[op]:
                    raise _fail("alignment must not be larger than natural", at)
                p += 2
            else:
                p = _memarg(data, p, _ALIGN[op], memories, at)
            if len(st) - height >= 2 and st[-1] & 255 == outs[op] and st[-2] & 255 == I32:
                del st[-2:]
            else:
                _pop(st, height, unreachable, outs[op], at)
                _pop(st, height, unreachable, I32, at)
            add_imm(None)
        elif k == _UNARY:
            if len(st) > height and st[-1] & 255 == ins[op]:
                st[-1] = n << 8 | outs[op]
            else:
                _pop(st, height, unreachable, ins[op], at)
                push(n << 8 | outs[op])
            add_imm(None)
        elif op == 0x0D:
            x, p = read_u32(data, p)
            if len(st) > height and st[-1] & 255 == I32:
                st.pop()
            else:
                _pop(st, height, unreachable, I32, at)
            wanted = _label(code, ctrl, x, n, at)
            if wanted:
                moved = _more(moved, len(wanted), most_moved, at)
                held = _pops(st, height, unreachable, wanted, at)
                for t, e in zip(wanted, held, strict=True):
                    push(e if e & 255 else n << 8 | t)
            add_imm(x)
        elif op == 0x0B:
            opener, start, height, _, bt = ctrl[-1]
            if bt.results:
                moved = _more(moved, len(bt.results), most_moved, at)
                _pops(st, height, unreachable, bt.results, at)
            if len(st) != height:
                raise _fail("type mismatch: values remaining on stack at end of block", at)
            if opener == 0x04 and bt.params != bt.results:
                raise _fail("type mismatch: if without else must not change types", at)
            ctrl.pop()
            match[start] = n
            add_imm(None)
            if not ctrl:
                if p != end:
                    raise _fail("operators remaining after end of function", at)
                break
            height = ctrl[-1][2]
            unreachable, dead = saved.pop()
            for t in bt.results:
                push(n << 8 | t)
        elif op == 0x02 or op == 0x03:
            bt, p = _block_type(data, p, types, at)
            if bt is not _EMPTY:
                code.label_values = True
            if bt.params:
                moved = _more(moved, len(bt.params), most_moved, at)
                _pops(st, height, unreachable, bt.params, at)
            saved.append((unreachable, dead))
            dead = dead or unreachable
            height = len(st)
            if not dead:
                code.heights[n] = height
            ctrl.append((op, n, height, bt.params if op == 0x03 else bt.results, bt))
            unreachable = False
            for t in bt.params:
                push(n << 8 | t)
            if op == 0x03 and not dead:
                if st:
                    moved = _more(moved, len(st), most_moved, at)
                code.loops[n] = tuple(st)
            add_imm(bt)
        elif op == 0x10:
            x, p = read_u32(data, p)
            if x >= len(func_types):
                raise _fail(f"unknown function {x}", at)
            called = types[func_types[x]]
            moved = _more(moved, len(called.params) + len(called.results) + len(st), most_moved, at)
            args = _pops(st, height, unreachable, called.params, at)
            if not (unreachable or dead):
                code.calls[n] = (tuple(st), tuple(args))
            for t in called.results:
                push(n << 8 | t)
            add_imm(x)
        elif op == 0x0C:
            x, p = read_u32(data, p)
            wanted = _label(code, ctrl, x, n, at)
            if wanted:
                moved = _more(moved, len(wanted), most_moved, at)
                _pops(st, height, unreachable, wanted, at)
            del st[height:]
            unreachable = True
            add_imm(x)
        elif op == 0x23:
            x, p = read_u32(data, p)
            if x >= len(globals_):
                raise _fail(f"unknown global {x}", at)
            push(n << 8 | globals_[x].type)
            add_imm(x)
        elif op == 0x24:
            x, p = read_u32(data, p)
            if x >= len(globals_):
                raise _fail(f"unknown global {x}", at)
            if not globals_[x].mutable:
                raise _fail("global is immutable", at)
            _pop(st, height, unreachable, globals_[x].type, at)
            add_imm(x)
        elif op == 0x04:
            bt, p = _block_type(data, p, types, at)
            if bt is not _EMPTY:
                code.label_values = True
            _pop(st, height, unreachable, I32, at)
            if bt.params:
                moved = _more(moved, len(bt.params), most_moved, at)
                _pops(st, height, unreachable, bt.params, at)
            saved.append((unreachable, dead))
            dead = dead or unreachable
            height = len(st)
            if not dead:
                code.heights[n] = height
            ctrl.append((op, n, height, bt.results, bt))
            unreachable = False
            for t in bt.params:
                push(n << 8 | t)
            add_imm(bt)
        elif op == 0x05:
            opener, start, height, _, bt = ctrl[-1]
            if opener != 0x04:
                raise _fail("else without if", at)
            moved = _more(moved, len(bt.results) + len(bt.params), most_moved, at)
            _pops(st, height, unreachable, bt.results, at)
            if len(st) != height:
                raise _fail("type mismatch: values remaining on stack at end of block", at)
            match[start] = n
            ctrl[-1] = (0x05, n, height, bt.results, bt)
            unreachable = False
            for t in bt.params:
                push(n << 8 | t)
            add_imm(None)
        elif op == 0x1A:
            if len(st) > height:
                st.pop()
            else:
                _pop(st, height, unreachable, 0, at)
            add_imm(None)
        elif op == 0x1B:
            _pop(st, height, unreachable, I32, at)
            second = _pop(st, height, unreachable, 0, at) & 255
            first = _pop(st, height, unreachable, 0, at) & 255
            if second in REFERENCES or first in REFERENCES:
                raise _fail("type mismatch: select without type needs numbers", at)
            if first and second and first != second:
                raise _fail("type mismatch: select operands differ", at)
            push(n << 8 | (first or second))
            add_imm(None)
        elif op == 0x0F:
            moved = _more(moved, len(kind.results), most_moved, at)
            _pops(st, height, unreachable, kind.results, at)
            del st[height:]
            unreachable = True
            add_imm(None)
        elif op == 0x11 or op == 0x13:
            x, p = read_u32(data, p)
            before = p
            y, p = read_u32(data, p)
            if p - before > 1 and y < 128:
                code.padded.append(n)
            if _table(tables, y, at) != FUNCREF:
                raise _fail("type mismatch: indirect call needs a table of funcref", at)
            if x >= len(types):
                raise _fail("unknown type", at)
            called = types[x]
            moved = _more(moved, len(called.params) + len(called.results) + len(st), most_moved, at)
            index = _pop(st, height, unreachable, I32, at)
            args = _pops(st, height, unreachable, called.params, at)
            if op == 0x11:
                if not (unreachable or dead):
                    code.calls[n] = (tuple(st), (*args, index))
                for t in called.results:
                    push(n << 8 | t)
            else:
                if called.results != kind.results:
                    raise _fail("type mismatch: tail call must return what the function returns", at)
                code.tail_calls.append(n)
                del st[height:]
                unreachable = True
            add_imm((x, y))
        elif op == 0x0E:
            count, p = read_u32(data, p)
            if count > end - p:
                raise _fail("unexpected end", at)
            depths = []
            for _ in range(count + 1):
                x, p = read_u32(data, p)
                depths.append(x)
            _pop(st, height, unreachable, I32, at)
            wanted = _label(code, ctrl, depths[-1], n, at)
            for x in dict.fromkeys(depths[:-1]):
                other = _label(code, ctrl, x, n, at)
                if len(other) != len(wanted):
                    raise _fail("type mismatch: br_table labels of different arity", at)
                moved = _more(moved, len(other), most_moved, at)
                held = _pops(st, height, unreachable, other, at)
                st += held
                if unreachable:  # keep the stack's height: unknowns that were not there are dropped again
                    while st and not st[-1] & 255 and len(st) > height:
                        st.pop()
            _pops(st, height, unreachable, wanted, at)
            del st[height:]
            unreachable = True
            add_imm(tuple(depths))
        elif op == 0x00:
            del st[height:]
            unreachable = True
            add_imm(None)
        elif op == 0x01:
            add_imm(None)
        elif op == 0x3F or op == 0x40:
            before = p
            x, p = read_u32(data, p)
            if p - before > 1 and x < 128:
                code.padded.append(n)
            _check_memory(x, memories, at)
            if op == 0x40:
                _pop(st, height, unreachable, I32, at)
                code.special.append(n)
            push(n << 8 | I32)
            add_imm(x)
        elif op == 0x12:
            x, p = read_u32(data, p)
            if x >= len(func_types):
                raise _fail(f"unknown function {x}", at)
            called = types[func_types[x]]
            moved = _more(moved, len(called.params), most_moved, at)
            _pops(st, height, unreachable, called.params, at)
            if called.results != kind.results:
                raise _fail("type mismatch: tail call must return what the function returns", at)
            if not (unreachable or dead):
                code.tail_calls.append(n)
            del st[height:]
            unreachable = True
            add_imm(x)
        elif op == 0x08:
            x, p = read_u32(data, p)
            carried = _tag(module, x, at)
            moved = _more(moved, len(carried), most_moved, at)
            _pops(st, height, unreachable, carried, at)
            del st[height:]
            unreachable = True
            add_imm(x)
        elif op == 0x0A:
            _pop(st, height, unreachable, EXNREF, at)
            del st[height:]
            unreachable = True
            add_imm(None)
        elif op == 0x1F:
            bt, p = _block_type(data, p, types, at)
            if bt is not _EMPTY:
                code.label_values = True
            count, p = read_u32(data, p)
            if count > end - p:
                raise _fail("unexpected end", at)
            clauses = []
            for _ in range(count):
                x = data[p]
                p += 1
                if x > 3:
                    raise _fail(f"malformed catch clause {x:#x}", at)
                y = -1
                carried = ()
                if x < 2:
                    y, p = read_u32(data, p)
                    carried = _tag(module, y, at)
                if x & 1:
                    carried += (EXNREF,)
                z, p = read_u32(data, p)
                wanted = _label(code, ctrl, z, n, at)
                moved = _more(moved, len(wanted), most_moved, at)
                if wanted != carried:
                    raise _fail(f"type mismatch: a clause gives {_names(carried)} to a label of {_names(wanted)}", at)
                clauses.append(Catch(x, y, z))
            moved = _more(moved, len(bt.params), most_moved, at)
            _pops(st, height, unreachable, bt.params, at)
            saved.append((unreachable, dead))
            dead = dead or unreachable
            height = len(st)
            if not dead:
                code.heights[n] = height
            ctrl.append((op, n, height, bt.results, bt))
            unreachable = False
            for t in bt.params:
                push(n << 8 | t)
            code.catches[n] = tuple(clauses)
            add_imm(bt)
        elif op == 0x1C:
            count, p = read_u32(data, p)
            if count != 1:
                raise _fail("invalid result arity of select", at)
            t = data[p]
            p += 1
            if t not in TYPE_NAMES:
                raise _fail("malformed value type", at)
            _pop(st, height, unreachable, I32, at)
            _pop(st, height, unreachable, t, at)
            _pop(st, height, unreachable, t, at)
            push(n << 8 | t)
            add_imm((t,))
        elif op == 0x25 or op == 0x26:
            x, p = read_u32(data, p)
            t = _table(tables, x, at)
            if op == 0x25:
                _pop(st, height, unreachable, I32, at)
                push(n << 8 | t)
            else:
                _pop(st, height, unreachable, t, at)
                _pop(st, height, unreachable, I32, at)
                code.special.append(n)
            add_imm(x)
        elif op == 0xD0:
            t = data[p]
            p += 1
            if t not in REFERENCES:
                raise NotSupported("a null of a type of the GC proposal", need="gc", offset=at)
            push(n << 8 | t)
            add_imm(t)
        elif op == 0xD1:
            t = _pop(st, height, unreachable, 0, at) & 255
            if t and t not in REFERENCES:
                raise _fail("type mismatch: expected a reference", at)
            push(n << 8 | I32)
            add_imm(t)
        elif op == 0xD2:
            x, p = read_u32(data, p)
            if x >= len(func_types):
                raise _fail(f"unknown function {x}", at)
            if x not in module.declared_funcs:
                raise _fail("undeclared function reference", at)
            push(n << 8 | FUNCREF)
            add_imm(x)
        elif op in (0xFC, 0xFD, 0xFE):
            sub, p = read_u32(data, p)
            op = op << 16 | sub
            row = TABLE.get(op)
            if row is None or sub > 0xFFFF:
                raise _unknown(op, at)
            ops[-1] = op
            imm = row.imm
            values: tuple[int, ...] = ()
            if imm == "memarg":
                if op >= 0xFE0000:
                    if read_u32(data, p)[0] & ~0x40 != _ALIGN[op]:
                        raise _fail("atomic alignment must be natural", at)
                    code.special.append(n)
                p = _memarg(data, p, _ALIGN[op], memories, at)
            elif imm == "zero":
                if data[p]:
                    raise _fail("non-zero byte after fence", at)
                p += 1
                code.special.append(n)
            elif imm == "memarg_lane":
                p = _memarg(data, p, _ALIGN[op], memories, at)
                if data[p] >= 16 >> _ALIGN[op]:
                    raise _fail("invalid lane index", at)
                p += 1
            elif imm == "lane":
                if data[p] >= {"i8": 16, "i1": 8, "i3": 4, "i6": 2, "f3": 4, "f6": 2}[row.name[:2]]:
                    raise _fail("invalid lane index", at)
                p += 1
            elif imm == "lanes16":
                if any(lane >= 32 for lane in data[p : p + 16]):
                    raise _fail("invalid lane index", at)
                p += 16
            elif imm == "v128":
                p += 16
            elif imm != "-":
                if op != 0xFC0010:
                    code.special.append(n)
                for what in imm.split("_"):
                    before = p
                    x, p = read_u32(data, p)
                    if p - before > 1 and x < 128:
                        code.padded.append(n)
                    values += (x,)
                    if what == "mem":
                        _check_memory(x, memories, at)
                    elif what == "table":
                        _table(tables, x, at)
                    elif what == "data":
                        if module.data_count is None:
                            raise _fail("data count section required", at)
                        if x >= module.data_count:
                            raise _fail(f"unknown data segment {x}", at)
                    elif x >= len(module.elems):
                        raise _fail(f"unknown elem segment {x}", at)
            if p > end:
                raise _fail("unexpected end", at)
            if row.pops is not None and row.pushes is not None:
                if op == 0xFC000C and module.elems[values[0]].element != tables[values[1]].element:
                    raise _fail("type mismatch: table.init", at)
                if op == 0xFC000E and tables[values[0]].element != tables[values[1]].element:
                    raise _fail("type mismatch: table.copy", at)
                _pops(st, height, unreachable, row.pops, at)
                for t in row.pushes:
                    push(n << 8 | t)
            elif op == 0xFC000F:
                _pop(st, height, unreachable, I32, at)
                _pop(st, height, unreachable, _table(tables, values[0], at), at)
                push(n << 8 | I32)
            elif op == 0xFC0010:
                push(n << 8 | I32)
            else:
                _pop(st, height, unreachable, I32, at)
                _pop(st, height, unreachable, _table(tables, values[0], at), at)
                _pop(st, height, unreachable, I32, at)
            add_imm(values)
        else:
            raise _unknown(op, at)
    else:
        raise InvalidModule("END opcode expected", offset=end)
    pos.append(p - base)
    code.moved = moved
    return code


_OLDER_EXCEPTIONS: Final = {0x06: "try", 0x07: "catch", 0x09: "rethrow", 0x18: "delegate", 0x19: "catch_all"}


def _unknown(op: int, at: int) -> InvalidModule | NotSupported:
    first = op if op < 0x100 else op >> 16
    if first in _OLDER_EXCEPTIONS:
        return NotSupported(f"exceptions of the older form ({_OLDER_EXCEPTIONS[first]})", need="legacy-exceptions",
                            offset=at, hint="compile for the standard form (try_table), or convert the module")
    if first in (0x14, 0x15, 0xD3, 0xD4, 0xD5, 0xD6, 0xFB):
        return NotSupported("instructions of the GC or function references proposal", need="gc", offset=at)
    if first == 0xFD:
        return NotSupported("relaxed SIMD instructions", need="relaxed-simd", offset=at)
    if first == 0xFE:
        return NotSupported("atomic instructions", need="threads", offset=at)
    if first == 0xFC and op & 0xFFFF in (19, 20, 21, 22):
        return NotSupported("wide arithmetic instructions", need="wide-arithmetic", offset=at)
    return InvalidModule(f"illegal opcode {op:#x}", offset=at)


def validate_module(module: Module) -> None:
    """Validate everything outside function bodies: constant expressions, segments, index bounds."""
    for i, item in enumerate(module.own_globals):
        known = len(module.globals) - len(module.own_globals)
        _constant(module, item.init, item.type.type, known + i)
    for elem in module.elems:
        if elem.mode == "active":
            _constant(module, elem.offset, I32, len(module.globals))
        for func in elem.items:
            if func is not None and func >= len(module.func_types):
                raise InvalidModule(f"unknown function {func}")
    for data in module.datas:
        if data.active:
            _constant(module, data.offset, I32, len(module.globals))


def validate(module: Module) -> None:
    """Validate the whole module, function bodies included. Raises as `analyze`."""
    validate_module(module)
    for func in range(module.imported_funcs, len(module.func_types)):
        analyze(module, func)


def _constant(module: Module, expr: bytes, want: int, known: int) -> None:
    """Check a constant expression; ``known`` globals may be read (imported ones, or earlier immutable ones)."""
    stack: list[int] = []
    at = 0
    while expr[at] != 0x0B:
        op = expr[at]
        at += 1
        if op == 0x41:
            at = read_s32(expr, at)[1]
            stack.append(I32)
        elif op == 0x42:
            at = read_s64(expr, at)[1]
            stack.append(I64)
        elif op == 0x43:
            at += 4
            stack.append(F32)
        elif op == 0x44:
            at += 8
            stack.append(F64)
        elif op == 0xFD:
            at = read_u32(expr, at)[1] + 16
            stack.append(V128)
        elif op == 0x23:
            index, at = read_u32(expr, at)
            if index >= known:
                raise InvalidModule(f"unknown global {index}")
            if module.globals[index].mutable:
                raise InvalidModule("constant expression required")
            stack.append(module.globals[index].type)
        elif op == 0xD2:
            index, at = read_u32(expr, at)
            if index >= len(module.func_types):
                raise InvalidModule(f"unknown function {index}")
            stack.append(FUNCREF)
        elif op == 0xD0:
            stack.append(expr[at])
            at += 1
        else:
            t = I32 if op in (0x6A, 0x6B, 0x6C) else I64
            if stack[-2:] != [t, t]:
                raise InvalidModule("type mismatch in constant expression")
            stack.pop()
    if stack != [want]:
        raise InvalidModule(f"type mismatch: constant expression gives {_names(stack)}, not {_names([want])}")
