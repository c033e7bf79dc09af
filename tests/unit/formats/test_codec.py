"""What is written is read again, in the same bytes for the same state, within bounds of size and time."""

from __future__ import annotations

import gc
import hashlib
import io
import os
import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.errors import ImageError
from wasmckpt.formats import (
    PAGE_SIZE,
    Entry,
    Frame,
    GlobalState,
    Image,
    Limits,
    MemoryState,
    ModuleRef,
    ParentRef,
    Point,
    StopKind,
    TableState,
    decode,
    encode,
    read_header,
    write_image,
)
from wasmckpt.wasm.values import F64, FUNCREF, I32, I64, Value

from .strategies import images
from .vectors import IMAGES, MODULE

EMPTY = IMAGES["empty"]
STOP = Point(0, 0, StopKind.SAFEPOINT)


class CountingFile(io.BytesIO):
    """Knows how far it was read, and gives few bytes at a time, as a pipe may."""

    furthest = 0

    def read(self, n: int | None = -1, /) -> bytes:
        assert n is not None
        assert n >= 0, "a reader that takes all of a file has no bound"
        data = super().read(min(n, 1000))
        self.furthest = max(self.furthest, self.tell())
        return data


@given(images())
def test_round_trip(image: Image) -> None:
    """Decoding gives the image that was encoded, whatever it holds, also from short reads."""
    data = encode(image)
    assert decode(data) == image
    assert encode(decode(data)) == data
    file = CountingFile(data)
    header = read_header(file)
    nothing = replace(image, memories=(), module=replace(image.module, content=None))
    assert header.image == nothing
    assert [m.index for m in header.memories] == [m.index for m in image.memories]


@given(images(), st.randoms(use_true_random=False))
def test_same_state_same_bytes(image: Image, random: random.Random) -> None:
    """The order of a map's entries, and how runs of pages were cut, leave no trace."""
    items = list(image.host.items())
    random.shuffle(items)
    memories = tuple(replace(memory, data=cut(memory, random)) for memory in image.memories)
    assert encode(replace(image, host=dict(items), memories=memories)) == encode(image)


def test_how_long_runs_were_cut_leaves_no_trace() -> None:
    """Blocks are filled to the same bound however the runs lie, also where they are longer than a block."""
    raw = random.Random(2).randbytes(700 * PAGE_SIZE)
    whole = MemoryState(0, 64, ((0, raw[:600 * PAGE_SIZE]), (620, raw[600 * PAGE_SIZE:])))
    data = encode(replace(EMPTY, memories=(whole,)))
    assert decode(data).memories == (whole,)
    for seed in range(5):
        pieces = replace(whole, data=cut(replace(whole, data=cut(whole, random.Random(seed))), random.Random(seed)))
        assert len(pieces.data) > 2
        assert encode(replace(EMPTY, memories=(pieces,))) == data


def test_equal_points_are_one_point() -> None:
    """Whether frames share their point object leaves no trace."""
    own = tuple(Frame(replace(frame.point), frame.values) for frame in IMAGES["frames"].frames)
    assert encode(replace(EMPTY, frames=own)) == encode(IMAGES["frames"])


def cut(memory: MemoryState, random: random.Random) -> tuple[tuple[int, bytes], ...]:
    """The same pages in shorter runs, zero runs among them."""
    runs: list[tuple[int, bytes]] = []
    for first, raw in memory.data:
        middle = random.randrange(0, len(raw), PAGE_SIZE)
        runs += [run for run in ((first, raw[:middle]), (first + middle // PAGE_SIZE, raw[middle:])) if run[1]]
    return tuple(runs)


def test_a_zero_page_among_the_data_is_a_zero_run() -> None:
    """A capture that did not look gives the same bytes as one that did."""
    page = b"x" * PAGE_SIZE
    careless = MemoryState(0, 1, ((0, page + bytes(PAGE_SIZE) + page), (3, bytes(2 * PAGE_SIZE))), ((5, 1),))
    careful = MemoryState(0, 1, ((0, page), (2, page)), ((1, 1), (3, 3)))
    assert encode(replace(EMPTY, memories=(careless,))) == encode(replace(EMPTY, memories=(careful,)))
    assert decode(encode(replace(EMPTY, memories=(careless,)))).memories == (careful,)


def test_random_bytes_cost_two_percent_at_most() -> None:
    """Incompressible pages are stored: 1 MiB in one run or scattered costs 1 MiB and 2 %."""
    raw = random.Random(1).randbytes(1 << 20)
    scattered = tuple((2 * n, raw[n * PAGE_SIZE:(n + 1) * PAGE_SIZE]) for n in range(256))
    for data in (((100, raw),), scattered):
        image = replace(EMPTY, memories=(MemoryState(0, 1024, data),))
        encoded = encode(image)
        assert len(encoded) <= 1.02 * (1 << 20)
        assert decode(encoded) == image


def test_zero_pages_cost_nothing() -> None:
    """4 GiB that became zero fit in a few hundred bytes."""
    image = replace(EMPTY, memories=(MemoryState(0, 65536, (), ((0, 16 * 65536),)),))
    assert len(encode(image)) < 400
    assert decode(encode(image)) == image


def test_the_header_is_read_without_pages_and_module() -> None:
    """Not a byte of the module or of a page is taken from the file."""
    content = os.urandom(5 << 20)
    module = ModuleRef(hashlib.sha256(content).digest(), len(content), content)
    pages = (MemoryState(0, 64, ((3, os.urandom(1 << 20)),), ((900, 7),)),)
    for image in (replace(EMPTY, module=module, memories=pages), replace(EMPTY, memories=pages)):
        file = CountingFile(encode(replace(image, host={"a": b"b" * 3000}, frames=IMAGES["frames"].frames)))
        header = read_header(file)
        assert header.image.frames == IMAGES["frames"].frames
        assert header.image.host == {"a": b"b" * 3000}
        assert header.image.memories == ()
        assert header.image.module.content is None
        memory = header.memories[0]
        assert (memory.pages, memory.counts.data, memory.counts.zero) == (64, 256, 7)
        assert file.furthest < 5000


def test_a_hundred_thousand_frames(request: pytest.FixtureRequest) -> None:
    """Deep recursion costs little: fractions of a second, and few bytes a frame. The garbage of a whole test run is not
    collected meanwhile."""
    gc.disable()
    request.addfinalizer(gc.enable)
    sites = [Point(7, offset, StopKind.CALL, ((0, I32), (3, I64)), (F64,)) for offset in range(20)]
    frames = [Frame(sites[n * 7 % 20], n.to_bytes(20, "little")) for n in range(100_000)]
    image = replace(EMPTY, frames=(*frames, Frame(STOP, b"")))
    for _ in range(10):  # once undisturbed
        start = time.process_time()
        data = encode(image)
        middle = time.process_time()
        decoded = decode(data)
        end = time.process_time()
        if max(middle - start, end - middle) < 0.5:
            break
    assert decoded == image
    assert decoded.frames[1].point is decoded.frames[21].point
    assert len(data) < 1_000_000
    assert middle - start < 0.5
    assert end - middle < 0.5


def test_the_digest_of_the_file_is_returned() -> None:
    """What `write_image` returns is what a child's `ParentRef` names: the SHA-256 of the whole file."""
    file = io.BytesIO()
    digest = write_image(IMAGES["memory"], file)
    assert digest == hashlib.sha256(file.getvalue()).digest()


def test_frame_values() -> None:
    """Typed values come out as they went in, by local index and from the bottom of the stack."""
    point = Point(1, 2, StopKind.SAFEPOINT, ((2, I64), (5, F64)), (I32, I32))
    frame = Frame.make(point, [2**64 - 1, 0x7FF0000000000001, 1, 2])
    assert frame.locals() == {2: Value(I64, 2**64 - 1), 5: Value(F64, 0x7FF0000000000001)}
    assert frame.operands() == (Value(I32, 1), Value(I32, 2))
    assert (point.value_types, point.width) == ((I64, F64, I32, I32), 24)


@pytest.mark.parametrize("values", [[1], [1, 2, 3], [2**32, 0], [-1, 0]])
def test_frame_values_that_do_not_fit(values: list[int]) -> None:
    """Neither the number of values nor a bit pattern can be wrong unseen."""
    with pytest.raises(ImageError):
        Frame.make(Point(1, 2, StopKind.SAFEPOINT, (), (I32, I32)), values)


def frame(kind: StopKind, *, live: tuple[tuple[int, int], ...] = (), values: bytes = b"") -> Frame:
    return Frame(Point(0, 0, kind, live), values)


PAGE = b"x" * PAGE_SIZE
WRONG = {
    "module digest": replace(EMPTY, module=ModuleRef(b"short", 8)),
    "module size": replace(EMPTY, module=replace(EMPTY.module, size=9, content=MODULE)),
    "module content": replace(EMPTY, module=replace(EMPTY.module, content=MODULE[:-1] + b"x")),
    "step": replace(EMPTY, entry=Entry(("_start",), 2)),
    "frames after the end": replace(EMPTY, entry=Entry(("_start",), 1), frames=(frame(StopKind.SAFEPOINT),)),
    "argument bits": replace(EMPTY, entry=Entry(("f",), 0, (Value(I32, 2**32),))),
    "innermost waits": replace(EMPTY, frames=(frame(StopKind.CALL),)),
    "outer runs": replace(EMPTY, frames=(frame(StopKind.SAFEPOINT), frame(StopKind.SAFEPOINT))),
    "outer repeats": replace(EMPTY, frames=(frame(StopKind.REPEAT), frame(StopKind.SAFEPOINT))),
    "frame width": replace(EMPTY, frames=(frame(StopKind.SAFEPOINT, values=b"x"),)),
    "locals order": replace(EMPTY, frames=(frame(StopKind.SAFEPOINT, live=((1, I32), (0, I32)), values=bytes(8)),)),
    "local twice": replace(EMPTY, frames=(frame(StopKind.SAFEPOINT, live=((1, I32), (1, I32)), values=bytes(8)),)),
    "type": replace(EMPTY, frames=(frame(StopKind.SAFEPOINT, live=((0, 0x6E),), values=bytes(4)),)),
    "reference": replace(EMPTY, frames=(frame(StopKind.SAFEPOINT, live=((0, FUNCREF),), values=bytes(8)),)),
    "offset": replace(EMPTY, frames=(Frame(Point(0, 2**32, StopKind.SAFEPOINT), b""),)),
    "globals order": replace(EMPTY, globals=(GlobalState(1, I32, 0), GlobalState(0, I32, 0))),
    "global type": replace(EMPTY, globals=(GlobalState(1, 0x6E, 0),)),
    "global reference": replace(EMPTY, globals=(GlobalState(1, FUNCREF, 2**32),)),
    "global bits": replace(EMPTY, globals=(GlobalState(1, I32, 2**32),)),
    "slot beyond": replace(EMPTY, tables=(TableState(0, 3, ((3, None),)),)),
    "slot order": replace(EMPTY, tables=(TableState(0, 3, ((1, None), (0, 1))),)),
    "slot function": replace(EMPTY, tables=(TableState(0, 3, ((1, 2**32 - 1),)),)),
    "memory pages": replace(EMPTY, memories=(MemoryState(0, 65537),)),
    "memories twice": replace(EMPTY, memories=(MemoryState(0, 1), MemoryState(0, 1))),
    "run length": replace(EMPTY, memories=(MemoryState(0, 1, ((0, b"x"),)),)),
    "run empty": replace(EMPTY, memories=(MemoryState(0, 1, ((0, b""),)),)),
    "run beyond": replace(EMPTY, memories=(MemoryState(0, 1, ((16, PAGE),)),)),
    "run before": replace(EMPTY, memories=(MemoryState(0, 1, ((-1, PAGE),)),)),
    "runs order": replace(EMPTY, memories=(MemoryState(0, 1, ((2, PAGE), (1, PAGE))),)),
    "runs overlap": replace(EMPTY, memories=(MemoryState(0, 1, ((1, PAGE),), ((0, 2),)),)),
    "zero beyond": replace(EMPTY, memories=(MemoryState(0, 1, (), ((1, 16),)),)),
    "dropped order": replace(EMPTY, dropped_data=(2, 1)),
    "dropped range": replace(EMPTY, dropped_elem=(2**32,)),
    "parent digest": replace(EMPTY, parent=ParentRef(b"", 1)),
    "parent position": replace(EMPTY, parent=ParentRef(bytes(32), 0)),
    "host key": replace(EMPTY, host={"a": {None: 1}}),
    "host root key": replace(EMPTY, host={1: 1}),  # type: ignore[dict-item]
    "host value": replace(EMPTY, host={"a": object()}),
    "host integer": replace(EMPTY, host={"a": 2**64}),
    "host text": replace(EMPTY, host={"a": "\ud800"}),
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_a_wrong_image_is_not_written(what: str) -> None:
    """What no reader would take is refused by the writer, before a byte is out."""
    file = io.BytesIO()
    with pytest.raises(ImageError):
        write_image(WRONG[what], file)
    assert file.getvalue() == b""


def test_host_data_nested_too_deeply_is_not_written() -> None:
    """The writer's bound of nesting is the reader's."""
    def nested(depth: int) -> Image:
        value: object = 1
        for _ in range(depth):
            value = [value]
        return replace(EMPTY, host={"a": value})

    assert decode(encode(nested(63))) == nested(63)
    with pytest.raises(ImageError, match="nested"):
        encode(nested(64))


@pytest.mark.parametrize(("limits", "name"), [
    (Limits(memory=4096 * 4), "memory"), (Limits(runs=2), "memory"), (Limits(frames=3), "frames"),
    (Limits(frame_bytes=20), "frames"), (Limits(table_slots=3), "tables"), (Limits(host=5), "host"),
    (Limits(module=7), "module"), (Limits(depth=2), "host"),
    (Limits(header=20), "empty"), (Limits(header=50), "empty"),  # a string; all strings together
    (Limits(nodes=20), "empty"), (Limits(nodes=30), "empty"),  # a map; all values together
])
def test_each_limit_is_kept(limits: Limits, name: str) -> None:
    """An image above a limit is refused, the same image passes with the default."""
    data = encode(IMAGES[name])
    assert decode(data) == IMAGES[name]
    with pytest.raises(ImageError) as caught:
        decode(data, limits=limits)
    assert isinstance(caught.value.fields["offset"], int)
