"""The oracle: runs a sample as it is, never stopped, on wasmtime with wasmtime's own WASI. Nothing of ours is in it."""

from __future__ import annotations

import ctypes
import struct
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import wasmtime
from wasmtime import _ffi as ffi

from wasmckpt.wasm.values import F32, F64, I32, I64, Value

from .samples import Sample

__all__ = ["Outcome", "run_undisturbed"]

STACK_BYTES: Final = 256 << 20
GUEST_STACK_BYTES: Final = 64 << 20


@dataclass(slots=True)
class Outcome:
    """What a run left behind."""

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int = 0
    trap: str = ""
    results: list[tuple[Value, ...]] = field(default_factory=list)
    """Of each of the sample's calls, in order."""
    host_log: list[int] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    memory: bytes = b""
    """The exported memory at the end, if there is one."""


def run_undisturbed(sample: Sample) -> Outcome:
    """Runs a sample from start to end in this process, in a thread with a stack of known size."""
    done: list[Outcome | BaseException] = []

    def body() -> None:
        try:
            with tempfile.TemporaryDirectory() as scratch:
                done.append(_run(sample, Path(scratch)))
        except BaseException as error:
            done.append(error)

    before = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=body)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if isinstance(done[0], BaseException):
        raise done[0]
    return done[0]


def _run(sample: Sample, scratch: Path) -> Outcome:
    outcome = Outcome()
    config = wasmtime.Config()
    # The Python layer has no setter for the first, and the second above it aborts the process.
    ffi.dll.wasmtime_config_async_stack_size_set(config.ptr(), ctypes.c_size_t(2 * GUEST_STACK_BYTES))
    config.max_wasm_stack = GUEST_STACK_BYTES
    for switch in ("wasm_multi_memory", "wasm_tail_call", "wasm_exceptions", "wasm_threads"):
        setattr(config, switch, True)
    engine = wasmtime.Engine(config)
    store = wasmtime.Store(engine)
    store.set_wasi(_wasi(sample, scratch))
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    i32 = wasmtime.ValType.i32()
    linker.define_func("env", "log", wasmtime.FuncType([i32], []), outcome.host_log.append)
    linker.define_func("env", "hook", wasmtime.FuncType([], []), lambda: None)
    module = wasmtime.Module(engine, sample.wasm)
    for wanted in module.imports:
        if isinstance(wanted.type, wasmtime.GlobalType):
            value = sample.globals[f"{wanted.module}.{wanted.name}"]
            linker.define(store, wanted.module, str(wanted.name),
                          wasmtime.Global(store, wanted.type, _to_python(value)))
        elif f"{wanted.module}.{wanted.name}" in sample.stubs:
            assert isinstance(wanted.type, wasmtime.FuncType)
            linker.define_func(wanted.module, str(wanted.name), wanted.type, _returning(
                sample.stubs[f"{wanted.module}.{wanted.name}"] if wanted.type.results else None))
    try:
        instance = linker.instantiate(store, module)
        exports = instance.exports(store)
        if sample.kind == "command":
            _function(exports, "_start")(store)
        elif sample.kind == "reactor":
            _function(exports, "_initialize")(store)
        for call in sample.calls:
            function = _function(exports, call.export)
            got = function(store, *map(_to_python, call.args))
            outcome.results.append(_to_values(got, function.type(store).results))
        memory = exports.get("memory")
        if isinstance(memory, wasmtime.Memory):
            outcome.memory = bytes(memory.read(store, 0, memory.data_len(store)))
    except wasmtime.ExitTrap as ended:
        outcome.exit_code = ended.code
    except wasmtime.Trap as trap:
        outcome.trap = str(trap.trap_code.name if trap.trap_code else trap)
    del store  # closes the files it writes to
    outcome.stdout = (scratch / "stdout").read_bytes()
    outcome.stderr = (scratch / "stderr").read_bytes()
    folder = scratch / "folder"
    outcome.files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    return outcome


def _wasi(sample: Sample, scratch: Path) -> wasmtime.WasiConfig:
    folder = scratch / "folder"
    folder.mkdir()
    for name, content in sample.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (scratch / "stdin").write_bytes(sample.stdin)
    wasi = wasmtime.WasiConfig()
    wasi.argv = sample.argv
    wasi.env = list(sample.env.items())
    wasi.stdin_file = str(scratch / "stdin")
    wasi.stdout_file = str(scratch / "stdout")
    wasi.stderr_file = str(scratch / "stderr")
    if sample.guest_dir:
        wasi.preopen_dir(str(folder), sample.guest_dir)
    return wasi


def _function(exports: Any, name: str) -> wasmtime.Func:
    function = exports[name]
    assert isinstance(function, wasmtime.Func)
    return function


def _returning(number: int | None) -> Callable[..., int | None]:
    return lambda *_: number


def _to_python(value: Value) -> int | float:
    """For arguments only: of the floats here none is a NaN, the Python layer would change its bits."""
    if value.type == F32:
        return float(struct.unpack("<f", value.bits.to_bytes(4, "little"))[0])
    if value.type == F64:
        return float(struct.unpack("<d", value.bits.to_bytes(8, "little"))[0])
    half = 1 << (31 if value.type == I32 else 63)
    return value.bits - 2 * half if value.bits >= half else value.bits


_TO_BITS: Final[dict[str, tuple[int, Callable[[Any], int]]]] = {
    "i32": (I32, lambda number: number & 0xFFFF_FFFF),
    "i64": (I64, lambda number: number & 0xFFFF_FFFF_FFFF_FFFF),
    "f32": (F32, lambda number: int.from_bytes(struct.pack("<f", number), "little")),
    "f64": (F64, lambda number: int.from_bytes(struct.pack("<d", number), "little")),
}


def _to_values(got: Any, types: Sequence[wasmtime.ValType]) -> tuple[Value, ...]:
    numbers = [] if not types else [got] if len(types) == 1 else list(got)
    return tuple(
        Value(code, to_bits(number))
        for number, (code, to_bits) in zip(numbers, (_TO_BITS[str(t)] for t in types), strict=True)
    )
