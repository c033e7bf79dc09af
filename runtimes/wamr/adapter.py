"""The WAMR adapter."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import itertools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from wasmckpt.errors import GuestTrap, NotSupported, UsageError
from wasmckpt.runtimes import packed, traps
from wasmckpt.runtimes.base import (
    DEFAULT_STACK_BYTES,
    Capabilities,
    Compiled,
    Engine,
    HostFunction,
    HostGlobal,
    Imports,
    Instance,
    Memory,
    MemoryLocator,
)
from wasmckpt.runtimes.handle import Handle
from wasmckpt.runtimes.imports import direct_call, resolve_imports
from wasmckpt.runtimes.interface import ModuleInterface, read_interface
from wasmckpt.runtimes.slots import check_bits, result_tuple, slot_codec
from wasmckpt.runtimes.threads import run_with_stack
from wasmckpt.runtimes.wamr import probe
from wasmckpt.runtimes.wamr.cdef import ffi, lib
from wasmckpt.runtimes.wamr.layout import read_field
from wasmckpt.runtimes.wamr.load import instantiate, link, load
from wasmckpt.runtimes.wamr.shape import function_name, global_name, lane_name, lanes, shaped
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import Module
from wasmckpt.wasm.validate import validate, validate_module
from wasmckpt.wasm.values import EXTERNREF, F32, F64, FUNCREF, I32, I64, V128

__all__ = ["WamrCompiled", "WamrEngine", "WamrInstance"]

_THREAD_STACK: Final = 1024 * 1024
"""Native stack for host functions and Python; the guest's frames lie elsewhere."""
_STACK_FACTOR: Final = 2
"""Bytes of WAMR's stack for each byte of the guest's: its frames are larger (64 bytes and more)."""
_FRAMES_SHOWN: Final = 4096
"""Bytes of the text that names a trap's functions; the innermost come first."""

_TRAP_KINDS: Final = {
    "unreachable": traps.UNREACHABLE, "out of bounds memory access": traps.MEMORY_BOUNDS,
    "integer overflow": traps.INTEGER_OVERFLOW, "integer divide by zero": traps.DIVIDE_BY_ZERO,
    "invalid conversion to integer": traps.BAD_CONVERSION, "indirect call type mismatch": traps.SIGNATURE,
    "undefined element": traps.UNDEFINED_ELEMENT, "uninitialized element": traps.NULL_ELEMENT,
    "native stack overflow": traps.STACK_OVERFLOW, "wasm operand stack overflow": traps.STACK_OVERFLOW,
    "unaligned atomic": traps.UNALIGNED_ATOMIC, "out of bounds table access": traps.UNDEFINED_ELEMENT,
}
_HOST_WORDS: Final = "a host function raised an exception"
_HOST_TRAP: Final = ffi.new("char[]", _HOST_WORDS.encode())
_RAW_CALL: Final = "void(wasm_exec_env_t, uint64_t *)"
_CELLS: Final = {FUNCREF: I32, EXTERNREF: I64}
"""References as the numbers that WAMR's calls have for them."""
_NULL: Final = {FUNCREF: (1 << 32) - 1, EXTERNREF: (1 << 64) - 1}
"""What null is among arguments."""

_CAPABILITIES: Final = Capabilities(
    features=frozenset(), poll="global", lowerings=frozenset({"label-vectors"}), nan_f32_quieted=False,
    memory_moves=True, full_validation=True, serializes=False, max_slots=16_370, max_memory_pages=65_536,
    max_functions=1_000_000, max_exports=100_000, max_params=2_000, max_results=1_000, max_nesting=49_000,
    max_body_bytes=20_000_000, vectors_cross=True,
)


class WamrEngine(Engine):
    """WAMR. It has no compiled form; what it can do is asked of the library that is here."""

    name: ClassVar[str] = "wamr"

    def __init__(self) -> None:
        self.version = probe.version()
        self.layout = probe.layout()
        self.capabilities = dataclasses.replace(_CAPABILITIES, features=probe.features(),
                                                traps_name_function=_TELLS_FRAMES)

    def compile(self, wasm: bytes) -> WamrCompiled:
        wasm = bytes(wasm)
        interface = read_interface(wasm)
        module = decode(wasm)
        for wanted in interface.imports:
            if wanted.kind not in {"func", "global"}:
                raise NotSupported(f"the module imports a {wanted.kind}", need=f"imported {wanted.kind}",
                                   module=repr(wanted.module), name=repr(wanted.name), runtime=self.name)
        imported = len(module.globals) - len(module.own_globals)
        validate_module(module)  # all but the functions' bodies, which `shaped` does not look at
        loaded = _load(module, [0] * imported)
        compiled = WamrCompiled(self.name, interface, hashlib.sha256(wasm).digest(), module)
        if imported:
            loaded[0].close()
        else:
            compiled.ready.append(loaded)
        return compiled

    def validate(self, wasm: bytes) -> None:
        self.compile(wasm).close()

    def instantiate(self, compiled: Compiled, imports: Imports, *,
                    stack_bytes: int = DEFAULT_STACK_BYTES) -> WamrInstance:
        if not isinstance(compiled, WamrCompiled):
            raise UsageError("compiled for another runtime", runtime=self.name, compiled_for=compiled.engine_name)
        return WamrInstance(self, compiled, imports, stack_bytes)

    def deserialize(self, blob: bytes) -> Compiled:
        raise packed.rejected("wamr has none")

    def thread_stack_bytes(self, stack_bytes: int) -> int:
        return _THREAD_STACK


class WamrCompiled(Compiled):
    """A checked module.

    Attributes:
        module: what `Engine.compile` was given, decoded.
        ready: what was loaded for the check. It becomes the first instance's, since a module is linked once.
    """

    def __init__(self, engine_name: str, interface: ModuleInterface, wasm_sha256: bytes, module: Module) -> None:
        super().__init__(engine_name, interface, wasm_sha256)
        self.module = module
        self.ready: list[_Loaded] = []

    def load(self, imported: Sequence[int]) -> _Loaded:
        try:
            return self.ready.pop()
        except IndexError:
            return _load(self.module, imported)

    def close(self) -> None:
        while self.ready:
            self.ready.pop()[0].close()


_Loaded = tuple[Handle, frozenset[int]]
"""A module of WAMR's, and the imported functions that have wrappers."""


def _load(module: Module, imported: Sequence[int]) -> _Loaded:
    """Loads a module with values for its imported globals.

    Raises:
        InvalidModule: it is not valid; with the offset that our own validator gives, as WAMR gives none.
        NotSupported: WAMR does not take it.
    """
    shape = shaped(module, imported)
    loaded, words = load(shape.code)
    if loaded is not None:
        return loaded, shape.wrapped
    try:
        validate(module)
    except NotSupported:
        pass
    raise NotSupported(words, runtime="wamr")


class WamrInstance(Instance):
    def __init__(self, engine: WamrEngine, compiled: WamrCompiled, imports: Imports, stack_bytes: int) -> None:
        super().__init__(compiled.interface, engine.thread_stack_bytes(stack_bytes))
        if stack_bytes < 4096 or stack_bytes > 1 << 30:
            raise UsageError("a guest stack is 4 KiB to 1 GiB", stack_bytes=stack_bytes)
        self._runtime = engine.name
        self._failure: BaseException | None = None
        self._layout = engine.layout
        needed = resolve_imports(compiled.interface, imports, runtime=engine.name)
        self._host_functions = [item for item in needed if isinstance(item, HostFunction)]
        imported = [item for item in needed if isinstance(item, HostGlobal)]
        for item in imported:
            check_bits(item.type, item.bits)
        self._module, wrapped = compiled.load([item.bits for item in imported])
        try:
            self._make(compiled, wrapped, stack_bytes)
        except BaseException:
            self.close()
            raise

    def _make(self, compiled: WamrCompiled, wrapped: frozenset[int], stack_bytes: int) -> None:
        lane_addresses: list[int] = []
        functions = [self._host_function(host, lane_addresses if i in wrapped else None)
                     for i, host in enumerate(self._host_functions)]
        if functions and not link(self._module, functions):
            raise NotSupported("the host functions cannot be linked", runtime=self._runtime)
        instance, words = instantiate(self._module)
        if instance is None:
            raise self._refusal(words)
        self._instance = instance
        self._keep_stack(stack_bytes)
        for number in range(max((len(lanes(self._host_functions[i].results)) for i in wrapped), default=0)):
            lane_addresses.append(self._global_address(lane_name(number)))
        if compiled.module.start is not None:
            self._start(compiled.module.start)

    def _keep_stack(self, stack_bytes: int) -> None:
        env = lib.wasm_runtime_create_exec_env(self._instance.value, stack_bytes * _STACK_FACTOR)
        if env == ffi.NULL:
            raise NotSupported("no memory for a stack of this size", stack_bytes=stack_bytes, runtime=self._runtime)
        self._env = Handle("WAMR stack", env, lib.wasm_runtime_destroy_exec_env, owner=self._instance)

    def _refusal(self, words: str) -> GuestTrap | NotSupported:
        kind = next((kind for what, kind in _TRAP_KINDS.items() if what in words), None)
        if kind is not None:  # a segment that does not fit
            return traps.guest_trap(kind, text=words, runtime=self._runtime)
        return NotSupported(words, runtime=self._runtime)

    def _start(self, index: int) -> None:
        if index < len(self._host_functions):
            result_tuple(self._host_functions[index].call())
            return
        start = self._callable(index, (), ())
        run_with_stack(lambda: self._entered(start), stack_bytes=self._needed_thread_stack)

    def _entered(self, start: Callable[[Sequence[int]], tuple[int, ...]]) -> None:
        self._depth += 1
        self._owner_thread = threading.get_ident()
        try:
            start(())
        finally:
            self._depth -= 1

    def _host_function(self, host: HostFunction, result_lanes: list[int] | None) -> Any:
        """A callback for WAMR. With ``result_lanes``, addresses of globals, results go there."""
        function = host.call
        _, unpack = slot_codec(lanes(host.params), 8)
        pack, _ = slot_codec(lanes(host.results), 8)
        join, split = _join_lanes(host.params), _split_lanes(host.results)
        taken = 8 * len(lanes(host.params))
        buffer, memmove, get_instance, set_exception = (
            ffi.buffer, ffi.memmove, lib.wasm_runtime_get_module_inst, lib.wasm_runtime_set_exception)

        def callback(env: Any, slots: Any) -> None:
            try:
                returned = function(*join(unpack(buffer(slots, taken)[:]))) if taken else function()
                data = pack(split((returned,) if returned.__class__ is int else result_tuple(returned)))
                if result_lanes is not None:
                    for i, address in enumerate(result_lanes[:len(data) // 8]):
                        ctypes.memmove(address, data[8 * i:8 * i + 8], 8)
                elif data:
                    memmove(slots, data, 8)
            except BaseException as problem:
                self._failure = problem
                set_exception(get_instance(env), _HOST_TRAP)

        def escaped(kind: type[BaseException], problem: BaseException, traceback: Any) -> None:
            # An exception that struck outside of the try (a signal's): WAMR has to be told, too.
            self._failure = problem
            set_exception(get_instance(traceback.tb_frame.f_locals["env"]), _HOST_TRAP)

        return ffi.callback(_RAW_CALL, callback, onerror=escaped)

    def _bind(self, export: str) -> Callable[[Sequence[int]], tuple[int, ...]]:
        signature = self._function_type(export)
        index = self.interface.exported(export, "func")
        assert index is not None
        if index < len(self._host_functions):
            return direct_call(self._host_functions[index])
        return self._callable(index, signature.params, signature.results)

    def _callable(self, index: int, params: Sequence[int], results: Sequence[int]) -> (
            Callable[[Sequence[int]], tuple[int, ...]]):
        function = lib.wasm_runtime_lookup_function(self._instance.value, function_name(index).encode())
        if function == ffi.NULL:
            raise NotSupported("a function that cannot be found", function=index, runtime=self._runtime)
        pack, _ = slot_codec([_CELLS.get(t, t) for t in params], 0)
        _, unpack = slot_codec([_CELLS.get(t, t) for t in results], 0)
        to_cells, from_cells = _to_cells(params), _from_cells(results)
        cells_taken, cells_given = _count_cells(params), _count_cells(results)
        given = 4 * cells_given
        env, call_wasm, buffer, memmove = self._env.value, lib.wasm_runtime_call_wasm, ffi.buffer, ffi.memmove
        spare: list[Any] = []  # one buffer a nesting level: a host function may call the same export again

        def call(args: Sequence[int]) -> tuple[int, ...]:
            data = pack(to_cells(args))
            cells = spare.pop() if spare else ffi.new("uint32_t[]", max(cells_taken, cells_given, 2))
            try:
                memmove(cells, data, len(data))
                if not call_wasm(env, function, cells_taken, cells):
                    self._raise()
                values = unpack(buffer(cells, given)[:]) if given else ()
                return from_cells(values) if from_cells else values
            finally:
                spare.append(cells)

        return call

    def _raise(self) -> None:
        """Raises the host function's own exception or a `GuestTrap`."""
        instance = self._instance.value
        words = _text(lib.wasm_runtime_get_exception(instance)).removeprefix("Exception: ")
        functions = self._stack_functions()
        lib.wasm_runtime_clear_exception(instance)
        problem: BaseException | None
        problem, self._failure = self._failure, None
        if problem is None or words != _HOST_WORDS:
            problem = traps.guest_trap(_TRAP_KINDS.get(words, traps.OTHER), text=words, runtime=self._runtime,
                                       function=next(iter(functions), None), callers=tuple(functions[1:]))
        try:
            raise problem
        finally:
            del problem  # the traceback holds this frame

    def _stack_functions(self) -> list[int]:
        """Functions that were active at a trap, innermost first, as far as this build of WAMR tells."""
        if not _TELLS_FRAMES:
            return []
        words = ffi.new("char[]", _FRAMES_SHOWN)
        lib.wasm_runtime_dump_call_stack_to_buf(self._env.value, words, _FRAMES_SHOWN - 1)
        return [int(index) for index in re.findall(r"^#\d+: 0x[0-9a-f]+ - (?:\$?f)?(\d+)$", _text(words), re.MULTILINE)]

    def memory(self, export: str) -> Memory:
        self._require_memory(export)
        return _WamrMemory(self._instance, self._memory_field())

    def _memory_field(self) -> int:
        memory = lib.wasm_runtime_get_default_memory(self._instance.value)
        return int(ffi.cast("uintptr_t", memory)) + self._layout.memory_field

    def memory_locator(self, export: str) -> MemoryLocator:
        self._require_memory(export)
        return MemoryLocator(self._memory_field(), read_field)

    def _global_address(self, name: str) -> int:
        found = ffi.new("wasm_global_inst_t *")
        if not lib.wasm_runtime_get_export_global_inst(self._instance.value, name.encode(), found):
            raise NotSupported("a global that cannot be found", name=name, runtime=self._runtime)
        return int(ffi.cast("uintptr_t", found.global_data))

    def _exported_global(self, export: str) -> tuple[int, int]:
        """Address and size in bytes of a global."""
        kind = self._global_type(export).type
        index = self.interface.exported(export, "global")
        assert index is not None
        return self._global_address(global_name(index)), 4 * _count_cells([kind])

    def get_global(self, export: str) -> int:
        address, size = self._exported_global(export)
        return int.from_bytes(ctypes.string_at(address, size), "little")

    def _set_global(self, export: str, kind: int, bits: int) -> None:
        address, size = self._exported_global(export)
        ctypes.memmove(address, bits.to_bytes(size, "little"), size)

    def word_address(self, export: str) -> int:
        self._require_word(export)
        return self._exported_global(export)[0]

    def _release(self) -> None:
        self._module.close()  # and what was made from it


class _WamrMemory(Memory):
    """Read from the runtime's struct: one access instead of three calls."""

    def __init__(self, instance: Handle, field: int) -> None:
        self._instance = instance
        self._field = field

    def extent(self) -> tuple[int, int]:
        if self._instance.closed:
            raise UsageError("the instance is closed")
        return read_field(ctypes.string_at, self._field)


_TELLS_FRAMES: Final = hasattr(lib, "wasm_runtime_dump_call_stack_to_buf")
"""A build option."""

_Change = Callable[[Sequence[int]], Sequence[int]]


def _same(values: Sequence[int]) -> Sequence[int]:
    return values


def _join_lanes(types: Sequence[int]) -> _Change:
    """From numbers with two i64 for a vector to values."""
    if V128 not in types:
        return _same

    def join(numbers: Sequence[int]) -> list[int]:
        rest = iter(numbers)
        return [low | next(rest) << 64 if kind == V128 else low for kind, low in zip(types, rest, strict=False)]

    return join


def _split_lanes(types: Sequence[int]) -> _Change:
    """From values to numbers with two i64 for a vector. Raises `UsageError` for what is not a bit pattern."""
    if V128 not in types:
        return _same

    def split(values: Sequence[int]) -> list[int]:
        numbers: list[int] = []
        for kind, bits in itertools.zip_longest(types, values):
            if kind is None:
                raise UsageError("a host function gave another number of results", wanted=len(types), got=len(values))
            check_bits(kind, bits)
            numbers += [bits & 0xFFFF_FFFF_FFFF_FFFF, bits >> 64] if kind == V128 else [bits]
        return numbers

    return split


def _to_cells(types: Sequence[int]) -> _Change:
    """From arguments to the numbers that WAMR takes: it has other bits for null."""
    if _CELLS.keys().isdisjoint(types):
        return _same

    def change(values: Sequence[int]) -> list[int]:
        pack, _ = slot_codec(types, 16)
        pack(values)  # only to refuse what is wrong
        return [_NULL.get(kind, bits) for kind, bits in zip(types, values, strict=True)]

    return change


def _from_cells(types: Sequence[int]) -> Callable[[tuple[int, ...]], tuple[int, ...]] | None:
    if _CELLS.keys().isdisjoint(types):
        return None

    def change(numbers: tuple[int, ...]) -> tuple[int, ...]:
        for kind, number in zip(types, numbers, strict=True):
            if (kind == FUNCREF and number != _NULL[FUNCREF]) or (kind == EXTERNREF and number):
                raise NotSupported("a reference that is not null crosses the boundary", need="reference-types")
        return tuple(0 if kind in _NULL else number for kind, number in zip(types, numbers, strict=True))

    return change


def _count_cells(types: Sequence[int]) -> int:
    """How many words of 32 bits hold values of these types in WAMR's calls and globals."""
    return sum({I32: 1, F32: 1, I64: 2, F64: 2, V128: 4, FUNCREF: 1, EXTERNREF: 2}[kind] for kind in types)


def _text(pointer: Any) -> str:
    """A C string, or "" for NULL."""
    data: bytes = ffi.string(pointer) if pointer != ffi.NULL else b""
    return data.decode(errors="replace")
