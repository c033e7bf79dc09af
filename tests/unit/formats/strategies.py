"""Hypothesis strategies for images that keep all rules of the format."""

from __future__ import annotations

import hashlib

from hypothesis import strategies as st

from wasmckpt.formats import (
    PAGE_SIZE,
    Entry,
    Frame,
    GlobalState,
    Image,
    MemoryState,
    ModuleRef,
    ParentRef,
    Point,
    Producer,
    StopKind,
    TableState,
)
from wasmckpt.wasm.values import WIDTH, Value

U32 = st.integers(0, 2**32 - 1)
TYPES = st.sampled_from(sorted(WIDTH))
INDICES = st.lists(st.integers(0, 2**32 - 1), max_size=5, unique=True).map(sorted).map(tuple)


def values() -> st.SearchStrategy[Value]:
    return TYPES.flatmap(lambda type_: st.integers(0, 2 ** (8 * WIDTH[type_]) - 1).map(lambda bits: Value(type_, bits)))


@st.composite
def points(draw: st.DrawFn, kind: StopKind) -> Point:
    live = tuple((index, draw(TYPES)) for index in draw(INDICES))
    return Point(draw(U32), draw(U32), kind, live, tuple(draw(st.lists(TYPES, max_size=5))))


@st.composite
def frames(draw: st.DrawFn) -> tuple[Frame, ...]:
    if draw(st.booleans()):
        return ()
    pool = [draw(points(StopKind.CALL)) for _ in range(draw(st.integers(1, 3)))]
    stack = [draw(st.sampled_from(pool)) for _ in range(draw(st.integers(0, 6)))]
    stack.append(draw(points(draw(st.sampled_from([StopKind.SAFEPOINT, StopKind.REPEAT])))))
    return tuple(Frame(point, draw(st.binary(min_size=point.width, max_size=point.width))) for point in stack)


@st.composite
def tables(draw: st.DrawFn, index: int) -> TableState:
    size = draw(st.integers(0, 20))
    slots = sorted(draw(st.sets(st.integers(0, size - 1), max_size=size))) if size else []
    function = st.none() | st.integers(0, 2**32 - 2)
    return TableState(index, size, tuple((slot, draw(function)) for slot in slots))


@st.composite
def memories(draw: st.DrawFn, index: int) -> MemoryState:
    """States in the one form that writers give them: runs as long as they can be, no zero page among the data."""
    pages = draw(st.integers(0, 3))
    kinds = draw(st.lists(st.sampled_from("-zd"), min_size=16 * pages, max_size=16 * pages))
    data: list[tuple[int, bytes]] = []
    zero: list[tuple[int, int]] = []
    fill = draw(st.binary(min_size=1, max_size=8).filter(any))
    for number, kind in enumerate(kinds):
        before = kinds[number - 1] if number else ""
        if kind == "d":
            page = (fill + bytes([number]))[:PAGE_SIZE].ljust(PAGE_SIZE, b"\0")
            if before == "d":
                data[-1] = (data[-1][0], data[-1][1] + page)
            else:
                data.append((number, page))
        elif kind == "z":
            if before == "z":
                zero[-1] = (zero[-1][0], zero[-1][1] + 1)
            else:
                zero.append((number, 1))
    return MemoryState(index, pages, tuple(data), tuple(zero))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-2**63, 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | st.integers(-5, 300), inner,
                                                                max_size=3),
    max_leaves=8,
)


@st.composite
def images(draw: st.DrawFn) -> Image:
    content = draw(st.binary(max_size=40))
    stack = draw(frames())
    steps = tuple(draw(st.lists(st.text(max_size=5), min_size=1, max_size=3)))
    current = draw(st.integers(0, len(steps) - (1 if stack else 0)))
    digest = st.binary(min_size=32, max_size=32)
    return Image(
        module=ModuleRef(hashlib.sha256(content).digest(), len(content), content if draw(st.booleans()) else None),
        producer=Producer(*draw(st.tuples(*[st.text(max_size=6)] * 4))),
        entry=Entry(steps, current, tuple(draw(st.lists(values(), max_size=3)))),
        frames=stack,
        globals=tuple(GlobalState(index, *draw(values())) for index in draw(INDICES)),
        tables=tuple(draw(tables(index)) for index in draw(INDICES)),
        memories=tuple(draw(memories(index)) for index in draw(INDICES)[:2]),
        dropped_data=draw(INDICES),
        dropped_elem=draw(INDICES),
        host=draw(st.dictionaries(st.text(max_size=4), PLAIN, max_size=3)),
        parent=draw(st.none() | st.builds(ParentRef, digest, st.integers(1, 2**32 - 1))),
        canonical_nans=draw(st.booleans()),
    )
