"""Pages of linear memory: what differs from the base, in runs, and back.

Compared by 4 KiB pages against the base (the fresh module's memory or the parent image's). What lies beyond the end of
the base counts as zero there, as growing a memory makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from wasmckpt.errors import ImageError
from wasmckpt.formats.blocks import MAX_RUNS, Block, BlockReader, BlockWriter
from wasmckpt.formats.image import PAGE_SIZE, WASM_PAGE_SIZE, MemoryState
from wasmckpt.formats.limits import BLOCK_SIZE, Limits
from wasmckpt.lazydata import dataclass

__all__ = [
    "Announced", "Layout", "PageBlock", "PageCounts", "apply", "difference", "layout", "read_runs",
    "runs_of_pages", "stream_runs", "write_runs",
]

_ZERO: Final = bytes(PAGE_SIZE)
_CHUNK: Final = 64 * PAGE_SIZE
_PER_BLOCK: Final = BLOCK_SIZE // PAGE_SIZE
_PER_WASM_PAGE: Final = WASM_PAGE_SIZE // PAGE_SIZE

Run = tuple[int, int]


def runs_of_pages(pages: Iterable[int]) -> tuple[Run, ...]:
    """Pages as runs (first page, count), in the order in which they come."""
    runs: list[Run] = []
    for page in pages:
        if runs and sum(runs[-1]) == page:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((page, 1))
    return tuple(runs)


@dataclass(frozen=True, slots=True)
class PageCounts:
    """How many 4 KiB pages of one memory the image holds."""

    data: int
    zero: int


@dataclass(frozen=True, slots=True)
class Announced:
    """What the header says of one memory."""

    index: int
    pages: int
    counts: PageCounts


@dataclass(frozen=True, slots=True)
class PageBlock:
    """One block ``zero`` or ``pages`` of one memory: its runs, and their bytes one after the other (zero: none)."""

    kind: str
    memory: int
    runs: tuple[Run, ...]
    raw: bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """A memory's pages as they are written, whatever runs they came in: zero pages among the data are zero runs."""

    index: int
    data: tuple[tuple[int, memoryview], ...]
    zero: tuple[Run, ...]

    @property
    def counts(self) -> PageCounts:
        """How many pages these are."""
        return PageCounts(sum([len(raw) for _, raw in self.data]) // PAGE_SIZE, sum([count for _, count in self.zero]))


def difference(index: int, now: bytes | bytearray | memoryview, base: bytes | bytearray | memoryview) -> MemoryState:
    """The state of memory ``index`` whose bytes are ``now``, as the difference to ``base``.

    Args:
        index: memory index.
        now: all of the memory, a multiple of 64 KiB; it must not change meanwhile.
        base: what it is compared with; may be shorter, the rest counts as zero.

    Raises:
        ImageError: ``now`` is not a whole number of WebAssembly pages.
    """
    new, old = memoryview(now).cast("B"), memoryview(base).cast("B")
    size = len(new)
    if size % WASM_PAGE_SIZE:
        raise ImageError("a memory is not a whole number of 64 KiB pages", size=size)
    data: list[tuple[int, int]] = []
    zero: list[Run] = []
    for chunk in range(0, size, _CHUNK):
        if _piece(new, chunk, _CHUNK, size) == _piece(old, chunk, _CHUNK, size):
            continue
        for at in range(chunk, min(chunk + _CHUNK, size), PAGE_SIZE):
            page = bytes(new[at:at + PAGE_SIZE])
            if page != _piece(old, at, PAGE_SIZE, size):
                _append(zero if page == _ZERO else data, at // PAGE_SIZE)
    runs = tuple([(first, bytes(new[first * PAGE_SIZE:(first + count) * PAGE_SIZE])) for first, count in data])
    return MemoryState(index, size // WASM_PAGE_SIZE, runs, tuple(zero))


def _piece(view: memoryview, at: int, length: int, size: int) -> bytes:
    """A piece of a memory of ``size`` bytes, zero where ``view`` ends before."""
    length = min(length, size - at)
    piece = bytes(view[at:at + length])
    return piece if len(piece) == length else piece + bytes(length - len(piece))


def _append(runs: list[Run], page: int) -> None:
    if runs and sum(runs[-1]) == page:
        runs[-1] = (runs[-1][0], runs[-1][1] + 1)
    else:
        runs.append((page, 1))


def apply(memory: MemoryState, base: bytes | bytearray | memoryview) -> bytearray:
    """All bytes of the memory, given its base: the inverse of `difference`."""
    size = memory.pages * WASM_PAGE_SIZE
    whole = bytearray(memoryview(base).cast("B")[:size])
    whole.extend(bytes(size - len(whole)))
    for first, count in memory.zero:
        whole[first * PAGE_SIZE:(first + count) * PAGE_SIZE] = bytes(count * PAGE_SIZE)
    for first, raw in memory.data:
        whole[first * PAGE_SIZE:first * PAGE_SIZE + len(raw)] = raw
    return whole


def layout(memory: MemoryState) -> Layout:
    """The one way in which a memory is written. The state has passed `shape.check`."""
    data: list[tuple[int, memoryview]] = []
    zero: list[Run] = list(memory.zero)
    for first, raw in memory.data:
        view = memoryview(raw)
        begin = 0
        for at in range(0, len(raw), PAGE_SIZE):
            if raw[at:at + PAGE_SIZE] == _ZERO:
                zero.append((first + at // PAGE_SIZE, 1))
                if at > begin:
                    data.append((first + begin // PAGE_SIZE, view[begin:at]))
                begin = at + PAGE_SIZE
        if len(raw) > begin:
            data.append((first + begin // PAGE_SIZE, view[begin:]))
    return Layout(memory.index, tuple(data), tuple(_join(sorted(zero))))


def _join(runs: Iterable[Run]) -> Iterator[Run]:
    first = end = -1
    for start, count in runs:
        if start == end:
            end += count
            continue
        if end > first:
            yield first, end - first
        first, end = start, start + count
    if end > first:
        yield first, end - first


def write_runs(writer: BlockWriter, layouts: Sequence[Layout]) -> None:
    """Write the blocks ``zero`` of all memories, then their blocks ``pages``."""
    for memory in layouts:
        for at in range(0, len(memory.zero), MAX_RUNS):
            writer.block("zero", [memory.index, *_flat(memory.zero[at:at + MAX_RUNS])], b"")
    for memory in layouts:
        for pieces in _cut(memory.data):
            runs = _join((first, len(raw) // PAGE_SIZE) for first, raw in pieces)
            writer.block("pages", [memory.index, *_flat(runs)], b"".join([raw for _, raw in pieces]))


def _cut(runs: Iterable[tuple[int, memoryview]]) -> Iterator[list[tuple[int, memoryview]]]:
    """The runs in portions of exactly one block each, but for the last: independent of where runs begin and end."""
    portion: list[tuple[int, memoryview]] = []
    room = BLOCK_SIZE
    for first, raw in runs:
        at = 0
        while at < len(raw):
            piece = raw[at:at + room]
            portion.append((first + at // PAGE_SIZE, piece))
            at += len(piece)
            room -= len(piece)
            if room == 0:
                yield portion
                portion, room = [], BLOCK_SIZE
    if portion:
        yield portion


def _flat(runs: Iterable[Run]) -> list[int]:
    return [number for run in runs for number in run]


def read_runs(reader: BlockReader, memories: Sequence[Announced], limits: Limits) -> tuple[MemoryState, ...]:
    """Read the blocks ``zero`` and ``pages`` into the states of the announced memories. As `stream_runs`."""
    columns = {(kind, memory.index): _Column() for memory in memories for kind in ("zero", "pages")}
    for block in stream_runs(reader, memories, limits):
        columns[block.kind, block.memory].add(block.runs, memoryview(block.raw))
    return tuple([MemoryState(memory.index, memory.pages, columns["pages", memory.index].data(),
                              tuple(columns["zero", memory.index].runs)) for memory in memories])


def stream_runs(reader: BlockReader, memories: Sequence[Announced], limits: Limits) -> Iterator[PageBlock]:
    """The blocks ``zero`` and ``pages``, one at a time; when the last was given, the image's digest has been checked.

    The caller has bounded the bytes that ``memories`` announce; this bounds the number of runs.

    Raises:
        ImageError: runs are out of order, beyond their memory, or other than announced.
    """
    expected = {(kind, memory.index): _Expected(memory, pages) for memory in memories
                for kind, pages in (("zero", memory.counts.zero), ("pages", memory.counts.data))}
    runs_left = limits.runs
    while (block := reader.peek()) is not None:
        if len(block.where) < 3 or len(block.where) % 2 == 0:
            raise _wrong("a block of pages does not say which", block)
        which = (block.kind, block.where[0])
        if which not in expected:
            raise _wrong("a block of pages belongs to no memory", block)
        runs = tuple(zip(block.where[1::2], block.where[2::2], strict=True))
        runs_left -= len(runs)
        if runs_left < 0:
            raise ImageError("the image holds more runs of pages than the reader allows", limit="runs",
                             offset=block.offset)
        pages = expected[which].announce(runs, block)
        if block.size != (pages * PAGE_SIZE if block.kind == "pages" else 0):
            raise _wrong("a block's size is not that of its pages", block)
        yield PageBlock(*which, runs, reader.take())
    if any(one.left for one in expected.values()):
        raise ImageError("fewer pages come than the header announced", field="memories")


def _wrong(what: str, block: Block) -> ImageError:
    return ImageError(what, field=block.kind, offset=block.offset)


class _Expected:
    """What may come yet of one kind of one memory."""

    __slots__ = ("_end", "_last", "left")

    def __init__(self, memory: Announced, pages: int) -> None:
        self.left = pages
        self._end = 0
        self._last = memory.pages * _PER_WASM_PAGE

    def announce(self, runs: Sequence[Run], block: Block) -> int:
        """Check the runs, and return how many pages they are."""
        for first, count in runs:
            if first < self._end or count == 0 or first + count > self._last:
                raise _wrong("runs of pages are out of order, empty or beyond the memory", block)
            self._end = first + count
        pages = sum([count for _, count in runs])
        self.left -= pages
        if self.left < 0:
            raise _wrong("more pages come than the header announced", block)
        return pages


class _Column:
    """The runs of one kind of one memory as they come in."""

    __slots__ = ("_end", "_parts", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._end = 0
        self._parts: list[list[memoryview]] = []

    def add(self, runs: Sequence[Run], raw: memoryview) -> None:
        """Append the runs, joined to the run before where they go on from it."""
        at = 0
        for first, count in runs:
            piece = raw[at:at + count * PAGE_SIZE]
            at += count * PAGE_SIZE
            if self.runs and first == self._end:
                self.runs[-1] = (self.runs[-1][0], self.runs[-1][1] + count)
                self._parts[-1].append(piece)
            else:
                self.runs.append((first, count))
                self._parts.append([piece])
            self._end = first + count

    def data(self) -> tuple[tuple[int, bytes], ...]:
        """The runs with their bytes; to be asked once, since the pieces are let go as they are joined."""
        self._parts.reverse()
        return tuple([(first, b"".join(self._parts.pop())) for first, _ in self.runs])
