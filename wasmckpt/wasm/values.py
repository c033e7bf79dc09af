"""Value types and values: a value is a type code and a bit pattern, never a Python float (NaNs keep their bits)."""

from __future__ import annotations

from typing import Final, NamedTuple

I32: Final = 0x7F
I64: Final = 0x7E
F32: Final = 0x7D
F64: Final = 0x7C
V128: Final = 0x7B
FUNCREF: Final = 0x70
EXTERNREF: Final = 0x6F
EXNREF: Final = 0x69

TYPE_NAMES: Final[dict[int, str]] = {
    I32: "i32", I64: "i64", F32: "f32", F64: "f64", V128: "v128", FUNCREF: "funcref", EXTERNREF: "externref",
    EXNREF: "exnref",
}
NUMBER_TYPES: Final = frozenset({I32, I64, F32, F64, V128})
REFERENCES: Final = frozenset({FUNCREF, EXTERNREF, EXNREF})
WIDTH: Final[dict[int, int]] = {I32: 4, I64: 8, F32: 4, F64: 8, V128: 16, FUNCREF: 4, EXTERNREF: 4, EXNREF: 16}
"""Bytes that a value of the type takes, little-endian. A reference is a function's index, the host's handle, or
an exception (`Value`)."""
PAYLOAD_BYTES: Final = 12
"""Bytes of numbers that an exception may carry and be a value: with the tag they fit 128 bits."""
NULL: Final = 0xFFFFFFFF
"""The bits of a null reference to a function or to something of the host; those to exceptions have zero."""


def holds_payload(types: tuple[int, ...]) -> bool:
    """Whether an exception with such a payload can be a value: numbers of `PAYLOAD_BYTES` at most, no vector."""
    return NUMBER_TYPES.issuperset(types) and sum(WIDTH[kind] for kind in types) <= PAYLOAD_BYTES


class Value(NamedTuple):
    """One WebAssembly value: ``type`` is a type code (`I32`...), ``bits`` its bit pattern as an unsigned int.

    A reference's bits are the index of a function, or the handle that the host gave; `NULL` for null. Those of an
    exception are its tag's index + 1 in the lowest 32 bits, above them the numbers of its payload, one after the other;
    0 for null.
    """

    type: int
    bits: int

    def __str__(self) -> str:
        return f"{TYPE_NAMES.get(self.type, hex(self.type))}:{self.bits:#x}"
