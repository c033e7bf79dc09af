"""Lowering of label values: blocks, loops and ifs lose their parameters and results, branches carry nothing.

Wasm3 loses values that branches carry (seen: endless loops, 78 where 155 is right), so for it every value that crosses
a label goes through a local, in the input's code too: such programs then run right where the bare runtime is wrong.
One local for each (position, type) serves all labels: it is read at once where the branch arrives.

    v  block (param t) (result u)        v  local.set p  block  local.get p
      ...  w  br_if 0 (c)          ->      ...  w  c  local.set c'  local.tee q  local.get c'  br_if 0
    end                                    local.set q  end  local.get q
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..wasm.module import Body, FuncType, Module
from ..wasm.validate import Code
from ..wasm.values import I32, V128
from . import emit
from .pieces import Pieces

__all__ = ["Lowered", "derive", "has_label_values", "has_label_vectors"]

_EMPTY = FuncType((), ())


def has_label_values(module: Module, code: Code) -> bool:
    """Whether any block of the function has parameters or results, or a branch carries the function's results."""
    return code.label_values or (bool(code.outward) and bool(module.signature(code.func).results))


def has_label_vectors(module: Module, code: Code) -> bool:
    """Whether a label of the function takes several values with a vector among them (WAMR loses half of that)."""
    blocks = [imm for imm in code.imms if isinstance(imm, FuncType)] if code.label_values else []
    own = [module.signature(code.func).results] if code.outward else []
    return any(map(_with_vector, [*own, *(kind.params for kind in blocks), *(kind.results for kind in blocks)]))


def _with_vector(types: Sequence[int]) -> bool:
    return len(types) > 1 and V128 in types


def derive(module: Module, bodies: Mapping[int, tuple[Sequence[int], bytes]]) -> Module:
    """A module for the analysis of other bodies: function -> (types of declared locals, code).

    Its ``data`` holds only these bodies, so that deriving does not cost a copy of the module.
    """
    data = bytearray()
    all_bodies = list(module.bodies)
    for func, (locals_, code) in bodies.items():
        start = len(data)
        data += code
        runs = tuple((1, kind) for kind in locals_)
        all_bodies[func - module.imported_funcs] = Body(start, start, start, len(data), runs)
    return Module(
        bytes(data), module.sections, module.types, module.imports, module.defined, module.tables, module.memories,
        module.own_globals, module.exports, module.start, module.elems, module.data_count, all_bodies, module.datas,
        module.customs, module.func_types, module.globals, module.tags, module.declared_funcs,
    )


class Lowered:
    """A function without label values.

    Attributes:
        locals: types of the declared locals, the original ones first. code: the body. pieces: the map of offsets.
        loop_params: for each loop with parameters, in program order among all loops: number of the loop -> locals.
    """

    def __init__(self, module: Module, code: Code) -> None:
        self.pieces = Pieces()
        self._code = code
        self._types = module.local_types(code.func)
        self._known = len(module.signature(code.func).params)
        self._carriers: dict[tuple[int, int], int] = {}
        self._condition = -1
        self.loop_params: dict[int, tuple[int, ...]] = {}
        body = module.body(code.func)
        self._lower(module.data[body.expr : body.end], module.signature(code.func).results)
        self.locals = self._types[self._known :]
        self.code = self.pieces.code()

    def _local(self, kind: int) -> int:
        self._types.append(kind)
        return len(self._types) - 1

    def _carry(self, types: Sequence[int]) -> list[int]:
        for key in enumerate(types):
            if key not in self._carriers:
                self._carriers[key] = self._local(key[1])
        return [self._carriers[key] for key in enumerate(types)]

    def _put(self, types: Sequence[int]) -> bytes:
        return b"".join(emit.local_set(i) for i in reversed(self._carry(types)))

    def _get(self, types: Sequence[int]) -> bytes:
        return b"".join(emit.local_get(i) for i in self._carry(types))

    def _aside(self, types: Sequence[int]) -> bytes:
        """Put ``types`` below a condition into their carriers; the condition stays on the stack."""
        if not types:
            return b""
        if self._condition < 0:
            self._condition = self._local(I32)
        return emit.local_set(self._condition) + self._put(types) + emit.local_get(self._condition)

    def _lower(self, raw: bytes, results: tuple[int, ...]) -> None:
        code, pieces = self._code, self.pieces
        ops, pos, imms = code.ops, code.pos, code.imms
        wrap = bool(code.outward) and bool(results)
        labels: list[tuple[int, FuncType]] = [(0x02, FuncType((), results if wrap else ()))]
        if wrap:
            pieces.mark(0)
            pieces.emit(emit.BLOCK)
        loops = -1
        cursor = 0
        pieces.mark(0)

        def replace(i: int, before: bytes, instead: bytes | None, after: bytes) -> None:
            nonlocal cursor
            pieces.emit(raw[cursor : pos[i]])
            pieces.mark(pos[i])
            pieces.emit(before, raw[pos[i] : pos[i + 1]] if instead is None else instead)
            pieces.mark(pos[i + 1])
            pieces.emit(after)
            pieces.mark(pos[i + 1])
            cursor = pos[i + 1]

        def carried(depth: int) -> tuple[int, ...]:
            op, kind = labels[-1 - depth]
            return kind.params if op == 0x03 else kind.results

        last = len(ops) - 1
        for i, op in enumerate(ops):
            if 0x02 <= op <= 0x04:
                kind: FuncType = imms[i]  # type: ignore[assignment]
                labels.append((op, kind))
                if op == 0x03:
                    loops += 1
                    if kind.params:
                        self.loop_params[loops] = tuple(self._carry(kind.params))
                if kind != _EMPTY:
                    before = self._aside(kind.params) if op == 0x04 else self._put(kind.params)
                    replace(i, before, bytes([op, 0x40]), self._get(kind.params))
            elif op == 0x05:
                kind = labels[-1][1]
                if kind != _EMPTY:
                    replace(i, self._put(kind.results), None, self._get(kind.params))
            elif op == 0x0B:
                kind = labels.pop()[1]
                if i < last and kind.results:
                    replace(i, self._put(kind.results), None, self._get(kind.results))
            elif op in (0x0C, 0x0D, 0x0E):
                imm = imms[i]
                types = carried(imm[-1] if isinstance(imm, tuple) else imm)  # type: ignore[arg-type]
                if types:
                    if op == 0x0C:
                        replace(i, self._put(types), None, b"")
                    else:
                        replace(i, self._aside(types), None, self._get(types) if op == 0x0D else b"")
        pieces.emit(raw[cursor : pos[last]])
        pieces.mark(pos[last])
        if wrap:
            pieces.emit(self._put(results), emit.END, self._get(results))
        pieces.emit(emit.END)
