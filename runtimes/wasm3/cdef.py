"""Wasm3's C API, declared for cffi (ABI mode), and the library: the extension module of the PyPI package."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

from cffi import FFI

from wasmckpt.errors import RuntimeMissing

__all__ = ["VALUE_TYPES", "ffi", "lib", "text"]

ffi: Final[Any] = FFI()
ffi.cdef("""
typedef const char *M3Result;
typedef struct M3Environment *IM3Environment;
typedef struct M3Runtime *IM3Runtime;
typedef struct M3Module *IM3Module;
typedef struct M3Function *IM3Function;
typedef struct M3Global *IM3Global;
typedef struct { M3Result result; IM3Runtime runtime; IM3Module module; IM3Function function; const char *file;
                 uint32_t line; const char *message; } M3ErrorInfo;
typedef struct { int type; uint64_t bits; } M3TaggedValue;
typedef struct M3BacktraceFrame { uint32_t moduleOffset; IM3Function function; struct M3BacktraceFrame *next; }
    M3BacktraceFrame;
typedef struct { M3BacktraceFrame *frames; M3BacktraceFrame *lastFrame; } M3BacktraceInfo;

IM3Environment m3_NewEnvironment(void);
void m3_FreeEnvironment(IM3Environment);
IM3Runtime m3_NewRuntime(IM3Environment, uint32_t, void *);
void m3_FreeRuntime(IM3Runtime);
void *m3_GetUserData(IM3Runtime);
uint8_t *m3_GetMemory(IM3Runtime, uint32_t *, uint32_t);
M3Result m3_ParseModule(IM3Environment, IM3Module *, const uint8_t *, uint32_t);
void m3_FreeModule(IM3Module);
M3Result m3_LoadModule(IM3Runtime, IM3Module);
M3Result m3_CompileModule(IM3Module);
M3Result m3_RunStart(IM3Module);
M3Result m3_LinkRawFunctionEx(IM3Module, const char *, const char *, const char *, uintptr_t, const void *);
IM3Global m3_FindGlobal(IM3Module, const char *);
M3Result m3_GetGlobal(IM3Global, M3TaggedValue *);
M3Result m3_SetGlobal(IM3Global, const M3TaggedValue *);
int m3_GetGlobalType(IM3Global);
M3Result m3_FindFunction(IM3Function *, IM3Runtime, const char *);
uint32_t m3_GetArgCount(IM3Function);
uint32_t m3_GetRetCount(IM3Function);
M3Result m3_Call(IM3Function, uint32_t, const void **);
M3Result m3_GetResults(IM3Function, uint32_t, const void **);
void m3_GetErrorInfo(IM3Runtime, M3ErrorInfo *);
const char *m3_GetFunctionName(IM3Function);
M3BacktraceInfo *m3_GetBacktrace(IM3Runtime);
""")

VALUE_TYPES: Final = {0x7F: 1, 0x7E: 2, 0x7D: 3, 0x7C: 4}
"""Type code -> ``M3ValueType``."""


def _load() -> Any:
    spec = importlib.util.find_spec("wasm3")
    if spec is None or not spec.origin:
        raise RuntimeMissing("wasm3 is not installed", hint="wasmckpt runtimes install wasm3", runtime="wasm3")
    library = ffi.dlopen(spec.origin)
    try:
        for name in ("m3_NewEnvironment", "m3_Call", "m3_LinkRawFunctionEx", "m3_GetBacktrace"):
            getattr(library, name)
    except AttributeError as problem:
        raise RuntimeMissing("this wasm3 package does not export the C API", hint="pip install 'pywasm3==0.5.0'",
                             runtime="wasm3") from problem
    return library


lib: Final[Any] = _load()


def text(pointer: Any) -> str:
    """A C string, or "" for NULL."""
    data: bytes = ffi.string(pointer) if pointer != ffi.NULL else b""
    return data.decode(errors="replace")
