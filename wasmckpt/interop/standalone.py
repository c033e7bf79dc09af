"""A module that goes on from an image by itself; `wasmckpt.interop` says how it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import JobEnded, NotSupported, UsageError
from ..formats import Frame, Image
from ..instrument import emit
from ..instrument.continuations import Continuations
from ..instrument.linker import KEPT_CUSTOM, Linker
from ..instrument.options import Options
from ..instrument.records import Place
from ..instrument.resumes import Resumes
from ..lazydata import dataclass, replace
from ..snapshot.frames import without_dead_values
from ..wasm.encode import encode, export_entry, vector
from ..wasm.leb128 import uleb
from ..wasm.module import ExternKind, FuncType, Module
from ..wasm.validate import Code
from ..wasm.values import EXNREF, EXTERNREF, FUNCREF, I32, NULL, REFERENCES, WIDTH, Value
from . import sections
from .contents import Pages, contents, data_segment, segments
from .exceptions import add_exceptions
from .host_losses import Loss, losses
from .original import checked_module
from .window import Window, choose_window

__all__ = ["Exported", "export"]

_START, _INITIALIZE, _COMMAND = "(start)", "_initialize", "_start"
_ENTRIES = frozenset({_INITIALIZE, _COMMAND})
_LARGEST = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Exported:
    """A module that goes on by itself.

    Attributes:
        wasm: the module. entry: export that goes on; None: nothing was going on, its exports can be called.
        results: types of what the entry gives. losses: what the module does not have of the program.
        borrowed: whether the frames' records lie in the guest's own memory until they are read.
        multi_memory: whether the module has a memory more than the original, and the original had some.
    """

    wasm: bytes
    entry: str | None
    results: tuple[int, ...]
    losses: tuple[Loss, ...]
    borrowed: bool = False
    multi_memory: bool = False


def export(
    image: Image, module: bytes | None = None, *, name: str = "resume", accept_losses: bool = False,
) -> Exported:
    """Make a module that goes on from ``image``, on any runtime with WASI preview 1.

    A command goes on by its export ``_start``. Where another export had been called, the module has an export ``name``
    that goes on and gives the results; it is to be called before any other, and once.

    Args:
        module: the program's original module; None: the image carries it.
        name: what the export is called that goes on, where it is not ``_start``.
        accept_losses: also if what cannot be carried would make the program wrong.

    Raises:
        ImageError: the image is of another module, does not fit it, or is a difference to another one.
        InvalidModule: ``module`` is none. JobEnded: the program is over.
        NotSupported: what cannot be carried would make the program wrong, or no module can hold it.
        UsageError: no module is at hand, or it has an export ``name`` already.
    """
    source, codes = checked_module(image, module)  # other bodies are copied: whoever runs them validates them
    _refuse(image, source)
    lost = tuple(losses(image, source))
    wrong = [loss for loss in lost if loss.wrong]
    if wrong and not accept_losses:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise NotSupported(f"a module cannot carry this: {wrong[0].what}{more}", need=wrong[0].kind,
                           hint="accept the losses (--accept-losses) if the program can do without")
    image = replace(image, frames=tuple(without_dead_values(source, image.frames)))
    return _Writer(image, source, codes, name).write(lost)


def _refuse(image: Image, module: Module) -> None:
    """What no module can hold.

    Raises:
        NotSupported: values that are the host's, an imported constant. JobEnded: nothing is left to be done.
    """
    values = [Value(state.type, state.bits) for state in image.globals] + list(image.entry.arguments)
    if any(value.type == EXNREF and value.bits for value in values):
        raise NotSupported("a global holds an exception", need="exnref in a global")
    for frame in image.frames:
        if not REFERENCES.isdisjoint(frame.point.value_types):
            values += [*frame.locals().values(), *frame.operands()]
    if any(value.type == EXTERNREF and value.bits != NULL for value in values) or any(
        module.tables[state.index].element == EXTERNREF and any(item is not None for _, item in state.changed)
        for state in image.tables
    ):
        raise NotSupported("the program holds a reference to something of the host", need="externref")
    entry = image.entry
    if entry.current >= len(entry.steps) and entry.steps[-1:] == (_COMMAND,):
        raise JobEnded("the program has ended: there is nothing to go on with")


class _Continuations(Continuations):
    """Those of a module that goes on by itself: plain, and their helpers wait for nobody."""

    def __init__(self, module: Module, linker: Linker, codes: Mapping[int, Code], frames: Sequence[Frame]) -> None:
        resumes = Resumes()
        self.stack = [_place(frame) for frame in frames]
        resumes.add(self.stack)
        super().__init__(module, linker, codes, resumes, linker.add_global("rp", I32, 0, export=False))
        self.rend = linker.add_global("rend", I32, 0, export=False)
        self.exceptions = -1
        self.numbers = {place: number for number, place in enumerate(resumes.places)}
        self.functions: dict[int, int] = {}
        """Slot of our own table for each function that a frame may refer to; 0 is null."""
        if any(FUNCREF in place.stack or any(kind == FUNCREF for _, kind in place.live) for place in resumes.places):
            self.functions = {func: slot for slot, func in enumerate(sorted(module.declared_funcs), 1)}

    def load(self, kind: int, offset: int) -> bytes:
        if kind == FUNCREF:
            return super().load(I32, offset) + b"\x25" + uleb(len(self.module.tables))
        if kind == EXNREF:
            if self.exceptions < 0:
                self.exceptions = add_exceptions(self.linker)
            return emit.global_get(self.rp) + emit.i32_const(offset) + b"\x6a" + emit.call(self.exceptions)
        return emit.zero(kind) if kind == EXTERNREF else super().load(kind, offset)

    def add_ready(self) -> int:
        return self.linker.add_function("ready", FuncType((), ()), [I32], b"")  # filled in by `place_records`

    def add_next(self) -> int:
        return self.linker.add_function("next", FuncType((), (I32,)), [], b"")

    def build(self) -> int:
        """Adds all functions; gives the one that goes on from the outermost frame."""
        for draft in self.drafts():
            self.linker.fill(draft.func, draft.body())
        return self.conts[self.stack[0]].func

    def records(self, frames: Sequence[Frame]) -> list[tuple[int, bytes]]:
        """What is in the window: (continuation, values), outermost first."""
        return [
            (self.numbers[place], self._values(frame) if self.functions else frame.values)
            for place, frame in zip(self.stack, frames, strict=True)
        ]

    def _values(self, frame: Frame) -> bytes:
        values, at = bytearray(frame.values), 0
        for kind in frame.point.value_types:
            end = at + WIDTH[kind]
            if kind == FUNCREF:
                func = int.from_bytes(values[at:end], "little")
                values[at:end] = (0 if func == NULL else self.functions[func]).to_bytes(4, "little")
            at = end
        return bytes(values)

    def place_records(self, window: Window) -> None:
        """Lead the helpers to where the records are."""
        linker = self.linker
        linker.set_initial(self.rp, window.base)
        linker.set_initial(self.rend, window.base + len(window.pieces[0]))
        more = b""
        if len(window.pieces) > 1:
            piece = linker.add_global("piece", I32, 0, export=False)
            code = window.refill(linker, self.rp, self.rend, piece)
            refill = linker.add_function("refill", FuncType((), ()), [], code)
            used_up = emit.global_get(self.rp) + emit.global_get(self.rend) + b"\x46"
            more = used_up + emit.IF + emit.call(refill) + emit.END
        code = emit.local_decl([]) + more + emit.global_get(self.rp) + emit.load(I32, window.memory) + emit.END
        linker.fill(self.next, code)
        linker.fill(self.ready, emit.local_decl([I32]) + window.put_back(linker) + emit.END)


class _Writer:
    def __init__(self, image: Image, module: Module, codes: Mapping[int, Code], name: str) -> None:
        self.image, self.module, self.codes, self.name = image, module, codes, name
        self.linker = Linker(module, Options(poll="global"))
        self.memories: list[Pages] = [contents(module, state) for state in image.memories]
        self.added_tables: list[tuple[int, int]] = []
        self.added_memories: list[int] = []
        self.added_elements: list[bytes] = []
        self.window: Window | None = None

    def write(self, lost: tuple[Loss, ...]) -> Exported:
        image, module = self.image, self.module
        entry = image.entry
        going_on = self._frames() if image.frames else -1
        name: str | None = None
        kind = FuncType((), ())
        exports = [item for item in module.exports if item.kind != ExternKind.FUNC or item.name not in _ENTRIES]
        entries = [export_entry(item.name, item.kind, item.index) for item in exports]
        if entry.current < len(entry.steps):
            name = _COMMAND if entry.steps[-1] == _COMMAND else self.name
            if not name.isprintable():  # lone surrogates too, which no module can hold
                raise UsageError("that is no name for an export", field="name")
            if name in {item.name for item in exports}:
                raise UsageError(f"the module exports {name!r} already", hint="choose another name", field="name")
            func, kind = self._entry(going_on)
            entries.append(export_entry(name, ExternKind.FUNC, func))
        for state in image.tables:
            self.added_elements += sections.active_elements(
                state.index, module.tables[state.index].element, state.changed
            )
        window = self.window
        return Exported(
            self._assemble(entries), name, kind.results, lost, window is not None and window.borrowed,
            bool(self.added_memories) and bool(module.memories),
        )

    def _frames(self) -> int:
        """Add what goes on from the frames; gives the function that goes on from the outermost one."""
        image, linker = self.image, self.linker
        conts = _Continuations(self.module, linker, self.codes, image.frames)
        sizes = [state.pages << 16 for state in image.memories]
        window = choose_window(conts.records(image.frames), sizes, self.memories[0] if sizes else {})
        self.window = window
        linker.memory = window.memory  # it stands in the continuations
        going_on = conts.build()
        conts.place_records(window)
        if window.borrowed:
            window.lay(self.memories[0])
        else:
            pages: Pages = {}
            self.added_memories.append(-(-len(window.pieces[0]) >> 16) or 1)
            window.lay(pages)
            self.memories.append(pages)
        if conts.functions:
            table = len(self.module.tables)
            self.added_tables.append((FUNCREF, len(conts.functions) + 1))
            slots = [(slot, func) for func, slot in conts.functions.items()]
            self.added_elements += sections.active_elements(table, FUNCREF, slots)
        return going_on

    def _entry(self, going_on: int) -> tuple[int, FuncType]:
        """The function that goes on, and then does what comes behind the present step of the entry."""
        module, linker, entry = self.module, self.linker, self.image.entry
        done = linker.add_global("went on", I32, 0, export=False)
        code = [emit.global_get(done), emit.IF, emit.UNREACHABLE, emit.END, emit.i32_const(1), emit.global_set(done)]
        results: tuple[int, ...] = ()
        for number, step in enumerate(entry.steps[entry.current :], entry.current):
            code += [emit.DROP] * len(results)
            func = module.start if step == _START else module.export(step)
            assert func is not None  # the image has been checked
            results = module.signature(func).results
            if number == entry.current and going_on >= 0:
                code.append(emit.call(going_on))
                continue
            if number == len(entry.steps) - 1:
                code += [emit.constant(value.type, value.bits) for value in entry.arguments]
            code.append(emit.call(func))
        kind = FuncType((), results)
        return linker.add_function("go on", kind, [], b"".join(code)), kind

    def _assemble(self, exports: Sequence[bytes]) -> bytes:
        module, image, linker = self.module, self.image, self.linker
        replaced: dict[int, bytes | None] = {
            7: vector(exports), 8: None, 10: b"".join(linker.code()),
            5: sections.memories(module, image, self.added_memories),
            6: sections.globals_section(module, image, linker.new_globals),
        }
        if len(linker.types) > len(module.types):
            replaced[1] = sections.types(module, linker.types)
        if any(item.kind != ExternKind.FUNC for item in module.imports):
            replaced[2] = sections.imports(module)
            replaced[13] = sections.tags(module)
        if linker.added:
            replaced[3] = vector(uleb(kind) for kind in [*module.defined, *[kind for kind, _ in linker.added]])
        replaced[4] = sections.tables(module, image, self.added_tables)
        replaced[9] = sections.elements(module, image, self.added_elements)
        entries = self._data()
        replaced[11] = vector(entries) if entries else None
        if module.data_count is not None:
            replaced[12] = uleb(len(entries))
        for content in replaced.values():
            if content is not None and len(content) > _LARGEST:
                raise NotSupported(f"{len(content)} bytes in one section", need="a section above 4 GiB")
        return encode(module, replaced, None if self._same_places() else KEPT_CUSTOM)

    def _data(self) -> list[bytes]:
        entries = []
        if self.module.data_count is not None:  # instructions may name segments: what is used up stays, empty
            dropped = set(self.image.dropped_data)
            entries = [
                sections.passive_data(b"" if data.active or i in dropped else data.data)
                for i, data in enumerate(self.module.datas)
            ]
        return entries + [
            data_segment(memory, offset, data)
            for memory, pages in enumerate(self.memories) for offset, data in segments(pages)
        ]

    def _same_places(self) -> bool:
        """Whether every function stays where it was in the code section, so that debug information still holds."""
        before = len(self.module.bodies)
        return len(uleb(before)) == len(uleb(before + len(self.linker.added)))


def _place(frame: Frame) -> Place:
    point = frame.point
    return Place(point.func, point.offset, int(point.kind), point.live, point.stack)
