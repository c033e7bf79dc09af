"""A guest program on wasmtime with our host layer, and with wasmtime's own: what the differential tests compare."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import wasmtime

from wasmckpt.host import MODULE_NAME, HostFunction, MemoryFault, ProcExit, Wasi
from wasmckpt.wasm.values import I32

_TYPES = {I32: wasmtime.ValType.i32(), 0x7E: wasmtime.ValType.i64()}
_MASKS = {I32: 0xFFFF_FFFF, 0x7E: 0xFFFF_FFFF_FFFF_FFFF}


class EngineMemory:
    """The exported memory of an instance, for one call."""

    def __init__(self, memory: wasmtime.Memory, caller: wasmtime.Caller) -> None:
        self.size = memory.data_len(caller)
        self._base = ctypes.addressof(memory.data_ptr(caller).contents)

    def read(self, address: int, length: int) -> bytes:
        if address + length > self.size:
            raise MemoryFault(address)
        return ctypes.string_at(self._base + address, length)

    def write(self, address: int, data: bytes) -> None:
        if address + len(data) > self.size:
            raise MemoryFault(address)
        ctypes.memmove(self._base + address, data, len(data))


def _wrap(function: HostFunction, leaving: list[BaseException]) -> Callable[..., int | None]:
    masks = [_MASKS[code] for code in function.params]

    def call(caller: wasmtime.Caller, *args: int) -> int | None:
        memory = caller["memory"]
        assert isinstance(memory, wasmtime.Memory)
        try:
            result = function.call(
                EngineMemory(memory, caller), *[arg & mask for arg, mask in zip(args, masks, strict=True)]
            )
        except BaseException as error:
            leaving.append(error)
            raise
        return result if function.results else None

    return call


def run_with_ours(module: bytes, wasi: Wasi, export: str = "_start") -> int:
    """Exit code of the program under our host layer."""
    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    linker = wasmtime.Linker(engine)
    leaving: list[BaseException] = []
    for name, function in wasi.functions.items():
        kind = wasmtime.FuncType([_TYPES[c] for c in function.params], [_TYPES[c] for c in function.results])
        linker.define_func(MODULE_NAME, name, kind, _wrap(function, leaving), access_caller=True)
    instance = linker.instantiate(store, wasmtime.Module(engine, module))
    start = instance.exports(store)[export]
    assert isinstance(start, wasmtime.Func)
    try:
        start(store)
    except BaseException:
        if not leaving:
            raise
        if not isinstance(leaving[0], ProcExit):
            raise leaving[0] from None
        return leaving[0].code
    return 0


def run_with_wasmtime(
    module: bytes, *, args: Sequence[str] = (), env: Sequence[tuple[str, str]] = (), stdin: str | None = None,
    stdout: str, preopens: Sequence[tuple[str, str]] = (),
) -> int:
    """Exit code of the program under wasmtime's own host; ``stdin`` and ``stdout`` are paths of files."""
    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    config = wasmtime.WasiConfig()
    config.argv = list(args)
    config.env = list(env)
    if stdin is not None:
        config.stdin_file = stdin
    config.stdout_file = stdout
    for host, guest in preopens:
        config.preopen_dir(host, guest)
    store.set_wasi(config)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    instance = linker.instantiate(store, wasmtime.Module(engine, module))
    start = instance.exports(store)["_start"]
    assert isinstance(start, wasmtime.Func)
    try:
        start(store)
    except wasmtime.ExitTrap as trap:
        return trap.code
    return 0
