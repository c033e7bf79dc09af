"""The few places inside Wasm3's structs that its API does not show, found and checked on a tiny module at start.

* The value of a global lies 16 bytes behind what ``m3_FindGlobal`` returns. It is the only way to raise a flag in a
  forked copy of the process.
* The runtime's struct holds a pointer to the memory, which begins with a header of three words: runtime, end of the
  stack, length. The memory moves when it grows, the field does not. Around the field::

      stack          8 bytes  -32   where the next call begins; differs during a host call
      stack size     u32      -24
      stack slots    u32      -20   slots of 4 bytes from ``stack`` to the end
      last called    8 bytes  -16
      user data      8 bytes   -8
      memory         8 bytes    0   -> header, then the guest's memory
      pages, maximum u32 twice +8, +12
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

from wasmckpt.errors import RuntimeMissing
from wasmckpt.lazydata import dataclass
from wasmckpt.runtimes.base import ReadMemory
from wasmckpt.runtimes.wasm3.cdef import ffi, lib

__all__ = [
    "GLOBAL_VALUE",
    "HEADER_BYTES",
    "HEADER_STACK_END",
    "MAXIMUM",
    "SLOT_BYTES",
    "STACK",
    "STACK_SLOTS",
    "Layout",
    "probe",
    "read_memory_field",
]

GLOBAL_VALUE: Final = 16
HEADER_BYTES: Final = 24
HEADER_STACK_END: Final = 8
STACK: Final = -32
STACK_SLOTS: Final = -20
USER_DATA: Final = -8
PAGES: Final = 8
MAXIMUM: Final = 12
SLOT_BYTES: Final = 4
PAGE_BYTES: Final = 65_536
_STACK_BYTES: Final = 4096 * SLOT_BYTES
_SEARCHED: Final = 32_768
"""Bytes of the runtime's struct that are looked at; the compiler's own state, in front of the field, takes 14 KB."""

# (module (memory 1 5) (global (export "g") (mut i64) (i64.const 0x1122334455667788))
#   (func (export "f") (result i32) (memory.grow (i32.const 2))))
_MODULE: Final = bytes.fromhex(
    "0061736d010000000105016000017f03020100050401010105060e017e014288ef99abc5e88c91110b070902"
    "01670300016600000a08010600410240000b"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """``memory_field``: offset of the pointer to the memory inside the runtime's struct, in bytes."""

    memory_field: int


def probe() -> Layout:
    """Finds the layout. Raises `RuntimeMissing` if this build of Wasm3 is not as expected."""
    environment = lib.m3_NewEnvironment()
    mark = ffi.new("char[]", b"mark")
    runtime = lib.m3_NewRuntime(environment, _STACK_BYTES, mark)
    try:
        return _probe(environment, runtime, int(ffi.cast("uintptr_t", mark)))
    finally:
        lib.m3_FreeRuntime(runtime)
        lib.m3_FreeEnvironment(environment)


def read_memory_field(read: ReadMemory, field: int) -> tuple[int, int]:
    """Base and length of the memory that the field at address ``field`` points to. The header, which tells the length
    too, is not read: a guest that grows its memory meanwhile may have given it back."""
    (header,), (pages,) = struct.unpack("<Q", read(field, 8)), struct.unpack("<I", read(field + PAGES, 4))
    return header + HEADER_BYTES, pages * PAGE_BYTES


def _probe(environment: Any, runtime: Any, mark: int) -> Layout:
    module = ffi.new("IM3Module *")
    wasm = ffi.new("uint8_t[]", _MODULE)
    _must(lib.m3_ParseModule(environment, module, wasm, len(_MODULE)) == ffi.NULL, "parses no module")
    _must(lib.m3_LoadModule(runtime, module[0]) == ffi.NULL, "loads no module")
    _global(module[0])
    address = int(ffi.cast("uintptr_t", runtime))
    before = _memory(runtime)
    block = _read(address, _SEARCHED)
    at = block.find(struct.pack("<Q", before[0] - HEADER_BYTES))
    _must(at >= 0 and at % 8 == 0, "keeps the memory elsewhere")
    _field(runtime, address + at, mark, maximum=5)
    function = ffi.new("IM3Function *")
    _must(lib.m3_FindFunction(function, runtime, b"f") == ffi.NULL, "finds no function")
    _must(lib.m3_Call(function[0], 0, ffi.NULL) == ffi.NULL, "grows no memory")
    _must(_memory(runtime)[1] == 3 * PAGE_BYTES, "grows no memory")
    _field(runtime, address + at, mark, maximum=5)
    return Layout(at)


def _field(runtime: Any, field: int, mark: int, maximum: int) -> None:
    base, length = _memory(runtime)
    _must(read_memory_field(ctypes.string_at, field) == (base, length), "counts pages otherwise")
    stack = ctypes.c_uint64.from_address(field + STACK).value
    slots = ctypes.c_uint32.from_address(field + STACK_SLOTS).value
    owner = ctypes.c_uint64.from_address(base - HEADER_BYTES).value
    stack_end = ctypes.c_uint64.from_address(base - HEADER_BYTES + HEADER_STACK_END).value
    _must(slots * SLOT_BYTES == _STACK_BYTES, "counts its stack otherwise")
    _must(stack_end == stack + _STACK_BYTES, "limits its stack otherwise")
    _must(owner == int(ffi.cast("uintptr_t", runtime)), "has another memory header")
    _must(struct.unpack("<Q", ctypes.string_at(field + USER_DATA, 8)) == (mark,), "orders its runtime otherwise")
    pages = struct.unpack("<II", ctypes.string_at(field + PAGES, 8))
    _must(pages == (length // PAGE_BYTES, maximum), "counts pages otherwise")


def _global(module: Any) -> None:
    found = lib.m3_FindGlobal(module, b"g")
    _must(found != ffi.NULL, "finds no global")
    address = int(ffi.cast("uintptr_t", found)) + GLOBAL_VALUE
    _must(ctypes.c_uint64.from_address(address).value == 0x1122334455667788, "keeps globals elsewhere")
    value = ffi.new("M3TaggedValue *", {"type": 2, "bits": 0xA1B2C3D4E5F60718})
    _must(lib.m3_SetGlobal(found, value) == ffi.NULL, "sets no global")
    _must(ctypes.c_uint64.from_address(address).value == 0xA1B2C3D4E5F60718, "keeps globals elsewhere")
    ctypes.c_uint64.from_address(address).value = 5
    value.bits = 0
    _must(lib.m3_GetGlobal(found, value) == ffi.NULL and value.bits == 5, "keeps globals elsewhere")


def _read(address: int, length: int) -> bytes:
    with open("/proc/self/mem", "rb", buffering=0) as mem:  # past the end of the heap: fewer bytes, not a crash
        mem.seek(address)
        return mem.read(length)


def _memory(runtime: Any) -> tuple[int, int]:
    size = ffi.new("uint32_t *")
    base = lib.m3_GetMemory(runtime, size, 0)
    return int(ffi.cast("uintptr_t", base)), int(size[0])


def _must(true: bool, otherwise: str) -> None:
    if not true:
        raise RuntimeMissing(f"this build of Wasm3 is not as the adapter knows it: it {otherwise}", runtime="wasm3",
                             hint="pip install 'pywasm3==0.5.0'")
