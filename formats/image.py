"""The neutral image: what a frozen program is, in terms of its original module and of no runtime.

All types are frozen and plain. Function indices, local indices and offsets are those of the ORIGINAL module; an offset
counts bytes from the first byte of a function's body expression, after the declaration of its locals. Values are type
codes and bit patterns, little-endian where they are bytes. Constructors check nothing; `wasmckpt.formats.shape` does,
once, whenever an image is written or read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

from wasmckpt.errors import ImageError
from wasmckpt.lazydata import dataclass, field
from wasmckpt.wasm.values import WIDTH, Value

__all__ = [
    "PAGE_SIZE", "WASM_PAGE_SIZE", "Entry", "Frame", "GlobalState", "Image", "MemoryState", "ModuleRef", "ParentRef",
    "Point", "Producer", "StopKind", "TableState",
]

PAGE_SIZE: Final = 4096
"""Bytes of a page as images count them."""
WASM_PAGE_SIZE: Final = 65536
"""Bytes of a page as WebAssembly counts them (``memory.size``)."""


class StopKind(IntEnum):
    """How a frame stands at its offset. The numbers are those of the file format."""

    SAFEPOINT = 0
    """Innermost frame: the next instruction to execute is at the offset; results of a call, if any, are operands."""
    CALL = 1
    """Waiting frame: the call instruction at the offset has not returned; operands without its arguments."""
    REPEAT = 2
    """Innermost frame: the call (of an import) at the offset runs again; operands with its arguments."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in the program where a frame stands, with the types of the values that the frame has there.

    Attributes:
        func: function index.
        offset: bytes from the first byte of the function's body expression.
        kind: how the frame stands there.
        live: (local index, type code) of the locals that have a value, ascending by index; the others are dead (zero).
        stack: type codes of the operands, bottom first.
    """

    func: int
    offset: int
    kind: StopKind
    live: tuple[tuple[int, int], ...] = ()
    stack: tuple[int, ...] = ()

    @property
    def value_types(self) -> tuple[int, ...]:
        """Type codes of a frame's values, in the order of `Frame.values`."""
        return tuple(type_ for _, type_ in self.live) + self.stack

    @property
    def width(self) -> int:
        """Bytes that the values of one frame take. Raises `ImageError` for a type that has no width."""
        try:
            return sum([WIDTH[type_] for _, type_ in self.live]) + sum([WIDTH[type_] for type_ in self.stack])
        except KeyError as unknown:
            raise ImageError("a value has a type that images do not hold", type=unknown.args[0]) from None


@dataclass(frozen=True, slots=True)
class Frame:
    """One activation of a function.

    Attributes:
        point: where it stands.
        values: its live locals by ascending index, then its operands, each little-endian in its natural width.
    """

    point: Point
    values: bytes

    @classmethod
    def make(cls, point: Point, values: Sequence[int]) -> Frame:
        """Build a frame from bit patterns, one for each of ``point.value_types``.

        Raises:
            ImageError: the count differs, or a bit pattern does not fit its type.
        """
        types = point.value_types
        if len(types) != len(values):
            raise ImageError("a frame has another number of values than its point has types", need=len(types))
        try:
            packed = [bits.to_bytes(WIDTH[type_], "little") for type_, bits in zip(types, values, strict=True)]
        except OverflowError:
            raise ImageError("a bit pattern does not fit its type", function=point.func, offset=point.offset) from None
        except KeyError as unknown:
            raise ImageError("a value has a type that images do not hold", type=unknown.args[0]) from None
        return cls(point, b"".join(packed))

    def locals(self) -> dict[int, Value]:
        """The live locals by index; a local that is absent is dead, and zero when the program goes on."""
        point = self.point
        values = self._unpack()
        return {index: value for (index, _), value in zip(point.live, values, strict=False)}

    def operands(self) -> tuple[Value, ...]:
        """The operand stack, bottom first."""
        return self._unpack()[len(self.point.live):]

    def _unpack(self) -> tuple[Value, ...]:
        if len(self.values) != self.point.width:
            raise ImageError("a frame has more or fewer bytes than its types take", function=self.point.func)
        values: list[Value] = []
        at = 0
        for type_ in self.point.value_types:
            end = at + WIDTH[type_]
            values.append(Value(type_, int.from_bytes(self.values[at:end], "little")))
            at = end
        return tuple(values)


@dataclass(frozen=True, slots=True)
class GlobalState:
    """A mutable global. An image holds all of them, ascending by index."""

    index: int
    type: int
    bits: int


@dataclass(frozen=True, slots=True)
class TableState:
    """A table, as the difference to the table of a freshly instantiated module.

    Attributes:
        index: table index.
        size: slots now.
        changed: (slot, function index or ``None`` for null) of the slots that differ, ascending by slot. Slots beyond
            the fresh table's size count as null there.
    """

    index: int
    size: int
    changed: tuple[tuple[int, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryState:
    """A linear memory, as the difference to its base: the fresh module's memory, or the parent image's.

    Attributes:
        index: memory index.
        pages: its size now, in pages of 64 KiB.
        data: runs of consecutive 4 KiB pages that differ: (first page, raw bytes), ascending, not overlapping.
        zero: runs of 4 KiB pages that are all zero but are not in the base: (first page, count), ascending. Pages
            beyond the end of the base count as zero there.
    """

    index: int
    pages: int
    data: tuple[tuple[int, bytes], ...] = ()
    zero: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Producer:
    """Who made the image: no time and no name of a host, so that the same state gives the same bytes."""

    tool: str
    runtime: str
    runtime_version: str
    machine: str


@dataclass(frozen=True, slots=True)
class ModuleRef:
    """The program's original module: its SHA-256, its size in bytes, and its bytes if the image carries them."""

    sha256: bytes
    size: int
    content: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """What the embedder calls, and how far it is.

    Attributes:
        steps: what is called, in order: ``"(start)"`` for the start section, else the names of exports.
        current: index of the step that the frames belong to; without frames the step to be called next, which is
            ``len(steps)`` when nothing is left.
        arguments: of the last step.
    """

    steps: tuple[str, ...]
    current: int
    arguments: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class ParentRef:
    """The earlier image that this one's pages are a difference to.

    Attributes:
        sha256: SHA-256 of the parent's whole file.
        position: this image's place in its chain; the image without a parent has place 0, so this is at least 1.
    """

    sha256: bytes
    position: int


@dataclass(frozen=True, slots=True)
class Image:
    """A frozen program. ``frames`` are outermost first and may be empty; ``host`` is plain msgpack data: None, bool,
    int of 64 bits, float, str, bytes, lists and maps of these. ``canonical_nans``: the NaNs of its arithmetic have been
    made canonical from its beginning on, and must be from here on."""

    module: ModuleRef
    producer: Producer
    entry: Entry
    frames: tuple[Frame, ...] = ()
    globals: tuple[GlobalState, ...] = ()
    tables: tuple[TableState, ...] = ()
    memories: tuple[MemoryState, ...] = ()
    dropped_data: tuple[int, ...] = ()
    dropped_elem: tuple[int, ...] = ()
    host: Mapping[str, object] = field(default_factory=dict)
    parent: ParentRef | None = None
    canonical_nans: bool = False
