"""The WasmEdge adapter."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from wasmckpt.errors import InvalidModule, NotSupported, UsageError
from wasmckpt.runtimes import packed, traps
from wasmckpt.runtimes.base import (
    DEFAULT_STACK_BYTES,
    DEPTH_EXPORT,
    DEPTH_OVERFLOW,
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
from wasmckpt.runtimes.imports import resolve_imports
from wasmckpt.runtimes.interface import ModuleInterface, read_interface
from wasmckpt.runtimes.signals import with_signals_kept
from wasmckpt.runtimes.slots import WIDTHS, Packer, Unpacker, check_bits, result_tuple, slot_codec
from wasmckpt.runtimes.threads import run_in_guest_thread, run_with_stack
from wasmckpt.runtimes.wasmedge.cdef import (
    PROPOSALS,
    VALUE_BYTES,
    VALUE_TYPES,
    address_of,
    ffi,
    lib,
    message,
    string,
    value,
)
from wasmckpt.runtimes.wasmedge.layout import Layout, probe
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.validate import analyze, validate_module
from wasmckpt.wasm.values import EXTERNREF, FUNCREF

__all__ = ["CAPABILITIES", "WasmEdgeCompiled", "WasmEdgeEngine", "WasmEdgeInstance"]

_NATIVE_RESERVE: Final = 1024 * 1024
"""Native stack of a guest's thread: the interpreter keeps the guest's frames on the heap."""

_TRAP_KINDS: Final = {
    0x404: traps.DIVIDE_BY_ZERO, 0x405: traps.INTEGER_OVERFLOW, 0x406: traps.BAD_CONVERSION,
    0x407: traps.UNDEFINED_ELEMENT, 0x408: traps.MEMORY_BOUNDS, 0x40A: traps.UNREACHABLE, 0x40B: traps.NULL_ELEMENT,
    0x40C: traps.UNDEFINED_ELEMENT, 0x40D: traps.SIGNATURE, 0x410: traps.UNALIGNED_ATOMIC,
    0x412: traps.NULL_REFERENCE, 0x413: traps.NULL_REFERENCE,
    0x417: traps.NULL_REFERENCE, 0x419: traps.UNCAUGHT,
    0x303: traps.MEMORY_BOUNDS, 0x304: traps.UNDEFINED_ELEMENT,  # segments that do not fit
}
_LINK_ERRORS: Final = range(0x300, 0x303)
_HOST_TRAP: Final = 0x0100_0001
"""A result of the category for users: a host function raised an exception."""
_REFERENCES: Final = (FUNCREF, EXTERNREF)
_HOST_CALL: Final = "WasmEdge_Result(void *, void *, uintptr_t, uintptr_t)"

CAPABILITIES: Final = Capabilities(
    features=frozenset({
        "multi-value", "sign-extension", "saturating-conversions", "mutable-globals", "bulk-memory", "memory-copy-fill",
        "reference-types", "simd", "multi-memory", "tail-calls", "extended-const", "atomics",
        "exceptions",
    }),
    poll="atomic-memory", lowerings=frozenset({"depth-counter"}), nan_f32_quieted=False, memory_moves=False,
    full_validation=True, serializes=False, max_slots=None, max_memory_pages=65_536, max_functions=1_000_000,
    max_exports=100_000, max_params=1_000, max_results=1_000, max_nesting=49_000, max_body_bytes=20_000_000,
    vectors_cross=True, traps_name_function=False,
)


class WasmEdgeEngine(Engine):
    """WasmEdge's interpreter."""

    name: ClassVar[str] = "wasmedge"
    capabilities: Capabilities = CAPABILITIES
    interprets: ClassVar[bool] = True

    def __init__(self) -> None:
        self.version = ffi.string(lib.WasmEdge_VersionGet()).decode()
        self.configuration = Handle("wasmedge configuration", lib.WasmEdge_ConfigureCreate(),
                                    lib.WasmEdge_ConfigureDelete)
        for feature in PROPOSALS.keys() & self.capabilities.features:
            lib.WasmEdge_ConfigureAddProposal(self.configuration.value, PROPOSALS[feature])
        lib.WasmEdge_ConfigureSetForceInterpreter(self.configuration.value, self.interprets)
        self.layout = probe(self.configuration.value)

    def compile(self, wasm: bytes) -> WasmEdgeCompiled:
        wasm = bytes(wasm)
        interface = read_interface(wasm)
        return WasmEdgeCompiled(self.name, interface, hashlib.sha256(wasm).digest(), self.parse(wasm))

    def validate(self, wasm: bytes) -> None:
        self.compile(wasm).close()

    def instantiate(self, compiled: Compiled, imports: Imports, *,
                    stack_bytes: int = DEFAULT_STACK_BYTES) -> WasmEdgeInstance:
        if not isinstance(compiled, WasmEdgeCompiled) or compiled.engine_name != self.name:
            raise UsageError("compiled for another runtime", runtime=self.name, compiled_for=compiled.engine_name)
        return WasmEdgeInstance(self, compiled, imports, stack_bytes)

    def deserialize(self, blob: bytes) -> Compiled:
        raise packed.rejected("wasmedge has none")

    def thread_stack_bytes(self, stack_bytes: int) -> int:
        return _NATIVE_RESERVE

    # For this package only.

    def counted_stack(self, compiled: WasmEdgeCompiled, stack_bytes: int) -> int:
        """Bytes that a module with a depth counter may count where the guest is to have ``stack_bytes``."""
        return stack_bytes

    def parse(self, wasm: bytes) -> Handle:
        """A validated module. Raises `InvalidModule` or `NotSupported`."""
        configuration = self.configuration.value
        loader = Handle("wasmedge loader", lib.WasmEdge_LoaderCreate(configuration), lib.WasmEdge_LoaderDelete)
        validator = Handle("wasmedge validator", lib.WasmEdge_ValidatorCreate(configuration),
                           lib.WasmEdge_ValidatorDelete)
        out = ffi.new("void **")
        try:
            if result := lib.WasmEdge_LoaderParseFromBuffer(loader.value, out, wasm, len(wasm)):
                raise _refusal(result, wasm)
            module = Handle("wasmedge module", out[0], lib.WasmEdge_ASTModuleDelete)
            if result := lib.WasmEdge_ValidatorValidate(validator.value, module.value):
                module.close()
                raise _refusal(result, wasm)
            return module
        finally:
            validator.close()
            loader.close()


class WasmEdgeCompiled(Compiled):
    """A parsed and validated module."""

    def __init__(self, engine_name: str, interface: ModuleInterface, wasm_sha256: bytes, module: Handle) -> None:
        super().__init__(engine_name, interface, wasm_sha256)
        self.module = module

    def close(self) -> None:
        self.module.close()


class WasmEdgeInstance(Instance):
    def __init__(self, engine: WasmEdgeEngine, compiled: WasmEdgeCompiled, imports: Imports, stack_bytes: int) -> None:
        super().__init__(compiled.interface, engine.thread_stack_bytes(stack_bytes))
        if stack_bytes < 4096 or stack_bytes > 1 << 30:
            raise UsageError("a guest stack is 4 KiB to 1 GiB", stack_bytes=stack_bytes)
        self._runtime = engine.name
        self._layout: Layout = engine.layout
        self._stack_bytes = engine.counted_stack(compiled, stack_bytes)
        self._interprets = engine.interprets
        self._failure: BaseException | None = None
        self._depth_left: ctypes.c_uint32 | None = None
        self._imports: dict[str, Handle] = {}
        needed = resolve_imports(compiled.interface, imports, runtime=engine.name)
        self._executor = Handle("wasmedge executor",
                                lib.WasmEdge_ExecutorCreate(engine.configuration.value, ffi.NULL),
                                lib.WasmEdge_ExecutorDelete)
        self._store = Handle("wasmedge store", lib.WasmEdge_StoreCreate(), lib.WasmEdge_StoreDelete,
                             owner=self._executor)
        try:
            self._provide(needed)
            run_with_stack(lambda: self._instantiate(compiled.module), stack_bytes=self._needed_thread_stack)
            self._depth_left = self._find_depth()
        except BaseException:
            self.close()
            raise

    def _instantiate(self, module: Handle) -> None:
        out = ffi.new("void **")
        self._outcome(with_signals_kept(lambda: int(
            lib.WasmEdge_ExecutorInstantiate(self._executor.value, out, self._store.value, module.value))))
        self._instance = Handle("wasmedge instance", out[0], lib.WasmEdge_ModuleInstanceDelete, owner=self._store)

    # Imports

    def _provide(self, needed: list[HostFunction | HostGlobal]) -> None:
        """Registers one module for each name that imports come from; WasmEdge owns what is added to it."""
        modules = self._imports
        keep: list[object] = []
        given: set[tuple[str, str]] = set()
        for wanted, item in zip(self.interface.imports, needed, strict=True):
            if (wanted.module, wanted.name) in given:
                continue
            given.add((wanted.module, wanted.name))
            module = modules.get(wanted.module)
            if module is None:
                module = modules[wanted.module] = Handle(
                    "wasmedge import", lib.WasmEdge_ModuleInstanceCreate(string(wanted.module, keep)),
                    lib.WasmEdge_ModuleInstanceDelete, owner=self._store,
                )
            name = string(wanted.name, keep)
            if isinstance(item, HostFunction):
                lib.WasmEdge_ModuleInstanceAddFunction(module.value, name, self._host_function(item))
            else:
                lib.WasmEdge_ModuleInstanceAddGlobal(module.value, name, _host_global(item))
        for module in modules.values():
            self._outcome(lib.WasmEdge_ExecutorRegisterImport(self._executor.value, self._store.value, module.value))

    def _host_function(self, host: HostFunction) -> Any:
        function = host.call
        _, unpack = _codec(host.params)
        pack, _ = _codec(host.results)
        taken, given = VALUE_BYTES * len(host.params), VALUE_BYTES * len(host.results)
        string_at, memmove = ctypes.string_at, ctypes.memmove

        def callback(data: Any, frame: Any, params: int, results: int) -> int:
            try:
                returned = function(*unpack(string_at(params, taken))) if taken else function()
                if given:
                    memmove(results, pack((returned,) if returned.__class__ is int else result_tuple(returned)), given)
                elif returned is not None:
                    pack(result_tuple(returned))
                return 0
            except BaseException as problem:
                self._failure = problem
                return _HOST_TRAP

        # `error`: for an exception that strikes outside of the try (a signal's); 0 would mean success.
        thunk = ffi.callback(_HOST_CALL, callback, error=_HOST_TRAP)
        self._executor.keep(thunk)
        kind = lib.WasmEdge_FunctionTypeCreate(*_types(host.params), *_types(host.results))
        made = lib.WasmEdge_FunctionInstanceCreate(kind, ffi.cast("WasmEdge_HostFunc_t", thunk), ffi.NULL, 0)
        lib.WasmEdge_FunctionTypeDelete(kind)
        return made

    # Calls

    def _find(self, kind: str, export: str) -> Any:
        """An exported thing's context, or NULL."""
        keep: list[object] = []
        return getattr(lib, f"WasmEdge_ModuleInstanceFind{kind}")(self._instance.value, string(export, keep))

    def _find_depth(self) -> ctypes.c_uint32 | None:
        """The word by which a module with the lowering "depth-counter" counts the stack that is left."""
        if self.interface.exported(DEPTH_EXPORT, "global") is None:
            return None
        return ctypes.c_uint32.from_address(self._global(DEPTH_EXPORT))

    def _bind(self, export: str) -> Callable[[Sequence[int]], tuple[int, ...]]:
        signature = self._function_type(export)
        function = self._find("Function", export)
        pack, _ = _codec(signature.params)
        _, unpack = _codec(signature.results)
        arity, count = len(signature.params), len(signature.results)
        taken, given = VALUE_BYTES * arity, VALUE_BYTES * count
        executor, invoke, left = self._executor.value, lib.WasmEdge_ExecutorInvoke, self._depth_left
        interprets = self._interprets
        string_at, memmove = ctypes.string_at, ctypes.memmove
        # One buffer a nesting level (a host function may call the same export again), at a multiple of 16.
        spare: list[tuple[Any, int, Any, Any]] = []

        def new_buffer() -> tuple[Any, int, Any, Any]:
            memory = ffi.new("char[]", taken + given + 16)
            address = -(-address_of(memory) // 16) * 16
            return (memory, address, ffi.cast("WasmEdge_Value *", address),
                    ffi.cast("WasmEdge_Value *", address + taken))

        def call(args: Sequence[int]) -> tuple[int, ...]:
            packed_args = pack(args)
            buffer = spare.pop() if spare else new_buffer()
            _, address, params, results = buffer
            before = 0
            try:
                if taken:
                    memmove(address, packed_args, taken)
                if left is not None:
                    before = left.value if self._depth > 1 else self._stack_bytes
                    left.value = before
                if interprets:
                    result = invoke(executor, function, params, arity, results, count)
                else:
                    around = self._in_own_thread if self._depth > 1 else with_signals_kept
                    result = around(lambda: invoke(executor, function, params, arity, results, count))
                if result:
                    self._outcome(result)
                return unpack(string_at(address + taken, given)) if given else ()
            finally:
                if left is not None:
                    left.value = before
                spare.append(buffer)

        return call

    def _in_own_thread(self, action: Callable[[], int]) -> int:
        """A call from inside a host function. The end of one takes away what the library keeps for compiled code in
        variables of the thread, so that the outer code would crash at its next call out."""
        outer = self._owner_thread

        def run() -> int:
            self._owner_thread = threading.get_ident()
            return action()

        try:
            return run_in_guest_thread(run, stack_bytes=self._needed_thread_stack)
        finally:
            self._owner_thread = outer

    def _outcome(self, result: int) -> None:
        """Turns a result into the host function's own exception, a refusal or a `GuestTrap`."""
        if not result:
            return
        problem: BaseException | None
        problem, self._failure = self._failure, None
        if problem is None or result != _HOST_TRAP:
            problem = self._describe(result)
        try:
            raise problem
        finally:
            del problem  # the traceback holds this frame

    def _describe(self, result: int) -> Exception:
        if result in _LINK_ERRORS:
            return NotSupported(message(result), runtime=self._runtime)
        kind = _TRAP_KINDS.get(result, traps.OTHER)
        left = self._depth_left
        if kind == traps.UNREACHABLE and left is not None and left.value == DEPTH_OVERFLOW:
            return traps.guest_trap(traps.STACK_OVERFLOW, runtime=self._runtime)
        return traps.guest_trap(kind, text=message(result), runtime=self._runtime)

    # Memories and globals

    def memory(self, export: str) -> Memory:
        self._require_memory(export)
        return _WasmEdgeMemory(self._instance, self._layout, address_of(self._find("Memory", export)))

    def memory_locator(self, export: str) -> MemoryLocator:
        self._require_memory(export)
        return MemoryLocator(address_of(self._find("Memory", export)), self._layout.read_memory)

    def _global(self, export: str) -> int:
        """Address of a global's value."""
        return address_of(self._find("Global", export)) + self._layout.value

    def get_global(self, export: str) -> int:
        kind = self._global_type(export).type
        data = ctypes.string_at(self._global(export), 16)
        if kind in _REFERENCES:
            if any(data[8:]):
                raise NotSupported("a reference that is not null", need="reference-types")
            return 0
        return int.from_bytes(data[:WIDTHS[kind] // 8], "little")

    def _set_global(self, export: str, kind: int, bits: int) -> None:
        if kind in _REFERENCES and bits:
            raise NotSupported("a reference that is not null", need="reference-types")
        self._outcome(lib.WasmEdge_GlobalInstanceSetValue(self._find("Global", export), value(kind, bits)))

    def word_address(self, export: str) -> int:
        self._global_type(export)
        raise UsageError("control words lie in a second memory here", runtime=self._runtime, export=export)

    def _release(self) -> None:
        self._executor.close()


class _WasmEdgeMemory(Memory):
    def __init__(self, instance: Handle, layout: Layout, address: int) -> None:
        self._instance = instance
        self._base = ctypes.c_uint64.from_address(address + layout.base)
        self._pages = ctypes.c_uint32.from_address(address + layout.pages)

    def extent(self) -> tuple[int, int]:
        if self._instance.closed:
            raise UsageError("the instance is closed")
        return self._base.value, self._pages.value << 16


def _codec(types: tuple[int, ...]) -> tuple[Packer, Unpacker]:
    """Between bit patterns and arrays of values, types included."""
    pack, unpack = slot_codec(types, VALUE_BYTES)
    if not types:
        return pack, unpack
    whole = b"".join(bytes(ffi.buffer(ffi.new("WasmEdge_Value *", value(kind, 0)))) for kind in types)
    rest, size = int.from_bytes(whole, "little"), len(whole)
    references = [i * VALUE_BYTES for i, kind in enumerate(types) if kind in _REFERENCES]

    def pack_typed(values: Sequence[int]) -> bytes:
        return (int.from_bytes(pack(values), "little") | rest).to_bytes(size, "little")

    def unpack_references(data: bytes) -> tuple[int, ...]:
        numbers = bytearray(data)
        for at in references:  # the type comes first, then the pointer
            numbers[at:at + 8] = data[at + 8:at + 16]
        return unpack(bytes(numbers))

    return pack_typed, unpack_references if references else unpack


def _types(kinds: tuple[int, ...]) -> tuple[Any, int]:
    return ffi.new("WasmEdge_ValType[]", [VALUE_TYPES[kind] for kind in kinds]), len(kinds)


def _host_global(item: HostGlobal) -> Any:
    check_bits(item.type, item.bits)
    kind = lib.WasmEdge_GlobalTypeCreate(VALUE_TYPES[item.type], item.mutable)
    made = lib.WasmEdge_GlobalInstanceCreate(kind, value(item.type, item.bits))
    lib.WasmEdge_GlobalTypeDelete(kind)
    return made


def _refusal(result: int, wasm: bytes) -> InvalidModule | NotSupported:
    """WasmEdge tells what is wrong, but not where: our own validation does."""
    try:
        module = decode(wasm)
        validate_module(module)
        for func in range(module.imported_funcs, len(module.func_types)):
            analyze(module, func)
    except (InvalidModule, NotSupported) as problem:
        return problem
    return NotSupported(message(result), runtime="wasmedge")
