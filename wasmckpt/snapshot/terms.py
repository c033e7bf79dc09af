"""Between an image, which speaks of the original module, and what runs, which is its neutral form.

`Terms.original` is the way out of a capture, `Terms.neutral` the way into a restore. Both leave the image alone but for
references, offsets, tables, dropped element segments, and the globals that the neutral module has more.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ..errors import JobEnded, NotSupported, UsageError
from ..formats import PAGE_SIZE, Frame, GlobalState, Image, MemoryState, ModuleRef, Point, StopKind, TableState
from ..instrument.neutral.build import Neutral
from ..instrument.neutral.plan import MAX_SLOTS, NEUTRAL, neutral_types
from ..lazydata import dataclass, replace
from ..runtimes import HostFunction, Imports
from ..runtimes.imports import resolve_imports
from ..runtimes.interface import read_interface
from ..wasm.validate import Code, analyze
from ..wasm.values import EXTERNREF, FUNCREF, I32, NULL, REFERENCES, WIDTH
from .pages import initial_pages

__all__ = ["Terms"]

_PAGE_SLOTS = PAGE_SIZE // 4
_NAMED = frozenset({FUNCREF, EXTERNREF})


@dataclass(frozen=True, slots=True)
class _Step:
    """How a frame at a place is translated.

    Attributes:
        point: the place in the other module. references: (byte offset, type) of the references among the values.
        slot: byte offset of an operand that is a table's slot in the original and a function's number here, with the
            table.
    """

    point: Point
    references: tuple[tuple[int, int], ...]
    slot: tuple[int, int] | None = None


class Terms:
    """Translates for one module."""

    def __init__(self, neutral: Neutral) -> None:
        self._neutral = neutral
        self._numbers = {func: number for number, func in enumerate(neutral.universe, 1)}
        self._steps: dict[tuple[Point, bool], _Step] = {}

    # Values

    def to_number(self, kind: int, bits: int) -> int:
        """The neutral module's bits of a value; those of exceptions are the same in both."""
        if kind not in _NAMED:
            return bits
        if bits == NULL:
            return 0
        return bits + 1 if kind == EXTERNREF else self._numbers[bits]

    def to_reference(self, kind: int, bits: int) -> int:
        """The original's bits of a value."""
        if kind not in _NAMED:
            return bits
        if not bits:
            return NULL
        return bits - 1 if kind == EXTERNREF else self._neutral.universe[bits - 1]

    def to_numbers(self, types: Sequence[int], values: Sequence[int]) -> tuple[int, ...]:
        """The neutral module's bits of several values; a reference to what no reference can be to is refused.

        Raises:
            UsageError: such a reference.
        """
        try:
            return tuple([self.to_number(kind, bits) for kind, bits in zip(types, values, strict=True)])
        except KeyError as unknown:
            raise UsageError(f"nothing in the module can refer to function {unknown.args[0]}") from None

    def to_references(self, types: Sequence[int], values: Sequence[int]) -> tuple[int, ...]:
        """The original's bits of several values."""
        return tuple([self.to_reference(kind, bits) for kind, bits in zip(types, values, strict=True)])

    # Imports

    def check_imports(self, given: Imports, runtime: str) -> None:
        """Whether the host gives the functions and globals that the original imports, with its types.

        Raises:
            MissingImport: one is not given, or of another type.
        """
        interface = read_interface(self._neutral.source.data)
        interface.imports = tuple([item for item in interface.imports if item.kind in ("func", "global")])
        resolve_imports(interface, given, runtime=runtime)

    def host_function(self, function: HostFunction) -> HostFunction:
        """A host function for the neutral module: it still gets and gives references in the original's terms."""
        params, results, call = function.params, function.results, function.call
        if REFERENCES.isdisjoint(params + results):
            return function

        def converted(*args: Any) -> int | tuple[int, ...] | None:
            first = len(args) - len(params)  # behind the guest's memory, where the function takes it
            made = call(*args[:first], *self.to_references(params, args[first:]))
            if made is None or not results:
                return made
            values = self.to_numbers(results, made if isinstance(made, tuple) else (made,))
            return values if isinstance(made, tuple) else values[0]

        return HostFunction(neutral_types(params), neutral_types(results), converted)

    # Images

    @property
    def may_return(self) -> bool:
        """Whether there are frames that `returned` is about."""
        return bool(self._neutral.returning)

    def returned(self, frame: Frame) -> tuple[int, ...] | None:
        """The results of a frame that, in the original, has returned: it stands behind a tail call of an import.

        None for any other frame. The frame is one of the neutral module, the results are in the original's terms.
        """
        point = frame.point
        if point.kind is not StopKind.SAFEPOINT or (point.func, point.offset) not in self._neutral.returning:
            return None
        kinds = self._neutral.source.signature(point.func).results
        operands = frame.operands()
        return self.to_references(kinds, [value.bits for value in operands[len(operands) - len(kinds):]])

    def original(self, image: Image) -> Image:
        """An image of the neutral module, in terms of the original."""
        neutral, source = self._neutral, self._neutral.source
        values = {state.index: state.bits for state in image.globals}
        memories = {state.index: state for state in image.memories}
        first = len(source.globals)
        sizes = {table: values[first + n] for n, table in enumerate(neutral.tables)}
        first += len(neutral.tables)
        dropped = [segment for n, segment in enumerate(neutral.segments) if values[first + n]]
        arrays = {table: memories.get(len(source.memories) + n) for n, table in enumerate(neutral.tables)}
        entry, frames = image.entry, image.frames
        results = self.returned(frames[-1]) if frames else None
        if results is not None:
            kinds = source.signature(frames[-1].point.func).results
            frames = self._frames(frames[:-1], arrays, to_original=True)
            if frames:
                frames = (*frames[:-1], self._answered(frames[-1], kinds, results))
            else:
                entry = replace(entry, current=entry.current + 1)
                if results and entry.current == len(entry.steps):
                    raise JobEnded("the program came to its end before it could be frozen")
        else:
            frames = self._frames(frames, arrays, to_original=True)
        return replace(
            image,
            module=ModuleRef(source.sha256(), len(source.data), None),
            entry=entry,
            frames=frames,
            globals=tuple([
                GlobalState(state.index, kind := source.globals[state.index].type, self.to_reference(kind, state.bits))
                for state in image.globals if state.index < len(source.globals)
            ]),
            tables=tuple([
                state for n, (table, size) in enumerate(sizes.items())
                if (array := arrays[table]) is not None and (state := self._table(n, table, size, array))
            ]),
            memories=tuple([state for state in image.memories if state.index < len(source.memories)]),
            dropped_elem=tuple(sorted([*image.dropped_elem, *dropped])),
        )

    def neutral(self, image: Image) -> Image:
        """An image of the original, which has been checked against it, in terms of the neutral module.

        Raises:
            NotSupported: a table is larger than tables may grow here.
        """
        neutral, source = self._neutral, self._neutral.source
        tables = {state.index: state for state in image.tables}
        sizes = []
        arrays = []
        for n, table in enumerate(neutral.tables):
            state = tables.get(table, TableState(table, source.tables[table].limits.minimum))
            if state.size > MAX_SLOTS:
                raise NotSupported(f"table {table} of {state.size} slots", need="a huge table",
                                   hint=f"at most {MAX_SLOTS}")
            sizes.append(state.size)
            arrays.append(self._array(n, state))
        dropped = [segment in image.dropped_elem for segment in neutral.segments]
        added = enumerate([*sizes, *map(int, dropped)], len(source.globals))
        return replace(
            image,
            frames=self._frames(image.frames, {}, to_original=False),
            globals=(*[
                GlobalState(state.index, _plain(state.type), self.to_number(state.type, state.bits))
                for state in image.globals
            ], *[GlobalState(index, I32, bits) for index, bits in added]),
            tables=tuple([state for state in image.tables if state.index not in neutral.tables]),
            memories=(*image.memories, *arrays),
            dropped_elem=tuple([n for n in image.dropped_elem if n not in neutral.segments]),
        )

    def _answered(self, frame: Frame, kinds: Sequence[int], results: Sequence[int]) -> Frame:
        """A waiting frame of the original, with the results of its call: it stands behind it."""
        point = frame.point
        pos = analyze(self._neutral.source, point.func).pos
        after = pos[bisect_left(pos, point.offset) + 1]
        values = [value.bits for value in (*frame.locals().values(), *frame.operands())]
        return Frame.make(
            Point(point.func, after, StopKind.SAFEPOINT, point.live, (*point.stack, *kinds)), [*values, *results]
        )

    # Tables

    @cached_property
    def _fresh(self) -> list[dict[int, tuple[int, ...]]]:
        """For each array its pages that instantiation makes other than zero, as slots."""
        first = len(self._neutral.source.memories)
        return [
            {page: struct.unpack(f"<{_PAGE_SLOTS}I", data)
             for page, data in initial_pages(self._neutral.module, first + n, {}).items()}
            for n in range(len(self._neutral.tables))
        ]

    def _pages(self, n: int, array: MemoryState | None) -> Mapping[int, Sequence[int]]:
        """The pages of an array that differ from the fresh one, as slots."""
        pages: dict[int, Sequence[int]] = {}
        for first, data in array.data if array else ():
            for at in range(0, len(data), PAGE_SIZE):
                pages[first + at // PAGE_SIZE] = struct.unpack_from(f"<{_PAGE_SLOTS}I", data, at)
        for first, count in array.zero if array else ():
            pages.update(dict.fromkeys(range(first, first + count), (0,) * _PAGE_SLOTS))
        return pages

    def _table(self, n: int, table: int, size: int, array: MemoryState) -> TableState | None:
        kind, limits = self._neutral.source.tables[table]
        nothing = (0,) * _PAGE_SLOTS
        changed: list[tuple[int, int | None]] = []
        for page, slots in sorted(self._pages(n, array).items()):
            before = self._fresh[n].get(page, nothing)
            for slot, (now, was) in enumerate(zip(slots, before, strict=True), page * _PAGE_SLOTS):
                if now != was:
                    changed.append((slot, self.to_reference(kind, now) if now else None))
        return TableState(table, size, tuple(changed)) if changed or size != limits.minimum else None

    def _array(self, n: int, state: TableState) -> MemoryState:
        kind = self._neutral.source.tables[state.index].element
        pages: dict[int, list[int]] = {}
        for slot, item in state.changed:
            page, at = divmod(slot, _PAGE_SLOTS)
            if page not in pages:
                pages[page] = list(self._fresh[n].get(page, (0,) * _PAGE_SLOTS))
            pages[page][at] = 0 if item is None else self.to_number(kind, item)
        data = tuple([(page, struct.pack(f"<{_PAGE_SLOTS}I", *slots)) for page, slots in sorted(pages.items())])
        index = len(self._neutral.source.memories) + n
        least = self._neutral.module.memories[index].minimum
        return MemoryState(index, max(least, -(-state.size * 4 // 65536)), data)

    def _slot_of(self, table: int, number: int, array: MemoryState | None) -> int:
        """The first slot of a table that holds a function; a call through any of them is the same call."""
        n = self._neutral.tables.index(table)
        pages = {**self._fresh[n], **self._pages(n, array)}
        for page, slots in sorted(pages.items()):
            if number in slots:
                return page * _PAGE_SLOTS + slots.index(number)
        return 0  # the tables were not looked at: somebody only wants to know where the frames stand

    # Frames

    def _frames(
        self, frames: Sequence[Frame], arrays: Mapping[int, MemoryState | None], *, to_original: bool
    ) -> tuple[Frame, ...]:
        steps: dict[int, _Step] = {}  # by identity of the point: hashing one costs more than all the rest
        points = {id(frame.point): frame.point for frame in frames}
        self._learn([point for point in points.values() if (point, to_original) not in self._steps], to_original)
        for key, point in points.items():
            steps[key] = self._steps[point, to_original]
        return tuple([self._frame(frame, steps[id(frame.point)], arrays, to_original) for frame in frames])

    def _frame(
        self, frame: Frame, step: _Step, arrays: Mapping[int, MemoryState | None], to_original: bool
    ) -> Frame:
        if not step.references and not step.slot:
            return Frame(step.point, frame.values)
        values = bytearray(frame.values)
        convert = self.to_reference if to_original else self.to_number
        for at, kind in step.references:
            bits = convert(kind, int.from_bytes(values[at : at + 4], "little"))
            values[at : at + 4] = bits.to_bytes(4, "little")
        if step.slot:
            at, table = step.slot
            slot = self._slot_of(table, int.from_bytes(values[at : at + 4], "little"), arrays.get(table))
            values[at : at + 4] = slot.to_bytes(4, "little")
        return Frame(step.point, bytes(values))

    def _learn(self, points: Iterable[Point], to_original: bool) -> None:
        """Work out how frames at new places are translated; a function is analyzed once for all of them."""
        neutral = self._neutral
        by_function: dict[int, dict[Point, int]] = {}
        for point in points:
            offset = neutral.original_offset(point.func, point.offset) if to_original else point.offset
            by_function.setdefault(point.func, {})[point] = offset
        for func, offsets in by_function.items():
            code = analyze(neutral.source, func, set(offsets.values()))
            types = neutral.source.local_types(func)
            for point, offset in offsets.items():
                self._steps[point, to_original] = self._step(point, offset, code, types, to_original)

    def _step(self, point: Point, offset: int, code: Code, types: Sequence[int], to_original: bool) -> _Step:
        index = bisect_left(code.pos, offset)
        stack = code.watched[offset] or ()
        if point.kind is StopKind.CALL:
            stack = tuple([entry & 255 for entry in code.calls[index][0]])
        live = tuple([(local, types[local]) for local, _ in point.live])
        references, at = [], 0
        for kind in (*(kind for _, kind in live), *stack):
            if kind in _NAMED:
                references.append((at, kind))
            at += WIDTH[kind]
        op, imm = code.ops[index], code.imms[index]
        array = isinstance(imm, tuple) and op in (0x11, 0x13) and imm[1] in self._neutral.tables
        if to_original:
            slot = (at - 4, imm[1]) if array and point.kind is StopKind.REPEAT else None  # type: ignore[index]
            kind_ = StopKind.SAFEPOINT if op in (0x12, 0x13) else point.kind
            return _Step(Point(point.func, offset, kind_, live, stack), tuple(references), slot)
        # To make such a call again begins with looking up its slot again.
        kind_ = StopKind.SAFEPOINT if array and point.kind is StopKind.REPEAT else point.kind
        offset = self._neutral.neutral_offset(point.func, offset, in_call=kind_ is StopKind.CALL)
        live = tuple([(local, _plain(kind)) for local, kind in live])
        return _Step(Point(point.func, offset, kind_, live, neutral_types(stack)), tuple(references))


def _plain(kind: int) -> int:
    return NEUTRAL.get(kind, kind)
