"""Two images: every kind of difference is found, named, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wasmckpt.cli.compare import PARTS, Difference, differences
from wasmckpt.cli.diff import lines
from wasmckpt.formats import (
    Entry,
    Frame,
    GlobalState,
    Image,
    MemoryState,
    ModuleRef,
    Point,
    Producer,
    StopKind,
    TableState,
)
from wasmckpt.wasm.values import F64, I32, Value

ONE, TWO = bytes([1]) + bytes(4095), bytes([2]) + bytes(4095)
OUTER = Frame.make(Point(1, 9, StopKind.CALL, ((0, I32),), (F64,)), [5, 0x3FF8000000000000])
INNER = Frame.make(Point(2, 4, StopKind.SAFEPOINT, ((1, I32), (3, I32))), [7, 8])
IMAGE = Image(
    module=ModuleRef(bytes(32), 99), producer=Producer("tool 1", "wasm3", "0.5", "x86_64"), entry=Entry(("run",), 0),
    frames=(OUTER, INNER), globals=(GlobalState(3, I32, 1), GlobalState(4, F64, 0)),
    tables=(TableState(0, 9, ((2, 5), (3, None))),), memories=(MemoryState(0, 2, ((1, ONE * 2), (8, ONE)), ((5, 2),)),),
    host={"args": [b"p"], "clocks": {"monotonic": 5},
          "descriptors": [{"number": 1, "kind": "stdout", "start": 3}, {"number": 7, "kind": "file", "path": b"x"}]},
)


def changed(**fields: Any) -> Image:
    return replace(IMAGE, **fields)


def moved(frame: Frame, **fields: Any) -> Frame:
    return Frame(replace(frame.point, **fields), frame.values)


def host(**fields: Any) -> Image:
    return changed(host={**IMAGE.host, **fields})


DESCRIPTORS: list[dict[str, object]] = [{"number": 1, "kind": "stdout", "start": 4}]

CASES: list[tuple[Image, list[tuple[str, str]], list[str]]] = [
    (changed(module=ModuleRef(bytes([1] * 32), 99), globals=()), [("module", "sha256")], [
        f"  sha256: {'00' * 32} -> {'01' * 32}"]),
    (changed(entry=Entry(("run",), 0, (Value(I32, 1),))), [("entry", "arguments")], []),
    (changed(frames=(OUTER, Frame.make(INNER.point, [7, 9]))), [("frames", "1.locals.3")], [
        "  frame 1 locals 3: i32 8 -> i32 9"]),
    (changed(frames=(OUTER, moved(INNER, offset=5))), [("frames", "1")], [
        "  frame 1: f2 stands at 0x4 -> f2 stands at 0x5"]),
    (changed(frames=(OUTER,)), [("frames", "1")], ["  frame 1: f2 stands at 0x4 -> nothing"]),
    (changed(frames=(OUTER, INNER, INNER)), [("frames", "2")], ["  frame 2: nothing -> f2 stands at 0x4"]),
    (changed(frames=(OUTER, Frame.make(replace(INNER.point, live=((1, I32),)), [7]))), [("frames", "1.locals.3")], [
        "  frame 1 locals 3: i32 8 -> nothing"]),
    (changed(globals=(GlobalState(3, I32, 1), GlobalState(4, F64, 1 << 63))), [("globals", "4")], [
        "  g4: f64 0.0 -> f64 -0.0"]),
    (changed(tables=(TableState(0, 10, ((2, 6),)),)), [
        ("tables", "0.size"), ("tables", "0.slot 2")], ["  table 0 slot 2: 5 -> 6"]),
    (changed(dropped_data=(1,)), [("segments", "data")], ["  data: [] -> [1]"]),
    (host(args=[b"q"]), [("host", "args")], []),
    (host(descriptors=DESCRIPTORS), [("host", "descriptors.1.start"), ("host", "descriptors.7")], [
        "  descriptors 1 start: 3 -> 4"]),
    (host(clocks={"monotonic": 6}), [("clocks", "monotonic")], ["  monotonic: 5 -> 6"]),
    (host(clocks=None), [("clocks", "")], []),
    (changed(memories=(MemoryState(0, 3, ((1, ONE + TWO), (8, ONE)), ((5, 2),)),)), [("memory", "0")], [
        "  memory 0: 1 page of 4 KiB (4 KiB) differ, 128 KiB -> 192 KiB"]),
]


@pytest.mark.parametrize(("after", "found", "shown"), CASES)
def test_each_kind_is_found(after: Image, found: list[tuple[str, str]], shown: list[str]) -> None:
    there = list(differences(IMAGE, after))
    assert [(d.part, d.where) for d in there] == found
    text = list(lines(there, {}))
    assert text[0] == found[0][0]
    for line in shown:
        assert line in text
    back = list(differences(after, IMAGE))
    assert sorted((d.part, d.where, str(d.after)) for d in back) == sorted(
        (d.part, d.where, str(d.before)) for d in there)


def test_the_cases_reach_every_part() -> None:
    assert {part for _, found, _ in CASES for part, _ in found} == set(PARTS)


def test_the_same_state_on_another_runtime_is_the_same() -> None:
    assert list(differences(IMAGE, changed(producer=Producer("tool 2", "wasmtime", "9", "arm64")))) == []


@pytest.mark.parametrize(("data", "zero", "runs"), [
    (((1, ONE * 2), (8, ONE)), ((5, 2),), ()),
    (((1, ONE), (2, ONE), (8, ONE)), ((5, 1), (6, 1)), ()),  # cut into other runs
    ((), (), ((1, 2), (5, 2), (8, 1))),
    (((1, ONE * 2), (5, bytes(4096)), (8, ONE)), ((6, 1),), ()),  # zero bytes as data
    (((1, ONE + TWO), (8, ONE), (31, ONE)), ((5, 2),), ((2, 1), (31, 1))),
    (((1, ONE * 2), (5, ONE), (8, ONE)), ((6, 1),), ((5, 1),)),
])
def test_pages(
    data: tuple[tuple[int, bytes], ...], zero: tuple[tuple[int, int], ...], runs: tuple[tuple[int, int], ...],
) -> None:
    """Whatever runs the pages stand in, it is their bytes that count; a page that one image lacks is another one."""
    found = list(differences(IMAGE, changed(memories=(MemoryState(0, 2, data, zero),))))
    assert [difference.pages for difference in found] == ([runs] if runs else [])


def test_a_picture_and_a_limit() -> None:
    many = [Difference("globals", str(i), {"type": "i32", "bits": "0x01"}, None) for i in range(50)]
    text = list(lines([*many, Difference("memory", "0", {"pages": 1}, {"pages": 1}, ((2, 2),))], {}))
    assert text[1] == "  g0: i32 1 -> nothing"
    assert "  ... 30 more (--all) ..." in text
    assert text[-1] == "    0x00000000  ..##............"
    assert len(list(lines(many, {}, most=50))) == 51


def test_names_and_bytes() -> None:
    frame = {"func": 2, "offset": 4, "kind": "safepoint", "locals": {}, "operands": []}
    shown = list(lines([Difference("frames", "0", frame, None),
                        Difference("host", "args", {"$hex": "1b5b"}, {"$hex": "61"})], {2: "inner"}))
    assert shown == ["frames", "  frame 0: f2 inner stands at 0x4 -> nothing", "host", r"  args: '\x1b[' -> 'a'"]
