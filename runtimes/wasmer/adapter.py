"""The wasmer adapter."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from wasmckpt.errors import CheckpointError, GuestTrap, InvalidModule, NotSupported, UsageError
from wasmckpt.runtimes import packed, provided, traps
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
    read_base_and_length,
)
from wasmckpt.runtimes.faulthandlers import SignalOwner
from wasmckpt.runtimes.handle import Handle
from wasmckpt.runtimes.imports import resolve_imports
from wasmckpt.runtimes.interface import ModuleInterface, read_interface
from wasmckpt.runtimes.slots import check_bits, result_tuple
from wasmckpt.runtimes.wasmer.cdef import byte_vec, ffi, last_error, lib, take_bytes, text
from wasmckpt.runtimes.wasmer.values import KINDS, VALUE_BYTES, value_codec
from wasmckpt.wasm.values import V128

__all__ = ["WasmerCompiled", "WasmerEngine", "WasmerInstance"]

_NATIVE_RESERVE = 1024 * 1024
"""Native stack for host functions and Python; the guest has one of its own, which wasmer allocates."""
_MIN_STACK, _MAX_STACK = 8 * 1024, 1 << 30

_CRANELIFT = 0
_SWITCHES = {
    "threads": True, "reference_types": True, "simd": True, "bulk_memory": True, "multi_value": True,
    "multi_memory": True, "extended_const": True, "tail_call": False, "memory64": False, "exceptions": True,
    "relaxed_simd": False, "wide_arithmetic": False, "module_linking": False,
}

_TRAP_KINDS = {
    "call stack exhausted": traps.STACK_OVERFLOW, "out of bounds memory access": traps.MEMORY_BOUNDS,
    "undefined element: out of bounds table access": traps.UNDEFINED_ELEMENT,
    "uninitialized element": traps.NULL_ELEMENT, "indirect call type mismatch": traps.SIGNATURE,
    "integer overflow": traps.INTEGER_OVERFLOW, "integer divide by zero": traps.DIVIDE_BY_ZERO,
    "invalid conversion to integer": traps.BAD_CONVERSION, "unreachable": traps.UNREACHABLE,
    "unaligned atomic access": traps.UNALIGNED_ATOMIC, "uncaught exception": traps.UNCAUGHT,
    "uninitialized exnref": traps.NULL_REFERENCE,
}

_CAPABILITIES = Capabilities(
    features=frozenset({
        "multi-value", "sign-extension", "saturating-conversions", "mutable-globals", "bulk-memory", "memory-copy-fill",
        "reference-types", "simd", "multi-memory", "extended-const", "atomics", "exceptions",
    }),
    poll="atomic-memory", lowerings=frozenset(), nan_f32_quieted=False, memory_moves=False, full_validation=True,
    serializes=True, max_slots=None, max_memory_pages=65_536, max_functions=1_000_000, max_exports=100_000,
    max_params=1_000, max_results=1_000, max_nesting=49_000, max_body_bytes=7_654_321,
    compile_threads=True,
)


class WasmerEngine(Engine):
    """wasmer. Its own engines keep the code of every module as long as they live, so each module has one to itself."""

    name: ClassVar[str] = "wasmer"

    def __init__(self) -> None:
        self.version = provided.recipe(self.name).VERSION
        self.capabilities = _CAPABILITIES
        self._signals = SignalOwner(self.name)

    def compile(self, wasm: bytes) -> WasmerCompiled:
        wasm = bytes(wasm)
        interface = read_interface(wasm)  # first: wasmer would miss a feature in what is no module at all
        self.require_means()
        engine, module = self._module(lib.wasm_module_new, wasm)
        return WasmerCompiled(self, interface, hashlib.sha256(wasm).digest(), engine, module)

    def validate(self, wasm: bytes) -> None:
        """Compiles it, since the library's own validation says yes or no only."""
        self.compile(wasm).close()

    def instantiate(self, compiled: Compiled, imports: Imports, *,
                    stack_bytes: int = DEFAULT_STACK_BYTES) -> WasmerInstance:
        if not isinstance(compiled, WasmerCompiled):
            raise UsageError("compiled for another runtime", runtime=self.name, compiled_for=compiled.engine_name)
        if stack_bytes < _MIN_STACK or stack_bytes > _MAX_STACK:
            raise UsageError("a guest stack is 8 KiB to 1 GiB", stack_bytes=stack_bytes)
        self._signals.check()
        return WasmerInstance(self, compiled, imports, stack_bytes)

    def deserialize(self, blob: bytes) -> WasmerCompiled:
        wasm_sha256, source, code = packed.unpack(blob, self._tag())
        try:
            engine, module = self._module(lib.wasm_module_deserialize, code)
        except CheckpointError as problem:
            raise packed.rejected(str(problem)) from problem
        return WasmerCompiled(self, read_interface(source, complete=False), wasm_sha256, engine, module)

    def thread_stack_bytes(self, stack_bytes: int) -> int:
        return _NATIVE_RESERVE

    def pack(self, compiled: WasmerCompiled, code: bytes) -> bytes:
        """The stored form of a module. For this package only."""
        return packed.pack(self._tag(), compiled.wasm_sha256, compiled.interface.source, code)

    def _tag(self) -> str:
        return f"{self.name} {self.version} {os.uname().machine}"

    def _module(self, make: Any, data: bytes) -> tuple[Handle, Handle]:
        """A new engine and the module that ``make`` gives of ``data``. Raises `InvalidModule` or `NotSupported`."""
        engine = Handle("wasmer engine", lib.wasm_engine_new_with_config(_config()), lib.wasm_engine_delete)
        store = Handle("wasmer store", lib.wasm_store_new(engine.value), lib.wasm_store_delete, owner=engine)
        vec, _keep = byte_vec(data)
        made = make(store.value, vec)
        if not made:
            raise _refusal(last_error())
        store.close()
        return engine, Handle("wasmer module", made, lib.wasm_module_delete, owner=engine)


class WasmerCompiled(Compiled):
    """A module of wasmer with its engine."""

    def __init__(self, engine: WasmerEngine, interface: ModuleInterface, wasm_sha256: bytes, native: Handle,
                 module: Handle) -> None:
        super().__init__(engine.name, interface, wasm_sha256)
        self._engine = engine
        self.native = native
        self.module = module

    def serialize(self) -> bytes:
        code = ffi.new("wasm_byte_vec_t *")
        lib.wasm_module_serialize(self.module.value, code)
        return self._engine.pack(self, take_bytes(code))

    def close(self) -> None:
        self.native.close()


class WasmerInstance(Instance):
    def __init__(self, engine: WasmerEngine, compiled: WasmerCompiled, imports: Imports, stack_bytes: int) -> None:
        super().__init__(compiled.interface, engine.thread_stack_bytes(stack_bytes))
        self._runtime = engine.name
        self._stack_bytes = stack_bytes
        self._failure: BaseException | None = None
        needed = resolve_imports(compiled.interface, imports, runtime=engine.name)
        self._guest = Handle("wasmer guest", lib.wasmckpt_guest_new(compiled.native.value, stack_bytes),
                             lib.wasmckpt_guest_delete)
        self._store = Handle("wasmer store", lib.wasm_store_new(ffi.cast("wasm_engine_t *", self._guest.value)),
                             lib.wasm_store_delete, owner=self._guest)
        try:
            self._imports = [self._imported(item) for item in needed]
            self._exports, self._positions = self._instantiate(compiled), _positions(compiled.interface)
        except BaseException:
            self.close()
            raise

    def _imported(self, item: HostFunction | HostGlobal) -> tuple[Handle, Any]:
        """A function or global of the host, and the (borrowed) extern for it."""
        if isinstance(item, HostFunction):
            callback = self._callback(item)
            signature = _functype(item.params, item.results)
            function = lib.wasm_func_new(self._store.value, signature, callback)
            lib.wasm_functype_delete(signature)
            return (Handle("wasmer function", function, lib.wasm_func_delete, owner=self._store, keep=(callback,)),
                    lib.wasm_func_as_extern(function))
        check_bits(item.type, item.bits)
        pack, _ = value_codec((item.type,), owned=False)
        kind = lib.wasm_globaltype_new(lib.wasm_valtype_new(KINDS[item.type]), item.mutable)
        made = lib.wasm_global_new(self._store.value, kind, _values(pack((item.bits,))))
        lib.wasm_globaltype_delete(kind)
        return (Handle("wasmer global", made, lib.wasm_global_delete, owner=self._store),
                lib.wasm_global_as_extern(made))

    def _instantiate(self, compiled: WasmerCompiled) -> Handle:
        array = ffi.new("wasm_extern_t *[]", [extern for _, extern in self._imports])
        given = ffi.new("wasm_extern_vec_t *", {"size": len(self._imports), "data": array})
        trap = ffi.new("wasm_trap_t **")
        self._depth += 1  # a start function runs
        try:
            made = lib.wasm_instance_new(self._store.value, compiled.module.value, given, trap)
        finally:
            self._depth -= 1
        if trap[0]:
            self._raise(trap[0])
        if not made:
            raise _refusal(last_error())
        instance = Handle("wasmer instance", made, lib.wasm_instance_delete, owner=self._store)
        exports = ffi.new("wasm_extern_vec_t *")
        lib.wasm_instance_exports(instance.value, exports)
        return Handle("wasmer exports", exports, lib.wasm_extern_vec_delete, owner=self._store, keep=(instance,))

    def _callback(self, host: HostFunction) -> Any:
        function = host.call
        _, unpack = value_codec(host.params, owned=False)
        pack, _ = value_codec(host.results, owned=False)
        results = len(host.results)
        memmove = ffi.memmove
        no_trap = ffi.NULL

        def callback(args: Any, slots: Any) -> Any:
            try:
                returned = function(*unpack(args.data))
                if results or returned is not None:
                    values = (returned,) if returned.__class__ is int else result_tuple(returned)
                    if len(values) != results:
                        raise UsageError("a host function gave another number of results", wanted=results,
                                         got=len(values))
                    memmove(slots.data, pack(values), VALUE_BYTES * results)
                return no_trap
            except BaseException as problem:
                return self._host_trap(problem)

        # `onerror`: for an exception that strikes outside of the try (a signal's); NULL would mean success.
        return ffi.callback("wasm_func_callback_t", callback, onerror=lambda _type, problem, _traceback:
                            self._host_trap(problem))

    def _host_trap(self, problem: BaseException) -> Any:
        self._failure = problem
        message, _keep = byte_vec(b"a host function raised an exception\0")
        return lib.wasm_trap_new(self._store.value, message)

    def _extern(self, export: str, kind: str) -> Any:
        """The (borrowed) extern of an export whose kind is known to be ``kind``."""
        return self._exports.value.data[self._positions[export, kind]]

    def _bind(self, export: str) -> Callable[[Sequence[int]], tuple[int, ...]]:
        signature = self._function_type(export)
        function = lib.wasm_extern_as_func(self._extern(export, "func"))
        pack, _ = value_codec(signature.params, owned=True)
        _, unpack = value_codec(signature.results, owned=True)
        params, results = len(signature.params), len(signature.results)
        stack_bytes, memmove, func_call = self._stack_bytes, ffi.memmove, lib.wasmckpt_func_call
        spare: list[tuple[Any, Any, Any, Any]] = []  # buffers of calls that have ended: calls may be nested

        def new_buffer() -> tuple[Any, Any, Any, Any]:
            args, slots = ffi.new("wasm_val_t[]", params or 1), ffi.new("wasm_val_t[]", results or 1)
            return (args, slots, ffi.new("wasm_val_vec_t *", {"size": params, "data": args}),
                    ffi.new("wasm_val_vec_t *", {"size": results, "data": slots}))

        def call(values: Sequence[int]) -> tuple[int, ...]:
            data = pack(values)
            buffer = spare.pop() if spare else new_buffer()
            args, slots, given, taken = buffer
            try:
                if data:
                    memmove(args, data, len(data))
                trap = func_call(stack_bytes, function, given, taken)
                if trap:
                    self._raise(trap)
                return unpack(slots)
            finally:
                spare.append(buffer)

        return call

    def _raise(self, trap: Any) -> None:
        """Turns a trap, which is freed, into the host function's own exception or a `GuestTrap`."""
        problem: BaseException | None
        problem, self._failure = self._failure, None
        described = _describe(trap, self._runtime)
        try:
            raise problem or described
        finally:
            del problem  # the traceback holds this frame

    def memory(self, export: str) -> Memory:
        return _WasmerMemory(self, self._definition(export))

    def _definition(self, export: str) -> int:
        """Address of a memory's two words, base and length."""
        return int(lib.wasmckpt_guest_memory(self._guest.value, self._require_memory(export)))

    def get_global(self, export: str) -> int:
        kind = self._global_type(export).type
        if kind == V128:
            return int.from_bytes(ctypes.string_at(self._vector(export), 16), "little")
        _, unpack = value_codec((kind,), owned=True)
        value = ffi.new("wasm_val_t[1]")
        lib.wasm_global_get(self._global(export), value)
        return unpack(value)[0]

    def _set_global(self, export: str, kind: int, bits: int) -> None:
        if kind == V128:
            ctypes.memmove(self._vector(export), bits.to_bytes(16, "little"), 16)
            return
        pack, _ = value_codec((kind,), owned=True)
        lib.wasm_global_set(self._global(export), _values(pack((bits,))))

    def _vector(self, export: str) -> int:
        """Address of a v128 global, which the C API cannot read; none is imported."""
        index = self.interface.exported(export, "global")
        assert index is not None
        imported = sum(item.kind == "global" for item in self.interface.imports)
        return int(lib.wasmckpt_guest_global(self._guest.value, index - imported))

    def _global(self, export: str) -> Any:
        return lib.wasm_extern_as_global(self._extern(export, "global"))

    def word_address(self, export: str) -> int:
        self._global_type(export)
        raise UsageError("wasmer gives no address of a global", hint="put control words in a second memory",
                         runtime=self._runtime, export=export)

    def memory_locator(self, export: str) -> MemoryLocator:
        return MemoryLocator(self._definition(export), read_base_and_length)

    @property
    def closed(self) -> bool:
        return self._closed

    def _release(self) -> None:
        self._store.close()
        self._guest.close()


class _WasmerMemory(Memory):
    """Read from the definition that the guest itself uses: the API asks the store, which is the guest's while it
    runs."""

    def __init__(self, instance: WasmerInstance, definition: int) -> None:
        self._instance = instance
        self._words = (ctypes.c_uint64 * 2).from_address(definition)

    def extent(self) -> tuple[int, int]:
        if self._instance.closed:
            raise UsageError("the instance is closed")
        base, length = self._words
        return base, length


def _config() -> Any:
    config, features = lib.wasm_config_new(), lib.wasmer_features_new()
    for name, wanted in _SWITCHES.items():
        getattr(lib, f"wasmer_features_{name}")(features, wanted)
    lib.wasm_config_set_backend(config, _CRANELIFT)
    lib.wasm_config_set_features(config, features)
    return config


def _positions(interface: ModuleInterface) -> dict[tuple[str, str], int]:
    return {(export.name, export.kind): i for i, export in enumerate(interface.exports)}


def _values(data: bytes) -> Any:
    values = ffi.new("wasm_val_t[]", len(data) // VALUE_BYTES)
    ffi.memmove(values, data, len(data))
    return values


def _functype(params: tuple[int, ...], results: tuple[int, ...]) -> Any:
    vectors = []
    for types in (params, results):
        vector = ffi.new("wasm_valtype_vec_t *")
        lib.wasm_valtype_vec_new(vector, len(types), [lib.wasm_valtype_new(KINDS[kind]) for kind in types])
        vectors.append(vector)
    return lib.wasm_functype_new(*vectors)


def _describe(trap: Any, runtime: str) -> GuestTrap:
    message, frames = ffi.new("wasm_byte_vec_t *"), ffi.new("wasm_frame_vec_t *")
    lib.wasm_trap_message(trap, message)
    words = text(take_bytes(message))
    lib.wasm_trap_trace(trap, frames)
    functions = [int(lib.wasm_frame_func_index(frames.data[i])) for i in range(min(frames.size, 4))]
    offset = int(lib.wasm_frame_module_offset(frames.data[0])) if functions else None
    lib.wasm_frame_vec_delete(frames)
    lib.wasm_trap_delete(trap)
    kind = _TRAP_KINDS.get(words, traps.OTHER)
    return traps.guest_trap(kind, runtime=runtime, text=words, function=functions[0] if functions else None,
                            offset=offset, callers=tuple(functions[1:]))


_OFFSET = re.compile(r"at offset (0x[0-9a-f]+|\d+)")
_FEATURE = re.compile(
    r"not enabled|not supported|unsupported|is disabled|must be enabled|too large|limit|exceed|not yet implemented"
    r"|insufficient|could not", re.IGNORECASE,
)


def _refusal(message: str) -> InvalidModule | NotSupported:
    found = _OFFSET.search(message)
    offset = int(found[1], 0) if found else None
    short = re.sub(r"\s*\(at offset [^)]*\)", "", " ".join(message.split()))
    kind = NotSupported if _FEATURE.search(message) else InvalidModule
    return kind(short or "wasmer refuses the module", runtime="wasmer", offset=offset)
