"""A stock runtime, through its adapter, as a backend for the specification tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wasmckpt.errors import NotSupported, UsageError
from wasmckpt.runtimes import Engine, HostFunction, HostGlobal, Instance, MissingImport
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import ExternKind, Module
from wasmckpt.wasm.values import EXTERNREF, FUNCREF, Value

from ..support.spec import SPECTEST_GLOBALS, SPECTEST_PRINTS, SpecInstance

__all__ = ["AdapterBackend", "AdapterInstance"]

REFERENCES: Final = {FUNCREF, EXTERNREF}

class AdapterInstance:
    """An instance on a runtime."""

    def __init__(self, instance: Instance, module: Module) -> None:
        self.instance = instance
        self.module = module

    def invoke(self, name: str, args: Sequence[Value]) -> list[Value]:
        index = self.module.export(name)
        assert index is not None, name
        kind = self.module.signature(index)
        if REFERENCES & {*kind.params, *kind.results}:
            raise NotSupported("references as arguments or results", need="reference-types")
        results = self.instance.call(name, [value.bits for value in args])
        return [Value(t, bits) for t, bits in zip(kind.results, results, strict=True)]

    def get(self, name: str) -> Value:
        index = self.module.export(name, ExternKind.GLOBAL)
        assert index is not None, name
        return Value(self.module.globals[index].type, self.instance.get_global(name))


class AdapterBackend:
    """Makes instances. An adapter knows no instance beside its own, so modules that import from another are skipped."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def instantiate(self, wasm: bytes, registered: Mapping[str, SpecInstance]) -> AdapterInstance:
        module = decode(wasm)
        for item in module.imports:
            shared = item.kind in (ExternKind.TABLE, ExternKind.MEMORY, ExternKind.TAG)
            if (item.module == "spectest" and shared) or item.module in registered:
                raise NotSupported("an instance that shares state with others", need="one instance")
        imports: dict[tuple[str, str], HostFunction | HostGlobal] = {
            ("spectest", name): HostFunction(params, (), lambda *_: None) for name, params in SPECTEST_PRINTS.items()}
        for name, value in SPECTEST_GLOBALS.items():
            imports["spectest", name] = HostGlobal(value.type, False, value.bits)
        try:
            return AdapterInstance(self.engine.instantiate(self.engine.compile(wasm), imports), module)
        except MissingImport as error:
            raise UsageError(error.what) from None  # to the runner, `NotSupported` means: skip what depends on it
