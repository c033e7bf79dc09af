"""The Wasm3 adapter."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from wasmckpt.errors import GuestTrap, InvalidModule, NotSupported, UsageError
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
from wasmckpt.runtimes.installed import installed_version
from wasmckpt.runtimes.interface import ModuleInterface, read_interface, sections, unsigned_leb
from wasmckpt.runtimes.slots import check_bits, result_tuple
from wasmckpt.runtimes.threads import run_with_stack
from wasmckpt.runtimes.wasm3.cdef import VALUE_TYPES, ffi, lib, text
from wasmckpt.runtimes.wasm3.layout import (
    GLOBAL_VALUE,
    MAXIMUM,
    SLOT_BYTES,
    STACK,
    STACK_SLOTS,
    probe,
    read_memory_field,
)
from wasmckpt.runtimes.wasm3.rename import IMPORT_MODULE, function_name, global_name, import_name, rename
from wasmckpt.runtimes.wasm3.segments import Segments, check_elements, read_segments
from wasmckpt.wasm.values import F32, I32

__all__ = ["Wasm3Compiled", "Wasm3Engine", "Wasm3Instance"]

_NATIVE_FACTOR = 32
"""Native stack for each byte of the guest's: a call takes 145 bytes and more of it (16 was too little, 24 enough)."""
_NATIVE_RESERVE = 1024 * 1024
_BEHIND_STACK = 32 * 1024
"""Bytes behind the end of the stack that Wasm3 knows of. A function checks its own frame against that end, but its
caller has written the arguments by then, up to 1,000 and as many results, and the constant expressions of globals and
segments check nothing: 4,000 slots at most."""
_COMPILE_BYTES_A_LEVEL = 256
"""Native stack that its compiler takes for each nested block (192 measured)."""
_MAX_COMPILE_STACK = 1 << 30

_TRAP_KINDS = {
    "out of bounds memory access": traps.MEMORY_BOUNDS, "integer divide by zero": traps.DIVIDE_BY_ZERO,
    "integer overflow": traps.INTEGER_OVERFLOW, "invalid conversion to integer": traps.BAD_CONVERSION,
    "indirect call type mismatch": traps.SIGNATURE, "undefined element": traps.UNDEFINED_ELEMENT,
    "null table element": traps.NULL_ELEMENT, "unreachable executed": traps.UNREACHABLE,
    "stack overflow": traps.STACK_OVERFLOW,
}
_LOAD_TRAPS = {
    "data segment out of bounds": traps.MEMORY_BOUNDS, "table underflow": traps.UNDEFINED_ELEMENT,
}
_UNSUPPORTED = re.compile(
    r"unknown opcode|no compiler found|restricted opcode|only one memory|unknown value_type|too many|stack height limit"
    r"|limitation exceeded|table overflow|element table index must be zero|LEB encoded value overflow|memory allocation"
    r"|ran out of memory|name too long|unallocated linear memory",
)
_WIDTH = {I32: 32, F32: 32}

_CAPABILITIES = Capabilities(
    features=frozenset({
        "multi-value", "sign-extension", "saturating-conversions", "mutable-globals", "memory-copy-fill",
    }),
    poll="global", lowerings=frozenset({"minimal-leb", "label-values", "strip-names", "guard-grow"}),
    nan_f32_quieted=True, memory_moves=True, full_validation=False, serializes=False, max_slots=1_990,
    max_memory_pages=32_768, max_functions=100_000, max_exports=10_000, max_params=999, max_results=999,
    max_nesting=49_000, max_body_bytes=20_000_000,
)

# What a host function's exception looks like to the guest. The pointer itself is the message: it must live for ever.
_HOST_TRAP = ffi.new("char[]", b"[trap] a host function raised an exception")
_HOST_TRAP_ADDRESS = int(ffi.cast("uintptr_t", _HOST_TRAP))
_RAW_CALL = "uintptr_t(void *, void *, uint64_t *, void *)"


class Wasm3Engine(Engine):
    """Wasm3. It has no compiled form; functions are translated at once, so that a refusal comes early."""

    name: ClassVar[str] = "wasm3"

    def __init__(self) -> None:
        spec = importlib.util.find_spec("wasm3")
        self.version = installed_version("pywasm3", spec.origin if spec else None)
        self.capabilities = _CAPABILITIES
        self.layout = probe()

    def compile(self, wasm: bytes) -> Wasm3Compiled:
        """As in the contract, but function bodies are looked at by `instantiate` only (they need a runtime)."""
        wasm = bytes(wasm)
        interface = read_interface(wasm)
        for wanted in interface.imports:
            if wanted.kind not in {"func", "global"}:
                raise NotSupported(f"the module imports a {wanted.kind}", need=f"imported {wanted.kind}",
                                   module=repr(wanted.module), name=repr(wanted.name), runtime=self.name)
        if len(interface.memories) > 1:
            raise NotSupported("more than one memory", need="multi-memory", runtime=self.name)
        if len({(e.kind, e.index) for e in interface.exports}) > _CAPABILITIES.max_exports:
            raise NotSupported("too many exports", runtime=self.name, most=_CAPABILITIES.max_exports)
        segments = read_segments(wasm)
        code = rename(wasm, interface, segments)
        compiled = Wasm3Compiled(self.name, interface, hashlib.sha256(wasm).digest(), code, _largest_body(code),
                                 segments)
        environment = Handle("wasm3 environment", lib.m3_NewEnvironment(), lib.m3_FreeEnvironment)
        module = _parse(environment.value, compiled)
        lib.m3_FreeModule(module)
        environment.close()
        return compiled

    def validate(self, wasm: bytes) -> None:
        """Wasm3 has no full validator: this finds what it refuses, which is less than what is invalid."""
        compiled = self.compile(wasm)
        stand_ins: dict[tuple[str, str], HostFunction | HostGlobal] = {}
        for wanted in compiled.interface.imports:
            kind: Any = wanted.type
            stand_ins[wanted.module, wanted.name] = (
                HostFunction(kind.params, kind.results, _not_called) if wanted.kind == "func"
                else HostGlobal(kind.type, kind.mutable, 0)
            )
        try:
            Wasm3Instance(self, compiled, stand_ins, DEFAULT_STACK_BYTES, start=False).close()
        except GuestTrap:
            pass  # segments outside of memory: valid, but nothing to run

    def instantiate(self, compiled: Compiled, imports: Imports, *,
                    stack_bytes: int = DEFAULT_STACK_BYTES) -> Wasm3Instance:
        if not isinstance(compiled, Wasm3Compiled):
            raise UsageError("compiled for another runtime", runtime=self.name, compiled_for=compiled.engine_name)
        return Wasm3Instance(self, compiled, imports, stack_bytes, start=True)

    def deserialize(self, blob: bytes) -> Compiled:
        raise packed.rejected("wasm3 has none")

    def thread_stack_bytes(self, stack_bytes: int) -> int:
        return stack_bytes * _NATIVE_FACTOR + _NATIVE_RESERVE


class Wasm3Compiled(Compiled):
    """A checked module with short names (`rename`)."""

    def __init__(self, engine_name: str, interface: ModuleInterface, wasm_sha256: bytes, code: bytes,
                 largest_body: int, segments: Segments) -> None:
        super().__init__(engine_name, interface, wasm_sha256)
        self.code = ffi.new("uint8_t[]", code)  # Wasm3 reads from it as long as an instance lives
        self.size = len(code)
        self.largest_body = largest_body
        self.segments = segments


class Wasm3Instance(Instance):
    def __init__(self, engine: Wasm3Engine, compiled: Wasm3Compiled, imports: Imports, stack_bytes: int, *,
                 start: bool) -> None:
        super().__init__(compiled.interface, engine.thread_stack_bytes(stack_bytes))
        if stack_bytes < 4096 or stack_bytes > 1 << 30:
            raise UsageError("a guest stack is 4 KiB to 1 GiB", stack_bytes=stack_bytes)
        self._runtime_name = engine.name
        self._failure: BaseException | None = None
        self._globals: dict[int, Any] = {}
        self._host_functions: list[HostFunction] = []
        needed = resolve_imports(compiled.interface, imports, runtime=engine.name)
        imported = [item for item in needed if isinstance(item, HostGlobal)]
        for item in imported:
            check_bits(item.type, item.bits)
        check_elements(compiled.segments, {i: item.bits for i, item in enumerate(imported) if item.type == I32},
                       len(imported))
        # One environment each: it has lists of code pages and types without any lock.
        environment = Handle("wasm3 environment", lib.m3_NewEnvironment(), lib.m3_FreeEnvironment)
        self._runtime = Handle("wasm3 runtime", _new_runtime(environment.value, stack_bytes), lib.m3_FreeRuntime,
                               owner=environment, keep=(compiled.code,))
        self._environment = environment
        self._field = int(ffi.cast("uintptr_t", self._runtime.value)) + engine.layout.memory_field
        self._stack_base = ctypes.c_uint64.from_address(self._field + STACK).value
        self._stack_bytes = stack_bytes
        ctypes.c_uint32.from_address(self._field + STACK_SLOTS).value = stack_bytes // SLOT_BYTES  # before the load
        try:
            self._module = self._load(compiled, needed)
            if start:
                run_with_stack(self._start, stack_bytes=self._needed_thread_stack)
        except BaseException:
            self.close()
            raise

    def _load(self, compiled: Wasm3Compiled, needed: list[HostFunction | HostGlobal]) -> Any:
        module = _parse(self._environment.value, compiled)
        try:
            for position, item in enumerate(needed):
                if isinstance(item, HostGlobal):
                    # Before the load, so that initial values and segment offsets see it. Wasm3 itself would read 0.
                    found = lib.m3_FindGlobal(module, import_name(position))
                    self._check(lib.m3_SetGlobal(found, _tagged(item.type, item.bits)))
            self._check(lib.m3_LoadModule(self._runtime.value, module))
        except BaseException:
            lib.m3_FreeModule(module)
            raise
        limits = compiled.interface.memories
        if limits and limits[0].maximum == 0:  # which it takes for "none"
            ctypes.c_uint32.from_address(self._field + MAXIMUM).value = 0
        for position, item in enumerate(needed):
            if isinstance(item, HostFunction):
                self._host_functions.append(item)
                thunk = self._host_function(item)
                self._runtime.keep(thunk)
                self._check(lib.m3_LinkRawFunctionEx(module, IMPORT_MODULE, import_name(position), ffi.NULL,
                                                     ffi.cast("uintptr_t", thunk), ffi.NULL))
        levels = compiled.largest_body // 2  # a block takes two bytes at least
        run_with_stack(lambda: self._check(lib.m3_CompileModule(module)), stack_bytes=_NATIVE_RESERVE + min(
            levels * _COMPILE_BYTES_A_LEVEL, _MAX_COMPILE_STACK))
        return module

    def _start(self) -> None:
        self._depth += 1
        self._owner_thread = threading.get_ident()
        try:
            self._outcome(lib.m3_RunStart(self._module))
        finally:
            self._depth -= 1

    def _host_function(self, host: HostFunction) -> Any:
        function = host.call
        results, params = len(host.results), len(host.params)
        narrow = [i for i, t in enumerate(host.params) if _WIDTH.get(t)]
        unpack = ffi.unpack
        total = results + params

        def callback(runtime: Any, context: Any, slots: Any, memory: Any) -> int:
            try:
                if params:
                    args = unpack(slots, total)[results:]
                    for i in narrow:  # the upper half of a slot holds anything
                        args[i] &= 0xFFFF_FFFF
                    returned = function(*args)
                else:
                    returned = function()
                if results or returned is not None:
                    values = (returned,) if returned.__class__ is int else result_tuple(returned)
                    if len(values) != results:
                        raise UsageError("a host function gave another number of results", wanted=results,
                                         got=len(values))
                    for i, kind in enumerate(host.results):
                        check_bits(kind, values[i])
                        slots[i] = values[i]
                return 0
            except BaseException as problem:
                self._failure = problem
                return _HOST_TRAP_ADDRESS

        # `error`: for an exception that strikes outside of the try (a signal's); 0 would mean success.
        return ffi.callback(_RAW_CALL, callback, error=_HOST_TRAP_ADDRESS)

    def _check(self, result: Any) -> None:
        """Turns a refusal while loading into an exception."""
        if result == ffi.NULL:
            return
        what = text(result)
        info = ffi.new("M3ErrorInfo *")
        lib.m3_GetErrorInfo(self._runtime.value, info)
        more = text(info.message)
        function = _function_index(info.function)
        if what in _LOAD_TRAPS:
            raise traps.guest_trap(_LOAD_TRAPS[what], text=what, runtime=self._runtime_name)
        raise _refusal(what, more, function)

    def _outcome(self, result: Any) -> None:
        """Turns the result of a run into the host function's own exception or a `GuestTrap`."""
        if result == ffi.NULL:
            return
        problem: BaseException | None
        problem, self._failure = self._failure, None
        if problem is None or int(ffi.cast("uintptr_t", result)) != _HOST_TRAP_ADDRESS:
            problem = self._describe(text(result))
        try:
            raise problem
        finally:
            del problem  # the traceback holds this frame

    def _describe(self, what: str) -> GuestTrap:
        words = what.removeprefix("[trap] ")
        frames = lib.m3_GetBacktrace(self._runtime.value)
        function = None
        if frames != ffi.NULL and frames.frames != ffi.NULL:
            function = _function_index(frames.frames.function)
        return traps.guest_trap(_TRAP_KINDS.get(words, traps.OTHER), text=words, function=function,
                                runtime=self._runtime_name)

    def _bind(self, export: str) -> Callable[[Sequence[int]], tuple[int, ...]]:
        signature = self._function_type(export)
        index = self.interface.exported(export, "func")
        assert index is not None
        if index < len(self._host_functions):
            return direct_call(self._host_functions[index])  # Wasm3 does not find an imported function by its export
        found = ffi.new("IM3Function *")
        self._check(lib.m3_FindFunction(found, self._runtime.value, function_name(index)))
        function = found[0]
        params, results = signature.params, signature.results
        arity, count = len(params), len(results)
        size = max(arity, count, 1)
        limits = [1 << (32 if t in _WIDTH else 64) for t in params]
        narrow = [i for i, t in enumerate(results) if t in _WIDTH]
        m3_call, get_results, null, unpack = lib.m3_Call, lib.m3_GetResults, ffi.NULL, ffi.unpack
        spare: list[tuple[Any, Any]] = []

        def new_buffer() -> tuple[Any, Any]:
            slots = ffi.new("uint64_t[]", size)
            return slots, ffi.new("const void *[]", [slots + i for i in range(size)])

        def call(args: Sequence[int]) -> tuple[int, ...]:
            if len(args) != arity:
                raise UsageError("wrong number of arguments", export=export, wanted=arity, got=len(args))
            buffer = spare.pop() if spare else new_buffer()
            slots, pointers = buffer
            try:
                for i in range(arity):
                    bits = args[i]
                    if bits.__class__ is not int or not 0 <= bits < limits[i]:
                        check_bits(params[i], bits)
                    slots[i] = bits
                if self._depth > 1:
                    result = self._nested(function, arity, count, pointers)
                else:
                    result = m3_call(function, arity, pointers)
                if result != null:
                    self._outcome(result)
                if not count:
                    return ()
                if get_results(function, count, pointers) != null:
                    raise UsageError("another call's results", export=export)  # cannot happen
                values: list[int] = unpack(slots, count)
                for i in narrow:  # it writes the lower half only
                    values[i] &= 0xFFFF_FFFF
                return tuple(values)
            finally:
                spare.append(buffer)

        return call

    def _nested(self, function: Any, params: int, results: int, pointers: Any) -> Any:
        """A call from inside a host function.

        Wasm3 lets it begin where the host function's slots are, without asking whether its arguments fit; and memory
        that grows during it moves the end of the stack by as much as the call began late, so that a deep recursion
        would overrun the stack from then on. So the arguments are measured here, and the size is set to what is left.
        """
        begin = ctypes.c_uint64.from_address(self._field + STACK).value
        left = self._stack_base + self._stack_bytes - begin
        if left < 8 * (params + results):
            raise traps.guest_trap(traps.STACK_OVERFLOW, runtime=self._runtime_name)
        slots = ctypes.c_uint32.from_address(self._field + STACK_SLOTS)
        before = slots.value
        slots.value = left // SLOT_BYTES
        try:
            return lib.m3_Call(function, params, pointers)
        finally:
            slots.value = before

    def memory(self, export: str) -> Memory:
        self._require_memory(export)
        return _Wasm3Memory(self._runtime, self._field)

    def _find_global(self, export: str) -> Any:
        self._runtime.value  # noqa: B018  (raises when closed)
        index = self.interface.exported(export, "global")
        assert index is not None
        found = self._globals.get(index)
        if found is None:
            found = self._globals[index] = lib.m3_FindGlobal(self._module, global_name(index))
        return found

    def get_global(self, export: str) -> int:
        kind = self._global_type(export).type
        value = ffi.new("M3TaggedValue *")
        self._check(lib.m3_GetGlobal(self._find_global(export), value))
        return int(value.bits) & (0xFFFF_FFFF if kind in _WIDTH else 0xFFFF_FFFF_FFFF_FFFF)

    def _set_global(self, export: str, kind: int, bits: int) -> None:
        self._check(lib.m3_SetGlobal(self._find_global(export), _tagged(kind, bits)))

    def word_address(self, export: str) -> int:
        self._require_word(export)
        return int(ffi.cast("uintptr_t", self._find_global(export))) + GLOBAL_VALUE

    def memory_locator(self, export: str) -> MemoryLocator:
        self._require_memory(export)
        return MemoryLocator(self._field, read_memory_field)

    def _release(self) -> None:
        self._globals.clear()
        self._runtime.close()
        self._environment.close()


class _Wasm3Memory(Memory):
    """Read from the runtime's struct: the API's answer is cut to 32 bits."""

    def __init__(self, runtime: Handle, field: int) -> None:
        self._runtime = runtime
        self._field = field

    def extent(self) -> tuple[int, int]:
        if self._runtime.closed:
            raise UsageError("the instance is closed")
        return read_memory_field(ctypes.string_at, self._field)


def _new_runtime(environment: Any, stack_bytes: int) -> Any:
    runtime = lib.m3_NewRuntime(environment, stack_bytes + _BEHIND_STACK, ffi.NULL)
    if runtime == ffi.NULL:
        raise NotSupported("no memory for a stack of this size", stack_bytes=stack_bytes, runtime="wasm3")
    return runtime


def _parse(environment: Any, compiled: Wasm3Compiled) -> Any:
    module = ffi.new("IM3Module *")
    result = lib.m3_ParseModule(environment, module, compiled.code, compiled.size)
    if result != ffi.NULL:
        raise _refusal(text(result), "", None)
    return module[0]


def _refusal(what: str, more: str, function: int | None) -> InvalidModule | NotSupported:
    message = f"{what}: {more}" if more and more != what else what
    kind = NotSupported if _UNSUPPORTED.search(message) else InvalidModule
    return kind(message, function=function, runtime="wasm3")


def _tagged(kind: int, bits: int) -> Any:
    if kind not in VALUE_TYPES:
        raise NotSupported("a global of this type", runtime="wasm3")
    return ffi.new("M3TaggedValue *", {"type": VALUE_TYPES[kind], "bits": bits})


def _function_index(function: Any) -> int | None:
    """Its index, from the name: ``f12`` is ours, ``$func12`` is made up by Wasm3."""
    if function == ffi.NULL:
        return None
    found = re.fullmatch(r"(?:\$func|f)(\d+)", text(lib.m3_GetFunctionName(function)))
    return int(found[1]) if found else None


def _largest_body(wasm: bytes) -> int:
    largest = 0
    for section in sections(wasm):
        if section.id == 10:
            count, at = unsigned_leb(wasm, section.body, section.end)
            for _ in range(count):
                size, at = unsigned_leb(wasm, at, section.end)
                at += size
                largest = max(largest, size)
    return largest


def _not_called(*_: int) -> None:
    raise UsageError("a stand-in was called")
