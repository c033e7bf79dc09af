"""The wasmtime adapter."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar

from wasmckpt.errors import CheckpointError, GuestTrap, InvalidModule, NotSupported, UsageError
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
    SideNames,
    read_base_and_length,
)
from wasmckpt.runtimes.faulthandlers import SignalOwner
from wasmckpt.runtimes.handle import Handle
from wasmckpt.runtimes.imports import resolve_imports
from wasmckpt.runtimes.installed import installed_version
from wasmckpt.runtimes.interface import FunctionType, ModuleInterface, read_interface
from wasmckpt.runtimes.processor import processor
from wasmckpt.runtimes.slots import WIDTHS, check_bits, result_tuple, slot_codec
from wasmckpt.runtimes.threads import run_with_stack
from wasmckpt.runtimes.wasmtime.cdef import (
    RAW_BYTES,
    HostCallback,
    bytes_of,
    c,
    call_unchecked,
    check_layout,
    func_new_unchecked,
    memory_data,
    memory_data_size,
    take_error,
    take_text,
)
from wasmckpt.runtimes.wasmtime.locate import find_definition
from wasmckpt.wasm.values import EXTERNREF, F32, F64, FUNCREF, I32, I64, V128

__all__ = ["WasmtimeCompiled", "WasmtimeEngine", "WasmtimeInstance"]

_NATIVE_RESERVE = 1024 * 1024
"""Native stack below the guest's: what host functions, Python and the signal handler may take."""

_VALUE_KINDS = {I32: 0, I64: 1, F32: 2, F64: 3, V128: 4, FUNCREF: 5, EXTERNREF: 6}
_WASM_H_KINDS = {I32: 0, I64: 1, F32: 2, F64: 3, EXTERNREF: 128, FUNCREF: 129}
_FUNC, _GLOBAL, _TABLE, _MEMORY = 0, 1, 2, 3

_UNKNOWN_OFFSET = (1 << 64) - 1

_TRAP_KINDS = {
    0: traps.STACK_OVERFLOW, 1: traps.MEMORY_BOUNDS, 2: traps.UNALIGNED_ATOMIC, 3: traps.UNDEFINED_ELEMENT,
    4: traps.NULL_ELEMENT, 5: traps.SIGNATURE, 6: traps.INTEGER_OVERFLOW, 7: traps.DIVIDE_BY_ZERO,
    8: traps.BAD_CONVERSION, 9: traps.UNREACHABLE, 13: traps.NULL_REFERENCE,
}

_CAPABILITIES = Capabilities(
    features=frozenset({
        "multi-value", "sign-extension", "saturating-conversions", "mutable-globals", "bulk-memory", "memory-copy-fill",
        "reference-types", "simd", "multi-memory", "tail-calls", "extended-const", "atomics", "exceptions",
    }),
    poll="atomic-memory", lowerings=frozenset(), nan_f32_quieted=False, memory_moves=False, full_validation=True,
    serializes=True, max_slots=None, max_memory_pages=65_536, max_functions=1_000_000, max_exports=100_000,
    max_params=1_000, max_results=1_000, max_nesting=49_000, max_body_bytes=7_654_321,
    vectors_cross=True, keeps_code=True, side_modules=True,
)


class WasmtimeEngine(Engine):
    """wasmtime. The limit of the guest's stack is a setting of its engine, so there is one for each size."""

    name: ClassVar[str] = "wasmtime"

    def __init__(self) -> None:
        check_layout()
        self.version = installed_version("wasmtime", c.__file__)
        self.capabilities = _CAPABILITIES
        self._signals = SignalOwner(self.name)  # with the first engine
        self._native: dict[int, Handle] = {}
        self._lock = threading.Lock()

    def compile(self, wasm: bytes) -> WasmtimeCompiled:
        wasm = bytes(wasm)
        module = self._compile(self.native(DEFAULT_STACK_BYTES), wasm)
        return WasmtimeCompiled(self, read_interface(wasm), hashlib.sha256(wasm).digest(), DEFAULT_STACK_BYTES, module)

    def validate(self, wasm: bytes) -> None:
        wasm = bytes(wasm)
        error = c.wasmtime_module_validate(self.native(DEFAULT_STACK_BYTES).value, bytes_of(wasm), len(wasm))
        if error:
            raise _refusal(take_error(error))

    def instantiate(self, compiled: Compiled, imports: Imports, *,
                    stack_bytes: int = DEFAULT_STACK_BYTES) -> WasmtimeInstance:
        if not isinstance(compiled, WasmtimeCompiled):
            raise UsageError("compiled for another runtime", runtime=self.name, compiled_for=compiled.engine_name)
        self._signals.check()
        return WasmtimeInstance(self, compiled, imports, stack_bytes)

    def deserialize(self, blob: bytes) -> WasmtimeCompiled:
        wasm_sha256, source, code = packed.unpack(blob, self._tag())
        native = self.native(DEFAULT_STACK_BYTES)
        try:
            module = self.load_code(native, code)
        except CheckpointError as problem:
            raise packed.rejected(str(problem)) from problem
        return WasmtimeCompiled(self, read_interface(source, complete=False), wasm_sha256, DEFAULT_STACK_BYTES, module)

    def load(self, header: bytes, code: BinaryIO) -> WasmtimeCompiled:
        wasm_sha256, source, digest = packed.unpack(header, self._kept_tag())
        if packed.digest_of(code) != digest:
            raise packed.rejected("the digest differs: it is damaged")
        interface = read_interface(source, complete=False)
        return WasmtimeCompiled(self, interface, wasm_sha256, DEFAULT_STACK_BYTES, None, code)

    def thread_stack_bytes(self, stack_bytes: int) -> int:
        return stack_bytes + _NATIVE_RESERVE

    # For this package only.

    def native(self, stack_bytes: int) -> Handle:
        """The ``wasm_engine_t`` whose guests have ``stack_bytes`` of stack."""
        if stack_bytes < 4096 or stack_bytes > 1 << 30:
            raise UsageError("a guest stack is 4 KiB to 1 GiB", stack_bytes=stack_bytes)
        with self._lock:
            found = self._native.get(stack_bytes)
            if found is None:
                found = self._native[stack_bytes] = Handle(
                    "wasmtime engine", c.wasm_engine_new_with_config(_config(stack_bytes)), c.wasm_engine_delete)
            return found

    def pack(self, compiled: WasmtimeCompiled, code: bytes) -> bytes:
        return packed.pack(self._tag(), compiled.wasm_sha256, compiled.interface.source, code)

    def keep(self, compiled: WasmtimeCompiled, code: bytes) -> tuple[bytes, bytes]:
        digest = hashlib.sha256(code).digest()
        return packed.pack(self._kept_tag(), compiled.wasm_sha256, compiled.interface.source, digest), code

    def _kept_tag(self) -> str:
        return f"{self.name} {self.version} {processor()}"

    def _tag(self) -> str:
        return f"{self.name} {self.version} {os.uname().machine}"

    def _compile(self, native: Handle, wasm: bytes) -> Handle:
        module = ctypes.POINTER(c.wasmtime_module_t)()
        error = c.wasmtime_module_new(native.value, bytes_of(wasm), len(wasm), ctypes.byref(module))
        if error:
            raise _refusal(take_error(error))
        return Handle("wasmtime module", module, c.wasmtime_module_delete, owner=native)

    def load_file(self, native: Handle, file: BinaryIO) -> Handle:
        """Code from an open file, which is mapped: of a large module only what runs is ever read."""
        module = ctypes.POINTER(c.wasmtime_module_t)()
        path = ctypes.create_string_buffer(f"/proc/self/fd/{file.fileno()}".encode())
        error = c.wasmtime_module_deserialize_file(native.value, path, ctypes.byref(module))
        if error:
            raise packed.rejected(take_error(error))
        return Handle("wasmtime module", module, c.wasmtime_module_delete, owner=native)

    def load_code(self, native: Handle, code: bytes) -> Handle:
        module = ctypes.POINTER(c.wasmtime_module_t)()
        error = c.wasmtime_module_deserialize(native.value, bytes_of(code), len(code), ctypes.byref(module))
        if error:
            raise UsageError(take_error(error), runtime=self.name)
        return Handle("wasmtime module", module, c.wasmtime_module_delete, owner=native)


class WasmtimeCompiled(Compiled):
    """A module of wasmtime; for another stack size the code is loaded into that size's engine (2 ms), not compiled."""

    def __init__(self, engine: WasmtimeEngine, interface: ModuleInterface, wasm_sha256: bytes, stack_bytes: int,
                 module: Handle | None, file: BinaryIO | None = None) -> None:
        super().__init__(engine.name, interface, wasm_sha256)
        self._engine = engine
        self._modules = {} if module is None else {stack_bytes: module}
        self._file = file
        self._lock = threading.Lock()

    def serialize(self) -> bytes:
        return self._engine.pack(self, self._code())

    def keep(self) -> tuple[bytes, bytes]:
        return self._engine.keep(self, self._code())

    def _code(self) -> bytes:
        first = next(iter(self._modules.values()), None) or self.module(DEFAULT_STACK_BYTES)
        code = c.wasm_byte_vec_t()
        error = c.wasmtime_module_serialize(first.value, ctypes.byref(code))
        if error:
            raise UsageError(take_error(error), runtime=self.engine_name)
        data = ctypes.string_at(code.data, code.size)
        c.wasm_byte_vec_delete(ctypes.byref(code))
        return data

    def module(self, stack_bytes: int) -> Handle:
        native = self._engine.native(stack_bytes)
        with self._lock:
            found = self._modules.get(stack_bytes)
            if found is None:
                found = self._modules[stack_bytes] = (
                    self._engine.load_code(native, self._code()) if self._file is None
                    else self._engine.load_file(native, self._file)
                )
            return found

    def close(self) -> None:
        for module in self._modules.values():
            module.close()
        if self._file is not None:
            self._file.close()


class WasmtimeInstance(Instance):
    def __init__(self, engine: WasmtimeEngine, compiled: WasmtimeCompiled, imports: Imports, stack_bytes: int) -> None:
        super().__init__(compiled.interface, engine.thread_stack_bytes(stack_bytes))
        module = compiled.module(stack_bytes)
        self._runtime = engine.name
        self._stack_bytes = stack_bytes
        self._failure: BaseException | None = None
        native = engine.native(stack_bytes)
        self._store = Handle("wasmtime store", c.wasmtime_store_new(native.value, None, _NO_FINALIZER),
                             c.wasmtime_store_delete, owner=native)
        self._context = c.wasmtime_store_context(self._store.value)
        self._context_address = _address(self._context)
        self._instance = c.wasmtime_instance_t()
        self._externs: dict[str, Any] = {}
        self._side: tuple[ModuleInterface, Any] | None = None
        self._names: dict[bytes, tuple[int, ...]] = {}
        try:
            needed = resolve_imports(compiled.interface, imports, runtime=engine.name)
            run_with_stack(lambda: self._instantiate(module, needed), stack_bytes=self._needed_thread_stack)
        except BaseException:
            self.close()
            raise

    def _instantiate(self, module: Handle, needed: list[HostFunction | HostGlobal]) -> None:
        externs = (c.wasmtime_extern_t * len(needed))()
        for slot, item in zip(externs, needed, strict=True):
            if isinstance(item, HostFunction):
                slot.kind = _FUNC
                self._host_function(item, slot.of.func)
            else:
                slot.kind = _GLOBAL
                self._host_global(item, slot.of.global_)
        trap = ctypes.POINTER(c.wasm_trap_t)()
        error = c.wasmtime_instance_new(self._context, module.value, externs, len(needed), ctypes.byref(self._instance),
                                        ctypes.byref(trap))
        if error or trap:
            self._raise(_address(error), _address(trap))

    def _host_function(self, host: HostFunction, out: Any) -> None:
        function = host.call
        _, unpack = slot_codec(host.params, RAW_BYTES)
        pack, _ = slot_codec(host.results, RAW_BYTES)
        taken = RAW_BYTES * len(host.params)
        given = RAW_BYTES * len(host.results)
        string_at, memmove = ctypes.string_at, ctypes.memmove

        def callback(env: int, caller: int, slots: int, count: int) -> int:
            # No exception may leave: ctypes would print it and return 0, which means success.
            try:
                returned = function(*unpack(string_at(slots, taken))) if taken else function()
                if given:
                    memmove(slots, pack((returned,) if returned.__class__ is int else result_tuple(returned)), given)
                elif returned is not None:
                    pack(result_tuple(returned))
                return 0
            except BaseException as problem:
                self._failure = problem
                return _host_trap()

        thunk = HostCallback(callback)
        self._store.keep(thunk)
        functype = _functype(host.params, host.results)
        func_new_unchecked(self._context_address, functype, ctypes.cast(thunk, ctypes.c_void_p), None, None,
                           ctypes.addressof(out))
        c.wasm_functype_delete(functype)

    def _host_global(self, item: HostGlobal, out: Any) -> None:
        check_bits(item.type, item.bits)
        kind = c.wasm_globaltype_new(_valtype(item.type), 1 if item.mutable else 0)
        value = _value(item.type, item.bits)
        error = c.wasmtime_global_new(self._context, kind, ctypes.byref(value), ctypes.byref(out))
        c.wasm_globaltype_delete(kind)
        if error:
            raise NotSupported(take_error(error), runtime=self._runtime)

    def extend(self, compiled: Compiled, side: SideNames) -> None:
        if not isinstance(compiled, WasmtimeCompiled):
            raise UsageError("compiled for another runtime", runtime=self._runtime, compiled_for=compiled.engine_name)
        if self._side is not None:
            raise UsageError("the instance has been extended already", runtime=self._runtime)
        run_with_stack(lambda: self._extend(compiled, side), stack_bytes=self._needed_thread_stack)

    def _extend(self, compiled: WasmtimeCompiled, side: SideNames) -> None:
        imports = compiled.interface.imports
        externs = (c.wasmtime_extern_t * len(imports))()
        for n, item in enumerate(imports):
            externs[n] = self._extern(self._instance, item.name)
        instance = c.wasmtime_instance_t()
        trap = ctypes.POINTER(c.wasm_trap_t)()
        error = c.wasmtime_instance_new(self._context, compiled.module(self._stack_bytes).value, externs, len(imports),
                                        ctypes.byref(instance), ctypes.byref(trap))
        if error or trap:
            self._raise(_address(error), _address(trap))
        self._side = compiled.interface, instance
        self._names = {side.module.encode(): side.functions}

    def _function_type(self, export: str) -> FunctionType:
        if self._side is not None and (found := self._side[0].exported(export, "func")) is not None:
            return self._side[0].function_type(found)
        return super()._function_type(export)

    def _extern(self, instance: Any, name: str) -> Any:
        found = c.wasmtime_extern_t()
        encoded = name.encode()
        if not c.wasmtime_instance_export_get(self._context, ctypes.byref(instance), encoded, len(encoded),
                                              ctypes.byref(found)):
            raise UsageError("the module exports no such item", export=name, runtime=self._runtime)
        return found

    def _export(self, name: str, kind: int) -> Any:
        found = self._externs.get(name)
        if found is None:
            if self._closed:
                raise UsageError("the instance is closed", export=name)
            from_side = self._side is not None and self._side[0].exported(name, "func") is not None
            found = self._extern(self._side[1] if self._side and from_side else self._instance, name)
            if found.kind != kind:
                raise NotSupported("an export of a kind that is not handled", export=name, runtime=self._runtime)
            self._externs[name] = found
        return found.of

    def _bind(self, export: str) -> Callable[[Sequence[int]], tuple[int, ...]]:
        signature = self._function_type(export)
        func = self._export(export, _FUNC).func
        pack, _ = slot_codec(signature.params, RAW_BYTES)
        _, unpack = slot_codec(signature.results, RAW_BYTES)
        slots = max(len(signature.params), len(signature.results))
        given = RAW_BYTES * len(signature.results)
        context, function = self._context_address, ctypes.addressof(func)
        string_at, memmove = ctypes.string_at, ctypes.memmove
        # One buffer a nesting level (a host function may call the same export again): slots, then the trap's pointer.
        size = RAW_BYTES * slots + RAW_BYTES
        spare: list[tuple[Any, int, Any]] = []

        def new_buffer() -> tuple[Any, int, Any]:
            memory = ctypes.create_string_buffer(size + RAW_BYTES)
            address = -(-ctypes.addressof(memory) // RAW_BYTES) * RAW_BYTES
            return memory, address, ctypes.c_size_t.from_address(address + RAW_BYTES * slots)

        def call(args: Sequence[int]) -> tuple[int, ...]:
            packed_args = pack(args)
            buffer = spare.pop() if spare else new_buffer()
            _, address, trap = buffer
            try:
                if packed_args:
                    memmove(address, packed_args, len(packed_args))
                trap.value = 0
                error = call_unchecked(context, function, address, slots, address + RAW_BYTES * slots)
                if error or trap.value:
                    self._raise(error, trap.value)
                return unpack(string_at(address, given)) if given else ()
            finally:
                spare.append(buffer)

        return call

    def _raise(self, error: int, trap: int) -> None:
        """Turns an error or a trap, which is freed, into the host function's own exception, a refusal or a `GuestTrap`.

        A trap that a host function makes comes back as an error (it has no trap code), the guest's own as a trap.
        """
        problem: BaseException | None
        problem, self._failure = self._failure, None
        if error:
            text = take_error(ctypes.cast(error, ctypes.POINTER(c.wasmtime_error_t)))
            problem = problem or _refusal(text)
        if trap:
            uncaught = c.wasmtime_context_has_exception(self._context)
            if uncaught:
                exception = c.wasmtime_exnref_t()
                c.wasmtime_context_take_exception(self._context, ctypes.byref(exception))
                c.wasmtime_exnref_unroot(ctypes.byref(exception))
            described = _describe(trap, self._runtime, self._names, uncaught=uncaught)
            problem = problem or described
        assert problem is not None
        try:
            raise problem
        finally:
            del problem  # the traceback holds this frame

    def memory(self, export: str) -> Memory:
        self._require_memory(export)
        return _WasmtimeMemory(self, self._export(export, _MEMORY).memory)

    def get_global(self, export: str) -> int:
        kind = self._global_type(export).type
        value = c.wasmtime_val_t()
        exported = self._global(export)
        c.wasmtime_global_get(self._context, ctypes.byref(exported), ctypes.byref(value))
        return _bits(kind, value)

    def _set_global(self, export: str, kind: int, bits: int) -> None:
        value = _value(kind, bits)
        error = c.wasmtime_global_set(self._context, ctypes.byref(self._global(export)), ctypes.byref(value))
        if error:
            raise UsageError(take_error(error), export=export, runtime=self._runtime)

    def _global(self, export: str) -> Any:
        return self._export(export, _GLOBAL).global_

    def word_address(self, export: str) -> int:
        self._global_type(export)
        raise UsageError("wasmtime gives no address of a global", hint="put control words in a second memory",
                         runtime=self._runtime, export=export)

    def memory_locator(self, export: str) -> MemoryLocator:
        memory = self.memory(export)
        functions = [e.name for e in self.interface.exports if e.kind == "func"]
        for name in functions:
            raw = c.wasmtime_func_to_raw(self._context, ctypes.byref(self._export(name, _FUNC).func))
            found = find_definition(_address(raw), memory.address, memory.size)
            if found is not None:
                return MemoryLocator(found, read_base_and_length)
        base = memory.address  # it does not move, so only the length stays unknown
        return MemoryLocator(base, lambda read, address: (address, None))

    def context_address(self) -> int:
        """Address of the ``wasmtime_context_t``. Raises `UsageError` after `close`."""
        if self._closed:
            raise UsageError("the instance is closed")
        return self._context_address

    def _release(self) -> None:
        self._externs.clear()
        self._store.close()


class _WasmtimeMemory(Memory):
    def __init__(self, instance: WasmtimeInstance, memory: Any) -> None:
        self._instance = instance
        self._memory = memory
        self._pointer = ctypes.addressof(memory)

    def extent(self) -> tuple[int, int]:
        context = self._instance.context_address()
        return memory_data(context, self._pointer), memory_data_size(context, self._pointer)


def _config(stack_bytes: int) -> Any:
    config = c.wasm_config_new()
    # Above this second figure (2 MiB at first) the first one aborts the process.
    c.wasmtime_config_async_stack_size_set(config, max(2 << 20, stack_bytes + _NATIVE_RESERVE))
    c.wasmtime_config_max_wasm_stack_set(config, stack_bytes)
    for switch in ("multi_memory", "tail_call", "simd", "reference_types", "bulk_memory", "multi_value", "threads",
                   "exceptions"):
        getattr(c, f"wasmtime_config_wasm_{switch}_set")(config, True)
    for switch in ("relaxed_simd", "memory64", "gc", "function_references", "wide_arithmetic",
                   "custom_page_sizes", "stack_switching"):
        getattr(c, f"wasmtime_config_wasm_{switch}_set")(config, False)
    c.wasmtime_config_epoch_interruption_set(config, False)
    c.wasmtime_config_consume_fuel_set(config, False)
    # The default reservation (4 GiB) holds any 32-bit memory; rather no growth than a base that moves.
    c.wasmtime_config_memory_may_move_set(config, False)
    return config


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


_NO_FINALIZER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)()


def _valtype(kind: int) -> Any:
    return c.wasmtime_wasm_valtype_v128() if kind == V128 else c.wasm_valtype_new(_WASM_H_KINDS[kind])


def _functype(params: tuple[int, ...], results: tuple[int, ...]) -> Any:
    vectors = []
    for types in (params, results):
        items = (ctypes.POINTER(c.wasm_valtype_t) * len(types))(*[_valtype(t) for t in types])
        vector = c.wasm_valtype_vec_t()
        c.wasm_valtype_vec_new(ctypes.byref(vector), len(types), items)
        vectors.append(vector)
    return c.wasm_functype_new(ctypes.byref(vectors[0]), ctypes.byref(vectors[1]))


_OF = c.wasmtime_val_t.of.offset


def _value(kind: int, bits: int) -> Any:
    value = c.wasmtime_val_t()
    value.kind = _VALUE_KINDS[kind]
    if kind in {FUNCREF, EXTERNREF}:
        if bits:
            raise NotSupported("a reference that is not null", need="reference-types")
        return value
    ctypes.memmove(ctypes.addressof(value) + _OF, bits.to_bytes(WIDTHS[kind] // 8, "little"), WIDTHS[kind] // 8)
    return value


def _bits(kind: int, value: Any) -> int:
    if kind in {FUNCREF, EXTERNREF}:
        null = not any(ctypes.string_at(ctypes.addressof(value) + _OF, 8))
        c.wasmtime_val_unroot(ctypes.byref(value))
        if not null:
            raise NotSupported("a reference that is not null", need="reference-types")
        return 0
    return int.from_bytes(ctypes.string_at(ctypes.addressof(value) + _OF, WIDTHS[kind] // 8), "little")


_HOST_TRAP_TEXT = b"a host function raised an exception"


def _host_trap() -> int:
    trap = c.wasmtime_trap_new(_HOST_TRAP_TEXT, len(_HOST_TRAP_TEXT))
    return _address(trap)


def _function(frame: Any, names: Mapping[bytes, tuple[int, ...]]) -> tuple[int, bool]:
    """The number of a frame's function, and whether it is of a module beside the program's."""
    index = int(c.wasm_frame_func_index(frame))
    if names and (module := c.wasmtime_frame_module_name(frame)):
        others = names.get(ctypes.string_at(module.contents.data, module.contents.size), ())
        if index < len(others):
            return others[index], True
    return index, False


def _describe(address: int, runtime: str, names: Mapping[bytes, tuple[int, ...]], *, uncaught: bool) -> GuestTrap:
    trap = ctypes.cast(address, ctypes.POINTER(c.wasm_trap_t))
    message = c.wasm_byte_vec_t()
    c.wasm_trap_message(trap, ctypes.byref(message))
    text = take_text(message)
    code = ctypes.c_uint8()
    kind = traps.UNCAUGHT if uncaught else traps.OTHER
    if c.wasmtime_trap_code(trap, ctypes.byref(code)):
        kind = _TRAP_KINDS.get(code.value, traps.OTHER)
    function = offset = None
    frame = c.wasm_trap_origin(trap)
    if frame:
        function, beside = _function(frame, names)
        offset = int(c.wasm_frame_module_offset(frame))
        offset = None if beside or offset == _UNKNOWN_OFFSET else offset
        c.wasm_frame_delete(frame)
    callers: tuple[int, ...] = ()
    if kind == traps.UNDEFINED_ELEMENT:  # the one kind that functions of the neutral module trap with
        frames = c.wasm_frame_vec_t()
        c.wasm_trap_trace(trap, ctypes.byref(frames))
        callers = tuple([_function(frames.data[i], names)[0] for i in range(1, min(frames.size, 4))])
        c.wasm_frame_vec_delete(ctypes.byref(frames))
    c.wasm_trap_delete(trap)
    # The whole text carries a backtrace; its last line says what happened.
    last = next((line for line in reversed(text.splitlines()) if line.strip()), kind).strip()
    return traps.guest_trap(kind, runtime=runtime, text=re.sub(r"^(\d+: )?(wasm trap: )?", "", last), function=function,
                            offset=offset, callers=callers)


_OFFSET = re.compile(r"at offset (0x[0-9a-f]+|\d+)")
_FEATURE = re.compile(
    r"not enabled|not supported|unsupported|is disabled|must be enabled|too large|limit|exceed", re.IGNORECASE,
)


def _refusal(text: str) -> InvalidModule | NotSupported:
    found = _OFFSET.search(text)
    offset = int(found[1], 0) if found else None
    short = " ".join(line.strip() for line in text.splitlines() if line.strip() and line.strip() != "Caused by:")
    short = re.sub(r"\s*\(at offset [^)]*\)", "", short)
    kind = NotSupported if _FEATURE.search(text) else InvalidModule
    return kind(short, runtime="wasmtime", offset=offset)
