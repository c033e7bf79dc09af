"""Rewriting a whole module: validate, decide, rewrite function by function, link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import NotSupported
from ..wasm.decode import decode
from ..wasm.features import Use, used_features
from ..wasm.module import ExternKind, FuncType, Module
from ..wasm.validate import Code, analyze, validate_module
from ..wasm.values import NUMBER_TYPES, TYPE_NAMES
from .callgraph import CallGraph, build_call_graph
from .function import Origin, Verdict, rewrite
from .linker import PREFIX, Linker
from .options import Options
from .sites import Sites
from .spill import Helpers

__all__ = ["Instrumented", "instrument"]

START = PREFIX + "start"


@dataclass(slots=True)
class Instrumented:
    """A rewritten module and what is needed to read what it spills.

    Attributes:
        wasm: the rewritten binary. codes, verdicts: validated bodies and decisions by function, for ``--explain``;
            empty where the rewriting came from the cache.
        features: what the module uses beyond WebAssembly 1.0, by name, with the first use.
        polls_at_once: what was resumed stands at a polled loop header and passes it again first.
    """

    module: Module
    options: Options
    wasm: bytes
    linker: Linker
    helpers: Helpers
    graph: CallGraph
    codes: Mapping[int, Code] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    polls_at_once: bool = False
    features: dict[str, Use] = field(default_factory=dict)

    @property
    def sites(self) -> Sites:
        """The sites, by the number that a record begins with."""
        return self.linker.sites

    @property
    def spilled_globals(self) -> list[tuple[int, int]]:
        """(index, type) of the mutable globals, in the order in which they are spilled."""
        return [(i, kind.type) for i, kind in enumerate(self.module.globals) if kind.mutable]

    @property
    def dropped(self) -> list[tuple[str, int]]:
        """("data" or "elem", segment) of the segments whose dropping is tracked, in the order of spilling."""
        return list(self.helpers.dropped)


def instrument(source: bytes | Module, options: Options) -> Instrumented:
    """Rewrite a module so that it can be frozen.

    Raises:
        InvalidModule: not a valid module, with function and offset.
        NotSupported: it uses what cannot be captured, with feature, function and offset.
    """
    module = source if isinstance(source, Module) else decode(source)
    validate_module(module)
    first = module.imported_funcs
    codes = {func: analyze(module, func) for func in range(first, len(module.func_types))}
    refuse_uncapturable(module, codes)
    graph = build_call_graph(module, codes)
    linker = Linker(module, options)
    helpers = Helpers(linker)
    out = Instrumented(module, options, b"", linker, helpers, graph, codes)
    out.features = used_features(module, codes)
    everything = options.plan == "all"
    for func, code in codes.items():
        def tested(op: int, imm: object, func: int = func) -> bool:
            return everything or graph.call_suspends(func, op, imm)

        body, verdict = rewrite(
            module, code, Origin(func, len(module.local_types(func))), helpers, tested,
            entry_poll=func in graph.cyclic_tails,
        )
        out.verdicts[func] = verdict
        if body is not None:
            linker.bodies[func] = body
    helpers.add_finish()
    _add_entries(out)
    out.wasm = linker.assemble()
    return out


def _add_entries(out: Instrumented) -> None:
    """Wrap what the host may call: exported functions and the start function."""
    module, linker = out.module, out.linker
    everything = out.options.plan == "all"
    for item in module.exports:
        func = item.index
        if item.kind != ExternKind.FUNC or func < module.imported_funcs or func in linker.wrapped:
            continue
        if everything or func in out.graph.suspends:
            linker.wrapped[func] = out.helpers.wrap(f"export {func}", module.signature(func), func)
    if module.start is not None:
        index = out.helpers.wrap("start", FuncType((), ()), module.start)
        linker.exports.append((START, ExternKind.FUNC, index))


def refuse_uncapturable(module: Module, codes: Mapping[int, Code]) -> None:
    """Refuse what the image cannot hold yet: references in locals, operands and mutable globals, changed tables."""
    for item in module.imports:
        where = f"{item.module}.{item.name}"
        if item.kind == ExternKind.MEMORY:
            raise NotSupported(f"imported memory {where}", need="imported memory", hint="define it in the module")
        if item.kind == ExternKind.TABLE:
            raise NotSupported(f"imported table {where}", need="imported table", hint="define it in the module")
        if item.kind == ExternKind.GLOBAL and item.type.mutable:  # type: ignore[union-attr]
            raise NotSupported(f"imported mutable global {where}", need="imported mutable global")
    for i, kind in enumerate(module.globals):
        if kind.mutable and kind.type not in NUMBER_TYPES:
            raise NotSupported(f"mutable global {i} of type {TYPE_NAMES[kind.type]}", need="reference types", field=i)
    changes = {0x26: "table.set", 0xFC000C: "table.init", 0xFC000E: "table.copy", 0xFC000F: "table.grow",
               0xFC0011: "table.fill"}
    for func, code in codes.items():
        base = module.body(func).expr
        for i in code.special:
            op = code.ops[i]
            if op in changes:
                raise NotSupported(
                    f"{changes[op]}: a table changed at run time", need="reference types", function=func,
                    offset=base + code.pos[i],
                )
        for i in code.tail_calls:
            _refuse_tail_call(module, code, i)
        declared = {*module.signature(func).params, *(t for _, t in module.body(func).locals)}
        for t in declared - NUMBER_TYPES:
            raise NotSupported(f"a local of type {TYPE_NAMES[t]}", need="reference types", function=func)
        for i, (waiting, args) in code.calls.items():
            if any(e & 255 not in NUMBER_TYPES for e in waiting + args):
                raise NotSupported("a reference waits on the operand stack under a call", need="reference types",
                                   function=func, offset=base + code.pos[i])
        for i, waiting in code.loops.items():
            if any(e & 255 not in NUMBER_TYPES for e in waiting):
                raise NotSupported("a reference waits on the operand stack under a loop", need="reference types",
                                   function=func, offset=base + code.pos[i])


def _refuse_tail_call(module: Module, code: Code, i: int) -> None:
    """Refuse tail calls that may reach an import: the host may ask for such a call to be repeated, and the frame that
    would hold its arguments is gone."""
    imm = code.imms[i]
    imported = range(module.imported_funcs)
    if isinstance(imm, tuple):
        found = any(f in imported and module.signature(f) == module.types[imm[0]] for f in module.declared_funcs)
    else:
        found = imm in imported
    if found:
        raise NotSupported("a tail call of an imported function", need="tail call of an import", function=code.func,
                           offset=module.body(code.func).expr + code.pos[i],
                           hint="call the import and return its result")
