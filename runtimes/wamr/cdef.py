"""WAMR's C API, declared for cffi (ABI mode), and the library: the user's own or the one that `provided` installs."""

from __future__ import annotations

from typing import Any, Final

from cffi import FFI

from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes import provided
from wasmckpt.runtimes.signals import ALL, with_signals_kept

__all__ = ["PATH", "ffi", "lib", "otherwise"]

ffi: Final[Any] = FFI()
ffi.cdef("""
typedef struct WASMModuleCommon *wasm_module_t;
typedef struct WASMModuleInstanceCommon *wasm_module_inst_t;
typedef struct WASMExecEnv *wasm_exec_env_t;
typedef struct WASMMemoryInstance *wasm_memory_inst_t;
typedef void *wasm_function_inst_t;
typedef struct { const char *symbol; void *func_ptr; const char *signature; void *attachment; } NativeSymbol;
typedef struct { uint8_t kind; bool is_mutable; void *global_data; } wasm_global_inst_t;
typedef struct { char *name; bool clone_wasm_binary; bool wasm_binary_freeable; bool no_resolve; } LoadArgs;

bool wasm_runtime_init(void);
void wasm_runtime_set_log_level(int);
void wasm_runtime_get_version(uint32_t *, uint32_t *, uint32_t *);
bool wasm_runtime_register_natives_raw(const char *, NativeSymbol *, uint32_t);
bool wasm_runtime_unregister_natives(const char *, NativeSymbol *);
wasm_module_t wasm_runtime_load_ex(uint8_t *, uint32_t, const LoadArgs *, char *, uint32_t);
bool wasm_runtime_resolve_symbols(wasm_module_t);
void wasm_runtime_unload(wasm_module_t);
wasm_module_inst_t wasm_runtime_instantiate(wasm_module_t, uint32_t, uint32_t, char *, uint32_t);
void wasm_runtime_deinstantiate(wasm_module_inst_t);
wasm_exec_env_t wasm_runtime_create_exec_env(wasm_module_inst_t, uint32_t);
void wasm_runtime_destroy_exec_env(wasm_exec_env_t);
wasm_module_inst_t wasm_runtime_get_module_inst(wasm_exec_env_t);
wasm_function_inst_t wasm_runtime_lookup_function(wasm_module_inst_t, const char *);
bool wasm_runtime_call_wasm(wasm_exec_env_t, wasm_function_inst_t, uint32_t, uint32_t[]);
const char *wasm_runtime_get_exception(wasm_module_inst_t);
void wasm_runtime_set_exception(wasm_module_inst_t, const char *);
void wasm_runtime_clear_exception(wasm_module_inst_t);
wasm_memory_inst_t wasm_runtime_get_default_memory(wasm_module_inst_t);
uint64_t wasm_memory_get_cur_page_count(wasm_memory_inst_t);
uint64_t wasm_memory_get_bytes_per_page(wasm_memory_inst_t);
void *wasm_memory_get_base_address(wasm_memory_inst_t);
bool wasm_runtime_get_export_global_inst(wasm_module_inst_t, const char *, wasm_global_inst_t *);
uint32_t wasm_runtime_dump_call_stack_to_buf(wasm_exec_env_t, char *, uint32_t);
""")

PATH: Final = provided.library("wamr")
"""The library's file."""

_NEEDED = ("wasm_runtime_load_ex", "wasm_runtime_resolve_symbols", "wasm_runtime_get_default_memory",
           "wasm_runtime_register_natives_raw", "wasm_runtime_get_export_global_inst")


def otherwise(what: str) -> RuntimeMissing:
    """The error for a library that is not as the adapter knows it; ``what`` goes on "it ..."."""
    return RuntimeMissing(f"this build of WAMR cannot be used: it {what}", runtime="wamr", path=str(PATH),
                          hint="`wasmckpt runtimes install wamr` makes one that can")


def _load() -> Any:
    try:
        library = ffi.dlopen(str(PATH))
    except OSError as problem:
        raise otherwise(f"cannot be loaded: {problem}") from problem
    for name in _NEEDED:
        if not hasattr(library, name):
            raise otherwise(f"has no function {name}: it is no libiwasm, or an old one")
    if not with_signals_kept(lambda: int(library.wasm_runtime_init()), ALL):
        raise otherwise("does not start")
    library.wasm_runtime_set_log_level(0)  # it would write to stdout
    return library


lib: Final[Any] = _load()
