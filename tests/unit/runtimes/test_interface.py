"""A module's interface, read without a runtime."""

from __future__ import annotations

import pytest
import wasmtime
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.errors import CheckpointError, InvalidModule, NotSupported
from wasmckpt.runtimes.interface import FunctionType, GlobalType, Limits, read_interface, sections
from wasmckpt.runtimes.wasm3.rename import rename
from wasmckpt.runtimes.wasm3.segments import read_segments

_TEXT = """(module (import "a" "f" (func (param i32 f64) (result i64))) (import "a" "g" (global (mut f32)))
  (import "a" "m" (memory 1 2)) (import "a" "t" (table 3 externref))
  (global (export "x") i64 (i64.const -1)) (global v128 (v128.const i64x2 1 2)) (global (mut funcref) (ref.func 0))
  (global f32 (f32.const 1)) (global f64 (f64.const 1)) (global externref (ref.null extern))
  (global i32 (i32.add (i32.const 1) (i32.const 2)))
  (memory (export "own") 5) (func (export "h") (export "h2") (result i32 i32) (i32.const 1) (i32.const 2)))"""
_WASM = bytes(wasmtime.wat2wasm(_TEXT))


def test_all_kinds_are_read() -> None:
    interface = read_interface(_WASM)
    assert [(i.module, i.name, i.kind) for i in interface.imports] == [
        ("a", "f", "func"), ("a", "g", "global"), ("a", "m", "memory"), ("a", "t", "table")]
    assert interface.imports[0].type == FunctionType((0x7F, 0x7C), (0x7E,))
    assert interface.imports[1].type == GlobalType(0x7D, True)
    assert interface.memories == (Limits(1, 2), Limits(5, None))
    assert interface.functions[1] == FunctionType((), (0x7F, 0x7F))
    assert interface.exported("h", "func") == interface.exported("h2", "func") == 1
    assert interface.exported("h", "global") is None
    assert interface.global_type(1) == GlobalType(0x7E, False)
    assert len(interface.globals) == 8


def test_the_interface_of_its_own_source_is_equal() -> None:
    interface = read_interface(_WASM)
    again = read_interface(interface.source, complete=False)
    assert (again.imports, again.exports, again.functions, again.globals, again.memories) == (
        interface.imports, interface.exports, interface.functions, interface.globals, interface.memories)
    with pytest.raises(InvalidModule):
        read_interface(interface.source)


@pytest.mark.parametrize(("wasm", "error"), [
    ("0061736d01000000 01 05 01 5f 00 00 00", NotSupported),       # a struct type
    ("0061736d01000000 01 05 01 60 01 64 70 00", NotSupported),    # a typed reference
    ("0061736d01000000 05 03 01 04 01", NotSupported),             # memory64
    ("0061736d01000000 05 04 01 08 01 10", NotSupported),          # page size
    ("0061736d01000000 02 08 01 01 61 01 62 04 00 00", InvalidModule),  # a tag
    ("0061736d01000000 05 03 01 10 01", InvalidModule),
    ("0061736d01000000 0e 00", InvalidModule),
    ("0061736d01000000 03 01 00 01 01 00", InvalidModule),
    ("0061736d01000000 05 ff ff ff ff ff 00", InvalidModule),
    ("0061736d01000000 05 01 ff", InvalidModule),
    ("0061736d01000000 07 09 02 01 61 00 00 01 61 00 00", InvalidModule),
    ("0061736d01000000 02 05 01 01 ff 00 00", InvalidModule),
])
def test_what_is_refused_has_an_offset(wasm: str, error: type[CheckpointError]) -> None:
    with pytest.raises(error) as caught:
        read_interface(bytes.fromhex(wasm))
    assert isinstance(caught.value.fields["offset"], int)


@given(st.binary(max_size=200), st.integers(0, len(_WASM)), st.booleans())
def test_any_bytes_give_an_interface_or_an_error(data: bytes, at: int, inside: bool) -> None:
    wasm = _WASM[:at] + data + _WASM[at + len(data):] if inside else b"\0asm\1\0\0\0" + data
    offset: object = 0
    try:
        read_interface(wasm)
    except CheckpointError as problem:
        offset = problem.fields["offset"]
    assert isinstance(offset, int)
    assert 0 <= offset <= len(wasm)


def test_renaming_keeps_everything_but_the_names() -> None:
    text = """(module (import "env" "f" (func (param i32))) (import "env" "g" (global (mut f32)))
      (memory (export "m") 1) (global (export "x") i64 (i64.const 1))
      (func $name (export "h") (export "h2")) (data (i32.const 0) "data") (@custom "extra" "bytes"))"""
    wasm = bytes(wasmtime.wat2wasm(text.replace('(@custom "extra" "bytes")', "")))
    interface = read_interface(wasm)
    renamed = rename(wasm, interface, read_segments(wasm))
    after = read_interface(renamed)
    assert [(i.module, i.name, i.type) for i in after.imports] == [
        ("i", "0", interface.imports[0].type), ("i", "1", interface.imports[1].type)]
    assert {(e.name, e.kind, e.index) for e in after.exports} == {("f1", "func", 1), ("g1", "global", 1)}
    assert after.functions == interface.functions
    before_parts = {s.id: wasm[s.body:s.end] for s in sections(wasm)}
    after_parts = {s.id: renamed[s.body:s.end] for s in sections(renamed)}
    assert 0 in before_parts
    assert 0 not in after_parts
    for kept in before_parts.keys() - {0, 2, 7}:
        assert after_parts[kept] == before_parts[kept]
