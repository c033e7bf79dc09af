"""Modules and instances of WAMR, owned."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from wasmckpt.runtimes.handle import Handle
from wasmckpt.runtimes.wamr.cdef import ffi, lib
from wasmckpt.runtimes.wamr.shape import IMPORT_MODULE, import_name

__all__ = ["instantiate", "link", "load"]

_WORDS: Final = 256
"""Bytes for an error's text."""
_NAME: Final = ffi.new("char[]", b"")
_natives = threading.Lock()


def load(code: bytes) -> tuple[Handle | None, str]:
    """A module whose imports are not linked yet, or None and WAMR's words."""
    buffer = ffi.new("uint8_t[]", code)  # it is changed by the load, and read as long as the module lives
    words = ffi.new("char[]", _WORDS)
    module = lib.wasm_runtime_load_ex(buffer, len(code), ffi.new("LoadArgs *", {"name": _NAME, "no_resolve": True}),
                                      words, _WORDS)
    if module == ffi.NULL:
        return None, _text(words)
    return Handle("WAMR module", module, lib.wasm_runtime_unload, keep=(buffer,)), ""


def link(module: Handle, functions: Sequence[Any]) -> bool:
    """Links imported functions, cffi callbacks in index order; False if WAMR does not.

    It looks them up by name in a table of the process, so they stand there only meanwhile.
    """
    names = [ffi.new("char[]", import_name(i).encode()) for i in range(len(functions))]
    table = ffi.new("NativeSymbol[]", [(name, ffi.cast("void *", function), ffi.NULL, ffi.NULL)
                                       for name, function in zip(names, functions, strict=True)])
    space = ffi.new("char[]", IMPORT_MODULE.encode())
    module.keep(names, table, space, functions)
    with _natives:
        lib.wasm_runtime_register_natives_raw(space, table, len(functions))
        try:
            return bool(lib.wasm_runtime_resolve_symbols(module.value))
        finally:
            lib.wasm_runtime_unregister_natives(space, table)


def instantiate(module: Handle) -> tuple[Handle | None, str]:
    """An instance of a module without a start function, or None and WAMR's words."""
    words = ffi.new("char[]", _WORDS)
    instance = lib.wasm_runtime_instantiate(module.value, 4096, 0, words, _WORDS)
    if instance == ffi.NULL:
        return None, _text(words)
    return Handle("WAMR instance", instance, lib.wasm_runtime_deinstantiate, owner=module), ""


def _text(words: Any) -> str:
    text: bytes = ffi.string(words)
    return text.decode(errors="replace")
