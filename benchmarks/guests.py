"""Running modules, plain and rewritten ones alike, straight on a runtime's adapter."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from tests.support.moving import World
from tests.support.samples import Sample
from wasmckpt.host import ProcExit
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import Compiled, Engine, HostFunction, HostGlobal, Instance, run_in_guest_thread
from wasmckpt.snapshot.prepare import options_for
from wasmckpt.snapshot.program import Program, entry_for
from wasmckpt.wasm.values import Value

from .measure import Start

__all__ = ["STACK", "WrongResult", "kernel_start", "prepared", "program_start", "warm", "wat"]

STACK = 4 << 20
"""Guest stack in bytes: the rewritten frames are bigger, and nothing here is about the stack."""

POLL: Final[dict[tuple[str, str], HostFunction | HostGlobal]] = {("env", "poll"): HostFunction((), (), lambda: None)}
"""What modules that went through `asyncify` import besides."""


class WrongResult(Exception):
    """A variant gave another result than the program must give."""


def kernel_start(engine: Engine, compiled: Compiled, sample: Sample) -> Start:
    """Rounds that call ``run`` of one instance again and again."""
    call = sample.calls[0]
    arguments, expected = [v.bits for v in call.args], tuple(v.bits for v in call.results)

    def start() -> tuple[Callable[[], float], Callable[[], None]]:
        instance = engine.instantiate(compiled, POLL, stack_bytes=STACK)

        def go() -> float:
            began = time.thread_time()
            results = instance.call(call.export, arguments)
            seconds = time.thread_time() - began
            if results != expected:
                raise WrongResult(f"{sample.name} gave {results}, not {expected}")
            return seconds

        return lambda: in_guest_thread(engine, go), instance.close

    return start


def program_start(engine: Engine, compiled: Compiled, sample: Sample) -> Start:
    """Rounds of a WASI command, each on an instance and a host of its own, since a command runs once."""

    def start() -> tuple[Callable[[], float], Callable[[], None]]:
        return lambda: run_command(engine, compiled, sample), lambda: None

    return start


def run_command(engine: Engine, compiled: Compiled, sample: Sample) -> float:
    """Run ``_start`` under our WASI; CPU seconds of the call alone.

    Raises:
        WrongResult: other output or exit code than expected.
    """
    with tempfile.TemporaryDirectory() as folder:
        world = World(sample, folder=Path(folder))
        try:
            host = world.host()
            held: list[Instance] = []

            def bound(call: Callable[..., int | tuple[int, ...] | None]) -> Callable[..., int | tuple[int, ...] | None]:
                return lambda *args: call(held[0].memory("memory"), *args)

            imports: dict[tuple[str, str], HostFunction | HostGlobal] = {
                key: HostFunction(f.params, f.results, bound(f.call) if key in host.wants_memory else f.call)
                for key, f in host.functions.items()
            }
            imports.update(POLL)
            with engine.instantiate(compiled, imports, stack_bytes=STACK) as instance:
                held.append(instance)
                code = 0

                def go() -> float:
                    nonlocal code
                    began = time.thread_time()
                    try:
                        instance.call("_start")
                    except ProcExit as end:
                        code = end.code
                    return time.thread_time() - began

                seconds = in_guest_thread(engine, go)
            output = world.output()
            if (output, code) != (sample.stdout + sample.stderr, sample.exit_code):
                raise WrongResult(f"{sample.name} ended with {code} after writing {output[-200:]!r}")
            return seconds
        finally:
            world.leave()


def in_guest_thread(engine: Engine, go: Callable[[], float]) -> float:
    """Run in a thread with the stack that the engine needs for `STACK`."""
    return run_in_guest_thread(go, stack_bytes=engine.thread_stack_bytes(STACK))


def wat(text: str) -> bytes:
    """A module from its text."""
    from wasmtime import wat2wasm

    return bytes(wat2wasm(text))


class _Warm:
    """An engine whose ``compile`` gives what it was given before: a worker has it in its cache."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._blobs: dict[bytes, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def compile(self, wasm: bytes) -> Compiled:
        """As `Engine.compile`, by `Engine.deserialize` where the runtime can."""
        key = hashlib.sha256(wasm).digest()
        if key in self._blobs:
            return self._engine.deserialize(self._blobs[key])
        compiled = self._engine.compile(wasm)
        blob = compiled.serialize()
        if blob is not None:
            self._blobs[key] = blob
        return compiled


def warm(engine: Engine) -> Engine:
    """The engine, compiling each module once."""
    return cast(Engine, _Warm(engine))


def prepared(
    engine: Engine, what: Sample | bytes, *, options: Options | None = None, invoke: str | None = None,
    arguments: Sequence[Value] = (), stack_bytes: int = STACK,
) -> tuple[Callable[[], Program], Callable[[], None]]:
    """What makes fresh programs of a sample or a module, rewritten and compiled once; and what clears up."""
    wasm = what if isinstance(what, bytes) else what.wasm
    sample = None if isinstance(what, bytes) else what
    if sample and sample.kind == "module":
        invoke, arguments = sample.calls[0].export, sample.calls[0].args
    out = instrument(wasm, options_for(engine, base=options))
    engine = warm(engine)
    entry = entry_for(out.module, invoke, arguments)
    folder = tempfile.TemporaryDirectory()
    worlds: list[World] = []

    def make() -> Program:
        while worlds:
            worlds.pop().leave()
        worlds.append(World(sample, folder=Path(folder.name)))
        return Program(engine, out, worlds[0].host(), entry, stack_bytes=stack_bytes)

    def leave() -> None:
        while worlds:
            worlds.pop().leave()
        folder.cleanup()

    return make, leave
