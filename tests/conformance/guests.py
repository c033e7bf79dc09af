"""Helpers: text to module to instance."""

from __future__ import annotations

from collections.abc import Callable

import wasmtime

from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes.base import DEFAULT_STACK_BYTES, Engine, HostFunction, Imports, Instance

I32, I64, F32, F64, V128 = 0x7F, 0x7E, 0x7D, 0x7C, 0x7B
SNAN32, SNAN64 = 0x7FA00001, 0x7FF4000000000001


def wat(text: str) -> bytes:
    return bytes(wasmtime.wat2wasm(text))


def start(engine: Engine, text: str, imports: Imports | None = None,
          stack_bytes: int = DEFAULT_STACK_BYTES) -> Instance:
    return engine.instantiate(engine.compile(wat(text)), imports or {}, stack_bytes=stack_bytes)


def bounded(engine: Engine, text: str) -> bytes:
    """A module that may recurse without end: lowered where the runtime sets no limit."""
    wasm = wat(text)
    if "depth-counter" in engine.capabilities.lowerings:
        return instrument(wasm, Options(depth_counter=True)).wasm
    return wasm


def start_bounded(engine: Engine, text: str, imports: Imports | None = None,
                  stack_bytes: int = DEFAULT_STACK_BYTES) -> Instance:
    return engine.instantiate(engine.compile(bounded(engine, text)), imports or {}, stack_bytes=stack_bytes)


def host(params: tuple[int, ...], results: tuple[int, ...],
         call: Callable[..., int | tuple[int, ...] | None]) -> HostFunction:
    return HostFunction(params, results, call)
