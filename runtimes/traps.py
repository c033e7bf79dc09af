"""The kinds of traps, in one vocabulary for all runtimes (the specification's words where it has some)."""

from __future__ import annotations

from typing import Final

from wasmckpt.errors import GuestTrap

__all__ = ["KINDS", "guest_trap"]

UNREACHABLE: Final = "unreachable"
DIVIDE_BY_ZERO: Final = "integer divide by zero"
INTEGER_OVERFLOW: Final = "integer overflow"
BAD_CONVERSION: Final = "invalid conversion to integer"
MEMORY_BOUNDS: Final = "out of bounds memory access"
UNDEFINED_ELEMENT: Final = "undefined element"
NULL_ELEMENT: Final = "uninitialized element"
SIGNATURE: Final = "indirect call type mismatch"
STACK_OVERFLOW: Final = "stack overflow"
UNALIGNED_ATOMIC: Final = "unaligned atomic"
NULL_REFERENCE: Final = "null reference"
UNCAUGHT: Final = "uncaught exception"
OTHER: Final = "other"

KINDS: Final = frozenset({
    UNREACHABLE, DIVIDE_BY_ZERO, INTEGER_OVERFLOW, BAD_CONVERSION, MEMORY_BOUNDS, UNDEFINED_ELEMENT, NULL_ELEMENT,
    SIGNATURE, STACK_OVERFLOW, UNALIGNED_ATOMIC, NULL_REFERENCE, UNCAUGHT, OTHER,
})
"""All values that the field ``kind`` of a `GuestTrap` takes."""


def guest_trap(kind: str, *, runtime: str, text: str = "", function: int | None = None,
               offset: int | None = None, callers: tuple[int, ...] = ()) -> GuestTrap:
    """The trap as every adapter reports it.

    Args:
        kind: one of `KINDS`.
        runtime: the adapter's name.
        text: the runtime's own words; the kind where it has none.
        function: index of the innermost function, in the module that was loaded.
        offset: bytes from the start of the loaded module to the instruction.
        callers: functions that called it, innermost first, as far as they are known.
    """
    trap = GuestTrap(text or kind, kind=kind, function=function, offset=offset, runtime=runtime)
    trap.callers = callers
    return trap
