"""The adapter contract: what the rest of the program may ask of a runtime, and nothing else.

The question is narrow on purpose: "instantiate with these imports, call this export, view memory, say where a word
lies". Whatever else is needed (growing memory, filling tables, spilling globals) is done by functions inside the
rewritten module, so an adapter stays small enough to read in one sitting.

Values cross this boundary as **bit patterns**: unsigned Python ints, never floats (a signalling NaN does not survive
one). References cross it only as null (0).
"""

from __future__ import annotations

import ctypes
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, ClassVar, Literal

from wasmckpt.errors import CheckpointError, NotSupported, UsageError
from wasmckpt.lazydata import dataclass, field
from wasmckpt.runtimes.interface import FunctionType, GlobalType, ModuleInterface
from wasmckpt.runtimes.slots import check_bits
from wasmckpt.runtimes.threads import current_stack_bytes, require_threads, run_in_guest_thread
from wasmckpt.wasm.values import I32, I64

__all__ = [
    "DEFAULT_STACK_BYTES",
    "DEPTH_EXPORT",
    "DEPTH_OVERFLOW",
    "Capabilities",
    "Compiled",
    "CompiledFormError",
    "Engine",
    "HostFunction",
    "HostGlobal",
    "Imports",
    "Instance",
    "Memory",
    "MemoryFault",
    "MemoryLocator",
    "MissingImport",
    "ReadMemory",
    "SideNames",
    "read_base_and_length",
]

DEFAULT_STACK_BYTES = 512 * 1024
"""The guest's stack where nobody says otherwise, in bytes."""

DEPTH_EXPORT = "__wasmckpt_depth"
"""A module with the lowering "depth-counter" exports this i32 global: the bytes of stack that are left. The adapter
sets it to the size of the stack before a call from outside."""

DEPTH_OVERFLOW = 0xFFFF_FFFF
"""What the module leaves there when it executes ``unreachable`` since its stack is used up."""

ReadMemory = Callable[[int, int], bytes]
"""``read(address, n)`` gives ``n`` bytes at a native address, of this process or of a forked copy of it."""


class MissingImport(NotSupported):
    """The module imports what the host does not provide, or under another type; fields ``module`` and ``name``."""


class MemoryFault(UsageError, IndexError):
    """An access outside the guest's linear memory; fields ``address`` (in the guest's memory), ``length``, ``size``."""


class CompiledFormError(CheckpointError):
    """A stored compiled form is damaged or made by another version: compile the module again."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a runtime can do, known before the run."""

    features: frozenset[str]
    """Proposals that work: "multi-value" "sign-extension" "saturating-conversions" "mutable-globals" "bulk-memory"
    "memory-copy-fill" (the two bulk instructions without segments) "reference-types" "simd" "multi-memory" "tail-calls"
    "extended-const" "atomics" "exceptions" (the standard form)."""
    poll: Literal["atomic-memory", "global"]
    """How a safepoint reads the flag: an atomic 32-bit load from a second memory, or ``global.get``."""
    lowerings: frozenset[str]
    """What the rewriter must do for this runtime: "minimal-leb", "label-values" (values carried by branches and results
    of blocks go through locals), "label-vectors" (the same where there are several, with a vector), "strip-names",
    "guard-grow" (``memory.grow`` by a delta that overflows 32 bits must be answered with -1 by the module itself),
    "depth-counter" (the runtime has no limit of its own: functions that recurse count what is left of the stack, see
    `DEPTH_EXPORT`), "own-table-items" (a function of the host comes into a table by one of the module's that calls
    it)."""
    nan_f32_quieted: bool
    """The runtime itself changes signalling f32 NaNs, in the plain program too."""
    memory_moves: bool
    """The base of a memory changes when it grows."""
    full_validation: bool
    """`Engine.validate` checks all that the specification asks for; else validate elsewhere first."""
    serializes: bool
    """`Compiled.serialize` gives bytes."""
    max_slots: int | None
    """Locals and operands of one function together; None where no limit was met."""
    max_memory_pages: int
    """Largest linear memory, in 64 KiB pages."""
    max_functions: int
    max_exports: int
    max_params: int
    max_results: int
    max_nesting: int
    """Nested blocks in one function."""
    max_body_bytes: int
    """Largest function body, in bytes."""
    vectors_cross: bool = False
    """Host functions, exports and globals may have values of type v128; with "simd" alone they stay inside."""
    compiles_slowly: bool = False
    """Compiling a real program takes seconds, and a resume compiles: for programs that run long and move seldom."""
    compile_threads: bool = False
    """Each compilation starts threads: none is made where the system gives no more processes, so nothing is resumed."""
    keeps_code: bool = False
    """`Compiled.keep` gives something."""
    side_modules: bool = False
    """`Instance.extend` works: a second module can share all that the first one has."""
    traps_name_function: bool = True
    """A `GuestTrap` of a function's has its field ``function``."""


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function that the guest imports.

    ``call`` gets one unsigned int (a bit pattern) a parameter and returns nothing, one int, or a tuple of ints. An
    exception it raises stops the guest and comes back out of `Instance.call` as the same object.
    """

    params: tuple[int, ...]
    results: tuple[int, ...]
    call: Callable[..., int | tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class HostGlobal:
    """A global that the guest imports; ``type`` a type code, ``bits`` its first value."""

    type: int
    mutable: bool
    bits: int


Imports = Mapping[tuple[str, str], HostFunction | HostGlobal]
"""(module, name) -> what is imported under it."""


@dataclass(frozen=True, slots=True)
class SideNames:
    """What functions of a module beside another one are called where a trap names them.

    Attributes:
        functions: for each function of its index space the number that it goes by.
        module: its name, as its name section has it, by which frames of a trap are told apart.
    """

    functions: tuple[int, ...]
    module: str


@dataclass(frozen=True, slots=True)
class MemoryLocator:
    """Finds a linear memory in this process or in a forked copy of it, where the guest went on and may have grown it.

    Attributes:
        address: native address where the search starts; what lies there is the runtime's own affair.
        resolve_with: the runtime's rule: ``(read, address) -> (base, length or None)``.
    """

    address: int
    resolve_with: Callable[[ReadMemory, int], tuple[int, int | None]] = field(repr=False)

    def resolve(self, read: ReadMemory) -> tuple[int, int | None]:
        """Native address of the memory's first byte and its length in bytes (None: the runtime does not tell).

        ``read(address, n)`` reads the process in question. Raises whatever ``read`` raises.
        """
        return self.resolve_with(read, self.address)


def read_base_and_length(read: ReadMemory, address: int) -> tuple[int, int]:
    """For a `MemoryLocator` whose address is that of two words: a memory's base and its length."""
    base, length = struct.unpack("<QQ", read(address, 16))
    return base, length


class Memory(ABC):
    """One exported linear memory. Nothing is cached: base and size are asked for at each access, since both may change
    whenever the guest runs. Reading while the guest runs in another thread is allowed; a runtime whose memory moves
    (`Capabilities.memory_moves`) must not grow it meanwhile."""

    @abstractmethod
    def extent(self) -> tuple[int, int]:
        """Native address of the first byte and size in bytes, both now.

        Raises `UsageError` when the instance is closed.
        """

    @property
    def address(self) -> int:
        """Native address of the first byte now."""
        return self.extent()[0]

    @property
    def size(self) -> int:
        """Size in bytes now."""
        return self.extent()[1]

    def read(self, address: int, length: int) -> bytes:
        """``length`` bytes at guest address ``address``. Raises `MemoryFault`."""
        base, size = self.extent()
        if address < 0 or length < 0 or address + length > size:
            raise MemoryFault("read outside the guest's memory", address=address, length=length, size=size)
        return ctypes.string_at(base + address, length) if length else b""

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Stores ``data`` at guest address ``address``. Raises `MemoryFault`, and then has written nothing."""
        length = data.nbytes if isinstance(data, memoryview) else len(data)
        base, size = self.extent()
        if address < 0 or address + length > size:
            raise MemoryFault("write outside the guest's memory", address=address, length=length, size=size)
        if length:
            ctypes.memmove(base + address, data if isinstance(data, bytes) else bytes(data), length)


class Compiled:
    """A module made ready for one runtime; many instances may come from it."""

    def __init__(self, engine_name: str, interface: ModuleInterface, wasm_sha256: bytes) -> None:
        self.engine_name = engine_name
        self.interface = interface
        """What the module imports and exports, with types."""
        self.wasm_sha256 = wasm_sha256
        """Digest of the bytes given to `Engine.compile`."""

    def serialize(self) -> bytes | None:
        """The compiled form for `Engine.deserialize`, with our own digest in front; None where there is none.

        It holds machine code and the digest finds damage, not malice: never take one from the network.
        """
        return None

    def keep(self) -> tuple[bytes, bytes] | None:
        """What `Engine.load` takes: a header, which has the digest of the code and what it was made for, and the code.

        None where there is no such form.
        """
        return None

    def close(self) -> None:
        """Frees what the runtime holds for the module; instances made from it live on."""


class Engine(ABC):
    """One runtime, loaded. Get one from `wasmckpt.runtimes.load`."""

    name: ClassVar[str]
    version: str
    capabilities: Capabilities

    @abstractmethod
    def compile(self, wasm: bytes) -> Compiled:
        """Makes a module ready. Raises `InvalidModule` (``offset`` where the runtime gives one) or `NotSupported`."""

    def require_means(self) -> None:
        """Asked before a program is stopped whose module may have to be compiled before it can go on.

        Raises `RetryLater`: the system does not give now what compiling takes beside memory.
        """
        if self.capabilities.compile_threads:
            require_threads(self.name)

    @abstractmethod
    def validate(self, wasm: bytes) -> None:
        """Checks a module as far as the runtime can (`Capabilities.full_validation`). Raises like `compile`."""

    @abstractmethod
    def instantiate(self, compiled: Compiled, imports: Imports, *, stack_bytes: int = DEFAULT_STACK_BYTES) -> Instance:
        """A fresh instance with a guest stack of ``stack_bytes``; a start function, if there is one, runs here.

        Raises `MissingImport`, `NotSupported` (the runtime refuses the module), `GuestTrap` (start function, segments
        that do not fit), and whatever a host function raises. Imports that the module does not name are ignored.
        """

    @abstractmethod
    def deserialize(self, blob: bytes) -> Compiled:
        """Loads what `Compiled.serialize` gave. Raises `CompiledFormError` for anything else, also a flipped byte."""

    def load(self, header: bytes, code: BinaryIO) -> Compiled:
        """A module from what `Compiled.keep` gave, the code in a file, which is this module's from now on.

        It is machine code: for who could write the file this is as good as running a program. Damage is found.
        Raises `CompiledFormError`, as for what another version or kind of processor made; then the file is the
        caller's still.
        """
        raise CompiledFormError("this runtime keeps no compiled form", runtime=self.name)

    @abstractmethod
    def thread_stack_bytes(self, stack_bytes: int) -> int:
        """Native stack in bytes that a thread needs to run a guest with a stack of ``stack_bytes``."""


class Instance(ABC):
    """One running module. Not for two threads at once: a call while another thread is inside raises `UsageError`.

    After a trap or an exception the instance stays usable. Host functions may call exports again.
    """

    def __init__(self, interface: ModuleInterface, needed_thread_stack: int) -> None:
        self.interface = interface
        self._needed_thread_stack = needed_thread_stack
        self._depth = 0
        self._owner_thread = 0
        self._closed = False
        self._calls: dict[str, Callable[[Sequence[int]], tuple[int, ...]]] = {}

    def call(self, export: str, args: Sequence[int] = ()) -> tuple[int, ...]:
        """Calls an exported function with bit patterns, gives the results' bit patterns.

        In a thread whose stack is too small for the guest (`Engine.thread_stack_bytes`) the call is made in a thread of
        its own, since the alternative is a crash of the process.

        Raises:
            GuestTrap: with ``kind`` ("unreachable", "integer divide by zero", "stack overflow" ...) and, where known,
                ``function`` (index in the loaded module).
            UsageError: no such export, wrong number or range of arguments, instance closed or in use.
            BaseException: the very object that a host function raised.
        """
        bound = self._calls.get(export)
        if bound is None:
            self._calls[export] = bound = self._bind(export)
        me = threading.get_ident()
        if self._depth:
            if me != self._owner_thread:
                raise UsageError("the instance is running in another thread", export=export)
        else:
            if self._closed:
                raise UsageError("the instance is closed", export=export)
            if current_stack_bytes() < self._needed_thread_stack:
                return run_in_guest_thread(lambda: self.call(export, args), stack_bytes=self._needed_thread_stack)
            self._owner_thread = me
        self._depth += 1
        try:
            return bound(args)
        finally:
            self._depth -= 1

    @abstractmethod
    def _bind(self, export: str) -> Callable[[Sequence[int]], tuple[int, ...]]:
        """The export as a Python callable."""

    @abstractmethod
    def memory(self, export: str) -> Memory:
        """An exported memory. Raises `UsageError` if there is none of that name."""

    @abstractmethod
    def get_global(self, export: str) -> int:
        """Bits of an exported global. Raises `UsageError`."""

    def set_global(self, export: str, bits: int) -> None:
        """Sets an exported mutable global. Raises `UsageError`."""
        wanted = self._global_type(export)
        if not wanted.mutable:
            raise UsageError("the global is immutable", export=export)
        check_bits(wanted.type, bits)
        self._set_global(export, wanted.type, bits)

    @abstractmethod
    def _set_global(self, export: str, kind: int, bits: int) -> None:
        """Sets a global that is mutable, to bits that fit its type ``kind``."""

    @abstractmethod
    def word_address(self, export: str) -> int:
        """Native address of an exported mutable i32 or i64 global, valid as long as the instance.

        A word may be written there while the guest runs. Raises `UsageError` where the runtime has no such pointer; put
        control words in a memory there.
        """

    @abstractmethod
    def memory_locator(self, export: str) -> MemoryLocator:
        """How to find an exported memory in a forked copy of this process. Raises `UsageError`, `NotSupported`."""

    def extend(self, compiled: Compiled, side: SideNames) -> None:
        """Add another module's exports to this instance's: all that it imports are exports of this one, by name.

        Its calls and traps are this instance's own; a trap in it names a function by its number in ``side``.
        Raises as `Engine.instantiate`.
        """
        raise NotSupported("a module beside the program's", need="side-modules")

    @abstractmethod
    def _release(self) -> None:
        """Frees the runtime's objects."""

    def close(self) -> None:
        """Frees the instance; a second call does nothing. Raises `UsageError` while the guest runs."""
        if self._closed:
            return
        if self._depth:
            raise UsageError("the instance is running: it cannot be closed now")
        self._closed = True
        self._calls.clear()
        self._release()

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What every adapter asks of the interface before it touches the runtime.

    def _function_type(self, export: str) -> FunctionType:
        found = self.interface.exported(export, "func")
        if found is None:
            raise UsageError("the module exports no such function", export=export)
        return self.interface.function_type(found)

    def _global_type(self, export: str) -> GlobalType:
        found = self.interface.exported(export, "global")
        if found is None:
            raise UsageError("the module exports no such global", export=export)
        return self.interface.global_type(found)

    def _require_word(self, export: str) -> None:
        wanted = self._global_type(export)
        if not wanted.mutable or wanted.type not in {I32, I64}:
            raise UsageError("not a mutable i32 or i64 global", export=export)

    def _require_memory(self, export: str) -> int:
        found = self.interface.exported(export, "memory")
        if found is None:
            raise UsageError("the module exports no such memory", export=export)
        return found
