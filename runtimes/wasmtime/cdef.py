"""wasmtime's C library, as the PyPI wheel declares it, and the few calls that must be fast.

The wheel's Python classes are not used: they turn floats into Python floats (which changes signalling NaNs) and cost
ten times as much a call. Its ctypes declarations (`wasmtime._bindings`) are used for everything but the hot calls,
whose pointers are plain addresses here.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import sys
import types
from typing import Any, Final

from wasmckpt.errors import RuntimeMissing


def _declarations() -> Any:
    """The wheel's modules of declarations. Its package would import all its classes with it, which takes as long."""
    wheel = importlib.util.find_spec("wasmtime")
    if wheel is None or wheel.submodule_search_locations is None:
        raise ModuleNotFoundError("No module named 'wasmtime'", name="wasmtime")
    package = types.ModuleType("wasmckpt_wasmtime")
    package.__path__ = list(wheel.submodule_search_locations)
    sys.modules[package.__name__] = package
    return importlib.import_module(f"{package.__name__}._ffi")


c: Final[Any] = _declarations()
"""The wheel's declarations. As Any: they are annotated as what ctypes stores, not as what it reads and writes."""
dll: Final[Any] = c.dll

__all__ = ["RAW_BYTES", "HostCallback", "c", "call_unchecked", "check_layout", "func_new_unchecked", "take_error"]

RAW_BYTES: Final = 16
"""Bytes of one slot in the arrays of unchecked calls (``wasmtime_val_raw_t``)."""

_SIZES: Final = {
    "wasmtime_val_raw_t": 16, "wasmtime_val_t": 32, "wasmtime_extern_t": 32, "wasmtime_func_t": 16,
    "wasmtime_memory_t": 24, "wasmtime_global_t": 24, "wasmtime_instance_t": 16,
}
"""Sizes in bytes that this adapter was tested with (wasmtime 50)."""

_WORD = ctypes.c_size_t
HostCallback: Final = ctypes.CFUNCTYPE(_WORD, _WORD, _WORD, _WORD, _WORD)
"""``trap or 0 = f(env, caller, slots, count)``; all pointers as addresses."""

call_unchecked: Final[Any] = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
)(("wasmtime_func_call_unchecked", dll))
"""``error or 0 = f(context, func, slots, count, trap)``."""

func_new_unchecked: Final[Any] = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
)(("wasmtime_func_new_unchecked", dll))
"""``f(context, functype, callback, env, finalizer, func)``."""

memory_data: Final[Any] = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)(
    ("wasmtime_memory_data", dll))
memory_data_size: Final[Any] = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)(
    ("wasmtime_memory_data_size", dll))
"""``address or size in bytes = f(context, memory)``."""


def check_layout() -> None:
    """Raises `RuntimeMissing` if the wheel's structs are not those that this adapter knows."""
    for name, size in _SIZES.items():
        found = ctypes.sizeof(getattr(c, name))
        if found != size:
            raise RuntimeMissing(f"this wasmtime has another {name} ({found} bytes, not {size})", runtime="wasmtime",
                                 hint="pip install 'wasmtime==50.*'")


def take_error(error: Any) -> str:
    """Text of a ``wasmtime_error_t *``, which is freed."""
    text = c.wasm_byte_vec_t()
    c.wasmtime_error_message(error, ctypes.byref(text))
    c.wasmtime_error_delete(error)
    return take_text(text)


def take_text(vec: Any) -> str:
    """Text of a byte vector, which is freed."""
    data = ctypes.string_at(vec.data, vec.size) if vec.size else b""
    c.wasm_byte_vec_delete(ctypes.byref(vec))
    return data.rstrip(b"\0").decode(errors="replace")


def bytes_of(data: bytes) -> Any:
    """``data`` as the C library's ``const uint8_t *``; valid as long as ``data`` is."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.POINTER(ctypes.c_uint8))
