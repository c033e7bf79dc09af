"""Where wasmtime keeps a memory's length, so that it can be read from a forked copy of the process.

The C API tells base and length of the running process only. Behind a function's raw pointer lies a record of four words
(two code pointers, a type index, and the instance's context); the context holds ``{base, length}`` for each memory
that the instance defines. Nothing of that is promised by the library, so the place is found by its contents, and only
one that is named by a pointer in the same context counts: that is how generated code reaches it.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["find_definition"]

_CONTEXT_AT: Final = 24
_SEARCHED: Final = 1 << 20
"""Bytes of the context that are looked at; it grows with the number of functions, memories and globals."""


def find_definition(raw_function: int, base: int, length: int) -> int | None:
    """Address of the 16 bytes that hold ``base`` and ``length`` of a memory of the function's instance, or None."""
    with open("/proc/self/mem", "rb", buffering=0) as mem:  # a wrong guess gives an error here, not a crash

        def read(address: int, n: int) -> bytes:
            try:
                mem.seek(address)
                return mem.read(n)
            except (OSError, ValueError, OverflowError):
                return b""

        record = read(raw_function + _CONTEXT_AT, 8)
        if len(record) != 8:
            return None
        context = int.from_bytes(record, "little")
        block = b""
        while len(block) < _SEARCHED:
            chunk = read(context + len(block), 4096 - (context + len(block)) % 4096)
            if not chunk:
                break
            block += chunk
            at = block.find(struct.pack("<QQ", base, length))
            while at >= 0:
                if at % 8 == 0 and struct.pack("<Q", context + at) in block:
                    return context + at
                at = block.find(struct.pack("<QQ", base, length), at + 1)
    return None

