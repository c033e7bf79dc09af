"""References in an image are to functions that the module can refer to; each refusal has a twin that passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from wasmtime import wat2wasm

from wasmckpt.errors import ImageError
from wasmckpt.formats import (
    Entry,
    Frame,
    GlobalState,
    Image,
    ModuleRef,
    Point,
    Producer,
    StopKind,
    TableState,
    decode,
    encode,
)
from wasmckpt.formats.check import check
from wasmckpt.wasm.decode import decode as decode_module
from wasmckpt.wasm.validate import analyze, validate
from wasmckpt.wasm.values import EXTERNREF, FUNCREF, I32, I64, NULL, Value

MODULE = decode_module(bytes(wat2wasm("""(module
  (table $f 2 9 funcref) (table $e 1 externref)
  (global (mut funcref) (ref.null func)) (global (mut externref) (ref.null extern))
  (elem declare func $named)
  (func $run (export "run") (param funcref externref) (local $r funcref) (local $n i64)
    (local.set $r (ref.func $named)) (ref.func $named) (ref.null extern)
    loop (br_if 0 (ref.is_null (local.get $r))) end
    drop drop
    (table.set $f (i32.const 0) (local.get 0)) (table.set $e (i32.const 0) (local.get 1))
    (drop (local.get $n)))
  (func $named)
  (func $stranger))""")))
validate(MODULE)
RUN, NAMED, STRANGER = range(3)


def place() -> Point:
    code = analyze(MODULE, RUN)
    loop = code.ops.index(0x03)
    live = ((0, FUNCREF), (1, EXTERNREF), (2, FUNCREF), (3, I64))
    return Point(RUN, code.pos[loop + 1], StopKind.SAFEPOINT, live, (FUNCREF, EXTERNREF))


VALUES = [NULL, NULL, NAMED, 1 << 40 | 99, NAMED, NULL]
GOOD = Image(
    ModuleRef(MODULE.sha256(), len(MODULE.data)), Producer("", "", "", ""),
    Entry(("run",), 0, (Value(FUNCREF, RUN), Value(EXTERNREF, 5))),
    frames=(Frame.make(place(), VALUES),),
    globals=(GlobalState(0, FUNCREF, NAMED), GlobalState(1, EXTERNREF, 7)),
    tables=(TableState(0, 3, ((0, NAMED), (2, RUN))), TableState(1, 1, ((0, NULL - 1),))),
)


def frame(at: int, bits: int) -> dict[str, object]:
    values = list(VALUES)
    values[at] = bits
    return {"frames": (Frame.make(place(), values),)}


def test_the_twin_passes() -> None:
    check(decode(encode(GOOD)), MODULE)


@pytest.mark.parametrize("func", [STRANGER, 3, 99, NULL - 1])
@pytest.mark.parametrize(("part", "field"), [
    ("argument", "entry.arguments[0]"), ("global", "globals[0]"), ("local", "values"), ("operand", "values"),
    ("table", "tables[0].changed"),
])
def test_a_function_that_nothing_refers_to(part: str, field: str, func: int) -> None:
    """One that the module does not have, or that nothing in it can refer to."""
    parts: dict[str, dict[str, object]] = {
        "argument": {"entry": Entry(("run",), 0, (Value(FUNCREF, func), Value(EXTERNREF, 5)))},
        "global": {"globals": (GlobalState(0, FUNCREF, func), GOOD.globals[1])},
        "local": frame(2, func), "operand": frame(4, func),
        "table": {"tables": (TableState(0, 3, ((1, func),)),)},
    }
    with pytest.raises(ImageError, match=f"function {func}") as caught:
        check(decode(encode(replace(GOOD, **parts[part]))), MODULE)  # type: ignore[arg-type]
    assert caught.value.fields["field"] == field
    if field == "values":
        assert (caught.value.fields["frame"], caught.value.fields["function"]) == (0, RUN)


@pytest.mark.parametrize("bits", [0, 1, 12345, NULL - 1, NULL])
def test_any_handle_of_the_host_passes(bits: int) -> None:
    """What a handle means is the host's affair."""
    check(replace(GOOD, **frame(1, bits)), MODULE)  # type: ignore[arg-type]
    check(replace(GOOD, globals=(GOOD.globals[0], GlobalState(1, EXTERNREF, bits))), MODULE)


@pytest.mark.parametrize("kind", [I32, EXTERNREF])
def test_types_are_exact(kind: int) -> None:
    """An i32 or the other kind of reference in the place of a function reference is not taken."""
    point = place()
    wrong = replace(point, live=((0, kind), *point.live[1:]))
    with pytest.raises(ImageError, match="local 0"):
        check(replace(GOOD, frames=(Frame.make(wrong, VALUES),)), MODULE)
    wrong = replace(point, stack=(kind, EXTERNREF))
    with pytest.raises(ImageError, match="operands"):
        check(replace(GOOD, frames=(Frame.make(wrong, VALUES),)), MODULE)
    with pytest.raises(ImageError, match="global"):
        check(replace(GOOD, globals=(GlobalState(0, kind, 1), GOOD.globals[1])), MODULE)


def test_table_sizes_are_checked() -> None:
    """Above the declared maximum is refused, at it is not."""
    check(replace(GOOD, tables=(TableState(0, 9, ((8, NAMED),)),)), MODULE)
    with pytest.raises(ImageError, match="size"):
        check(replace(GOOD, tables=(TableState(0, 10),)), MODULE)
