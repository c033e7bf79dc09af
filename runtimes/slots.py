"""Bit patterns to and from the arrays of slots that C interfaces use."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from wasmckpt.errors import NotSupported, UsageError
from wasmckpt.wasm.values import EXTERNREF, F32, F64, FUNCREF, I32, I64, TYPE_NAMES, V128

__all__ = ["WIDTHS", "Packer", "Unpacker", "check_bits", "result_tuple", "slot_codec"]

Packer = Callable[[Sequence[int]], bytes]
Unpacker = Callable[[bytes], tuple[int, ...]]

WIDTHS = {I32: 32, F32: 32, I64: 64, F64: 64, V128: 128, FUNCREF: 64, EXTERNREF: 64}
_REFERENCES = (FUNCREF, EXTERNREF)


def slot_codec(types: Sequence[int], slot_bytes: int) -> tuple[Packer, Unpacker]:
    """``(pack, unpack)`` between bit patterns and consecutive little-endian slots of ``slot_bytes`` each (0: as many as
    each type takes).

    Both are a `struct` call for plain numbers. ``pack`` raises `UsageError` for a wrong count or a pattern out of
    range; both raise `NotSupported` for a reference that is not null.
    """
    if not types:
        return (lambda values: _no_values(values)), (lambda data: ())
    layout = struct.Struct("<" + "".join(_format(t, slot_bytes) for t in types))
    if V128 not in types and not any(t in _REFERENCES for t in types):
        def pack(values: Sequence[int]) -> bytes:
            try:
                return layout.pack(*values)
            except (struct.error, TypeError) as problem:
                raise _explain(types, values) from problem

        return pack, layout.unpack

    def pack_wide(values: Sequence[int]) -> bytes:
        if len(values) != len(types):
            raise _explain(types, values)
        flat: list[int] = []
        for kind, bits in zip(types, values, strict=True):
            if not _fits(kind, bits):
                raise _explain(types, values)
            if kind in _REFERENCES:
                _only_null(bits)
            if kind == V128:
                flat += [bits & 0xFFFF_FFFF_FFFF_FFFF, bits >> 64]
            else:
                flat.append(bits)
        return layout.pack(*flat)

    def unpack_wide(data: bytes) -> tuple[int, ...]:
        flat = iter(layout.unpack(data))
        values: list[int] = []
        for kind in types:
            bits = next(flat)
            if kind in _REFERENCES:
                _only_null(bits)
            values.append(bits | next(flat) << 64 if kind == V128 else bits)
        return tuple(values)

    return pack_wide, unpack_wide


def result_tuple(returned: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """What a `HostFunction` returned, as a tuple."""
    if returned is None:
        return ()
    return returned if isinstance(returned, tuple) else (returned,)


def check_bits(kind: int, bits: int) -> None:
    """Raises `UsageError` unless ``bits`` is a bit pattern of type ``kind``."""
    if not _fits(kind, bits):
        raise UsageError(f"not a bit pattern of type {TYPE_NAMES[kind]}", value=repr(bits))


def _fits(kind: int, bits: object) -> bool:
    return isinstance(bits, int) and 0 <= bits < 1 << WIDTHS[kind]


def _format(kind: int, slot_bytes: int) -> str:
    text = {32: "I", 64: "Q", 128: "QQ"}[WIDTHS[kind]]
    size = WIDTHS[kind] // 8
    if 0 < slot_bytes < size:
        raise NotSupported(f"a value of type {TYPE_NAMES[kind]} at the boundary", need="simd")
    return text + (f"{slot_bytes - size}x" if slot_bytes > size else "")


def _no_values(values: Sequence[int]) -> bytes:
    if len(values):
        raise _explain((), values)
    return b""


def _only_null(bits: int) -> None:
    # wasmtime writes a null funcref as a null pointer and a null externref as 0.
    if bits:
        raise NotSupported("a reference that is not null crosses the boundary", need="reference-types")


def _explain(types: Sequence[int], values: Sequence[int]) -> UsageError:
    wanted = ", ".join(TYPE_NAMES[t] for t in types)
    return UsageError("values do not fit the types (they are unsigned bit patterns)", types=f"({wanted})",
                      values=repr(tuple(values)))
