"""wasmer's C API (``wasm.h`` as wasmer has it, with its own additions and ours), declared for cffi (ABI mode)."""

from __future__ import annotations

from typing import Any, Final

from cffi import FFI

from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes import provided

__all__ = ["byte_vec", "ffi", "last_error", "lib", "take_bytes", "text"]

ffi: Final[Any] = FFI()
ffi.cdef("""
typedef ... wasm_config_t; typedef ... wasmer_features_t; typedef ... wasm_engine_t; typedef ... wasm_store_t;
typedef ... wasm_module_t; typedef ... wasm_instance_t; typedef ... wasm_extern_t; typedef ... wasm_func_t;
typedef ... wasm_global_t; typedef ... wasm_ref_t; typedef ... wasm_trap_t; typedef ... wasm_frame_t;
typedef ... wasm_valtype_t; typedef ... wasm_functype_t; typedef ... wasm_globaltype_t; typedef ... wasmckpt_guest_t;

typedef struct { uint8_t kind; union { uint32_t i32; uint64_t bits; wasm_ref_t *ref; } of; } wasm_val_t;
typedef struct { size_t size; uint8_t *data; } wasm_byte_vec_t;
typedef struct { size_t size; wasm_val_t *data; } wasm_val_vec_t;
typedef struct { size_t size; wasm_extern_t **data; } wasm_extern_vec_t;
typedef struct { size_t size; wasm_frame_t **data; } wasm_frame_vec_t;
typedef struct { size_t size; wasm_valtype_t **data; } wasm_valtype_vec_t;
typedef wasm_trap_t *(*wasm_func_callback_t)(const wasm_val_vec_t *, wasm_val_vec_t *);

const char *wasmer_version(void);
int wasmer_last_error_length(void);
int wasmer_last_error_message(char *, int);

wasm_config_t *wasm_config_new(void);
void wasm_config_set_backend(wasm_config_t *, int);
void wasm_config_set_features(wasm_config_t *, wasmer_features_t *);
wasmer_features_t *wasmer_features_new(void);
bool wasmer_features_threads(wasmer_features_t *, bool);
bool wasmer_features_reference_types(wasmer_features_t *, bool);
bool wasmer_features_simd(wasmer_features_t *, bool);
bool wasmer_features_bulk_memory(wasmer_features_t *, bool);
bool wasmer_features_multi_value(wasmer_features_t *, bool);
bool wasmer_features_multi_memory(wasmer_features_t *, bool);
bool wasmer_features_extended_const(wasmer_features_t *, bool);
bool wasmer_features_tail_call(wasmer_features_t *, bool);
bool wasmer_features_memory64(wasmer_features_t *, bool);
bool wasmer_features_exceptions(wasmer_features_t *, bool);
bool wasmer_features_relaxed_simd(wasmer_features_t *, bool);
bool wasmer_features_wide_arithmetic(wasmer_features_t *, bool);
bool wasmer_features_module_linking(wasmer_features_t *, bool);
wasm_engine_t *wasm_engine_new_with_config(wasm_config_t *);
void wasm_engine_delete(wasm_engine_t *);
wasm_store_t *wasm_store_new(wasm_engine_t *);
void wasm_store_delete(wasm_store_t *);

wasm_module_t *wasm_module_new(wasm_store_t *, const wasm_byte_vec_t *);
void wasm_module_serialize(const wasm_module_t *, wasm_byte_vec_t *);
wasm_module_t *wasm_module_deserialize(wasm_store_t *, const wasm_byte_vec_t *);
void wasm_module_delete(wasm_module_t *);

wasm_instance_t *wasm_instance_new(wasm_store_t *, const wasm_module_t *, const wasm_extern_vec_t *, wasm_trap_t **);
void wasm_instance_exports(const wasm_instance_t *, wasm_extern_vec_t *);
void wasm_instance_delete(wasm_instance_t *);
void wasm_extern_vec_delete(wasm_extern_vec_t *);
wasm_func_t *wasm_extern_as_func(wasm_extern_t *);
wasm_global_t *wasm_extern_as_global(wasm_extern_t *);

wasm_valtype_t *wasm_valtype_new(uint8_t);
void wasm_valtype_vec_new(wasm_valtype_vec_t *, size_t, wasm_valtype_t *const[]);
wasm_functype_t *wasm_functype_new(wasm_valtype_vec_t *, wasm_valtype_vec_t *);
void wasm_functype_delete(wasm_functype_t *);
wasm_func_t *wasm_func_new(wasm_store_t *, const wasm_functype_t *, wasm_func_callback_t);
wasm_extern_t *wasm_func_as_extern(wasm_func_t *);
void wasm_func_delete(wasm_func_t *);
wasm_globaltype_t *wasm_globaltype_new(wasm_valtype_t *, uint8_t);
void wasm_globaltype_delete(wasm_globaltype_t *);
wasm_global_t *wasm_global_new(wasm_store_t *, const wasm_globaltype_t *, const wasm_val_t *);
wasm_extern_t *wasm_global_as_extern(wasm_global_t *);
void wasm_global_delete(wasm_global_t *);
void wasm_global_get(wasm_global_t *, wasm_val_t *);
void wasm_global_set(wasm_global_t *, const wasm_val_t *);
void wasm_ref_delete(wasm_ref_t *);

wasm_trap_t *wasm_trap_new(wasm_store_t *, const wasm_byte_vec_t *);
void wasm_trap_message(const wasm_trap_t *, wasm_byte_vec_t *);
void wasm_trap_trace(const wasm_trap_t *, wasm_frame_vec_t *);
void wasm_trap_delete(wasm_trap_t *);
uint32_t wasm_frame_func_index(const wasm_frame_t *);
size_t wasm_frame_module_offset(const wasm_frame_t *);
void wasm_frame_vec_delete(wasm_frame_vec_t *);
void wasm_byte_vec_delete(wasm_byte_vec_t *);

wasmckpt_guest_t *wasmckpt_guest_new(const wasm_engine_t *, size_t);
void wasmckpt_guest_delete(wasmckpt_guest_t *);
uintptr_t wasmckpt_guest_memory(const wasmckpt_guest_t *, size_t);
uintptr_t wasmckpt_guest_global(const wasmckpt_guest_t *, size_t);
wasm_trap_t *wasmckpt_func_call(size_t, wasm_func_t *, const wasm_val_vec_t *, wasm_val_vec_t *);
""")

_HINT = "wasmckpt runtimes install wasmer"


def _load() -> Any:
    path = provided.library("wasmer")
    library = ffi.dlopen(str(path))
    for name in ("wasmer_version", "wasmckpt_func_call", "wasmckpt_guest_global"):
        if not hasattr(library, name):
            raise RuntimeMissing(f"the library of wasmer has no function {name}", hint=_HINT, runtime="wasmer",
                                 path=str(path))
    version = ffi.string(library.wasmer_version()).decode()
    if version != provided.recipe("wasmer").VERSION:
        raise RuntimeMissing(f"the library is another wasmer ({version}) than this adapter knows", hint=_HINT,
                             runtime="wasmer", path=str(path))
    return library


lib: Final[Any] = _load()


def byte_vec(data: bytes) -> tuple[Any, Any]:
    """``data`` as a ``const wasm_byte_vec_t *`` without a copy, and what must live as long as it is used."""
    keep = ffi.from_buffer("uint8_t[]", data)
    return ffi.new("wasm_byte_vec_t *", {"size": len(data), "data": keep}), keep


def take_bytes(vec: Any) -> bytes:
    """Contents of a ``wasm_byte_vec_t *``, which is freed."""
    data = bytes(ffi.buffer(vec.data, vec.size)) if vec.size else b""
    lib.wasm_byte_vec_delete(vec)
    return data


def text(data: bytes) -> str:
    """A message of the library."""
    return data.rstrip(b"\0").decode(errors="replace")


def last_error() -> str:
    """What this thread's last failing call says; "" where it says nothing."""
    length = lib.wasmer_last_error_length()
    if length <= 0:
        return ""
    message = ffi.new("char[]", length)
    lib.wasmer_last_error_message(message, length)
    return text(bytes(ffi.buffer(message)))
