"""Exceptions that a frame holds as values: nothing makes one but throwing it and catching it by reference."""

from __future__ import annotations

from ..instrument import emit
from ..instrument.linker import Linker
from ..wasm.leb128 import uleb
from ..wasm.module import FuncType
from ..wasm.validate import Catch
from ..wasm.values import EXNREF, I32, WIDTH, holds_payload

__all__ = ["add_exceptions"]

_CATCH_REF = 1
_THROW = b"\x08"


def add_exceptions(linker: Linker) -> int:
    """A function that makes the exception whose bits (see `wasmckpt.wasm.values.Value`) lie at an address."""
    module = linker.module
    code = []
    for tag in range(len(module.tags)):
        payload = module.payload(tag)
        if not holds_payload(payload):
            continue
        code += [emit.local_get(0), emit.load(I32, linker.memory), emit.i32_const(tag + 1), b"\x46", emit.IF]
        code.append(emit.block((*payload, EXNREF), linker.type_index))
        code.append(emit.try_table(emit.BLOCK[1:], [Catch(_CATCH_REF, tag, 0)]))
        at = 4
        for kind in payload:
            code.append(emit.local_get(0) + emit.load(kind, linker.memory, at))
            at += WIDTH[kind]
        code += [_THROW + uleb(tag), emit.END, emit.UNREACHABLE, emit.END]
        code += [emit.local_set(1), emit.DROP * len(payload), emit.local_get(1), emit.RETURN, emit.END]
    code.append(b"\xd0" + bytes([EXNREF]))
    return linker.add_function("exception", FuncType((I32,), (EXNREF,)), [EXNREF], b"".join(code))
