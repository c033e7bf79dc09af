"""Rewriting a whole module: validate, decide, rewrite function by function, link."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ..errors import NotSupported
from ..lazydata import dataclass, field
from ..wasm.codes import Codes
from ..wasm.decode import decode
from ..wasm.features import Use, used_features
from ..wasm.module import ExternKind, FuncType, Module
from ..wasm.validate import Code, validate_module
from .callgraph import CallGraph, build_call_graph
from .function import Origin, Verdict, rewrite
from .linker import PREFIX, Linker
from .neutral.build import Neutral, neutralize
from .options import Options
from .records import Place
from .resumes import Resumes
from .side import Side, add_doors, callees, needed_functions
from .sites import Sites
from .spill import Helpers

__all__ = ["Instrumented", "instrument"]

START = PREFIX + "start"


@dataclass(slots=True)
class Instrumented:
    """A rewritten module and what is needed to read what it spills.

    Attributes:
        codes, verdicts: validated bodies and decisions by function, for ``--explain``;
            empty where the rewriting came from the cache.
        module: the neutral form of the original (see `neutral`); the original itself where ``neutral`` is None.
        features: what the runtime must have beyond WebAssembly 1.0, by name, with the first use in the original.
        continuations: functions that were added for a resume -> function that they are continuations of.
        resumes, numbers: stacks that these can go on from, and the number of each place's continuation.
        key: its name in the cache of rewritten modules; empty where it was not looked for there.
        side: where the continuations are, if they are not in ``wasm``. not_moved: why they are not there, where a side
            module was wanted.
        resume_key: the continuations' name there. resumed_before: they come from there.
        polls_at_once: what was resumed stands at a polled loop header and passes it again first.
    """

    module: Module
    options: Options
    linker: Linker
    helpers: Helpers
    graph: CallGraph
    codes: Mapping[int, Code] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    polls_at_once: bool = False
    features: dict[str, Use] = field(default_factory=dict)
    neutral: Neutral | None = None
    continuations: dict[int, int] = field(default_factory=dict)
    resumes: Resumes = field(default_factory=Resumes)
    numbers: dict[Place, int] = field(default_factory=dict)
    key: str = ""
    side: Side | None = None
    not_moved: str = ""
    assembled: bytes = b""
    resume_key: str = ""
    resumed_before: bool = False

    @property
    def wasm(self) -> bytes:
        """The rewritten binary, written when it is first asked for: who has it compiled already does not need it."""
        if not self.assembled:
            self.assembled = self.linker.assemble(self.side.first if self.side else None)
        return self.assembled

    @property
    def source(self) -> Module:
        """The original module."""
        return self.neutral.source if self.neutral else self.module

    def original_offset(self, func: int, offset: int) -> int:
        """The offset in the original's body of ``func`` for one in ``module``."""
        return self.neutral.original_offset(func, offset) if self.neutral else offset

    def tests_call(self, caller: int, op: int, target: object) -> bool:
        """Whether a call instruction in ``caller`` is a safepoint: it is tested after it returns."""
        if self.neutral and isinstance(target, int) and target in self.neutral.added:
            return False
        return self.options.plan == "all" or self.graph.call_suspends(caller, op, target)

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


def instrument(source: bytes | Module, options: Options, imported: Mapping[int, int] | None = None) -> Instrumented:
    """Rewrite a module so that it can be frozen.

    Args:
        imported: bits of the imported globals, for modules that have to be made neutral.

    Raises:
        InvalidModule: not a valid module, with function and offset.
        NotSupported: it uses what cannot be captured, with feature, function and offset.
    """
    module = source if isinstance(source, Module) else decode(source)
    codes = _analyzed(module)
    neutral = neutralize(module, codes, imported or {})
    features = used_features(module, codes)
    if neutral:
        module = neutral.module
        codes = codes if neutral.same_code else _analyzed(module)
        features = _needed(used_features(module, codes), features)
    if options.lower_atomics:
        features.pop("atomics", None)
    graph = build_call_graph(module, codes)
    linker = Linker(module, options)
    if neutral and neutral.returning and not linker.own_memory:
        raise NotSupported("a tail call of an imported function, where frames are spilled into the guest's memory",
                           need="tail-calls", hint="choose another runtime (see `wasmckpt doctor`)")
    helpers = Helpers(linker)
    out = Instrumented(module, options, linker, helpers, graph, codes, features=features, neutral=neutral)
    called: set[int] = set()
    for func, code in codes.items():
        if neutral and func in neutral.added:
            continue
        body, verdict = rewrite(
            module, code, Origin(func, len(out.source.local_types(func))), helpers, partial(out.tests_call, func),
            entry_poll=func in graph.entries, recurses=func in graph.cyclic,
        )
        out.verdicts[func] = verdict
        if body is not None:
            linker.bodies[func] = body
            if options.side_modules:
                called.update(callees(code))
    helpers.add_finish()
    if options.own_table_items:
        linker.add_table_items()
    _add_entries(out)
    if options.side_modules:
        add_doors(linker, needed_functions(linker, called))
    return out


def _analyzed(module: Module) -> Codes:
    validate_module(module)
    return Codes(module)


def _needed(features: Mapping[str, Use], original: Mapping[str, Use]) -> dict[str, Use]:
    """What the neutral module needs, with the uses in the original that are the reason."""
    reason = original.get("reference-types") or Use("references, or imports that become definitions")
    return {name: original.get(name, reason) for name in sorted(features, key=lambda name: name not in original)}


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

