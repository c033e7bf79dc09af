"""WasmEdge's C API, declared for cffi (ABI mode), and its library.

A value is a 128-bit number and its type. cffi knows no such number, so it is declared as two halves, with the padding
behind the type that makes it 32 bytes; arrays must begin at a multiple of 16. Functions that RETURN a value
are not declared: cffi gives them an unaligned place, and they crash. A result is its code (a struct of one number).
"""

from __future__ import annotations

from typing import Any, Final

from cffi import FFI

from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes import provided
from wasmckpt.wasm.values import EXTERNREF, F32, F64, FUNCREF, I32, I64, V128

__all__ = ["PROPOSALS", "VALUE_BYTES", "VALUE_TYPES", "address_of", "ffi", "lib", "message", "string", "value"]

ffi: Final[Any] = FFI()
ffi.cdef("""
typedef struct { uint8_t data[8]; } WasmEdge_ValType;
typedef struct { uint64_t low, high; WasmEdge_ValType type; uint64_t padding; } WasmEdge_Value;
typedef struct { uint32_t length; const char *buf; } WasmEdge_String;
typedef uint32_t WasmEdge_Result;
typedef WasmEdge_Result (*WasmEdge_HostFunc_t)(void *, const void *, const WasmEdge_Value *, WasmEdge_Value *);

const char *WasmEdge_VersionGet(void);
void WasmEdge_LogOff(void);
const char *WasmEdge_ResultGetMessage(WasmEdge_Result);

void *WasmEdge_ConfigureCreate(void);
void WasmEdge_ConfigureAddProposal(void *, int);
void WasmEdge_ConfigureSetForceInterpreter(void *, bool);
void WasmEdge_ConfigureCompilerSetOutputFormat(void *, int);
void WasmEdge_ConfigureDelete(void *);

void *WasmEdge_LoaderCreate(const void *);
WasmEdge_Result WasmEdge_LoaderParseFromBuffer(void *, void **, const uint8_t *, uint32_t);
void WasmEdge_LoaderDelete(void *);
void *WasmEdge_ValidatorCreate(const void *);
WasmEdge_Result WasmEdge_ValidatorValidate(void *, const void *);
void WasmEdge_ValidatorDelete(void *);
void WasmEdge_ASTModuleDelete(void *);

void *WasmEdge_CompilerCreate(const void *);
WasmEdge_Result WasmEdge_CompilerCompileFromBuffer(void *, const uint8_t *, uint64_t, const char *);
void WasmEdge_CompilerDelete(void *);

void *WasmEdge_ExecutorCreate(const void *, void *);
WasmEdge_Result WasmEdge_ExecutorInstantiate(void *, void **, void *, const void *);
WasmEdge_Result WasmEdge_ExecutorRegisterImport(void *, void *, const void *);
WasmEdge_Result WasmEdge_ExecutorInvoke(void *, const void *, const WasmEdge_Value *, uint32_t, WasmEdge_Value *,
                                        uint32_t);
void WasmEdge_ExecutorDelete(void *);
void *WasmEdge_StoreCreate(void);
void WasmEdge_StoreDelete(void *);

void *WasmEdge_ModuleInstanceCreate(WasmEdge_String);
void WasmEdge_ModuleInstanceAddFunction(void *, WasmEdge_String, void *);
void WasmEdge_ModuleInstanceAddGlobal(void *, WasmEdge_String, void *);
void *WasmEdge_ModuleInstanceFindFunction(const void *, WasmEdge_String);
void *WasmEdge_ModuleInstanceFindMemory(const void *, WasmEdge_String);
void *WasmEdge_ModuleInstanceFindGlobal(const void *, WasmEdge_String);
void WasmEdge_ModuleInstanceDelete(void *);

void *WasmEdge_FunctionTypeCreate(const WasmEdge_ValType *, uint32_t, const WasmEdge_ValType *, uint32_t);
void WasmEdge_FunctionTypeDelete(void *);
void *WasmEdge_FunctionInstanceCreate(const void *, WasmEdge_HostFunc_t, void *, uint64_t);
void *WasmEdge_GlobalTypeCreate(WasmEdge_ValType, int);
void WasmEdge_GlobalTypeDelete(void *);
void *WasmEdge_GlobalInstanceCreate(const void *, WasmEdge_Value);
WasmEdge_Result WasmEdge_GlobalInstanceSetValue(void *, WasmEdge_Value);

uint8_t *WasmEdge_MemoryInstanceGetPointer(void *, uint32_t, uint32_t);
uint32_t WasmEdge_MemoryInstanceGetPageSize(const void *);
WasmEdge_Result WasmEdge_MemoryInstanceGrowPage(void *, uint32_t);
""")

VALUE_BYTES: Final = 32
PROPOSALS: Final = {"tail-calls": 7, "extended-const": 8, "multi-memory": 11, "atomics": 12, "exceptions": 16}
"""Features that must be switched on -> their number in this version; the others are on."""
_VERSIONS: Final = "0.14."
"""Numbers and structs above are those of these versions."""


def _load() -> Any:
    path = provided.library("wasmedge")
    library = ffi.dlopen(str(path))
    found = ffi.string(library.WasmEdge_VersionGet()).decode()
    if not found.startswith(_VERSIONS):
        raise RuntimeMissing(f"this WasmEdge is version {found}, not {_VERSIONS}x", path=str(path), runtime="wasmedge",
                             hint="wasmckpt runtimes install wasmedge")
    library.WasmEdge_LogOff()  # it would write on the guest's standard output
    return library


lib: Final[Any] = _load()


def _type(*data: int) -> Any:
    return ffi.new("WasmEdge_ValType *", {"data": [0, 0, *data]})[0]


VALUE_TYPES: Final = {
    **{kind: _type(kind, 0x40) for kind in (I32, I64, F32, F64, V128)},
    **{kind: _type(0x63, kind) for kind in (FUNCREF, EXTERNREF)},
}
"""Type code -> ``WasmEdge_ValType``: the code of the type, then that of what a reference refers to."""


def address_of(pointer: Any) -> int:
    """A pointer as a number."""
    return int(ffi.cast("uintptr_t", pointer))


def value(kind: int, bits: int) -> Any:
    """A value to be passed; ``bits`` of a reference are 0 (null)."""
    made = ffi.new("WasmEdge_Value *")
    made.low, made.high, made.type = bits & 0xFFFF_FFFF_FFFF_FFFF, bits >> 64, VALUE_TYPES[kind]
    if kind in (FUNCREF, EXTERNREF):
        made.low = int.from_bytes(bytes(VALUE_TYPES[kind].data), "little")
    return made[0]


def string(text: str, keep: list[object]) -> Any:
    """``text`` as the API takes it; valid as long as what is put into ``keep``."""
    data = text.encode()
    buffer = ffi.new("char[]", data)
    keep.append(buffer)
    return ffi.new("WasmEdge_String *", {"length": len(data), "buf": buffer})[0]


def message(result: int) -> str:
    """What a result's code means."""
    return str(ffi.string(lib.WasmEdge_ResultGetMessage(result)).decode())
