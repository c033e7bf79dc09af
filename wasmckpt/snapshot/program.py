"""One program on one runtime: run, freeze, capture, resume. Everything here happens in the worker's process.

The guest's thread is inside `Program.run`; a controller in another thread asks for a freeze and, after `run` has
returned `FROZEN`, captures. Forked snapshots, which leave the source running, are in `fork`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from ..errors import GuestTrap, ImageError, NotSupported, UsageError
from ..formats import (
    Entry,
    Frame,
    GlobalState,
    Image,
    ModuleRef,
    ParentRef,
    Point,
    Producer,
    StopKind,
)
from ..formats.check import check
from ..host import BytesMemory, ProcExit, RepeatCall
from ..instrument.cache import cached_instrument
from ..instrument.instrument import START, Instrumented
from ..instrument.kept_resumes import cached_extend
from ..instrument.linker import PREFIX
from ..instrument.options import Options
from ..instrument.records import Place, pack_frames, read_frames, read_globals
from ..instrument.resumes import Resumes
from ..instrument.side import NAME, Side
from ..lazydata import dataclass, field, replace
from ..runtimes import DEFAULT_STACK_BYTES, Engine, HostFunction, HostGlobal, Instance, Memory, SideNames
from ..version import __version__
from ..wasm.decode import decode
from ..wasm.module import ExternKind, Module
from ..wasm.validate import Code
from ..wasm.values import V128, Value
from . import standby
from .frames import without_dead_values
from .huge_pages import advise
from .kept import Ahead, compiled_main, compiled_side
from .pages import changed_memory, diff_memory, initial_pages
from .prepare import options_for, refuse_unsupported
from .proc import errno_address, stand_still
from .terms import Terms
from .view import Read, View, read_here

__all__ = ["Host", "Increment", "Outcome", "Phase", "Program", "Status", "entry_for"]

START_STEP = "(start)"
_NEVER = 1 << 62
_HALF = (1 << 64) - 1
"""Safepoints that no program passes."""
_READY_TIMEOUT = 60.0
"""Seconds that rebuilding the frames may take."""


class Status(Enum):
    """How `Program.run` ended."""

    DONE = "done"
    EXITED = "exited"
    FROZEN = "frozen"


class Phase(Enum):
    """What the guest's thread is at."""

    NEW = "not started"
    REBUILDING = "rebuilding its frames"
    RUNNING = "running"
    FROZEN = "frozen"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: ``results`` of the last step (bits), or the ``exit_code`` given to ``proc_exit``."""

    status: Status
    results: tuple[int, ...] = ()
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Increment:
    """Memories as the difference to an earlier image: by memory of the original module, runs of the pages that may have
    changed, and its size in that image, in pages of 64 KiB."""

    parent: ParentRef
    runs: tuple[tuple[tuple[int, int], ...], ...]
    before: tuple[int, ...]


@dataclass(slots=True)
class Host:
    """What the guest imports, and the state behind it.

    Attributes:
        functions: (module, name) -> function on raw bits, called without the guest's memory. wants_memory: those of
            them whose function takes the guest's memory first.
        mark: the state of this very moment, without letting go of the GIL; completed later by ``state(mark)``. None
            where there is nothing to mark: then ``state()`` is asked at once.
        state: gives the state as plain data. interrupt, resume_calls: make waiting calls return, let them wait again.
    """

    functions: Mapping[tuple[str, str], HostFunction] = field(default_factory=dict)
    wants_memory: frozenset[tuple[str, str]] = frozenset()
    globals: Mapping[tuple[str, str], HostGlobal] = field(default_factory=dict)
    mark: Callable[[], object] | None = None
    state: Callable[..., Mapping[str, object]] = dict
    interrupt: Callable[[], None] = lambda: None
    resume_calls: Callable[[], None] = lambda: None


def entry_for(module: Module, invoke: str | None = None, arguments: Sequence[Value] = ()) -> Entry:
    """What is called in which order: the start section, ``_initialize``, then ``_start`` or the export to be invoked.

    Raises:
        UsageError: there is no such export, or neither ``_start`` nor an export to invoke.
    """
    names = {e.name for e in module.exports if e.kind == ExternKind.FUNC}
    steps = [START_STEP] if module.start is not None else []
    last = invoke if invoke is not None else "_start"
    if last not in names:
        known = ", ".join(sorted(names)[:12]) or "none"
        raise UsageError(f"the module exports no function {last!r}", hint=f"use --invoke NAME; exports: {known}")
    if (module.export(last) or 0) < module.imported_funcs:
        raise UsageError(f"the export {last!r} is an import of the module: there is no program to run", field="invoke")
    if "_initialize" in names and last not in ("_initialize", "_start"):
        steps.append("_initialize")
    if invoke is not None:
        wanted = module.signature(module.export(invoke) or 0).params
        given = tuple(v.type for v in arguments)
        if wanted != given:
            raise UsageError(f"{invoke!r} takes {len(wanted)} arguments of other types or number than given",
                             need=str(wanted), given=str(given))
    return Entry((*steps, last), 0, tuple(arguments))


class Program:
    """A program on a runtime. Make one with `fresh` or `restored`, then call `run` in a guest thread."""

    def __init__(
        self, engine: Engine, out: Instrumented, host: Host, entry: Entry, *, stack_bytes: int,
        huge_pages: bool = False, ahead: Ahead | None = None,
    ) -> None:
        self.engine, self.out, self.host, self.entry = engine, out, host, entry
        self.module = out.source
        self.terms = Terms(out.neutral) if out.neutral else None
        self.current = entry.current
        self.repeat = False
        self.phase = Phase.NEW
        self.in_host = 0
        """Host functions that are being executed; more than one if they call exports that call out again."""
        self.host_calls = 0
        """Host functions entered so far."""
        self.results: tuple[int, ...] = ()
        self.went_on_ns = 0
        """When it went on after its frames were rebuilt, or began, on the monotonic clock in ns; 0: not yet."""
        self.errno_address = 0
        """Native address of the guest thread's ``errno``, once it runs."""
        self.before_host: Callable[[], bool] | None = None
        """Asked at the entry of each host function; True: this is a copy, do nothing and come back (see `fork`)."""
        self.on_repeat: Callable[[], bool] | None = None
        """Asked when a waiting call was interrupted; True: freeze here; False: the program goes on, wait again."""
        self._nesting = threading.Lock()
        self._nested = 0
        """Exports that host functions are calling now, one within the other."""
        self._freeze_held = False
        """Whether a freeze waits until there is none."""
        self._process = os.getpid()
        standby.prepare()
        self._pending_frames: list[tuple[int, bytes]] = []
        self._initial: dict[int, dict[int, bytes]] = {}
        self._hold: threading.Event | None = None
        refuse_unsupported(engine, out.features)
        imports = self._imports()
        compiled = compiled_main(engine, out, ahead=ahead)
        try:
            self.instance: Instance = engine.instantiate(compiled, imports, stack_bytes=stack_bytes)
        finally:
            compiled.close()
        if out.side is not None:
            self._add_continuations(out.side)
        self.view = View(self.instance, out)
        self.stack_bytes = stack_bytes
        self._huge_pages = huge_pages
        self.ask_for_huge_pages(collapse=True)

    @property
    def continuations(self) -> tuple[str, str] | None:
        """Where they are, "side" or "whole" (module), and why they are not beside it though they might; None: none."""
        if self.out.side is not None:
            return "side", ""
        return ("whole", self.out.not_moved) if self.out.continuations else None

    def _add_continuations(self, side: Side) -> None:
        compiled = compiled_side(self.engine, self.out, side)
        try:
            self.instance.extend(compiled, SideNames(side.functions, NAME))
        finally:
            compiled.close()

    def ask_for_huge_pages(self, *, collapse: bool = False) -> None:
        """If they are wanted: also for where the memories have moved or grown to, which some runtimes map anew."""
        for i in range(len(self.module.memories) if self._huge_pages else 0):
            advise(*self.instance.memory(f"{PREFIX}memory{i}").extent(), collapse=collapse)

    # Making one

    @classmethod
    def fresh(
        cls, engine: Engine, wasm: bytes, host: Host, entry: Entry, *, options: Options | None = None,
        stack_bytes: int = DEFAULT_STACK_BYTES, huge_pages: bool = False,
    ) -> Program:
        """A program at its beginning. Raises `InvalidModule`, `NotSupported`, and what the engine raises."""
        module = decode(wasm)
        out = cached_instrument(module, options_for(engine, base=options), imported=_imported_values(module, host))
        return cls(engine, out, host, entry, stack_bytes=stack_bytes, huge_pages=huge_pages)

    @classmethod
    def restored(
        cls, engine: Engine, wasm: bytes, host: Host, image: Image, *, options: Options | None = None,
        stack_bytes: int = DEFAULT_STACK_BYTES, huge_pages: bool = False, before: Program | None = None,
    ) -> Program:
        """A program as an image holds it, standing before its next instruction.

        Args:
            options: but for canonical NaNs, which go on or not as the image says.
            before: the program whose place it takes: where that one could `go_on_here`, this one can too.

        Raises:
            ImageError: the image is of another module, or does not fit it. NotSupported: the runtime cannot hold it.
        """
        module = decode(wasm)
        imported = _imported_values(module, host)
        options = replace(options or Options(), canonical_nans=image.canonical_nans)
        out = cached_instrument(module, options_for(engine, base=options), imported=imported)  # validates the module
        if image.parent is not None:
            raise ImageError("the image is a difference to another one", parent=image.parent.sha256.hex())
        ahead = Ahead(engine, out)
        try:
            return cls._restored(engine, out, host, image, ahead, stack_bytes, huge_pages, before)
        finally:
            ahead.close()

    @classmethod
    def _restored(
        cls, engine: Engine, out: Instrumented, host: Host, image: Image, ahead: Ahead, stack_bytes: int,
        huge_pages: bool, before: Program | None,
    ) -> Program:
        image, codes = _in_terms(image, out)
        frames = image.frames
        numbers: list[int] = []
        if frames:
            also = None if before is None else before.out.resumes
            numbers = cached_extend(out, [_place(frame.point) for frame in frames], codes, also)
        program = cls(
            engine, out, host, image.entry, stack_bytes=stack_bytes, huge_pages=huge_pages, ahead=ahead,
        )
        program._restore_state(image)
        program._pending_frames = [(n, f.values) for n, f in zip(numbers, frames, strict=True)]
        return program

    @classmethod
    def staged(
        cls, engine: Engine, wasm: bytes, host: Host, image: Image, *, options: Options | None = None,
        stack_bytes: int = DEFAULT_STACK_BYTES, huge_pages: bool = False, also: Resumes | None = None,
    ) -> Program:
        """A program that an image is yet to come for: an instance with code to go on from the stack of ``image``, and
        from those of ``also``, but without its state. `arrive` makes it one that is restored.

        Raises as `restored`.
        """
        options = replace(options or Options(), canonical_nans=image.canonical_nans)
        module = decode(wasm)
        out = cached_instrument(module, options_for(engine, base=options), imported=_imported_values(module, host))
        image, codes = _in_terms(image, out)
        if image.frames:
            cached_extend(out, [_place(frame.point) for frame in image.frames], codes, also)
        return cls(engine, out, host, image.entry, stack_bytes=stack_bytes, huge_pages=huge_pages)

    def covers(self, image: Image) -> bool:
        """Whether the instance has the code to go on from an image's frames. Raises as `restored`."""
        frames = _in_terms(image, self.out)[0].frames
        return not frames or self.out.resumes.covers([_place(frame.point) for frame in frames])

    def arrive(self, image: Image) -> bool:
        """Make a `staged` program what it would be if it was restored from an image; of memory all but the image's own
        pages is there already. False: it has not the code to go on from there. Raises as `restored`."""
        image, _ = _in_terms(image, self.out)
        if image.frames and not self.out.resumes.covers([_place(frame.point) for frame in image.frames]):
            return False
        self.entry, self.current = image.entry, image.entry.current
        self._restore_state(image)
        self._pending_frames = [(self.out.numbers[_place(frame.point)], frame.values) for frame in image.frames]
        return True

    def _imports(self) -> dict[tuple[str, str], HostFunction | HostGlobal]:
        given: dict[tuple[str, str], HostFunction | HostGlobal] = dict(self.host.globals)
        if self.terms:
            self.terms.check_imports({**given, **self.host.functions}, self.engine.name)
        for item in self.module.imported(ExternKind.FUNC):
            key = (item.module, item.name)
            function = self.host.functions.get(key)
            if function is not None and self.terms:
                function = self.terms.host_function(function)
            if function is not None:
                given[key] = HostFunction(
                    function.params, function.results, self._guarded(function, key in self.host.wants_memory)
                )
        return given

    def _guarded(self, function: HostFunction, wants_memory: bool) -> Callable[..., int | tuple[int, ...] | None]:
        """A host function with the marks that a freeze needs around it."""
        call = function.call
        nothing: int | tuple[int, ...] | None = (
            None if not function.results else 0 if len(function.results) == 1 else (0,) * len(function.results)
        )
        memory_name, has_memory, no_memory = PREFIX + "memory0", bool(self.module.memories), BytesMemory(bytearray())

        def guarded(*args: int) -> int | tuple[int, ...] | None:
            self.in_host += 1  # the mark comes first: a copy made from here on must not run the body
            self.host_calls += 1
            try:
                if self.before_host is not None and self.before_host():
                    return nothing
                while True:
                    try:
                        if wants_memory:
                            return call(self.instance.memory(memory_name) if has_memory else no_memory, *args)
                        return call(*args)
                    except RepeatCall:
                        if self._nested and self.on_repeat is None:
                            self.host.resume_calls()  # a freeze waits until the outer function has returned
                        elif self.on_repeat is None or self.on_repeat():
                            self.repeat = True
                            return nothing
            finally:
                self.in_host -= 1

        return guarded

    # Running

    def run(self) -> Outcome:
        """Run in this thread until the program ends or is frozen. Raises `GuestTrap`."""
        self.repeat = False
        self.errno_address = errno_address()
        self.went_on_ns = 0 if self._pending_frames else time.monotonic_ns()
        self.phase = Phase.REBUILDING if self._pending_frames else Phase.RUNNING
        outcome = None
        try:
            outcome = self._run()
            return outcome
        finally:
            self.phase = Phase.FROZEN if outcome is not None and outcome.status is Status.FROZEN else Phase.ENDED

    def _run(self) -> Outcome:
        try:
            if self._pending_frames:
                outcome = self._resume()
                if outcome is not None:
                    return outcome
                self.current += 1
            while self.current < len(self.entry.steps):
                step = self.entry.steps[self.current]
                last = self.current == len(self.entry.steps) - 1
                arguments = [v.bits for v in self.entry.arguments] if last else []
                self.results = self._enter(START if step == START_STEP else step, arguments)
                if self._is_frozen():
                    return Outcome(Status.FROZEN)
                self.current += 1
        except ProcExit as end:
            self.current = len(self.entry.steps)
            return Outcome(Status.EXITED, exit_code=end.code)
        return Outcome(Status.DONE, self.results)

    def _enter(self, export: str, arguments: Sequence[int]) -> tuple[int, ...]:
        """Call an export. A forked copy of the process never comes out of here: nothing after it may be done twice."""
        try:
            return self._call(export, arguments)
        finally:
            if os.getpid() != self._process:
                stand_still()

    def _call(self, export: str, arguments: Sequence[int]) -> tuple[int, ...]:
        func = self.module.export(export) if self.terms else None
        try:
            if self.terms is None or func is None:
                return self.instance.call(export, arguments)
            kind = self.module.signature(func)
            if len(kind.params) == len(arguments):  # else the instance says what is wrong
                arguments = self.terms.to_numbers(kind.params, arguments)
            return self.terms.to_references(kind.results, self.instance.call(export, arguments))
        except GuestTrap as trap:
            self._name_original(trap)
            raise

    def _name_original(self, trap: GuestTrap) -> None:
        """Let a trap name the function of the original: a continuation is one, what was added was called by one."""
        inner = trap.fields.pop("function", None)
        if not isinstance(inner, int):
            return
        named = [self.out.continuations.get(func, func) for func in (inner, *trap.callers)]
        known = [func for func in named if func < len(self.module.func_types)]
        if known:
            trap.fields["function"] = known[0]
        if known[:1] != [inner]:
            trap.fields.pop("offset", None)  # one in what was added

    def _resume(self) -> Outcome | None:
        """Rebuild the frames and go on; another thread hands out the records and holds the program if asked."""
        feeder = _Feeder(self, self._pending_frames)
        self._pending_frames = []
        standby.run(feeder.run)
        try:
            self.results = self._enter(PREFIX + "resume", ())
        finally:
            feeder.stop()
        func = self.module.export(self.entry.steps[self.current])
        if self.terms and func is not None:
            self.results = self.terms.to_references(self.module.signature(func).results, self.results)
        return Outcome(Status.FROZEN) if self._is_frozen() else None

    def go_on_here(self) -> bool:
        """A frozen program is to go on with the next `run`, in this very instance; False: it cannot, make another.

        It can where its frames were spilled into a memory of our own, and the module has continuations for them, made
        for earlier stops. The instance is as it was but for our own words, which are set back.
        """
        out, view = self.out, self.view
        if not out.linker.control or not out.numbers or self.phase is not Phase.FROZEN:
            return False
        records, _ = view.window()
        frames = read_frames(records, out.sites, repeat=self.repeat)
        if not out.resumes.covers([place for place, _ in frames]):
            return False
        self.went_on_ns = 0
        self._pending_frames = [(out.numbers[place], values) for place, values in frames]
        self.instance.set_global(PREFIX + "sp", out.linker.window_base)
        for name in ("done", "state", "flag"):
            view.set_word(name, 0)
        return True

    def _is_frozen(self) -> bool:
        """Whether the call came back unwinding.

        Where the outermost frame stands behind a tail call of an import it has returned: its results were spilled, and
        the program goes on with the next step, the flag still up.
        """
        view = self.view
        if not view.word("done"):
            return False
        if self.terms is None or self.repeat or not self.terms.may_return:
            return True
        records, _ = view.window()
        (place, values), *inner = read_frames(records, self.out.sites, repeat=False)
        results = self.terms.returned(Frame(_point(place), values))
        if inner or results is None:
            return True
        self.results = results
        self.instance.set_global(PREFIX + "sp", self.out.linker.window_base)
        view.set_word("done", 0)
        return False

    def hold_after_resume(self) -> threading.Event:
        """Ask for the resumed program to stand still when its frames are rebuilt, until the event is set."""
        self._hold = threading.Event()
        return self._hold

    def call_export(self, export: str, arguments: Sequence[int]) -> tuple[int, ...]:
        """From a host function, in the guest's thread: call an export. No safepoint counts until it has returned: the
        host function's own frames cannot be frozen.

        Raises:
            UsageError: no such export, or other arguments. GuestTrap: the guest trapped.
        """
        if export.startswith(PREFIX):
            raise UsageError("the module exports no such function", export=export)
        counting = self.out.options.count
        with self._nesting:
            if not self._nested and self.view.word("flag"):
                # Nothing has spilled yet, since this thread would have had to: the freeze can still wait.
                self.view.set_word("flag", 0)
                self.host.resume_calls()
                self._freeze_held = True
            self._nested += 1
        left = self.instance.get_global(PREFIX + "count") if counting else 0
        try:
            if counting:
                self.instance.set_global(PREFIX + "count", _NEVER)
            return self._call(export, arguments)
        finally:
            if counting:
                self.instance.set_global(PREFIX + "count", left)
            with self._nesting:
                self._nested -= 1
                held = self._freeze_held and not self._nested
                if held:
                    self._freeze_held = False
                    self.view.set_word("flag", 1)
            if held:
                self.host.interrupt()

    # Freezing

    def request_freeze(self) -> None:
        """From another thread: freeze at the next safepoint. The flag goes up before waiting calls are woken."""
        with self._nesting:
            if self._nested:
                self._freeze_held = True
                return
            self.view.set_word("flag", 1)
        self.host.interrupt()

    def freeze_at(self, safepoint: int) -> None:
        """Deterministic mode: freeze at the n-th safepoint passed from now (1: the next).

        The loop header at which a resumed program stands was passed in its earlier life and does not count again.
        """
        if not self.out.options.count:
            raise UsageError("the program was not prepared for counting safepoints")
        again = bool(self._pending_frames) and self.out.polls_at_once
        self.instance.set_global(PREFIX + "count", safepoint + again)

    def begin(self, export: str, arguments: Sequence[Value] = ()) -> None:
        """Call another export of the same instance with the next `run`; the program must have ended its last one."""
        if self.current < len(self.entry.steps) or self._pending_frames:
            raise UsageError("the program has not ended its present call", export=export)
        self.entry = Entry((export,), 0, tuple(arguments))
        self.current = 0

    def abandon(self) -> None:
        """Give up the present call, which trapped; the instance is as the trap left it."""
        self.current = len(self.entry.steps)
        self._pending_frames = []

    def capture(self, read: Read = read_here, *, host_state: Mapping[str, object] | None = None,
                repeat: bool | None = None, current: int | None = None, memories: bool = True,
                increment: Increment | None = None) -> Image:
        """The image of a frozen program, or, through ``read``, of a forked copy that came to its end.

        Args:
            host_state, repeat, current: those of the moment of the fork, since the program has gone on; None: as now.
            memories: False leaves them out, for who wants to see the frames only.
            increment: the image is a difference to an earlier one; None: to the fresh module.
        """
        out, view = self.out, self.view
        records, rest = view.window(read)
        frames = read_frames(records, out.sites, repeat=self.repeat if repeat is None else repeat)
        values, dropped = read_globals(rest, out.spilled_globals, out.dropped)
        return self._image(frames, values, dropped, read, host_state, current, memories=memories, increment=increment)

    def capture_idle(self) -> Image:
        """The image of a program between two calls, without frames."""
        values = [
            (i, kind.type, self._read_global(i, kind.type))
            for i, kind in enumerate(self.out.module.globals) if kind.mutable
        ]
        dropped = [
            key for key in self.out.dropped if self.instance.get_global(f"{PREFIX}dropped_{key[0]}{key[1]}")
        ]
        return self._image([], values, dropped, read_here, None)

    def _read_global(self, index: int, kind: int) -> int:
        if kind != V128:
            return self.instance.get_global(f"{PREFIX}global{index}")
        low, high = self.instance.call(f"{PREFIX}get_global{index}")
        return high << 64 | low

    def _image(
        self, frames: Sequence[tuple[Place, bytes]], values: Sequence[tuple[int, int, int]],
        dropped: Sequence[tuple[str, int]], read: Read, host_state: Mapping[str, object] | None,
        current: int | None = None, *, memories: bool = True, increment: Increment | None = None,
    ) -> Image:
        module = self.out.module
        points: dict[Place, Point] = {}
        for place, _ in frames:
            if place not in points:
                points[place] = _point(place)
        contents = []
        for i in range(len(module.memories) if memories else 0):
            base, pages = self.view.memory_pages(i, read)
            if increment is not None and i < len(increment.runs):
                contents.append(changed_memory(i, pages, base, read, increment.runs[i], increment.before[i]))
            else:  # all; or one that stands for a table, which is no memory of the image
                contents.append(diff_memory(i, pages, base, read, self.initial_pages(i)))
        image = Image(
            module=ModuleRef(module.sha256(), len(module.data), None),
            producer=Producer(f"wasmckpt {__version__}", self.engine.name, self.engine.version, os.uname().machine),
            entry=Entry(self.entry.steps, self.current if current is None else current, self.entry.arguments),
            frames=tuple(Frame(points[place], content) for place, content in frames),
            globals=tuple(GlobalState(*value) for value in values),
            tables=(),
            memories=tuple(contents),
            dropped_data=tuple(sorted(n for what, n in dropped if what == "data")),
            dropped_elem=tuple(sorted(n for what, n in dropped if what == "elem")),
            host=dict(self.host.state() if host_state is None else host_state),
            parent=None if increment is None else increment.parent,
            canonical_nans=self.out.options.canonical_nans,
        )
        return self.terms.original(image) if self.terms else image

    def initial_pages(self, memory: int) -> dict[int, bytes]:
        """The pages that the module itself makes other than zero; the same for every image of this program."""
        if memory not in self._initial:
            self._initial[memory] = initial_pages(
                self.out.module, memory, _imported_values(self.module, self.host)
            )
        return self._initial[memory]

    # Restoring

    def _restore_state(self, image: Image) -> None:
        """Dropped segments, memories, globals: the instance has applied its segments and has not run anything."""
        instance = self.instance
        for what, segments in (("data", image.dropped_data), ("elem", image.dropped_elem)):
            for n in segments:
                instance.set_global(f"{PREFIX}dropped_{what}{n}", 1)
        if image.dropped_data or image.dropped_elem:
            instance.call(PREFIX + "drop")
        for state in image.memories:
            memory = self.grown(state.index, state.pages)
            for page, data in state.data:
                memory.write(page * 4096, data)
            for page, count in state.zero:
                memory.write(page * 4096, bytes(count * 4096))
        for value in image.globals:
            if value.type == V128:
                instance.call(f"{PREFIX}set_global{value.index}", [value.bits & _HALF, value.bits >> 64])
            else:
                instance.set_global(f"{PREFIX}global{value.index}", value.bits)

    def grown(self, index: int, pages: int) -> Memory:
        """A memory, which has so many pages of 64 KiB at least. Raises `NotSupported`: the runtime has no more."""
        name = f"{PREFIX}memory{index}"
        now = self.instance.memory(name).size >> 16
        if pages > now and self.instance.call(f"{PREFIX}grow{index}", [pages - now])[0] == 0xFFFFFFFF:
            raise NotSupported(
                f"{self.engine.name} cannot give the program its memory", runtime=self.engine.name,
                need=f"{pages} pages", hint="resume it on another runtime",
            )
        return self.instance.memory(name)

    def close(self) -> None:
        """Free the instance."""
        self.instance.close()


class _Feeder:
    """Hands the frames' records to the continuations while the guest's thread rebuilds them.

    A control memory takes all records at once. Where the window is borrowed from the guest's memory, the original
    bytes are kept here and put back before the program goes on; records that do not fit are handed out in pieces.
    """

    def __init__(self, program: Program, frames: Sequence[tuple[int, bytes]]) -> None:
        self._program = program
        self._view = program.view
        self._stopped = threading.Event()
        linker = program.out.linker
        self._base = linker.window_base
        self._memory_name = PREFIX + (
            "control" if linker.control else "window" if linker.own_memory else "memory0"
        )
        self._borrowed = not linker.own_memory
        size = sum(4 + len(values) for _, values in frames)
        if not self._borrowed:
            needed = self._base + size
            if needed > program.instance.memory(self._memory_name).size:
                program.instance.call(PREFIX + "more", [needed])
        room = program.instance.memory(self._memory_name).size - self._base
        self._pieces: list[bytes] = []
        pack_frames(frames, room, self._pieces.append)
        if any(len(piece) > room for piece in self._pieces):
            raise NotSupported("a frame is bigger than the guest's memory", need=f"{size} bytes")
        self._kept = b""
        if self._borrowed:
            longest = max(len(piece) for piece in self._pieces)
            self._kept = program.instance.memory(self._memory_name).read(self._base, longest)
        self.failure: BaseException | None = None
        self._hand_out()

    def _hand_out(self) -> None:
        piece = self._pieces.pop(0)
        self._program.instance.memory(self._memory_name).write(self._base, piece)
        for name, value in (("rp", self._base), ("rend", self._base + len(piece))):
            if self._view.in_memory:
                self._program.instance.set_global(PREFIX + name, value)
            else:
                self._view.set_word(name, value)

    def run(self) -> None:
        view = self._view
        pause = 0.00005
        while not self._stopped.is_set():
            state = view.word("state")
            if state == 2:
                self._hand_out()
                view.set_word("state", 0)
            elif state == 1:
                if self._borrowed:
                    self._program.instance.memory(self._memory_name).write(self._base, self._kept)
                hold = self._program._hold
                if hold is not None:
                    hold.wait()
                view.set_word("state", 0)
                self._program.went_on_ns = time.monotonic_ns()
                if self._program.phase is Phase.REBUILDING:  # else it has already ended
                    self._program.phase = Phase.RUNNING
                return
            else:
                time.sleep(pause)

    def stop(self) -> None:
        """The guest's thread is back."""
        self._stopped.set()


def _imported_values(module: Module, host: Host) -> dict[int, int]:
    """Bits of the imported globals that the host gives; the module is refused later where one is missing."""
    given = host.globals
    return {
        i: given[item.module, item.name].bits for i, item in enumerate(module.imported(ExternKind.GLOBAL))
        if (item.module, item.name) in given
    }


def _in_terms(image: Image, out: Instrumented) -> tuple[Image, Mapping[int, Code] | None]:
    """An image, checked against its module, in terms of what is rewritten, and the bodies that were validated for it.

    Raises:
        ImageError: it is of another module, or does not fit it. NotSupported: it has a table that nobody can set.
    """
    codes: Mapping[int, Code] | None = check(image, out.source)
    image = replace(image, frames=tuple(without_dead_values(out.source, image.frames)))
    if out.neutral:
        image, codes = Terms(out.neutral).neutral(image), None
    if image.tables:
        raise NotSupported("the image has changes of a table that only the host can change",
                           need="a table changed by the host", field=f"tables[{image.tables[0].index}]")
    return image, codes


def _point(place: Place) -> Point:
    return Point(place.func, place.offset, StopKind(place.kind), place.live, place.stack)


def _place(point: Point) -> Place:
    return Place(point.func, point.offset, int(point.kind), point.live, point.stack)

