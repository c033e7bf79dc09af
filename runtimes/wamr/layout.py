"""The one place inside WAMR's structs that a forked copy has to be asked for, found and checked at start.

Its API tells where a memory lies, in this process only. The struct behind a ``wasm_memory_inst_t`` stays; in it::

    memory size    u64      -8
    memory data    8 bytes   0    -> the guest's memory, which moves when it grows
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final

from wasmckpt.lazydata import dataclass
from wasmckpt.runtimes.base import ReadMemory
from wasmckpt.runtimes.wamr.cdef import otherwise

__all__ = ["Layout", "find_field", "read_field"]

_SEARCHED: Final = 128
_SIZE: Final = -8


@dataclass(frozen=True, slots=True)
class Layout:
    """``memory_field``: offset of the pointer to the memory inside the struct of a memory, in bytes."""

    memory_field: int


def find_field(struct_address: int, base: int, size: int) -> Layout:
    """The layout of a memory's struct at ``struct_address``. Raises `RuntimeMissing` if it is another."""
    at = ctypes.string_at(struct_address, _SEARCHED).find(struct.pack("<QQ", size, base))
    if at < 0 or at % 8:
        raise otherwise("keeps memories elsewhere")
    return Layout(at - _SIZE)


def read_field(read: ReadMemory, field: int) -> tuple[int, int]:
    """Base and length of the memory that the field at address ``field`` points to."""
    size, base = struct.unpack("<QQ", read(field + _SIZE, 16))
    return base, size
