"""The reference interpreter as a backend for the specification tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import FuncType, GlobalType, Limits, TableType
from wasmckpt.wasm.values import EXTERNREF, FUNCREF, Value

from ..spec import (
    ANY_FUNCTION,
    NULL,
    SPECTEST_GLOBALS,
    SPECTEST_MEMORY,
    SPECTEST_PRINTS,
    SPECTEST_TABLE,
    SpecInstance,
)
from .floats import NanPolicy
from .machine import Machine
from .store import Caller, Cell, Extern, Global, HostFunction, Import, Memory, Table, WasmFunction

__all__ = ["ReferenceBackend", "ReferenceInstance"]


class ReferenceInstance:
    """An instance on the reference interpreter."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def invoke(self, name: str, args: Sequence[Value]) -> list[Value]:
        function = self.machine.instance.export(name)
        assert isinstance(function, WasmFunction | HostFunction), name
        self.machine.start(name, *[_to_cell(value) for value in args])
        self.run()
        results = self.machine.results
        return [_to_value(kind, cell) for kind, cell in zip(function.type.results, results, strict=True)]

    def run(self) -> None:
        """Run what was started to its end."""
        self.machine.run()

    def get(self, name: str) -> Value:
        found = self.machine.instance.export(name)
        assert isinstance(found, Global), name
        return _to_value(found.kind.type, found.value)


class ReferenceBackend:
    """Makes instances; one for each script, since its instances share a memory and a table of "spectest".

    Args:
        nan: which NaNs arithmetic makes.
        max_depth: frames. Scripts that exhaust the stack on purpose declare a thousand locals.
    """

    def __init__(self, nan: NanPolicy = "canonical", max_depth: int = 1000) -> None:
        self.nan: NanPolicy = nan
        self.max_depth = max_depth
        self.spectest: dict[str, Extern] = {
            "table": Table(TableType(FUNCREF, Limits(*SPECTEST_TABLE))), "memory": Memory(Limits(*SPECTEST_MEMORY)),
        }
        for name, params in SPECTEST_PRINTS.items():
            self.spectest[name] = HostFunction(FuncType(params, ()), _print)
        for name, value in SPECTEST_GLOBALS.items():
            self.spectest[name] = Global(GlobalType(value.type, False), value.bits)

    def instantiate(self, wasm: bytes, registered: Mapping[str, SpecInstance]) -> ReferenceInstance:
        module = decode(wasm)
        imports: dict[tuple[str, str], Import] = {}
        for item in module.imports:
            source = registered.get(item.module)
            found = self.spectest.get(item.name) if item.module == "spectest" else None
            if isinstance(source, ReferenceInstance):
                found = source.machine.instance.export(item.name)
            if found is not None:
                imports[item.module, item.name] = found
        machine = Machine(module, imports, nan=self.nan, max_depth=self.max_depth)
        machine.initialize()
        return ReferenceInstance(machine)


def _print(caller: Caller, *args: Cell) -> None:
    """Scripts print, nobody reads it."""


def _to_cell(value: Value) -> Cell:
    return None if value.type in (FUNCREF, EXTERNREF) and value.bits == NULL else value.bits


def _to_value(kind: int, cell: Cell) -> Value:
    if cell is None:
        return Value(kind, NULL)
    return Value(kind, cell if isinstance(cell, int) else ANY_FUNCTION)
