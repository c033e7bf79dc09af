"""Bit patterns to and from arrays of ``wasm_val_t``: a word with the kind in its first byte, then a word of value."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from wasmckpt.errors import NotSupported
from wasmckpt.runtimes.slots import Packer, slot_codec
from wasmckpt.runtimes.wasmer.cdef import ffi, lib
from wasmckpt.wasm.values import EXTERNREF, F32, F64, FUNCREF, I32, I64

__all__ = ["KINDS", "VALUE_BYTES", "value_codec"]

KINDS: Final = {I32: 0, I64: 1, F32: 2, F64: 3, EXTERNREF: 128, FUNCREF: 129}
VALUE_BYTES: Final = 16

_FORMATS: Final = {I32: "I4x", F32: "I4x"}
_REFERENCES: Final = {FUNCREF, EXTERNREF}


def value_codec(types: Sequence[int], *, owned: bool) -> tuple[Packer, Callable[[Any], tuple[int, ...]]]:
    """``(pack, unpack)``: ``pack(values)`` gives bytes, ``unpack(data)`` reads where ``wasm_val_t *data`` points.

    ``pack`` raises `UsageError` for a wrong count or a pattern out of range; both raise `NotSupported` for a reference
    that is not null, as does this function for v128. ``owned``: ``unpack`` frees the references that it refuses, as it
    must for results.
    """
    check, _ = slot_codec(types, 8)  # what it refuses, in its words
    if not types:
        return check, lambda data: ()
    formats = [_FORMATS.get(kind, "Q") for kind in types]
    written = struct.Struct("<" + "".join("Q" + text for text in formats))
    read = struct.Struct("<" + "".join("8x" + text for text in formats))
    template = [word for kind in types for word in (KINDS[kind], 0)]
    references = [i for i, kind in enumerate(types) if kind in _REFERENCES]
    size = VALUE_BYTES * len(types)
    buffer = ffi.buffer

    def pack(values: Sequence[int]) -> bytes:
        words = template.copy()
        try:
            words[1::2] = values
            data = written.pack(*words)
        except (struct.error, TypeError, ValueError):
            check(values)
            raise
        if references:
            check(values)
        return data

    def unpack(data: Any) -> tuple[int, ...]:
        return read.unpack(buffer(data, size))

    def unpack_references(data: Any) -> tuple[int, ...]:
        values = unpack(data)
        given = [i for i in references if values[i]]
        for i in given if owned else ():
            lib.wasm_ref_delete(data[i].of.ref)
        if given:
            raise NotSupported("a reference that is not null crosses the boundary", need="reference-types")
        return values

    return pack, unpack_references if references else unpack
