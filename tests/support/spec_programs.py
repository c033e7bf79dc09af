"""Runtimes as backends for the specification tests: bare, or instrumented with a freeze and a resume at safepoints."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from wasmckpt import formats, runtimes
from wasmckpt.errors import CheckpointError, NotSupported
from wasmckpt.formats import Entry
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import Engine, HostFunction, HostGlobal, Instance
from wasmckpt.snapshot.program import START_STEP, Host, Outcome, Program, Status
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import ExternKind, FuncType, Module
from wasmckpt.wasm.values import NUMBER_TYPES, Value

from .moving import run_program
from .spec import SPECTEST_GLOBALS, SPECTEST_PRINTS, SpecInstance

__all__ = ["BareBackend", "BareInstance", "ProgramBackend", "ProgramInstance"]


def _types(module: Module, name: str) -> FuncType:
    func = module.export(name)
    assert func is not None, name
    return module.signature(func)


def _numbers(values: Sequence[Value]) -> None:
    if any(v.type not in NUMBER_TYPES for v in values):
        raise NotSupported("references as arguments", need="reference types")


class _Exports:
    """What both kinds of instance share: the module, and reading exported globals."""

    module: Module

    @property
    def native(self) -> Instance:
        """The runtime's instance at this moment."""
        raise NotImplementedError

    def get(self, name: str) -> Value:
        index = self.module.export(name, ExternKind.GLOBAL)
        assert index is not None, name
        kind = self.module.globals[index].type
        if kind not in NUMBER_TYPES:
            raise NotSupported("a global of a reference type", need="reference types")
        return Value(kind, self.native.get_global(name))


def _host(module: Module, registered: Mapping[str, SpecInstance]) -> Host:
    functions: dict[tuple[str, str], HostFunction] = {}
    globals_: dict[tuple[str, str], HostGlobal] = {}
    for item in module.imports:
        key = (item.module, item.name)
        source = registered.get(item.module)
        if item.kind in (ExternKind.MEMORY, ExternKind.TABLE):
            raise NotSupported(f"imported {item.kind.name.lower()}", need=f"imported {item.kind.name.lower()}")
        if item.kind == ExternKind.GLOBAL and item.type.mutable:  # type: ignore[union-attr]
            raise NotSupported("imported mutable global", need="imported mutable global")
        if item.module == "spectest":
            if item.name in SPECTEST_PRINTS:
                functions[key] = HostFunction(SPECTEST_PRINTS[item.name], (), lambda *_: None)
            elif item.name in SPECTEST_GLOBALS:
                value = SPECTEST_GLOBALS[item.name]
                globals_[key] = HostGlobal(value.type, False, value.bits)
        elif isinstance(source, BareInstance | ProgramInstance):
            if item.kind == ExternKind.FUNC and source.module.export(item.name) is not None:
                functions[key] = _forward(source, item.name)
            elif item.kind == ExternKind.GLOBAL and source.module.export(item.name, ExternKind.GLOBAL) is not None:
                index = source.module.export(item.name, ExternKind.GLOBAL)
                if source.module.globals[index or 0].mutable:
                    continue
                value = source.get(item.name)
                globals_[key] = HostGlobal(value.type, False, value.bits)
    return Host(functions=functions, globals=globals_)


def _forward(source: BareInstance | ProgramInstance, name: str) -> HostFunction:
    kind = _types(source.module, name)

    def call(*args: int) -> tuple[int, ...]:
        return source.call(name, [Value(t, bits) for t, bits in zip(kind.params, args, strict=True)])

    return HostFunction(kind.params, kind.results, call)


class BareInstance(_Exports):
    """A module as the runtime runs it without us."""

    def __init__(self, engine: Engine, wasm: bytes, registered: Mapping[str, SpecInstance]) -> None:
        self.module = decode(wasm)
        host = _host(self.module, registered)
        self._native = engine.instantiate(engine.compile(wasm), {**host.functions, **host.globals})

    @property
    def native(self) -> Instance:
        return self._native

    def call(self, name: str, args: Sequence[Value]) -> tuple[int, ...]:
        """Call an export on bits."""
        return self._native.call(name, [v.bits for v in args])

    def invoke(self, name: str, args: Sequence[Value]) -> list[Value]:
        _numbers(args)
        kind = _types(self.module, name)
        return [Value(t, bits) for t, bits in zip(kind.results, self.call(name, args), strict=True)]


class BareBackend:
    """A runtime without us."""

    def __init__(self, engine: str) -> None:
        self.engine = runtimes.load(engine)

    def instantiate(self, wasm: bytes, registered: Mapping[str, SpecInstance]) -> BareInstance:
        return BareInstance(self.engine, wasm, registered)


class ProgramInstance(_Exports):
    """An instrumented module that is frozen at every ``every``-th safepoint and goes on on the next engine."""

    def __init__(self, backend: ProgramBackend, wasm: bytes, registered: Mapping[str, SpecInstance]) -> None:
        self.backend = backend
        self.wasm = wasm
        self.module = decode(wasm)
        self.host = _host(self.module, registered)
        steps = (START_STEP,) if self.module.start is not None else ()
        self.engines = itertools.cycle(backend.engines)
        self.engine = next(self.engines)
        self.program = Program.fresh(self.engine, wasm, self.host, Entry(steps, 0), options=backend.options)
        self._run()

    @property
    def native(self) -> Instance:
        return self.program.instance

    def _run(self) -> tuple[int, ...]:
        backend = self.backend
        hops = 0
        while True:
            if backend.every and hops < backend.most_hops:
                self.program.freeze_at(backend.every)
            elif backend.options.count:
                self.program.freeze_at(1 << 62)
            try:
                outcome: Outcome = run_program(self.engine, self.program)
            except CheckpointError:
                self.program.abandon()
                raise
            if outcome.status is not Status.FROZEN:
                return outcome.results
            image = formats.decode(formats.encode(self.program.capture()))
            self.program.close()
            self.engine = next(self.engines)
            self.program = Program.restored(self.engine, self.wasm, self.host, image, options=backend.options)
            hops += 1
            backend.hops += 1

    def call(self, name: str, args: Sequence[Value]) -> tuple[int, ...]:
        """Call an export on bits."""
        self.program.begin(name, args)
        return self._run()

    def invoke(self, name: str, args: Sequence[Value]) -> list[Value]:
        _numbers(args)
        kind = _types(self.module, name)
        return [Value(t, bits) for t, bits in zip(kind.results, self.call(name, args), strict=True)]


class ProgramBackend:
    """Runtimes with us between. ``every``: freeze at each n-th safepoint (0: never), at most ``most_hops`` a call.

    Attributes:
        hops: how many moves there were.
    """

    def __init__(self, engines: Sequence[str], options: Options, *, every: int = 0, most_hops: int = 20) -> None:
        self.engines = [runtimes.load(name) for name in engines]
        self.options = options
        self.every = every
        self.most_hops = most_hops
        self.hops = 0

    def instantiate(self, wasm: bytes, registered: Mapping[str, SpecInstance]) -> ProgramInstance:
        return ProgramInstance(self, wasm, registered)
