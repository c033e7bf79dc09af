"""WasmEdge's ahead-of-time mode: its library holds LLVM, which compiles a module to machine code.

Compiling takes long (1.5 s of processor time for 60 kB), so compiled forms are kept in the user's cache folder, found
by the module's digest, and never taken unless whole (`packed`).

Guest frames lie on the thread's own stack, which nothing but the "depth-counter" keeps from its end. So a thread gets
several times the stack that is counted, and no more is counted than fits, by the size that the functions' frames really
have (`frames`).

What it cannot do, and why: exceptions, which the compiler dies of; functions of the host in tables, since a call of one
through a table takes stack that is not given back before the caller returns (hence the lowering "own-table-items").
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from pathlib import Path
from typing import ClassVar, Final

from wasmckpt.cachefolder import cache_folder, keep_newest, put
from wasmckpt.errors import InvalidModule, NotSupported, RuntimeMissing
from wasmckpt.lazydata import replace
from wasmckpt.runtimes import packed
from wasmckpt.runtimes.base import DEPTH_EXPORT, Capabilities, CompiledFormError
from wasmckpt.runtimes.handle import Handle
from wasmckpt.runtimes.interface import ModuleInterface, read_interface
from wasmckpt.runtimes.processor import processor
from wasmckpt.runtimes.signals import ALL, with_signals_kept
from wasmckpt.runtimes.wasmedge.adapter import CAPABILITIES, WasmEdgeCompiled, WasmEdgeEngine
from wasmckpt.runtimes.wasmedge.cdef import lib, message
from wasmckpt.runtimes.wasmedge.frames import Frames, costs, frames
from wasmckpt.wasm.decode import decode

__all__ = ["WasmEdgeAotCompiled", "WasmEdgeAotEngine"]

_NATIVE_FACTOR: Final = 32
"""Native stack for each byte that is to be counted."""
_NATIVE_RESERVE: Final = 4 * 1024 * 1024
"""Native stack for what is not the guest's."""
_LARGEST_THREAD: Final = 1 << 30
_LEAST: Final = 4096
"""Bytes that can be counted at least, or the module is refused."""
_FRAMES: Final = struct.Struct("<dQ")
_OUTPUT_WASM: Final = 1
"""A module with the machine code in a section of its own, which needs no file when it is loaded."""
_CACHE_BYTES: Final = 512 << 20


class WasmEdgeAotEngine(WasmEdgeEngine):
    """WasmEdge with compiled code."""

    name: ClassVar[str] = "wasmedge-aot"
    capabilities: Capabilities = replace(
        CAPABILITIES, lowerings=CAPABILITIES.lowerings | {"own-table-items"}, serializes=True, compiles_slowly=True,
        compile_threads=True,
        features=CAPABILITIES.features - {"exceptions"},  # which its compiler dies of
    )
    interprets: ClassVar[bool] = False

    def __init__(self) -> None:
        if os.uname().machine != "x86_64":
            raise RuntimeMissing("the sizes of compiled frames are known on x86-64 only", runtime=self.name,
                                 hint="use wasmedge, its interpreter")
        super().__init__()
        lib.WasmEdge_ConfigureCompilerSetOutputFormat(self.configuration.value, _OUTPUT_WASM)
        self._cache = cache_folder() / "native"

    def compile(self, wasm: bytes) -> WasmEdgeAotCompiled:
        wasm = bytes(wasm)
        interface = read_interface(wasm)
        path = self._cache / hashlib.sha256(self._tag().encode() + wasm).hexdigest()
        with contextlib.suppress(OSError, CompiledFormError):
            found = self.deserialize(path.read_bytes())
            os.utime(path)  # used now
            return found
        self.require_means()
        self.validate(wasm)  # the compiler must not see what is not valid
        module = decode(wasm)
        if any(func is not None and 0 <= func < module.imported_funcs for elem in module.elems for func in elem.items):
            raise NotSupported("a function of the host in a table", need="imported functions in tables",
                               runtime=self.name, hint="choose another runtime (see `wasmckpt doctor`)")
        depth = interface.exported(DEPTH_EXPORT, "global")
        code = self._translate(wasm)
        measured = frames(code, len(module.bodies), {} if depth is None else costs(module, depth))
        compiled = WasmEdgeAotCompiled(self, interface, hashlib.sha256(wasm).digest(), self.parse(code), code, measured)
        with contextlib.suppress(OSError):
            _keep(path, compiled.serialize())
        return compiled

    def validate(self, wasm: bytes) -> None:
        wasm = bytes(wasm)
        read_interface(wasm)
        self.parse(wasm).close()

    def deserialize(self, blob: bytes) -> WasmEdgeAotCompiled:
        wasm_sha256, source, content = packed.unpack(blob, self._tag())
        code = content[_FRAMES.size:]
        try:
            module = self.parse(code)
        except (InvalidModule, NotSupported) as problem:
            raise packed.rejected(str(problem)) from problem
        return WasmEdgeAotCompiled(self, read_interface(source, complete=False), wasm_sha256, module, code,
                                   Frames(*_FRAMES.unpack_from(content)))

    def thread_stack_bytes(self, stack_bytes: int) -> int:
        return min(_NATIVE_FACTOR * stack_bytes + _NATIVE_RESERVE, _LARGEST_THREAD)

    def pack(self, compiled: WasmEdgeAotCompiled) -> bytes:
        content = _FRAMES.pack(compiled.frames.ratio, compiled.frames.fixed) + compiled.code
        return packed.pack(self._tag(), compiled.wasm_sha256, compiled.interface.source, content)

    def counted_stack(self, compiled: WasmEdgeCompiled, stack_bytes: int) -> int:
        assert isinstance(compiled, WasmEdgeAotCompiled)
        fits = compiled.frames.countable(self.thread_stack_bytes(stack_bytes) - _NATIVE_RESERVE)
        if fits < min(_LEAST, stack_bytes):
            raise NotSupported("the module's frames are too large", runtime=self.name, hint="give it a larger stack")
        return min(stack_bytes, fits)

    def _tag(self) -> str:
        return f"{self.name} {self.version} {processor()}"

    def _translate(self, wasm: bytes) -> bytes:
        try:
            tempfile.gettempdir()
        except OSError:  # a sandbox
            raise NotSupported("the module has not been compiled before, and here is no folder for the linker's files",
                               runtime=self.name, need="a temporary folder") from None
        compiler = Handle("wasmedge compiler", lib.WasmEdge_CompilerCreate(self.configuration.value),
                          lib.WasmEdge_CompilerDelete)
        with tempfile.TemporaryDirectory(prefix="wasmckpt-") as folder:
            path = Path(folder) / "out.wasm"
            try:
                result = with_signals_kept(lambda: int(lib.WasmEdge_CompilerCompileFromBuffer(
                    compiler.value, wasm, len(wasm), os.fsencode(path))), ALL)
            finally:
                compiler.close()
            if result:
                raise NotSupported(f"the module cannot be compiled: {message(result)}", runtime=self.name)
            return path.read_bytes()


class WasmEdgeAotCompiled(WasmEdgeCompiled):
    def __init__(self, engine: WasmEdgeAotEngine, interface: ModuleInterface, wasm_sha256: bytes, module: Handle,
                 code: bytes, measured: Frames) -> None:
        super().__init__(engine.name, interface, wasm_sha256, module)
        self.frames = measured
        self._engine = engine
        self.code = code

    def serialize(self) -> bytes:
        return self._engine.pack(self)


def _keep(path: Path, content: bytes) -> None:
    """Into the cache, whole or not at all; what was used longest ago goes where there is too much."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, content)
    keep_newest(os.scandir(path.parent), _CACHE_BYTES)
