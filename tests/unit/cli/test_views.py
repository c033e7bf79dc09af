"""Names, pictures and descriptions of images."""

from __future__ import annotations

import wasmtime

from wasmckpt.cli.inspect import describe
from wasmckpt.cli.names import function_names
from wasmckpt.cli.picture import picture
from wasmckpt.formats import Entry, Frame, GlobalState, Image, MemoryState, ModuleRef, Point, Producer, StopKind
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import Module
from wasmckpt.wasm.values import F64, I32, I64

PAGE = bytes([1]) + bytes(4095)


def module(text: str) -> Module:
    return decode(bytes(wasmtime.wat2wasm(text)))


def test_names_of_functions() -> None:
    found = module("""(module (import "env" "log" (func)) (func $inner) (func (export "out") (export "again"))
                      (func $own (export "exported")))""")
    assert function_names(found) == {0: "env.log", 1: "inner", 2: "out", 3: "own"}


def test_a_damaged_name_section_counts_as_none() -> None:
    plain = bytes(wasmtime.wat2wasm('(module (func (export "f")))'))
    for content in (b"", b"\x01", b"\x01\xff", b"\x01\x80\x80\x80\x80\x80\x80", b"\x01\x05\x01\x00\x7fabc",
                    b"\x01\x02\x05\x00"):
        section = b"\x04name" + content
        damaged = plain + b"\x00" + bytes([len(section)]) + section
        assert function_names(decode(damaged)) == {0: "f"}


def test_names_cannot_draw_on_the_terminal() -> None:
    section = b"\x04name\x01\x06\x01\x00\x03\x1b[2"
    found = decode(bytes(wasmtime.wat2wasm("(module (func))")) + b"\x00" + bytes([len(section)]) + section)
    assert "\x1b" not in function_names(found)[0]


def test_a_picture_of_single_pages() -> None:
    memory = MemoryState(0, 2, ((0, PAGE * 2), (31, PAGE)), ((5, 3),))
    assert picture(memory)[1:] == ["0x00000000  ##...000" + "." * 23 + "#"]


def test_a_picture_of_a_large_memory() -> None:
    """As many rows as fit a terminal; cells that changed in part are told from whole ones."""
    data = ((0, PAGE * 1024), (1024, PAGE), ((1 << 20) - 1, PAGE))
    memory = MemoryState(0, 65536, data, ((4096, 1024),))
    lines = picture(memory)
    assert len(lines) == 17
    assert lines[0].startswith("each character is 4 MiB")
    assert lines[1] == "0x00000000  #+..0" + "." * 59
    assert lines[16].endswith("." * 63 + "+")


def test_no_memory_no_picture() -> None:
    assert picture(MemoryState(0, 0)) == []


def image(frames: int) -> Image:
    outer = Frame.make(Point(1, 9, StopKind.CALL, ((0, I32),), (F64,)), [5, 0x3FF8000000000000])
    inner = Frame.make(Point(2, 4, StopKind.SAFEPOINT, ((1, I64),)), [(1 << 64) - 2])
    return Image(
        module=ModuleRef(bytes(32), 99), producer=Producer("tool 1", "wasm3", "0.5", "x86_64"),
        entry=Entry(("(start)", "run"), 1), frames=(outer,) * (frames - 1) + (inner,),
        globals=(GlobalState(3, I32, 0xFFFFFFFF),), memories=(MemoryState(0, 1, ((1, PAGE),)),),
    )


def test_an_image_in_lines() -> None:
    assert list(describe(image(2), 100, None)) == [
        "image      100 bytes, by tool 1 on wasm3 0.5 (x86_64)",
        "module     99 bytes, sha256 " + "0" * 64,
        "entry      (start) -> [run]",
        "frames     2, innermost first",
        "  #0 f2 stands at 0x4",
        "     locals    l1 i64 -2",
        "  #1 f1 waits in the call at 0x9",
        "     locals    l0 i32 5",
        "     operands  f64 1.5",
        "globals",
        "     g3 i32 -1",
        "memory 0   64 KiB, of which 4 KiB differ from the module (1 pages of 4 KiB, 0 made zero)",
        "  each character is 4 KiB; . as the module made it   # changed   + changed in part   0 made zero",
        "  0x00000000  .#..............",
    ]


def test_long_stacks_are_cut_in_the_middle() -> None:
    lines = list(describe(image(100_000), 100, None))
    assert "  ... 99984 more (--all-frames) ..." in lines
    assert len(lines) < 70
    assert len(list(describe(image(1000), 100, None, all_frames=True))) > 3000


def test_a_host_state_of_another_shape_is_no_failure() -> None:
    strange = image(1)
    for host in ({"args": 3}, {"args": [b"\x1b[2J"], "env": [], "clocks": {}, "descriptors": []}, {"x": None}):
        lines = list(describe(Image(**{**{f: getattr(strange, f) for f in strange.__slots__}, "host": host}), 1, None))
        assert not any("\x1b" in line for line in lines)
