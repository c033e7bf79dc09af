"""Runtimes as backends for the specification tests: bare, or instrumented with a freeze and a resume at safepoints.

Programs move between stock runtimes and the reference interpreter alike. What one instance takes from another is
forwarded by the host: functions, and the values of constant globals. Memories, tables and mutable globals cannot be
shared (a program is one module), so who imports those of another instance is refused.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from wasmckpt import formats, runtimes
from wasmckpt.errors import CheckpointError, NotSupported, UsageError
from wasmckpt.formats import Entry, Image
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import HostFunction, HostGlobal, MissingImport
from wasmckpt.snapshot.program import START_STEP, Host, Program, Status
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import ExternKind, FuncType, Import, Limits, Module, TableType
from wasmckpt.wasm.values import FUNCREF, NULL, NUMBER_TYPES, V128, Value

from .moving import run_program
from .partner import REFERENCE, ReferenceProgram
from .spec import ANY_FUNCTION, SPECTEST_GLOBALS, SPECTEST_MEMORY, SPECTEST_PRINTS, SPECTEST_TABLE, SpecInstance
from .spec import NULL as NO_REFERENCE

__all__ = ["SYNONYMS", "BareBackend", "ProgramBackend"]

SYNONYMS: Final = {
    "call stack exhausted": "stack overflow",
    "null exception reference": "null reference",
    "out of bounds table access": "undefined element",  # one trap code for both in the runtimes
}
"""The suite's words for a trap to the adapters'."""

NEVER: Final = 1 << 62


def _types(module: Module, name: str) -> FuncType:
    func = module.export(name)
    assert func is not None, name
    return module.signature(func)


def _host(module: Module, registered: Mapping[str, SpecInstance]) -> Host:
    """What a module imports. Functions and globals that are not there stay out: the runtime says so.

    Raises:
        UsageError: as the embedder, we have no such memory or table. NotSupported: we have, and cannot give it.
    """
    functions: dict[tuple[str, str], HostFunction] = {}
    globals_: dict[tuple[str, str], HostGlobal] = {}
    for item in module.imports:
        key = (item.module, item.name)
        source = registered.get(item.module)
        if isinstance(source, Exporting):
            if (index := source.module.export(item.name, item.kind)) is None:
                if item.kind in (ExternKind.MEMORY, ExternKind.TABLE):
                    raise UsageError("unknown import or incompatible import type", field=f"{item.module}.{item.name}")
                continue
            shared = item.kind in (ExternKind.MEMORY, ExternKind.TABLE, ExternKind.TAG) or (
                item.kind == ExternKind.GLOBAL and source.module.globals[index].mutable)
            if shared:
                raise NotSupported("state shared with another instance", need=f"shared {item.kind.name.lower()}")
            if item.kind == ExternKind.FUNC:
                functions[key] = _forward(source, item.name)
            else:
                value = source.get(item.name)
                globals_[key] = HostGlobal(value.type, False, value.bits)
        elif item.kind == ExternKind.MEMORY:
            _check_limits(item, "memory", SPECTEST_MEMORY)
        elif item.kind == ExternKind.TABLE:
            _check_limits(item, "table", SPECTEST_TABLE)
        elif item.name in SPECTEST_PRINTS:
            functions[key] = HostFunction(SPECTEST_PRINTS[item.name], (), lambda *_: None)
        elif item.name in SPECTEST_GLOBALS:
            value = SPECTEST_GLOBALS[item.name]
            globals_[key] = HostGlobal(value.type, False, value.bits)
    return Host(functions=functions, globals=globals_)


def _check_limits(item: Import, name: str, given: tuple[int, int]) -> None:
    """Imported memories and tables become the module's own, as large as it says; ours may be larger."""
    limits = item.type.limits if isinstance(item.type, TableType) else item.type
    assert isinstance(limits, Limits)
    most = 1 << 32 if limits.maximum is None else limits.maximum
    if (item.module, item.name) != ("spectest", name) or limits.minimum > given[0] or most < given[1]:
        raise UsageError("unknown import or incompatible import type", field=f"{item.module}.{item.name}")
    if limits.minimum < given[0]:
        raise NotSupported("the embedder's memory or table is larger than the module asks for", need=f"larger {name}")


def _forward(source: Exporting, name: str) -> HostFunction:
    kind = _types(source.module, name)
    return HostFunction(kind.params, kind.results, lambda *args: source.call(name, args))


def _value(kind: int, bits: int) -> Value:
    """In the terms of the scripts, which do not ask which function a reference names."""
    if kind in NUMBER_TYPES:
        return Value(kind, bits)
    return Value(kind, NO_REFERENCE if bits == NULL else ANY_FUNCTION if kind == FUNCREF else bits)


class Exporting:
    """An instance of a decoded module, called on bits."""

    module: Module

    def call(self, name: str, args: Sequence[int]) -> tuple[int, ...]:
        """Call an export."""
        raise NotImplementedError

    def read(self, name: str, index: int) -> int:
        """Read an exported global."""
        raise NotImplementedError

    def invoke(self, name: str, args: Sequence[Value]) -> list[Value]:
        results = self.call(name, [NULL if value.bits == NO_REFERENCE else value.bits for value in args])
        return [_value(t, bits) for t, bits in zip(_types(self.module, name).results, results, strict=True)]

    def get(self, name: str) -> Value:
        index = self.module.export(name, ExternKind.GLOBAL)
        assert index is not None, name
        return _value(self.module.globals[index].type, self.read(name, index))


class BareInstance(Exporting):
    """A module as the runtime runs it without us."""

    def __init__(self, engine: runtimes.Engine, wasm: bytes, registered: Mapping[str, SpecInstance]) -> None:
        self.module = decode(wasm)
        host = _host(self.module, registered)
        self.native = engine.instantiate(engine.compile(wasm), {**host.functions, **host.globals})

    def call(self, name: str, args: Sequence[int]) -> tuple[int, ...]:
        return self.native.call(name, args)

    def read(self, name: str, index: int) -> int:
        return self.native.get_global(name)


class BareBackend:
    """A runtime without us."""

    def __init__(self, engine: str) -> None:
        self.engine = runtimes.load(engine)

    def instantiate(self, wasm: bytes, registered: Mapping[str, SpecInstance]) -> BareInstance:
        try:
            return BareInstance(self.engine, wasm, registered)
        except MissingImport as error:
            raise UsageError(error.what) from None  # to the runner, `NotSupported` means: skip what depends on it


def _hands_vectors_over(engine: str) -> bool:
    return engine == REFERENCE or runtimes.load(engine).capabilities.vectors_cross or (
        "simd" not in runtimes.load(engine).capabilities.features)


class ProgramInstance(Exporting):
    """An instrumented module that is frozen at safepoints and goes on on the next engine that takes it."""

    def __init__(self, backend: ProgramBackend, wasm: bytes, registered: Mapping[str, SpecInstance]) -> None:
        self.backend = backend
        self.wasm = wasm
        self.module = decode(wasm)
        self.host = _host(self.module, registered)
        # Where an export has a vector, a runtime that hands none over is left out unless it is the only one.
        crossing = any(V128 in {*kind.params, *kind.results} for kind in map(
            self.module.signature, (item.index for item in self.module.exports if item.kind == ExternKind.FUNC)))
        self.engines = [name for name in backend.engines if not crossing or _hands_vectors_over(name)] or list(
            backend.engines)
        self.seen: Counter[Hashable] = Counter()
        self.program = self._next(None)
        self._run(moving=True)

    def _next(self, image: Image | None) -> Program | ReferenceProgram:
        """On the next engine; one that does not take the module is left out from now on. A stock one comes first."""
        refusal: NotSupported | None = None
        options = self.backend.options
        entry = Entry((START_STEP,) if self.module.start is not None else (), 0)
        for _ in range(len(self.engines)):
            engine = self.engines.pop(0)
            try:
                program: Program | ReferenceProgram
                if engine == REFERENCE and image is None:
                    self.engines.append(engine)
                    continue
                if engine == REFERENCE:
                    program = ReferenceProgram(self.wasm, self.host, entry, image)
                elif image is None:
                    program = Program.fresh(runtimes.load(engine), self.wasm, self.host, entry, options=options)
                else:
                    program = Program.restored(runtimes.load(engine), self.wasm, self.host, image, options=options)
            except NotSupported as error:
                refusal = error
            else:
                self.engines.append(engine)
                return program
        assert refusal is not None
        raise refusal

    def _run(self, name: str = "", *, moving: bool) -> tuple[int, ...]:
        backend = self.backend
        place: Hashable = name
        for hop in itertools.count():
            program = self.program
            if backend.options.count:
                program.freeze_at(self._distance(place) if moving and hop < backend.hops_a_call else NEVER)
            try:
                outcome = run_program(None if isinstance(program, ReferenceProgram) else program.engine, program)
            except CheckpointError:
                program.abandon()
                raise
            if outcome.status is not Status.FROZEN:
                return outcome.results
            image = formats.decode(formats.encode(program.capture()))
            place = tuple(frame.point for frame in image.frames)
            program.close()
            self.program = self._next(image)
            backend.hops += 1
        raise AssertionError

    def _distance(self, place: Hashable) -> int:
        """How many safepoints on the next move is: one, or further the more often it was moved here."""
        self.seen[place] += 1
        return 1 + self.seen[place] // self.backend.close

    def call(self, name: str, args: Sequence[int]) -> tuple[int, ...]:
        params = _types(self.module, name).params
        self.program.begin(name, [Value(t, bits) for t, bits in zip(params, args, strict=True)])
        backend = self.backend
        backend.calls += 1
        return self._run(name, moving=backend.calls % backend.every_call == 0)

    def read(self, name: str, index: int) -> int:
        if isinstance(self.program, ReferenceProgram):
            return self.program.read_global(index)
        terms, bits = self.program.terms, self.program.instance.get_global(name)
        return terms.to_reference(self.module.globals[index].type, bits) if terms else bits


class ProgramBackend:
    """Runtimes with us between; programs go on on them in turn.

    Args:
        engines: names of runtimes, and `REFERENCE`.
        hops_a_call: freeze so often in a call, at its first safepoints.
        every_call: in each n-th call only, and in start functions.
        close: so many moves at the same place (an export's begin, or functions and offsets of all frames) before some
            are left out, more and more of them.

    Attributes:
        calls, hops: how many there were.
    """

    def __init__(self, engines: Sequence[str], options: Options, *, hops_a_call: int = 0, every_call: int = 1,
                 close: int = NEVER) -> None:
        self.engines = engines
        self.options = options
        self.hops_a_call = hops_a_call
        self.every_call = every_call
        self.close = close
        self.calls = 0
        self.hops = 0

    def instantiate(self, wasm: bytes, registered: Mapping[str, SpecInstance]) -> ProgramInstance:
        try:
            return ProgramInstance(self, wasm, registered)
        except MissingImport as error:
            raise UsageError(error.what) from None
