"""What this build of WAMR can do: options are chosen when it is built, and a user's library may have others."""

from __future__ import annotations

from typing import Any, Final

from wasmckpt.runtimes.threads import run_in_guest_thread
from wasmckpt.runtimes.wamr.cdef import ffi, lib, otherwise
from wasmckpt.runtimes.wamr.layout import Layout, find_field
from wasmckpt.runtimes.wamr.load import instantiate, load

__all__ = ["features", "layout", "version"]

_OLDEST: Final = (2, 4, 0)
_CONST, _END = b"\x41\0", b"\x0b"
_BASIC: Final = frozenset({"multi-value", "mutable-globals", "sign-extension", "saturating-conversions"})
"""What no option of a build takes away."""
_OPTIONAL: Final = {
    "memory-copy-fill": _CONST * 3 + b"\xfc\x0b\0" + _CONST,  # memory.fill
    "bulk-memory": _CONST * 3 + b"\xfc\x0a\0\0" + _CONST,  # memory.copy: one option has both
    "reference-types": b"\xd0\x70\xd1",  # ref.null func, ref.is_null
    "simd": b"\xfd\x0c" + bytes(16) + b"\xfd\x1b\0",  # v128.const, i32x4.extract_lane
    "tail-calls": b"\x12\0",
    "extended-const": b"\x23\0",
    "atomics": _CONST + b"\xfe\x10\2\0",
}
"""Body of a function that gives an i32; it may use a memory, and global 0, which is extended where the name says so."""


def version() -> str:
    """The library's version. Raises `RuntimeMissing` for one that is too old."""
    parts = [ffi.new("uint32_t *") for _ in range(3)]
    lib.wasm_runtime_get_version(*parts)
    found = tuple(int(part[0]) for part in parts)
    text = ".".join(map(str, found))
    if found < _OLDEST:
        raise otherwise(f"is of version {text}, and {'.'.join(map(str, _OLDEST))} is the oldest that works")
    return text


def features() -> frozenset[str]:
    """Proposals that this build takes."""
    found = set(_BASIC)
    for feature, body in _OPTIONAL.items():
        module, _ = load(_module(body, extended=feature == "extended-const"))
        if module is None:
            continue
        module.close()
        found.add(feature)
    return frozenset(found)


def layout() -> Layout:
    """Where a memory's struct has its data, seen on a memory that grows. Raises `RuntimeMissing`."""
    module, problem = load(_module(b"\x41\2\x40\0"))  # memory.grow by 2
    if module is None:
        raise otherwise(f"loads no module: {problem}")
    instance, problem = instantiate(module)
    if instance is None:
        raise otherwise(f"makes no instance: {problem}")
    try:
        return _layout(instance.value)
    finally:
        module.close()


def _layout(instance: Any) -> Layout:
    memory = lib.wasm_runtime_get_default_memory(instance)
    found = _find(memory)
    env = lib.wasm_runtime_create_exec_env(instance, 64 * 1024)
    try:
        cells = ffi.new("uint32_t[]", 2)
        grow = lib.wasm_runtime_lookup_function(instance, b"f0")
        # In another thread, as guests run: a build with the hardware bound check knows only the one that loaded it.
        if not run_in_guest_thread(lambda: lib.wasm_runtime_call_wasm(env, grow, 0, cells), stack_bytes=1 << 20):
            text = ffi.string(lib.wasm_runtime_get_exception(instance)).decode(errors="replace")
            more = ": it was built with the hardware bound check" if "thread signal env" in text else f" ({text})"
            raise otherwise(f"calls no function in a thread{more}")
        if cells[0] != 1 or _find(memory) != found:
            raise otherwise("grows memories otherwise")
    finally:
        lib.wasm_runtime_destroy_exec_env(env)
    return found


def _find(memory: Any) -> Layout:
    size = lib.wasm_memory_get_cur_page_count(memory) * lib.wasm_memory_get_bytes_per_page(memory)
    return find_field(int(ffi.cast("uintptr_t", memory)),
                      int(ffi.cast("uintptr_t", lib.wasm_memory_get_base_address(memory))), int(size))


def _module(body: bytes, *, extended: bool = False) -> bytes:
    """A module with a function ``f0``, a memory of 1 to 4 pages and a global."""
    code = b"\0" + body + _END
    init = _CONST * 2 + b"\x6a" if extended else _CONST
    sections = (
        (1, b"\1\x60\0\1\x7f"), (3, b"\1\0"), (5, b"\1\1\1\4"), (6, b"\1\x7f\0" + init + _END), (7, b"\1\2f0\0\0"),
        (10, b"\1" + bytes([len(code)]) + code),
    )
    return b"\0asm\1\0\0\0" + b"".join(bytes([number, len(content)]) + content for number, content in sections)
