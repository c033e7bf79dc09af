"""Imports are matched here, before a runtime is touched: runtimes differ in what they notice, and in how badly."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wasmckpt.errors import NotSupported
from wasmckpt.runtimes.base import HostFunction, HostGlobal, Imports, MissingImport
from wasmckpt.runtimes.interface import FunctionType, GlobalType, ModuleInterface
from wasmckpt.runtimes.slots import result_tuple, slot_codec

__all__ = ["direct_call", "resolve_imports"]


def resolve_imports(interface: ModuleInterface, imports: Imports, *, runtime: str) -> list[HostFunction | HostGlobal]:
    """What the host provides for each import of the module, in the module's order.

    Raises `MissingImport` (absent, or of another type) or `NotSupported` (a table or a memory: the rewriter defines
    them inside the module).
    """
    found: list[HostFunction | HostGlobal] = []
    for wanted in interface.imports:
        where = {"module": repr(wanted.module), "name": repr(wanted.name), "runtime": runtime}
        if wanted.kind not in {"func", "global"}:
            raise NotSupported(f"the module imports a {wanted.kind}", need=f"imported {wanted.kind}", **where)
        given = imports.get((wanted.module, wanted.name))
        if given is None:
            raise MissingImport(
                f"the host does not provide an import ({wanted.kind} {wanted.type})", **where,
                hint="the library takes functions as host_functions" if wanted.kind == "func" else "",
            )
        has: FunctionType | GlobalType = (
            FunctionType(tuple(given.params), tuple(given.results)) if isinstance(given, HostFunction)
            else GlobalType(given.type, given.mutable)
        )
        if has != wanted.type:
            raise MissingImport(f"the host provides an import as another type ({has}, wanted {wanted.type})", **where)
        found.append(given)
    return found


def direct_call(host: HostFunction) -> Callable[[Sequence[int]], tuple[int, ...]]:
    """An export that is the import itself: its call is the host function's, with values checked as at the boundary."""
    check_args, _ = slot_codec(host.params, 16)
    check_results, _ = slot_codec(host.results, 16)

    def call(args: Sequence[int]) -> tuple[int, ...]:
        check_args(args)
        results = result_tuple(host.call(*args))
        check_results(results)
        return results

    return call
