"""Where WasmEdge keeps the value of a global and a memory's base and size, which its API does not show.

A global's value is read by no function that cffi could call (see `cdef`), and written while the guest runs it must be
by its address. A memory's base and size are looked for in a forked copy of the process too. All are plain members of
the structs that the API's pointers lead to; they are found by their contents on a tiny module at start, and checked by
a second look after both have changed.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Final

from wasmckpt.errors import RuntimeMissing
from wasmckpt.lazydata import dataclass
from wasmckpt.runtimes.base import ReadMemory
from wasmckpt.runtimes.wasmedge.cdef import address_of, ffi, lib, string, value
from wasmckpt.wasm.values import I64

__all__ = ["Layout", "probe"]

_PAGE: Final = 65_536
_SEARCHED: Final = 64
"""Bytes of a struct that are looked at; what lies behind a smaller one is not the first to match."""

# (module (memory (export "m") 3 77) (global (export "g") (mut i64) (i64.const 0x1122334455667788)))
_MODULE: Final = bytes.fromhex(
    "0061736d010000000504010103" "4d" "060e017e014288ef99abc5e88c91110b" "0709" "02" "016d0200" "01670300"
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes: ``value`` in a global's struct (a slot of 16 bytes); ``base`` (8 bytes) and ``pages`` (4 bytes)
    in a memory's."""

    value: int
    base: int
    pages: int

    def read_memory(self, read: ReadMemory, memory: int) -> tuple[int, int]:
        """Base and length in bytes of the memory whose struct lies at ``memory``."""
        (base,) = struct.unpack("<Q", read(memory + self.base, 8))
        (pages,) = struct.unpack("<I", read(memory + self.pages, 4))
        return base, pages * _PAGE


def probe(configuration: Any) -> Layout:
    """Finds the layout. Raises `RuntimeMissing` if this build of WasmEdge is not as expected."""
    keep: list[object] = []
    loader, validator = lib.WasmEdge_LoaderCreate(configuration), lib.WasmEdge_ValidatorCreate(configuration)
    executor, store = lib.WasmEdge_ExecutorCreate(configuration, ffi.NULL), lib.WasmEdge_StoreCreate()
    module, instance = ffi.new("void **"), ffi.new("void **")
    try:
        _must(not lib.WasmEdge_LoaderParseFromBuffer(loader, module, _MODULE, len(_MODULE)), "loads no module")
        _must(not lib.WasmEdge_ValidatorValidate(validator, module[0]), "finds a module invalid")
        _must(not lib.WasmEdge_ExecutorInstantiate(executor, instance, store, module[0]), "makes no instance")
        found = lib.WasmEdge_ModuleInstanceFindGlobal(instance[0], string("g", keep))
        memory = lib.WasmEdge_ModuleInstanceFindMemory(instance[0], string("m", keep))
        return Layout(_global(found), *_memory(memory))
    finally:
        for thing, delete in ((instance[0], lib.WasmEdge_ModuleInstanceDelete), (store, lib.WasmEdge_StoreDelete),
                              (executor, lib.WasmEdge_ExecutorDelete), (module[0], lib.WasmEdge_ASTModuleDelete),
                              (validator, lib.WasmEdge_ValidatorDelete), (loader, lib.WasmEdge_LoaderDelete)):
            delete(thing)


def _global(found: Any) -> int:
    at = _first(found, struct.pack("<Q", 0x1122334455667788), 8)
    _must(not lib.WasmEdge_GlobalInstanceSetValue(found, value(I64, 0xA1B2C3D4E5F60718)), "sets no global")
    _must(_block(found)[at:at + 8] == struct.pack("<Q", 0xA1B2C3D4E5F60718), "keeps globals elsewhere")
    return at


def _memory(memory: Any) -> tuple[int, int]:
    base = address_of(lib.WasmEdge_MemoryInstanceGetPointer(memory, 0, 3 * _PAGE))
    places = _first(memory, struct.pack("<Q", base), 8), _first(memory, struct.pack("<I", 3), 4)
    _must(not lib.WasmEdge_MemoryInstanceGrowPage(memory, 4), "grows no memory")
    grown = address_of(lib.WasmEdge_MemoryInstanceGetPointer(memory, 0, 7 * _PAGE))
    after = Layout(0, *places).read_memory(ctypes.string_at, address_of(memory))
    _must(after == (grown, 7 * _PAGE) and lib.WasmEdge_MemoryInstanceGetPageSize(memory) == 7, "sizes memories else")
    _must(grown == base, "moves a memory that grows")
    return places


def _first(found: Any, wanted: bytes, align: int) -> int:
    block = _block(found)
    at = next((i for i in range(0, len(block), align) if block[i:i + len(wanted)] == wanted), -1)
    _must(at >= 0, "keeps globals or memories elsewhere")
    return at


def _block(found: Any) -> bytes:
    address = address_of(found)
    with open("/proc/self/mem", "rb", buffering=0) as mem:  # past the end of the heap: fewer bytes, not a crash
        mem.seek(address)
        return mem.read(_SEARCHED)


def _must(true: object, otherwise: str) -> None:
    if not true:
        raise RuntimeMissing(f"this build of WasmEdge is not as the adapter knows it: it {otherwise}",
                             runtime="wasmedge", hint="wasmckpt runtimes install wasmedge")
