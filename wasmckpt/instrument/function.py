"""Rewriting one function: the original's bytes with polls between them, and an exit for each safepoint.

    loop                        loop  poll  br_if $exit0
      ... call $f ...     ->      ... call $f  poll  br_if $exit1 ...
    end                         end
                                return end  push live values, call $spill  br $out          ;; $exit0
                                end  push live values, call $spill  end  push zeros         ;; $exit1, $out

Shapes (figures in docs/benchmarks.md): exits out of line with one call of a spill helper; in functions without calls
the exit stores in place, since a call makes a leaf function expensive; above `Options.out_of_line` sites the exits
stand in place, in a cold ``if``. A common exit for all sites was rejected: each local becomes a phi there and lives
too long (1.7 on a big interpreter loop, against 1.1). Waiting operands are kept by ``local.tee`` where they are made:
constants are not stored, and a ``local.get`` whose local has not changed since is that local. On compilers sites that
store the same values share an exit: the site's number comes in a local. And all exits of a function leave it at one
place there, since a compiler restores registers at each ``return`` anew (a twentieth of all compiled code).

Thinning: a small innermost loop becomes k copies for one poll:
    block $out loop  poll  (block $again  body  br $out end) x (k-1)  body  end end
In the copies a branch to the loop's label goes forward to the next copy; only the last copy branches back. The poll
still stands at the original loop's header, so images do not change.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ..errors import NotSupported
from ..lazydata import dataclass, replace
from ..wasm.leb128 import read_s32, read_s64, uleb
from ..wasm.limits import MAX_PLACES, within
from ..wasm.module import FuncType, Module
from ..wasm.opcodes import BLOCKS, TABLE
from ..wasm.validate import Code, analyze
from ..wasm.values import I32, WIDTH
from . import emit
from .atomics import FIRST_ATOMIC, plain
from .depth import DepthCounter
from .flow import BR, BR_TABLE, TRY, Flow, build_flow, live_at, loops_to_poll
from .lower import Lowered, derive, has_label_values, has_label_vectors
from .nans import canonical, to_make_canonical
from .options import Options
from .pieces import Pieces, block_type
from .sites import Site, constant
from .spill import RECORD_ORDER, Helpers
from .trips import constant_trips
from .turns import skips_of

__all__ = ["Origin", "Verdict", "rewrite"]

_LARGEST_IN_PLACE: Final = 60_000
"""Bytes of a record that a leaf function may store in place: the initial window holds it."""
_RANK: Final = {kind: n for n, kind in enumerate(RECORD_ORDER)}
_VECTOR_REGISTERS: Final = 12
"""Values of the types f32, f64, v128 that a loop may load before a compiler runs out of registers (16 on x86-64, and
some are in use)."""
_LOADS_INTO_VECTOR_REGISTERS: Final = frozenset({0x2A, 0x2B, *range(0xFD0000, 0xFD000B), 0xFD005C, 0xFD005D})
"""f32.load, f64.load, and those of v128."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a body comes from: function of the original module, its number of locals, and its offsets.

    ``pieces`` maps relative offsets in the body at hand to those in the original body; None: they are equal.
    ``lowered``: the body was lowered from that one (see `lower`). ``skip``: the local that says whether a turn is begun
    in its middle, or -1 (see `turns`). ``header``: offset in the body of the loop at whose header it goes on, or -1.
    """

    func: int
    locals: int
    pieces: Pieces | None = None
    lowered: Lowered | None = None
    skip: int = -1
    header: int = -1

    def offset(self, at: int) -> int:
        """Original offset of a relative offset here."""
        if self.lowered:
            at = self.lowered.pieces.source_offset(at)
        return self.pieces.source_offset(at) if self.pieces else at


@dataclass(slots=True)
class Verdict:
    """What was decided about a function, for ``--explain``: kept calls, polled and unrolled loops (instructions,
    numbered as in the lowered function, where it is lowered)."""

    calls: list[int]
    polled: set[int]
    unrolled: dict[int, int]
    entry: bool
    header_polled: bool = False
    """The loop at whose header it goes on is polled."""


def rewrite(
    module: Module, code: Code, origin: Origin, helpers: Helpers, tested: Callable[[int, object], bool],
    *, entry_poll: bool = False, recurses: bool = False, signature: Callable[[int], FuncType] | None = None,
) -> tuple[bytes | None, Verdict]:
    """Rewrite one function's body, lowered first where the options say so; None where it may pass as it is.

    Args:
        recurses: it can call itself, so the stack that it takes may have to be counted.
        code: the validated body. tested: whether a call (instruction code, immediate) must be tested on return.
        signature: type of a called function, where it may be one that the module does not know.
    """
    options = helpers.linker.options
    # What a runtime without exceptions loses is no matter where there are some: it will refuse the module.
    lower = not code.catches and ((options.label_values and has_label_values(module, code))
                                  or (options.label_vectors and has_label_vectors(module, code)))
    written = module, code
    if lower:
        lowered = Lowered(module, code)
        module = derive(module, {code.func: (lowered.locals, lowered.code)})
        code = analyze(module, code.func)
        origin = replace(origin, lowered=lowered)
    counter = DepthCounter(helpers.depth) if (recurses or code.catches) and helpers.depth >= 0 else None
    body, verdict = _Rewriter(
        module, code, written, origin, helpers, tested, entry_poll, counter, signature or module.signature
    ).run()
    if body is None and lower:
        body = emit.local_decl(lowered.locals) + lowered.code
    return body, verdict


class _Rewriter:
    def __init__(
        self, module: Module, code: Code, written: tuple[Module, Code], origin: Origin, helpers: Helpers,
        tested: Callable[[int, object], bool], entry_poll: bool, counter: DepthCounter | None,
        signature: Callable[[int], FuncType],
    ) -> None:
        self.module, self.code, self.origin, self.helpers = module, code, origin, helpers
        # Which loops are polled and unrolled is decided on what was there before it was lowered for a runtime: the n-th
        # safepoint must be the same one on all of them. Lowering leaves the number of loops and their order.
        self.written_module, self.written = written
        self.written_loop = dict(zip(_loops(code), _loops(self.written), strict=True))
        self.options: Options = helpers.linker.options
        self.signature = signature
        self.entry_poll = entry_poll
        self.counter = counter
        self.kind = module.signature(code.func)
        self.local_types = module.local_types(code.func)
        self.new_locals: list[int] = []
        self.spill_locals: dict[tuple[int, int], int] = {}
        body = module.body(code.func)
        self.raw = module.data[body.expr : body.end]
        self.calls = [i for i in sorted(code.calls) if tested(code.ops[i], code.imms[i])]
        self.after: dict[int, list[bytes]] = {}
        self.replaced: dict[int, bytes] = {}
        self._spares: dict[tuple[str, int], int] = {}
        self.saved: dict[int, dict[int, int]] = {}  # producer -> {depth: type} of the values that a site needs
        self.aside: set[int] = set()  # calls of imports whose results are kept beside the places of their arguments
        self.openers: dict[int, int] | None = None
        self.added_blocks = 0
        self.leaf = False
        self.skips = skips_of(code, origin.skip)
        self.flow = Flow()
        self.loop_params: dict[int, tuple[int, ...]] = {}
        if origin.lowered and origin.lowered.loop_params:
            loops = _loops(code)
            self.loop_params = {loops[n]: locals_ for n, locals_ in origin.lowered.loop_params.items()}

    def run(self) -> tuple[bytes | None, Verdict]:
        code, options = self.code, self.options
        self._special_instructions()
        verdict = Verdict(self.calls, set(), {}, self.entry_poll)
        if not self.calls and not code.loops and not self.entry_poll and not self.counter:
            return (self._write([], {}) if self.replaced else None), verdict
        places = len(self.calls) + len(code.loops)
        within(places, MAX_PLACES, "loops and calls of a function", function=self.origin.func)
        try:
            flow = build_flow(code, set(self.calls), self.skips)
            live, live_entry = live_at(flow)
        except NotSupported as error:
            error.fields["function"] = self.origin.func
            raise
        if options.all_locals:
            everything = (1 << len(self.local_types)) - 1
            live, live_entry = dict.fromkeys(live, everything), everything
        if options.plan == "all":
            polled = set(code.loops)
        else:
            ending = constant_trips(self.written_module, self.written)
            ends = {loop for loop in code.loops if self.written_loop[loop] in ending}
            polled = loops_to_poll(flow, ends) & set(code.loops)
        verdict.polled = polled
        verdict.header_polled = any(
            self.written.pos[self.written_loop[loop]] == self.origin.header for loop in polled)
        order = sorted([*self.calls, *polled])
        if options.leave_out:
            order = [i for i in order if ("loops" if i in polled else "calls") not in options.leave_out]
        if self.entry_poll:
            order.insert(0, -1)
        self.leaf = not code.calls and not code.tail_calls and self.helpers.linker.control
        in_line = len(order) > options.out_of_line
        self.flow = flow
        unrolled = verdict.unrolled = self._choose_unrolled(polled)
        poll, sites = self.helpers.poll, self.helpers.linker.sites
        # Blocks around the test, the instruction before it, number, sources:
        found: list[tuple[int, int, int, list[tuple[int, bytes]]]] = []
        begun = {loop: branch for branch, loop in self.skips.items()}
        for i, last_set in zip(order, self._last_sets(order), strict=True):
            site, test_at, sources = self._site(i, live.get(i, live_entry), last_set)
            further = int(i in unrolled)  # blocks between what encloses the loop and the test
            if i in begun:  # no place to stop where the turn is not begun: behind ``local.get``, ``br_if``
                test_at, further = begun[i], begun[i] - i - 2
            if "values" in options.leave_out:
                sources = []
            if in_line:
                leave = self._leave(emit.i32_const(len(sites)), sources) + self._zeros()
                self.after.setdefault(test_at, []).append(poll + emit.IF + leave + emit.RETURN + emit.END)
            else:
                found.append((flow.depth.get(i, 0) + further, test_at, len(sites), sources))
            sites.append(site)
        # Only on compilers a site's number may wait in a local at no cost.
        exits = _exits([(number, sources) for _, _, number, sources in found],
                       share=options.share_exits and self.helpers.linker.control)
        self.added_blocks = len(exits) + (len(exits) > 1 and self.helpers.linker.control)
        number_local = len(self.local_types) + len(self.new_locals)
        if len(exits) < len(found):
            self.new_locals.append(I32)
        exit_of = {number: n for n, (numbers, _) in enumerate(exits) for number in numbers}
        for depth, test_at, number, _ in found:
            n = exit_of[number]
            keep = emit.i32_const(number) + emit.local_set(number_local) if len(exits[n][0]) > 1 else b""
            test = keep + poll + emit.br_if(depth + n)
            self.after.setdefault(test_at, []).append(test)
        leaves = [
            self._leave(emit.i32_const(numbers[0]) if len(numbers) == 1 else emit.local_get(number_local), sources)
            for numbers, sources in exits
        ]
        if "values" not in options.leave_out:
            self._save_operands()
        return self._write(leaves, unrolled), verdict

    def _leave(self, number: bytes, sources: list[tuple[int, bytes]]) -> bytes:
        """What an exit does: store the site's number and the values."""
        values = [(I32, number), *sources]
        size = sum(WIDTH[kind] for kind, _ in values)
        try:
            in_place = self.leaf and size <= _LARGEST_IN_PLACE
            leave = self.helpers.store_in_place(values) if in_place else self.helpers.spill(values)
        except NotSupported as error:
            error.fields["function"] = self.origin.func
            raise
        return leave

    def _zeros(self) -> bytes:
        """Results for the caller to ignore."""
        return b"".join(emit.zero(kind) for kind in self.kind.results)

    # What is replaced wherever it stands

    def _special_instructions(self) -> None:
        code, linker = self.code, self.helpers.linker
        if self.counter:
            self.counter.local = len(self.local_types) + len(self.new_locals)
            self.new_locals.append(I32)
            for i in [*(i for i, op in enumerate(code.ops) if op == 0x0F), *code.tail_calls]:
                self.replaced[i] = self.counter.leave() + self.raw[code.pos[i] : code.pos[i + 1]]
            if code.catches:
                self.counter.inside = len(self.local_types) + len(self.new_locals)
                self.new_locals.append(I32)
            for opener in _caught_at(code):
                at = opener
                while code.ops[at] not in (0x03, 0x0B):
                    at = code.match[at]  # of an if first to its else
                self.after.setdefault(at, []).insert(0, self.counter.again())
        for i in code.special:
            op = code.ops[i]
            if op == 0x40 and not linker.own_memory and code.imms[i] == 0:
                self.replaced[i] = emit.call(self.helpers.grow)
            elif op == 0xFC0009 or op == 0xFC000D:
                segment = code.imms[i][0]  # type: ignore[index]
                datas, elems = linker.module.datas, linker.module.elems
                if datas[segment].active if op == 0xFC0009 else elems[segment].mode != "passive":
                    continue  # instantiation has dropped it
                flag = self.helpers.drop_flag("data" if op == 0xFC0009 else "elem", segment)
                start, end = code.pos[i], code.pos[i + 1]
                self.replaced[i] = self.raw[start:end] + emit.i32_const(1) + emit.global_set(flag)
            elif op >= FIRST_ATOMIC and self.options.lower_atomics:
                self.replaced[i] = plain(op, self.raw[code.pos[i] : code.pos[i + 1]], self._spare)
        if self.options.minimal_leb:
            for i in code.padded:
                if i not in self.replaced:
                    self.replaced[i] = _minimal(code.ops[i], code.imms[i])
        if self.options.canonical_nans:
            spare: dict[tuple[int, ...], int] = {}
            for i in to_make_canonical(code):
                made = TABLE[code.ops[i]].pushes or ()
                if made not in spare:
                    spare[made] = len(self.local_types) + len(self.new_locals)
                    self.new_locals += made
                instruction = self.raw[code.pos[i] : code.pos[i + 1]]
                self.replaced[i] = instruction + canonical(code.ops[i], spare[made])

    def _spare(self, name: str, kind: int) -> int:
        """A local that one instruction uses and no other: all that need one of this name and type share it."""
        if (name, kind) not in self._spares:
            self._spares[name, kind] = len(self.local_types) + len(self.new_locals)
            self.new_locals.append(kind)
        return self._spares[name, kind]

    # Sites

    def _last_sets(self, order: list[int]) -> Iterator[dict[int, int]]:
        """For each site: local -> the last instruction before the site that sets it, of the locals that wait as
        operands; under -1 the innermost loop around the site: operands made outside of it may have changed in an
        earlier turn. It is one dictionary, which the next step changes."""
        ops, imms = self.code.ops, self.code.imms
        watched = {
            imms[e >> 8] for i in order if i >= 0 for e in self._entries(i) if ops[e >> 8] == 0x20
        }
        sets = [i for i, op in enumerate(ops) if (op == 0x21 or op == 0x22) and imms[i] in watched]
        last: dict[int, int] = {}
        open_loops: list[tuple[int, int]] = []  # (loop, its end) around the present site, innermost last
        loops = sorted(self.code.loops)
        k = m = 0
        for i in order:
            while k < len(sets) and sets[k] < i:
                last[imms[sets[k]]] = sets[k]  # type: ignore[index]
                k += 1
            while m < len(loops) and loops[m] <= i:
                open_loops.append((loops[m], self.code.match[loops[m]]))
                m += 1
            while open_loops and open_loops[-1][1] <= i:
                open_loops.pop()
            last[-1] = open_loops[-1][0] if open_loops else -1
            yield last

    def _entries(self, i: int) -> tuple[int, ...]:
        code = self.code
        if i in code.loops:
            return code.loops[i]
        waiting, args = code.calls[i]
        return waiting + args if self._is_import(i) else waiting

    def _is_import(self, i: int) -> bool:
        """Whether the call may be one of an import, which the host may want to be repeated."""
        target = self.code.imms[i]
        if isinstance(target, tuple):
            return self.module.types[target[0]] in self.helpers.linker.tabled_imports
        return isinstance(target, int) and target < self.module.imported_funcs

    def _spill_local(self, depth: int, kind: int) -> int:
        key = (depth, kind)
        if key not in self.spill_locals:
            self.spill_locals[key] = len(self.local_types) + len(self.new_locals)
            self.new_locals.append(kind)
        return self.spill_locals[key]

    def _site(self, i: int, live: int, last_set: dict[int, int]) -> tuple[Site, int, list[tuple[int, bytes]]]:
        """The site at instruction ``i`` (-1: the entry), after which instruction it tests, and what it pushes."""
        code = self.code
        wanted: dict[int, int] = {}  # local -> type, of everything to be stored
        locals_: list[tuple[int, int, int]] = []
        bits = f"{live:b}"[::-1]  # fifty thousand locals would be as many numbers of fifty thousand bits
        local = bits.find("1")
        while 0 <= local < self.origin.locals:
            wanted[local] = self.local_types[local]
            locals_.append((local, self.local_types[local], local))
            local = bits.find("1", local + 1)
        test_at = i
        results: list[tuple[int, int]] = []
        waiting: tuple[int, ...] = ()
        args: tuple[int, ...] = ()
        offset = after = 0
        changed = -1  # the local that the call's result goes to
        is_import = False
        if i < 0:
            offset = after = self.origin.offset(0)
        elif i in code.loops:
            waiting = code.loops[i]
            offset = after = self.origin.offset(code.pos[i + 1])
        else:
            waiting, args = code.calls[i]
            is_import = self._is_import(i)
            if not is_import:
                args = ()
            offset = self.origin.offset(code.pos[i])
            after = self.origin.offset(code.pos[i + 1])
            made = self._called(i).results
            depth = len(waiting)
            following = code.ops[i + 1]
            if len(made) == 1 and following in (0x21, 0x22):
                # The result goes to a local at once: test after that, the local is the result.
                test_at = i + 1
                target: int = code.imms[i + 1]  # type: ignore[assignment]
                wanted[target] = made[0]
                results.append((made[0], target))
                changed = target
            elif made:
                # Where arguments are kept for a repeated call, results must not take their locals.
                place = -1 - len(made) if args else depth
                kept = [self._spill_local(place + n, kind) for n, kind in enumerate(made)]
                for local, kind in zip(kept, made, strict=True):
                    wanted[local] = kind
                    results.append((kind, local))
                self.after.setdefault(i, []).append(self._keep(kept))
                if args:
                    self.aside.add(i)
        operands = [self._operand(depth, e, last_set, changed, wanted) for depth, e in enumerate(waiting)]
        if i in code.loops and i in self.loop_params:
            for local in self.loop_params[i]:
                kind = self.type_of(local)
                wanted[local] = kind
                operands.append((kind, local))
        arguments = [self._operand(len(waiting) + n, e, last_set, changed, wanted) for n, e in enumerate(args)]
        order = sorted(wanted)
        if len(set(wanted.values())) > 1:
            order.sort(key=lambda local: _RANK[wanted[local]])  # keeps the order of those that are equal
        slot = {local: n for n, local in enumerate(order)}

        def source(entries: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
            return tuple((kind, s if s < 0 else slot[s]) for kind, s in entries)

        site = Site(
            self.origin.func, offset, after, is_import, tuple(wanted[local] for local in order),
            tuple((local, kind, slot[s]) for local, kind, s in locals_),
            source(operands), source(results), source(arguments),
        )
        return site, test_at, [(wanted[local], emit.local_get(local)) for local in order]

    def type_of(self, local: int) -> int:
        """Type of a local, ours included."""
        known = len(self.local_types)
        return self.local_types[local] if local < known else self.new_locals[local - known]

    def _called(self, i: int) -> FuncType:
        imm = self.code.imms[i]
        return self.module.types[imm[0]] if isinstance(imm, tuple) else self.signature(imm)  # type: ignore[arg-type]

    def _operand(
        self, depth: int, entry: int, last_set: dict[int, int], changed: int, wanted: dict[int, int],
    ) -> tuple[int, int]:
        """(type, source) of a waiting operand; a source is a local that is stored, or a constant."""
        producer, kind = entry >> 8, entry & 255
        code = self.code
        op = code.ops[producer]
        if 0x41 <= op <= 0x44:
            return kind, constant(self._constant_bits(producer))
        if op == 0x20:
            local: int = code.imms[producer]  # type: ignore[assignment]
            if local != changed and last_set.get(local, -1) < producer and producer > last_set.get(-1, -1):
                wanted[local] = kind
                return kind, local
        local = self._spill_local(depth, kind)
        wanted[local] = kind
        self.saved.setdefault(producer, {})[depth] = kind
        return kind, local

    def _constant_bits(self, i: int) -> int:
        at = self.code.pos[i] + 1
        op = self.code.ops[i]
        if op == 0x41:
            return read_s32(self.raw, at)[0] & 0xFFFFFFFF
        if op == 0x42:
            return read_s64(self.raw, at)[0] & 0xFFFFFFFFFFFFFFFF
        return int.from_bytes(self.raw[at : at + (4 if op == 0x43 else 8)], "little")

    # Operands that wait

    def _save_operands(self) -> None:
        tested_results = set(self.calls)
        for producer, depths in self.saved.items():
            if producer in tested_results and producer not in self.aside:
                continue  # its results are in their spill locals already, or in a local
            made = self._made(producer)
            base = min(depths)
            keep = [self._spill_local(base + n, kind) for n, kind in enumerate(made)]
            after = self.after.setdefault(producer, [])
            after.insert(len(after) if producer in self.aside else 0, self._keep(keep))
        for producer in self.saved.keys() & tested_results:
            # A result that goes on into a local (test behind the local.set) never waits; one behind a local.tee is
            # made by the tee. So here the results have been kept by the site itself.
            assert self.code.ops[producer + 1] not in (0x21, 0x22) or len(self._made(producer)) != 1

    @staticmethod
    def _keep(locals_: list[int]) -> bytes:
        """Copy the topmost values into locals."""
        if len(locals_) == 1:
            return emit.local_tee(locals_[0])
        return b"".join([emit.local_set(i) for i in reversed(locals_)] + [emit.local_get(i) for i in locals_])

    def _made(self, producer: int) -> tuple[int, ...]:
        """Types of the values that an instruction leaves on the stack."""
        code = self.code
        op = code.ops[producer]
        imm = code.imms[producer]
        if op in (0x10, 0x11):
            return self._called(producer).results
        if op in BLOCKS:
            return imm.params  # type: ignore[attr-defined,no-any-return]
        if op in (0x05, 0x0B):
            if self.openers is None:
                self.openers = {end: start for start, end in code.match.items()}
            opener = self.openers[producer]
            if op == 0x05:
                return code.imms[opener].params  # type: ignore[attr-defined,no-any-return]
            if code.ops[opener] == 0x05:
                opener = self.openers[opener]
            return code.imms[opener].results  # type: ignore[attr-defined,no-any-return]
        kinds = self.saved[producer]
        return tuple(kinds[d] for d in sorted(kinds))

    # Thinning

    def _choose_unrolled(self, polled: set[int]) -> dict[int, int]:
        """Loops to unroll -> index of their end: innermost, small, without safepoints inside, without values."""
        options = self.options
        if options.unroll < 2 or options.plan == "all":
            return {}
        parent = self.flow.parent
        inner = set(parent.values())
        out = {}
        for loop in polled - inner:
            end = self.code.match[loop]
            first = self.written_loop[loop]
            limit = options.unroll_limit if loop in parent else options.unroll_limit // 2
            calls = bisect_left(self.calls, loop) != bisect_left(self.calls, end)
            plain = not calls and self.written.imms[first] == FuncType((), ())
            if self.written.match[first] - first <= limit and plain and self._copies(loop, end) > 1:
                out[loop] = end
        return out

    def _copies(self, loop: int, end: int) -> int:
        """Copies of an unrolled loop: so few that what they load fits into the registers for such values. Else one is
        spilled, and which is a matter of luck: the accumulator of a sum costs 1.33 (matmul, gone on with)."""
        loads = sum(op in _LOADS_INTO_VECTOR_REGISTERS for op in self.code.ops[loop:end])
        return min(self.options.unroll, _VECTOR_REGISTERS // loads) if loads else self.options.unroll

    # Writing

    def _write(self, exits: list[bytes], unrolled: dict[int, int]) -> bytes:
        code = self.code
        branches: dict[int, tuple[int, int | tuple[int, ...]]] = {}  # index -> (nest, depths)
        if exits or unrolled:
            flow = self.flow
            for kind, index, nest, arg in zip(flow.kinds, flow.indices, flow.nests, flow.args, strict=True):
                if BR <= kind <= BR_TABLE or kind == TRY:
                    branches[index] = (nest - (kind == TRY), arg)
        changed = sorted({*self.after, *self.replaced, *unrolled, *branches} - {-1})
        out = [emit.local_decl(self.local_types[len(self.kind.params):] + self.new_locals)]
        counter = self.counter
        around = bool(counter and code.outward)  # a branch that leaves the function must not pass by the counter
        if counter:
            out.append(counter.enter([*self.local_types, *self.new_locals[1:]]))  # the first one is the counter's own
        if around:
            out.append(emit.block(self.kind.results, self.helpers.linker.type_index))
        out += [emit.BLOCK] * self.added_blocks
        out += self.after.get(-1, [])
        self._range(out, 0, len(code.ops) - 1, changed, branches, unrolled, 0, 0)
        if counter and exits:
            out.append(counter.leave())
        if self.added_blocks > len(exits):
            out.append(emit.RETURN)
            for n, leave in enumerate(exits, 1):
                out += [emit.END, leave, emit.br(len(exits) - n) if n < len(exits) else emit.END]
            out.append(self._zeros())
        else:
            for leave in exits:
                out += [emit.RETURN, emit.END, leave, self._zeros()]
        if around:
            out.append(emit.END)
        if counter and (around or not exits):
            out.append(counter.leave())
        return b"".join(out) + emit.END

    def _range(
        self, out: list[bytes], first: int, last: int, changed: list[int],
        branches: dict[int, tuple[int, int | tuple[int, ...]]], unrolled: dict[int, int], loop_nest: int, crossing: int,
    ) -> None:
        """Write instructions ``first`` to ``last`` (not included). Inside an unrolled loop, branches that leave the
        loop at nesting ``loop_nest`` cross ``crossing`` more blocks than before."""
        raw, pos = self.raw, self.code.pos
        cursor = pos[first]
        k = bisect_left(changed, first)
        while k < len(changed) and changed[k] < last:
            i = changed[k]
            k += 1
            if i in unrolled and not crossing:
                end = unrolled[i]
                out += [raw[cursor : pos[i]], emit.BLOCK, emit.LOOP, *self.after.get(i, ())]
                nest = self.flow.depth[i]
                for _ in range(self._copies(i, end) - 1):
                    out.append(emit.BLOCK)
                    self._range(out, i + 1, end, changed, branches, unrolled, nest, 2)
                    out += [emit.br(2), emit.END]
                self._range(out, i + 1, end, changed, branches, unrolled, nest, 1)
                out += [emit.END, emit.END]
                cursor = pos[end + 1]
                k = bisect_left(changed, end + 1)
                out += self.after.get(end, ())
                continue
            if i in branches:
                nest, arg = branches[i]
                depths = arg if isinstance(arg, tuple) else (arg,)
                moved = tuple(
                    d + (self.added_blocks if d == nest else 0) + (crossing if crossing and d > nest - loop_nest else 0)
                    for d in depths
                )
                if moved != depths:
                    op = self.code.ops[i]
                    if op == 0x1F:
                        new = with_labels(self.code, i, raw, moved)
                    else:
                        new = bytes([op]) + (uleb(len(moved) - 1) if op == 0x0E else b"") + b"".join(map(uleb, moved))
                    out += [raw[cursor : pos[i]], new]
                    cursor = pos[i + 1]
            elif i in self.replaced:
                out += [raw[cursor : pos[i]], self.replaced[i]]
                cursor = pos[i + 1]
            if i in self.after:
                out.append(raw[cursor : pos[i + 1]])
                out += self.after[i]
                cursor = pos[i + 1]
        out.append(raw[cursor : pos[last]])


def _exits(
    sites: Sequence[tuple[int, list[tuple[int, bytes]]]], *, share: bool
) -> list[tuple[list[int], list[tuple[int, bytes]]]]:
    """The exits for sites (number, what it stores): (numbers of the sites that leave there, what all of them store)."""
    out: dict[object, tuple[list[int], list[tuple[int, bytes]]]] = {}
    for number, sources in sites:
        key = tuple(code for _, code in sources) if share else number
        out.setdefault(key, ([], sources))[0].append(number)
    return list(out.values())


def _minimal(op: int, imm: object) -> bytes:
    """An instruction with padded indices, encoded anew."""
    values = imm if isinstance(imm, tuple) else (imm,)
    head = bytes([op]) if op < 0x100 else bytes([op >> 16]) + uleb(op & 0xFFFF)
    return head + b"".join(uleb(v) for v in values)


def _loops(code: Code) -> list[int]:
    """All loop instructions, those in dead code among them."""
    return [i for i, op in enumerate(code.ops) if op == 0x03]


def with_labels(code: Code, i: int, raw: bytes, depths: Sequence[int]) -> bytes:
    """The ``try_table`` at ``i`` with other depths of its clauses' labels."""
    clauses = [clause._replace(depth=depth) for clause, depth in zip(code.catches[i], depths, strict=True)]
    return emit.try_table(block_type(raw, code.pos[i] + 1), clauses)


def _caught_at(code: Code) -> set[int]:
    """The constructs at whose labels exceptions are caught: instructions that open them. Not: the function itself."""
    found: set[int] = set()
    path: list[int] = []
    for i, op in enumerate(code.ops):
        if op in BLOCKS:
            found.update(path[-1 - clause.depth] for clause in code.catches.get(i, ()) if clause.depth < len(path))
            path.append(i)
        elif op == 0x0B and path:
            path.pop()
    return found
