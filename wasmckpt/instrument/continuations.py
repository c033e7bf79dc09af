"""Continuations: for each place in an image, a function that goes on from there.

Aim: no cost in the steady state. A rewind mode (Asyncify) pays for a dispatch in every function for ever; here the code
that goes on is made when it is needed, from the ORIGINAL function:

    original                    continuation of the place marked *
    A                           load the frame's values; push operands that wait outside of the block
    block                       block
      loop $l                     block $out  block $again
        B * C                       C                          ;; a branch to $l becomes one to $again
      end                           br $out
      D                           end  loop $l B C end  end    ;; the loop as it was, at full speed
    end                           D
    E                           end  E

A place at a loop's header needs no turn to be finished: the loop itself is copied. Where the runtime has tail calls, a
loop with all that follows it is a function of its own, left for when the turn is finished: several copies of one loop
in a function cost it registers (nbody ran 1.11 times as long on wasmtime, now 1.02). Where an outer frame waits in a
call, its continuation calls the continuation of the next frame instead; frames are read from the window, so recursion
needs one function for each distinct place, not for each frame.

Size: each enclosing loop is copied once more, so a continuation has at most (1 + loop nesting) times its function's
code. Large functions have their loops whole instead (`turns`), and what is not reached is left out (`rest`). `MAX_CODE`
bounds the sum.

The code is plain WebAssembly over the original module's index spaces. It is rewritten as any function is, with a map
from its offsets to the original ones, so that a program that was resumed can be frozen again, in original terms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from ..errors import ImageError, NotSupported
from ..lazydata import dataclass
from ..wasm.leb128 import sleb, uleb
from ..wasm.liveness import live_before
from ..wasm.module import Body, ExternKind, FuncType, Module
from ..wasm.opcodes import BLOCKS
from ..wasm.renumber import Unmovable
from ..wasm.validate import Code, analyze
from ..wasm.values import I32, WIDTH
from . import emit
from .function import Origin, rewrite, with_labels
from .instrument import Instrumented
from .linker import PREFIX, Linker
from .pieces import Pieces
from .records import IN_CALL, Place
from .rest import construct_end, rest_of
from .resumes import Resumes
from .side import side_module
from .spill import WORDS
from .turns import MOST_LOCALS, first_whole, pays

__all__ = ["MAX_CODE", "Continuations", "extend", "index_of", "path_to"]

MAX_CODE = 64 << 20
"""Bytes of continuations that one resume may need."""

_MOST_VALUES = 1000
"""Values that are handed to a loop's function: 16 bytes each at most, and the window has a page at least."""
_INLINE_CANDIDATES = 4
"""Next places that a continuation tells apart by itself; more go through a dispatcher (one more native frame)."""


def extend(
    out: Instrumented, frames: Sequence[Place], codes: Mapping[int, Code] | None = None, also: Resumes | None = None,
) -> list[int]:
    """Add continuations for ``frames`` (outermost first) to a rewritten module and link it anew.

    Returns the continuation's number for each frame: what its record begins with. The export ``__wasmckpt_resume``
    then goes on. Places must have been checked against the module; ``codes`` are the bodies validated for that.

    Args:
        also: stacks of earlier stops, which the module is to go on from as well, as far as that is not much code: then
            ``numbers`` of the module tells how.

    Raises:
        ImageError: a place is not one where a frame can stand. NotSupported: more than `MAX_CODE` would be needed.
    """
    return _Extender(out, frames, codes, also).run()


@dataclass(slots=True)
class _Continuation:
    place: Place
    number: int
    func: int
    next: list[Place]


@dataclass(slots=True)
class _LoopFunction:
    """Goes on from a loop's header, with the locals that are live there and all operands, loop parameters on top.

    They are handed over in the window, which is of no other use once all frames have been read: as parameters, most of
    them would lie on the stack, and make worse code of the loop (nbody 1.10 instead of 1.02).
    """

    original: int
    loop: int
    func: int
    operands: tuple[int, ...]
    live: tuple[int, ...]

    def values(self, operands: Sequence[int], kinds: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(local, type, place in the window) of all that is handed over."""
        at = 0
        for local in (*self.live, *operands):
            yield local, kinds[local], at
            at += WIDTH[kinds[local]]


class Continuations:
    """Makes the code that goes on from stacks of frames. Who uses it says where frames are read from.

    Attributes:
        module: whose functions they are. linker: where functions are added. resumes: the stacks.
        rp: global that says where the next record begins, in memory ``linker.memory``.
        conts: the continuation of each place, once there are drafts of them. whole: functions whose loops are not
            copied (see `turns`).
    """

    shares_loops = False
    """Whether a loop's copy is a function, for all places in it."""

    def __init__(
        self, module: Module, linker: Linker, codes: Mapping[int, Code], resumes: Resumes, rp: int,
    ) -> None:
        self.module, self.linker, self.resumes, self.rp = module, linker, resumes, rp
        self._validated = codes
        self._codes: dict[int, Code] = {}
        self.conts: dict[Place, _Continuation] = {}
        self.dispatchers: dict[FuncType, int] = {}
        self.loops: dict[tuple[int, int], _LoopFunction] = {}
        self.whole: set[int] = set()
        self.ready = self.next = -1

    def code(self, func: int) -> Code:
        """The validated body of one of the module's functions."""
        if func not in self._codes:
            known = self._validated.get(func)
            self._codes[func] = analyze(self.module, func) if known is None else known
        return self._codes[func]

    def drafts(self) -> list[_Draft]:
        """The plain code of all functions that go on, those of the places first; each has its index already."""
        linker, following = self.linker, self.resumes.following
        places = list(self.resumes.places)
        self.ready = self.add_ready()
        self.next = self.add_next()
        first = linker.next_function()
        for place in places:  # reserved; filled in later
            linker.added.append((linker.type_index(FuncType((), self.module.signature(place.func).results)), b""))
        self.conts = {
            place: _Continuation(place, n, first + n, list(following[place])) for n, place in enumerate(places)
        }
        for func in {place.func for place in places}:
            code = self.code(func)
            found = [index_of(code.pos, place.offset, func) for place in places if place.func == func]
            few = len(self.module.local_types(func)) <= MOST_LOCALS
            if few and pays(code, [(at, path_to(code, at)) for at in found], shared=self.shares_loops):
                self.whole.add(func)
        drafts: list[_Draft] = []
        size = 0
        for place in places:
            drafts.append(_Frame(self, self.conts[place]))
            size = self._add(size, drafts)
        done = 0
        while done < len(self.loops):  # a loop's function may need that of the loop around it
            drafts.append(_Loop(self, list(self.loops.values())[done]))
            size = self._add(size, drafts)
            done += 1
        return drafts

    def _add(self, size: int, drafts: list[_Draft]) -> int:
        size += len(drafts[-1].code)
        if size > MAX_CODE:
            raise NotSupported(f"the image needs more than {MAX_CODE >> 20} MiB of continuations",
                               need="fewer different frames in big functions", function=drafts[-1].original)
        return size

    def load(self, kind: int, offset: int) -> bytes:
        """Code that reads a value of the present record."""
        return emit.global_get(self.rp) + emit.load(kind, self.linker.memory, offset)

    def add_ready(self) -> int:
        """Adds the function that is called when all frames have been read. () -> ()"""
        raise NotImplementedError

    def add_next(self) -> int:
        """Adds the function that gives the number of the next frame's continuation. () -> i32"""
        raise NotImplementedError

    def loop_function(self, original: int, loop: int, operands: tuple[int, ...]) -> _LoopFunction | None:
        """The function that goes on from a loop's header, with operands of these types; None: do it in place."""
        return None

    def dispatcher(self, kind: FuncType) -> int:
        """A function that goes on with whatever continuation of this type comes next."""
        if kind not in self.dispatchers:
            group = [c for c in self.conts.values() if self.linker.signature(c.func) == kind]
            table = [len(group)] * len(self.conts)
            for n, cont in enumerate(group):
                table[cont.number] = n
            code = emit.BLOCK * (len(group) + 1) + emit.call(self.next)
            code += b"\x0e" + uleb(len(table)) + b"".join(map(uleb, table)) + uleb(len(group)) + emit.END
            for cont in group:
                code += emit.call(cont.func) + emit.RETURN + emit.END
            self.dispatchers[kind] = self.linker.add_function(f"dispatch {kind}", kind, [], code + emit.UNREACHABLE)
        return self.dispatchers[kind]


class _Extender(Continuations):
    """Those of a rewritten module, which are rewritten as well."""

    def __init__(
        self, out: Instrumented, frames: Sequence[Place], codes: Mapping[int, Code] | None, also: Resumes | None,
    ) -> None:
        self.out, self.frames = out, frames
        self.helpers = out.helpers
        resumes = also.newest(*self._affordable()) if also else Resumes()
        resumes.add(frames)
        super().__init__(out.module, out.linker, codes or out.codes, resumes, out.helpers.rp)
        self.shares_loops = out.options.tail_calls and bool(out.linker.control)

    def _affordable(self) -> tuple[int, Callable[[Place], int], Callable[[Place], bool]]:
        """What is kept of earlier stops: about as much code as the module has, and what the same function called."""
        module = self.out.module
        sizes = {body.end - body.expr for body in module.bodies}
        results = module.signature(self.frames[0].func).results

        def size(place: Place) -> int:
            body = module.body(place.func)
            return body.end - body.expr

        total = sum(body.end - body.expr for body in module.bodies)
        return total + (max(sizes) << 3), size, lambda place: module.signature(place.func).results == results

    def run(self) -> list[int]:
        out, linker, module = self.out, self.linker, self.module
        moved = linker.next_function()
        drafts = self.drafts()
        out.continuations = {cont.func: place.func for place, cont in self.conts.items()}
        out.continuations |= {loop.func: loop.original for loop in self.loops.values()}
        numbers = {place: cont.number for place, cont in self.conts.items()}
        innermost = drafts[numbers[self.frames[-1]]]
        if innermost.left_for:
            innermost = drafts[len(numbers) + list(self.loops).index(innermost.left_for)]
        entry = self.conts[self.frames[0]].func
        kind = linker.signature(entry)
        if len(self.resumes.entries) > 1:
            entry = self.dispatcher(kind)
        derived = self._derive(drafts)
        calls_on = {c.func for c in self.conts.values()} | set(self.dispatchers.values())
        for draft in drafts:
            func, original = draft.func, draft.original

            def tested(op: int, imm: object, original: int = original) -> bool:
                if op == 0x10 and isinstance(imm, int) and imm >= len(module.func_types):
                    return imm in calls_on
                return out.tests_call(original, op, imm)

            code = analyze(derived, func)
            body, verdict = rewrite(
                derived, code, Origin(original, len(out.source.local_types(original)), draft.pieces, None, draft.skip,
                                      draft.header),
                self.helpers, tested, recurses=original in out.graph.cyclic, signature=linker.signature,
            )
            if draft is innermost:
                out.polls_at_once = draft.at_header and verdict.header_polled
            linker.fill(func, draft.body() if body is None else body)
        out.resumes, out.numbers = self.resumes, numbers
        wrapper = self.helpers.wrap("resume", kind, entry)
        self._link(moved, wrapper)
        return [numbers[frame] for frame in self.frames]

    def _link(self, first: int, wrapper: int) -> None:
        """Into a side module what was added from function ``first`` on, or all anew."""
        out = self.out
        exports = [(PREFIX + "resume", ExternKind.FUNC, wrapper)]
        out.assembled = b""
        if out.linker.reachable is not None:
            try:
                out.side = side_module(out.linker, first, exports)
                return
            except Unmovable as problem:
                out.not_moved = str(problem)
        out.linker.exports += exports

    def loop_function(self, original: int, loop: int, operands: tuple[int, ...]) -> _LoopFunction | None:
        if not self.shares_loops:
            return None
        key = original, loop
        if key not in self.loops:
            linker = self.linker
            bits = live_before(self.code(original), {loop})[loop]
            live = tuple(i for i in range(bits.bit_length()) if bits >> i & 1)
            if len(live) + len(operands) > _MOST_VALUES:
                return None
            kind = FuncType((), self.module.signature(original).results)
            self.loops[key] = _LoopFunction(original, loop, linker.next_function(), operands, live)
            linker.added.append((linker.type_index(kind), b""))  # filled in later
        return self.loops[key]

    def _derive(self, drafts: Sequence[_Draft]) -> Module:
        """The module with the continuations as functions, for the analysis (no others have bodies there)."""
        module, linker = self.out.module, self.linker
        data = bytearray()
        bodies = [Body(0, 0, 0, 0, ())] * (len(module.bodies) + len(linker.added))
        for draft in drafts:
            start = len(data)
            data += draft.code
            runs = tuple((1, kind) for kind in draft.locals)
            bodies[draft.func - module.imported_funcs] = Body(start, start, start, len(data), runs)
        derived = Module(bytes(data))
        for name in ("tables", "tags", "elems", "datas", "data_count", "declared_funcs"):
            setattr(derived, name, getattr(module, name))
        derived.types, derived.globals, derived.memories = linker.types, linker.all_globals(), linker.all_memories()
        derived.defined = module.defined + [kind for kind, _ in linker.added]
        derived.func_types = module.func_types + [kind for kind, _ in linker.added]
        derived.bodies = bodies
        return derived

    # Helpers of a resume

    def _wait(self, state: int) -> bytes:
        """Code that reports ``state`` and spins until the host has set it back to zero."""
        linker = self.linker
        word = WORDS["state"]
        if linker.control:
            load = emit.i32_const(word) + emit.atomic_load(linker.memory)
            report = emit.i32_const(word) + emit.i32_const(state) + emit.store(I32, linker.memory)
        else:
            load = emit.global_get(self.helpers.state)
            report = emit.i32_const(state) + emit.global_set(self.helpers.state)
        return report + emit.LOOP + load + emit.br_if(0) + emit.END

    def add_ready(self) -> int:
        """All frames are rebuilt: wait until the host has put back what it borrowed and lets the program go."""
        return self.linker.add_function("ready", FuncType((), ()), [], self._wait(1))

    def add_next(self) -> int:
        """Number of the next frame's continuation; waits for more records where the window is used up."""
        h = self.helpers
        code = (
            emit.global_get(h.rp) + emit.global_get(h.rend) + b"\x4f" + emit.IF + self._wait(2) + emit.END
            + emit.global_get(h.rp) + emit.load(I32, self.linker.memory)
        )
        return self.linker.add_function("next", FuncType((), (I32,)), [], code)


class _Draft:
    """The plain code of one function that goes on, and where each piece of it comes from.

    Attributes:
        at_header: it goes on at a loop's header. left_for: the loop whose function it then left for at once. header:
            where that loop is in the code, if it is there, else -1.
        locals: types of the original's locals, then of ours. skip: the local that says whether the turns of the loops
            around the place are begun in their middle (see `turns`); -1: there is none.
    """

    def __init__(self, extender: Continuations, original: int, func: int, at: int) -> None:
        self.extender, self.original, self.func = extender, original, func
        module = self.module = extender.module
        self.source = extender.code(original)
        body = module.body(original)
        self.raw = module.data[body.expr : body.end]
        self.locals = list(module.local_types(original))
        self.at_header = False
        self.header = self.skip = -1
        self.left_for: tuple[int, int] | None = None
        self._inside = 0  # labels of ours around what is copied
        self.operands: list[int] = []
        """Locals that hold the operands where it goes on, bottom first."""
        self.pieces = Pieces()
        self._mark(at)
        self.code = b""

    def _go_on(self, at: int, path: list[int], call_on: Callable[[int], int] | None = None) -> None:
        """From instruction ``at``, in the constructs of ``path``, to the function's end.

        ``call_on`` emits what stands for the instruction at ``at``, and gives the next one.
        """
        heights = [self._height(opener) for opener in path]
        bounds = [0, *heights, len(self.operands)]
        if any(a > b for a, b in pairwise(bounds)):
            raise ImageError("operands do not fit the offset", function=self.original, offset=self.source.pos[at])
        levels = [self.operands[a:b] for a, b in pairwise(bounds)]
        whole = self._first_whole(path)
        if whole < len(path):
            self.skip = self._new_local(I32)
            self._emit(emit.i32_const(1) + emit.local_set(self.skip))
        self._push(levels[0])
        for depth, (opener, values) in enumerate(zip(path[:whole], levels[1 : whole + 1], strict=True)):
            self._open(opener, path[:depth])
            self._push(values)
        before = None
        if whole < len(path):
            self._whole(whole, path, at, levels[-1], call_on)
            before = path[whole]
            at = construct_end(self.source, before) + 1
            del path[whole:], heights[whole:]
        elif call_on is not None:
            at = call_on(at)
        elif self.at_header:
            self.header = len(self.pieces)
        rest = rest_of(self.source, at, path, before)
        for found in rest.ranges:
            if found:
                self._copy(*found, path)
            else:
                self._emit(emit.UNREACHABLE)
            if path:
                opener = path.pop()
                self._close(opener, path, heights.pop(), again=len(path) in rest.again)
        self._emit(emit.END)
        self.code = self.pieces.code()

    def _first_whole(self, path: Sequence[int]) -> int:
        if self.original not in self.extender.whole:
            return len(path)
        openers = [_opening(self.source, opener) for opener in path]
        return first_whole(self.source, path, openers, [self._height(opener) for opener in path])

    def _whole(
        self, first: int, path: list[int], at: int, operands: Sequence[int], call_on: Callable[[int], int] | None,
    ) -> None:
        """The constructs of ``path`` from the ``first`` one on, whole; the first time what stands before the place is
        passed by (see `turns`). ``operands``: locals with what waits there."""
        condition = -1  # of an if: the local that holds it
        for n in range(first, len(path)):
            opener = path[n]
            start = _opening(self.source, opener)
            if condition >= 0:
                self._emit(emit.local_get(condition))
                if start == opener:
                    self._emit(emit.local_get(self.skip) + b"\x72")
            self._original(start)
            if start != opener:
                self._copy(start + 1, opener, [*path[:n], start])
                self._original(opener)
            innermost = n == len(path) - 1
            following = at if innermost else _opening(self.source, path[n + 1])
            condition = -1
            if following == opener + 1 and not innermost and self.source.ops[opener] != 0x03:
                continue  # nothing to pass by: the cases of a switch are a hundred blocks in each other
            self._inside = 2 if innermost and call_on is not None else 1
            self._emit(emit.BLOCK * self._inside + emit.local_get(self.skip) + emit.br_if(0))
            self._copy(opener + 1, following, path[: n + 1])
            self._inside = 0
            if not innermost:
                if self.source.ops[following] == 0x04:
                    condition = self._new_local(I32)
                    self._emit(emit.local_set(condition))
                self._emit(emit.END)
        at = self._begin_here(at, operands, call_on)
        for n in reversed(range(first, len(path))):
            end = self.source.match[path[n]]
            self._copy(at, end, path[: n + 1])
            if self.source.ops[end] == 0x05:
                self._original(end)
                self._copy(end + 1, self.source.match[end], [*path[:n], end])
                end = self.source.match[end]
            self._original(end)
            at = end + 1

    def _begin_here(self, at: int, operands: Sequence[int], call_on: Callable[[int], int] | None) -> int:
        """The place itself, behind what stands before it; gives the next instruction."""
        keep = b"".join(map(emit.local_set, reversed(operands)))
        begun = emit.i32_const(0) + emit.local_set(self.skip)
        if call_on is None:
            self._emit(keep + emit.END + begun)
            self._push(operands)
            if self.at_header:
                self.header = len(self.pieces)
            return at
        results = [self._new_local(kind) for kind in self._called(at).results]
        put = b"".join(map(emit.local_set, reversed(results)))
        self._original(at)
        self._mark(at + 1)
        self._emit(put + keep + emit.br(1) + emit.END + begun)
        self._push(operands)  # they wait while it is called on
        at = call_on(at)
        self._mark(at)
        self._emit(put + keep + emit.END)
        self._push([*operands, *results])
        return at

    def _original(self, i: int) -> None:
        """One instruction, as it was."""
        self._mark(i)
        self._emit(self.raw[self.source.pos[i] : self.source.pos[i + 1]])

    def _called(self, at: int) -> FuncType:
        """The type of the function that a call calls."""
        source = self.source
        if source.ops[at] not in (0x10, 0x11) or at not in source.calls:
            raise ImageError("a frame waits, but not in a call", function=self.original, offset=source.pos[at])
        target = source.imms[at]
        return self.module.types[target[0]] if isinstance(target, tuple) else self.module.signature(_index(target))

    def _leave_for(self, loop: int, under: Sequence[int], params: Sequence[int] | None) -> bool:
        """Tail-call the function of a loop under which the operands in the locals ``under`` wait. Its parameters are in
        locals, or None: on the stack. False: there is none."""
        kinds = self._block_type(loop).params
        target = self.extender.loop_function(
            self.original, loop, (*(self.locals[local] for local in under), *kinds)
        )
        if target is None:
            return False
        if params is None:
            params = [self._new_local(kind) for kind in kinds]
            for local in reversed(params):
                self._emit(emit.local_set(local))
        linker = self.extender.linker
        for local, kind, at in target.values([*under, *params], self.locals):
            self._emit(emit.i32_const(linker.window_base) + emit.local_get(local) + emit.store(kind, linker.memory, at))
        self._emit(emit.return_call(target.func))
        return True

    def body(self) -> bytes:
        """The function as it stands in a module: declaration of locals and code; it has no parameters."""
        return emit.local_decl(self.locals) + self.code

    def _new_local(self, kind: int) -> int:
        self.locals.append(kind)
        return len(self.locals) - 1

    # Pieces

    def _emit(self, code: bytes) -> None:
        self.pieces.emit(code)

    def _mark(self, index: int) -> None:
        """What is emitted next stands for instruction ``index`` of the original."""
        self.pieces.mark(self.source.pos[index])

    def _push(self, locals_: Sequence[int]) -> None:
        for local in locals_:
            self._emit(emit.local_get(local))

    def _block(self, results: tuple[int, ...]) -> bytes:
        if not results:
            return emit.BLOCK
        if len(results) == 1:
            return b"\x02" + bytes(results)
        return b"\x02" + sleb(self.extender.linker.type_index(FuncType((), results)))

    def _open(self, opener: int, path: list[int]) -> None:
        kind = self._block_type(opener)
        if self.source.ops[opener] == 0x03:
            self._emit(self._block(kind.results) + self._block(kind.params))
        elif self.source.ops[opener] == 0x1F:
            clauses = self.source.catches[opener]
            moved = [clause._replace(depth=self._distance(clause.depth, path)) for clause in clauses]
            self._emit(emit.try_table(self._block(kind.results)[1:], moved))
        else:
            self._emit(self._block(kind.results))

    def _close(self, opener: int, path: list[int], height: int, *, again: bool) -> None:
        """The end of a construct, under which ``height`` operands wait; a loop's turn is followed by the whole loop, if
        something branches to its header (``again``)."""
        if self.source.ops[opener] == 0x03:
            end = self.source.match[opener]
            self._emit(emit.br(1) + emit.END)
            if not again:
                self._emit(emit.UNREACHABLE)
            elif not self._leave_for(opener, self.operands[:height], None):
                pos = self.source.pos
                self._mark(opener)
                self._emit(self.raw[pos[opener] : pos[opener + 1]])
                self._copy(opener + 1, end, [*path, opener])
                self._emit(emit.END)
        self._emit(emit.END)

    def _copy(self, first: int, last: int, path: list[int]) -> None:
        """Copy instructions, with branches that leave the innermost construct of ``path`` led to their new labels."""
        source = self.source
        if first >= last:
            self._mark(last)
            return
        self._mark(first)
        ops, pos = source.ops, source.pos
        cursor = pos[first]
        nest = 0
        for i in range(first, last):
            op = ops[i]
            if op in BLOCKS:
                if op == 0x1F:
                    self._emit(self.raw[cursor : pos[i]])
                    self._mark(i)
                    self._emit(self._clauses(i, nest, path))
                    self._mark(i + 1)
                    cursor = pos[i + 1]
                nest += 1
            elif op == 0x0B:
                nest -= 1
            elif 0x0C <= op <= 0x0E:
                imm = source.imms[i]
                depths: tuple[int, ...] = imm if isinstance(imm, tuple) else (_index(imm),)
                moved = tuple(self._moved(d, nest, path) for d in depths)
                if moved != depths:
                    self._emit(self.raw[cursor : pos[i]])
                    self._mark(i)
                    self._emit(bytes([op]) + (uleb(len(moved) - 1) if op == 0x0E else b"") + b"".join(map(uleb, moved)))
                    self._mark(i + 1)
                    cursor = pos[i + 1]
        self._emit(self.raw[cursor : pos[last]])
        self._mark(last)

    def _moved(self, depth: int, nest: int, path: list[int]) -> int:
        """The depth of a label, seen from ``nest`` constructs that are copied whole inside of ``path``."""
        return depth if depth < nest else nest + self._distance(depth - nest, path)

    def _clauses(self, i: int, nest: int, path: list[int]) -> bytes:
        """The ``try_table`` at ``i``, itself inside of ``nest`` constructs that are copied whole."""
        depths = [self._moved(clause.depth, nest, path) for clause in self.source.catches[i]]
        return with_labels(self.source, i, self.raw, depths)

    def _distance(self, outward: int, path: list[int]) -> int:
        """Labels between code directly in ``path[-1]`` and the label ``outward`` constructs further out: a loop on the
        path has become two blocks, if it is not whole."""
        outer = path[len(path) - min(outward, len(path)):]
        twice = sum(self.source.ops[opener] == 0x03 for opener in outer) if self.skip < 0 else 0
        return self._inside + len(outer) + twice

    # The way to the place

    def _block_type(self, opener: int) -> FuncType:
        return self.source.imms[_opening(self.source, opener)]  # type: ignore[return-value]

    def _height(self, opener: int) -> int:
        """Operands that wait under a construct."""
        source = self.source
        opener = _opening(source, opener)
        if opener not in source.heights:
            raise ImageError("a frame stands in unreachable code", function=self.original, offset=source.pos[opener])
        return source.heights[opener]


class _Frame(_Draft):
    """The continuation of a place: reads the frame's values from the window."""

    def __init__(self, extender: Continuations, cont: _Continuation) -> None:
        place = self.place = cont.place
        self.cont = cont
        source = extender.code(place.func)
        at = index_of(source.pos, place.offset, place.func)
        super().__init__(extender, place.func, cont.func, at)
        path = path_to(source, at)
        self.at_header = place.kind != IN_CALL and bool(path) and path[-1] == at - 1 and source.ops[at - 1] == 0x03
        if self.at_header:  # the loop itself goes on: there is no turn to be finished
            at = path.pop()
        self._load(place)
        if self.at_header:
            height, copied = self._height(at), self._first_whole(path) == len(path)
            if copied and self._leave_for(at, self.operands[:height], self.operands[height:]):
                self.left_for = place.func, at
                self._emit(emit.END)
                self.code = self.pieces.code()
                return
        self._go_on(at, path, self._call_on if place.kind == IN_CALL else None)

    def _load(self, place: Place) -> None:
        """Code that reads the frame's record into locals."""
        load, rp = self.extender.load, self.extender.rp
        offset = 4
        for local, kind in place.live:
            self._emit(load(kind, offset) + emit.local_set(local))
            offset += WIDTH[kind]
        for kind in place.stack:
            self.operands.append(self._new_local(kind))
            self._emit(load(kind, offset) + emit.local_set(self.operands[-1]))
            offset += WIDTH[kind]
        self._emit(emit.global_get(rp) + emit.i32_const(offset) + b"\x6a" + emit.global_set(rp))
        if place.kind != IN_CALL:
            self._emit(emit.call(self.extender.ready))

    def _call_on(self, at: int) -> int:
        """The call in which the frame waits: call the next frame's continuation; returns the next instruction."""
        extender, results = self.extender, self._called(at).results
        candidates = [extender.conts[place] for place in self.cont.next]
        if any(extender.linker.signature(c.func).results != results for c in candidates):
            raise ImageError("the next frame's function does not return what the call expects",
                             function=self.original, offset=self.cont.place.offset)
        if len(candidates) == 1:  # with no local of ours: the original may have as many as there can be
            self._emit(emit.call(extender.next) + emit.DROP)
            self._mark(at)
            self._emit(emit.call(candidates[0].func))
            return at + 1
        if len(candidates) > _INLINE_CANDIDATES:
            self._mark(at)
            self._emit(emit.call(extender.dispatcher(FuncType((), results))))
            return at + 1
        keep = [self._new_local(kind) for kind in results]
        number = self._new_local(I32)
        self._emit(emit.call(extender.next) + emit.local_set(number) + emit.BLOCK)
        for n, cont in enumerate(candidates):
            last = n == len(candidates) - 1
            if not last:
                self._emit(emit.local_get(number) + emit.i32_const(cont.number) + b"\x46" + emit.IF)
            self._mark(at)
            self._emit(emit.call(cont.func))
            self._mark(at + 1)
            for local in reversed(keep):
                self._emit(emit.local_set(local))
            if not last:
                self._emit(emit.br(1) + emit.END)
        self._emit(emit.END)
        self._push(keep)
        return at + 1


class _Loop(_Draft):
    """Goes on from a loop's header with the values that it is given."""

    def __init__(self, extender: Continuations, loop: _LoopFunction) -> None:
        super().__init__(extender, loop.original, loop.func, loop.loop)
        self.at_header = True
        self.operands = [self._new_local(kind) for kind in loop.operands]
        linker = extender.linker
        for local, kind, at in loop.values(self.operands, self.locals):
            self._emit(emit.i32_const(linker.window_base) + emit.load(kind, linker.memory, at) + emit.local_set(local))
        self._go_on(loop.loop, path_to(self.source, loop.loop))


def _index(imm: object) -> int:
    assert isinstance(imm, int)
    return imm


def _opening(code: Code, opener: int) -> int:
    """The instruction that opens a construct: the if, for an else."""
    if code.ops[opener] == 0x05:
        return next(start for start, end in code.match.items() if end == opener)
    return opener


def path_to(code: Code, at: int) -> list[int]:
    """The constructs around instruction ``at``, outermost first: block, loop and if instructions, or the else."""
    path: list[int] = []
    for i, op in enumerate(code.ops[:at]):
        if op in BLOCKS:
            path.append(i)
        elif op == 0x05:
            path[-1] = i
        elif op == 0x0B:
            path.pop()
    return path


def index_of(pos: Sequence[int], offset: int, func: int) -> int:
    """Index of the instruction at a relative offset. Raises `ImageError` where none starts."""
    at = bisect_right(pos, offset) - 1
    if at < 0 or at >= len(pos) - 1 or pos[at] != offset:
        raise ImageError("the offset is not the start of an instruction", function=func, offset=offset)
    return at
