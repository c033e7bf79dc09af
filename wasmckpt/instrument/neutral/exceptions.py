"""Exceptions as values: an exnref is a v128, its tag's index + 1 in the lowest lane, its payload in the other three.

An exception cannot be changed, and nothing tells two of one tag and payload apart: so it is these, and to throw it
again is to throw them. The tags of a program are all its own (a host function does not throw), so a clause for all
tags is one for each:

    try_table (catch_all_ref $l)         block $done  block $b  block $a
      ...                          ->      try_table (catch $tag0 $a) (catch $tag1 $b)  ...  end  br $done
    end                                  end  call $pack0  br $l  end  call $pack1  br $l  end

A clause for all tags that does not take the exception is one for each as well: WasmEdge leaves the payload on the stack
there, and then the function's locals are others. And it crashes on a branch to a ``try_table``'s own label: such ones
get a block around them, too, to which the branch leads. The other clauses stay.

Rejected: records in a memory of their own, for any payload (nothing would ever free them, and C++ throws again at each
frame with a destructor). So a payload of more than 96 bits, or with references, is refused, but only where the
exception itself is taken; compilers' tags carry an address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...errors import NotSupported
from ...lazydata import dataclass, field
from ...wasm.leb128 import sleb, uleb
from ...wasm.module import FuncType, Module
from ...wasm.validate import Catch, Code
from ...wasm.values import EXNREF, F32, F64, V128, WIDTH, holds_payload
from .. import emit
from .plan import neutral_types

__all__ = ["ExceptionValues", "Wrapped"]

_WRAP, _HIGH = b"\xa7", b"\x42\x20\x88\xa7"
_FROM_FLOAT, _TO_FLOAT = {F32: b"\xbc", F64: b"\xbd"}, {F32: b"\xbe", F64: b"\xbf"}
_JOIN = b"\xad\x42\x20\x86\x84"
"""The upper half (i32) on top of the lower one (i64) to an i64."""
_THROW_NULL = b"\xd0" + bytes([EXNREF]) + b"\x0a"


def _lane(number: int, *, replace: bool = False) -> bytes:
    """``i32x4.extract_lane`` or ``i32x4.replace_lane``"""
    return bytes([0xFD, 28 if replace else 27, number])


class Wrapped(NamedTuple):
    """A ``try_table`` in blocks: what stands before its body, what behind its ``end``, how many blocks were added."""

    before: bytes
    behind: bytes
    blocks: int


@dataclass(slots=True)
class ExceptionValues:
    """Makes the code.

    Attributes:
        add: adds a function (type, locals, code without ``end``) and returns its index. type_index: index of a type.
    """

    module: Module
    add: Callable[[FuncType, Sequence[int], bytes], int]
    type_index: Callable[[FuncType], int]
    _made: dict[tuple[int, bool], int] = field(default_factory=dict)
    """Added functions, by tag and whether the payload stays; -1: `throw_ref`."""

    def throw_ref(self) -> bytes:
        """``throw_ref``"""
        key = -1, False
        if key not in self._made:
            code = emit.local_get(0) + b"\xfd\x53\x45" + emit.IF + _THROW_NULL + emit.END
            for tag in range(len(self.module.tags)):
                payload = self.module.payload(tag)
                if holds_payload(payload):
                    code += emit.local_get(0) + _lane(0) + emit.i32_const(tag + 1) + b"\x46" + emit.IF
                    code += self._unpack(payload) + b"\x08" + uleb(tag) + emit.END
            self._made[key] = self.add(FuncType((V128,), ()), [], code + emit.UNREACHABLE)
        return emit.call(self._made[key]) + emit.UNREACHABLE

    @staticmethod
    def _unpack(payload: tuple[int, ...]) -> bytes:
        code, lane = b"", 1
        for kind in payload:
            code += emit.local_get(0) + _lane(lane)
            if WIDTH[kind] == 8:
                code += b"\xad" + emit.local_get(0) + _lane(lane + 1) + _JOIN
            code += _TO_FLOAT.get(kind, b"")
            lane += WIDTH[kind] // 4
        return code

    def _pack(self, tag: int, *, keep: bool) -> bytes:
        """The payload on the stack to the exception; ``keep``: above the payload."""
        key = tag, keep
        if key not in self._made:
            payload = self.module.payload(tag)
            code = b"\xfd\x0c" + (tag + 1).to_bytes(16, "little")
            lane = 1
            for n, kind in enumerate(payload):
                bits = emit.local_get(n) + _FROM_FLOAT.get(kind, b"")
                for half in (_WRAP, _HIGH) if WIDTH[kind] == 8 else (b"",):
                    code += bits + half + _lane(lane, replace=True)
                    lane += 1
            kept = payload if keep else ()
            before = b"".join(emit.local_get(n) for n in range(len(kept)))
            self._made[key] = self.add(FuncType(payload, (*kept, V128)), [], before + code)
        return emit.call(self._made[key])

    def wrap(
        self, code: Code, i: int, kind: bytes, moved: Callable[[int], int],
    ) -> Wrapped:
        """The ``try_table`` at ``i``, with block type ``kind``, one of those `to_wrap`.

        Args:
            moved: the depth of a label for one that is counted from outside of the ``try_table`` in the original.

        Raises:
            NotSupported: an exception may have to be taken whose payload is too large.
        """
        # Each clause for one tag, and whether something has to be done before its label.
        clauses: list[tuple[Catch, bool]] = []
        for clause in code.catches[i]:
            for tag in range(len(self.module.tags)) if clause.kind & 2 else (clause.tag,):
                through = clause.kind & 1 or (clause.kind == 2 and self.module.payload(tag))
                clauses.append((clause._replace(tag=tag), bool(through)))
        packed = [clause for clause, through in clauses if through]
        blocks = len(packed) + 1
        whole: FuncType = code.imms[i]  # type: ignore[assignment]
        params = neutral_types(whole.params)
        opened = self._block(params, neutral_types(whole.results))
        for clause in reversed(packed):
            opened += self._block(params, self._payload(code, i, clause))
        native, place = [], 0
        for clause, through in clauses:
            native.append(Catch(0, clause.tag, place if through else moved(clause.depth) + blocks))
            place += through
        behind = emit.br(len(packed))
        for n, clause in enumerate(packed):
            outside = blocks - n - 1
            behind += emit.END + self._give(clause) + emit.br(moved(clause.depth) + outside)
        return Wrapped(opened + emit.try_table(kind, native), behind + emit.END, blocks)

    def _payload(self, code: Code, i: int, clause: Catch) -> tuple[int, ...]:
        payload = self.module.payload(clause.tag)
        if clause.kind & 1 and not holds_payload(payload):
            at = self.module.body(code.func).expr + code.pos[i]
            raise NotSupported(
                f"an exception as a value (exnref), maybe with tag {clause.tag}, whose payload is too large",
                need="exceptions", function=code.func, offset=at,
                hint="catch it without the exception itself, or carry an address",
            )
        return neutral_types(payload)

    def _give(self, clause: Catch) -> bytes:
        """The payload on the stack to what the clause gives: nothing, the exception, or itself and the exception."""
        if clause.kind & 1:
            return self._pack(clause.tag, keep=clause.kind == 1)
        return b"\x1a" * len(self.module.payload(clause.tag))

    def _block(self, params: tuple[int, ...], results: tuple[int, ...]) -> bytes:
        if params:
            return b"\x02" + sleb(self.type_index(FuncType(params, results)))
        return emit.block(results, self.type_index)
