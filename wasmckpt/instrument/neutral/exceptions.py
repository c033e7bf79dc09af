"""Exceptions as values: an exnref is an i64, its tag's index + 1 in the upper half, its payload's bits in the lower.

An exception cannot be changed, and nothing tells two of one tag and payload apart: so it is these, and to throw it
again is to throw them. The tags of a program are all its own (a host function does not throw), so a clause for all
tags is one for each:

    try_table (catch_all_ref $l)         block $done  block $b  block $a
      ...                          ->      try_table (catch $tag0 $a) (catch $tag1 $b)  ...  end  br $done
    end                                  end  (pack for tag 0)  br $l  end  (pack for tag 1)  br $l  end

A clause for all tags that does not take the exception is one for each as well: WasmEdge leaves the payload on the stack
there, and then the function's locals are others. The other clauses stay.

Rejected: records in a memory of their own, for any payload (nothing would ever free them, and C++ throws again at each
frame with a destructor). So a payload of more than 32 bits is refused, but only where the exception itself is taken;
compilers' tags carry an address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import NotSupported
from ...wasm.leb128 import sleb, uleb
from ...wasm.module import FuncType, Module
from ...wasm.validate import Catch, Code
from ...wasm.values import EXCEPTION_PAYLOADS, EXNREF, F32, I64
from .. import emit
from .plan import neutral_types

__all__ = ["ExceptionValues", "Wrapped"]

_EXTEND, _OR, _SHIFT, _WRAP = b"\xad", b"\x84", b"\x42\x20\x88", b"\xa7"
_TO_BITS, _TO_FLOAT = b"\xbc", b"\xbe"
_THROW_NULL = b"\xd0" + bytes([EXNREF]) + b"\x0a"


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
    _thrower: int = -1

    def throw_ref(self) -> bytes:
        """``throw_ref``"""
        if self._thrower < 0:
            tags = [tag for tag in range(len(self.module.tags)) if self.module.payload(tag) in EXCEPTION_PAYLOADS]
            code = emit.local_get(0) + b"\x50" + emit.IF + _THROW_NULL + emit.END
            for tag in tags:
                payload = self.module.payload(tag)
                code += emit.local_get(0) + _SHIFT + _WRAP + emit.i32_const(tag + 1) + b"\x46" + emit.IF
                if payload:
                    code += emit.local_get(0) + _WRAP + (_TO_FLOAT if payload == (F32,) else b"")
                code += b"\x08" + uleb(tag) + emit.END
            self._thrower = self.add(FuncType((I64,), ()), [], code + emit.UNREACHABLE)
        return emit.call(self._thrower) + emit.UNREACHABLE

    def wrap(
        self, code: Code, i: int, kind: bytes, moved: Callable[[int], int], temporary: int,
    ) -> Wrapped:
        """The ``try_table`` at ``i``, with block type ``kind``, of which some clause `wraps`.

        Args:
            moved: the depth of a label for one that is counted from outside of the ``try_table`` in the original.
            temporary: a local of type i32 that may be used.

        Raises:
            NotSupported: an exception may have to be taken whose payload has more than 32 bits.
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
            behind += emit.END + self._pack(clause, temporary) + emit.br(moved(clause.depth) + outside)
        return Wrapped(opened + emit.try_table(kind, native), behind + emit.END, blocks)

    def _payload(self, code: Code, i: int, clause: Catch) -> tuple[int, ...]:
        payload = self.module.payload(clause.tag)
        if clause.kind & 1 and payload not in EXCEPTION_PAYLOADS:
            at = self.module.body(code.func).expr + code.pos[i]
            raise NotSupported(
                f"an exception as a value (exnref), maybe with tag {clause.tag}, whose payload has more than 32 bits",
                need="exceptions", function=code.func, offset=at,
                hint="catch it without the exception itself, or carry an address",
            )
        return neutral_types(payload)

    def _pack(self, clause: Catch, temporary: int) -> bytes:
        """The payload on the stack to what the clause gives: nothing, the exception, or itself and the exception."""
        payload = self.module.payload(clause.tag)
        if not clause.kind & 1:
            return b"\x1a" * len(payload)
        number = b"\x42" + sleb(clause.tag + 1 << 32)
        if not payload:
            return number
        to_bits = _TO_BITS if payload == (F32,) else b""
        if clause.kind == 1:
            back = _TO_FLOAT if to_bits else b""
            to_bits += emit.local_tee(temporary) + back + emit.local_get(temporary)
        return to_bits + _EXTEND + number + _OR

    def _block(self, params: tuple[int, ...], results: tuple[int, ...]) -> bytes:
        if params:
            return b"\x02" + sleb(self.type_index(FuncType(params, results)))
        return emit.block(results, self.type_index)
