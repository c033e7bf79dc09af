"""Core dumps, read by others: wasm-tools (whose parser, ``wasmparser``, knows the convention) and wasmtime."""

from __future__ import annotations

import re
import subprocess
from typing import Any, Final

import pytest
import wasmtime

from wasmckpt.errors import ImageError, InvalidModule, UsageError
from wasmckpt.formats import Image, ParentRef
from wasmckpt.interop import coredump
from wasmckpt.lazydata import replace
from wasmckpt.snapshot.pages import initial_pages
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import F32, F64, I32, I64, Value

from ..cli.programs import exits, wat
from ..support.moving import EVERYWHERE
from ..support.samples import sample
from ..support.spec import wasm_tools
from ..support.tiers import missing
from ..support.toolchain import Unavailable
from .frozen import freeze
from .plain import valid

FRAME: Final = re.compile(
    r"CoreDumpStackFrame \{ instanceidx: (\d+), funcidx: (\d+), codeoffset: (\d+), "
    r"locals: \[(.*?)\], stack: \[(.*?)\] \}"
)
NAMES: Final = {I32: "I32", I64: "I64", F32: "F32", F64: "F64"}


def read(wasm: bytes) -> str:
    """What wasm-tools says of the parts of a dump."""
    try:
        tool = wasm_tools()
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    done = subprocess.run([tool, "dump", "-"], input=wasm, capture_output=True, check=True)
    return done.stdout.decode()


def shown(value: Value | None) -> str:
    """A value as the other reader shows it."""
    if value is None or value.type not in NAMES:
        return "Missing"
    if value.type in (F32, F64):
        return f"{NAMES[value.type]}({'Ieee32' if value.type == F32 else 'Ieee64'}({value.bits}))"
    half = 1 << (31 if value.type == I32 else 63)
    return f"{NAMES[value.type]}({value.bits - 2 * half if value.bits >= half else value.bits})"


def check_dump(image: Image, wasm: bytes, program: str) -> bytes:
    """Frames, one by one; name, module, instance; memories and globals as an engine sees them."""
    module = decode(wasm)
    made = coredump(image, wasm)
    valid(made)
    text = read(made)
    assert f"| name: {program}\n" in text
    assert f'| modules: ["{program}"]' in text
    memories, globals_ = list(range(len(module.memories))), list(range(len(module.globals)))
    assert f"instances: [CoreDumpInstance {{ module_index: 0, memories: {memories}, globals: {globals_} }}]" in text
    (stack,) = [line for line in text.splitlines() if "| stacks: " in line]
    assert "| stacks: main / [" in stack
    found = FRAME.findall(stack)
    assert len(found) == len(image.frames)
    for (instance, func, offset, locals_, operands), frame in zip(found, reversed(image.frames), strict=True):
        point, body = frame.point, module.body(frame.point.func)
        live = frame.locals()
        assert (int(instance), int(func)) == (0, point.func)
        assert body.start + int(offset) == body.expr + point.offset
        assert locals_ == ", ".join(shown(live.get(i)) for i in range(len(module.local_types(point.func))))
        assert operands == ", ".join(shown(value) for value in frame.operands())
    _check_state(made, image, wasm)
    return made


def _check_state(made: bytes, image: Image, wasm: bytes) -> None:
    """Whoever instantiates the dump finds the memories, although nobody does."""
    module, dump = decode(wasm), decode(made)
    for state in image.memories:
        size = state.pages << 16
        expected = bytearray(size)
        for page, data in initial_pages(module, state.index, {}).items():
            expected[page * 4096 : page * 4096 + 4096] = data
        for page, count in state.zero:
            expected[page * 4096 : (page + count) * 4096] = bytes(count * 4096)
        for page, data in state.data:
            expected[page * 4096 : page * 4096 + len(data)] = data
        got = bytearray(size)
        for page, data in initial_pages(dump, state.index, {}).items():
            got[page * 4096 : page * 4096 + 4096] = data
        assert got == expected
        assert dump.memories[state.index].minimum == state.pages
    assert [kind.type for kind in dump.globals] == [kind.type for kind in module.globals]
    assert not any(kind.mutable for kind in dump.globals)


@pytest.mark.parametrize(("name", "nth"), [("qsort", 1103), ("deep", 40), ("json", 30), ("vm", 500)])
def test_programs(name: str, nth: int) -> None:
    program = sample(name, "tiny")
    frozen = freeze(program.wasm, "wasm3", nth, sample=program)
    assert len(frozen.image.frames) > 3
    check_dump(frozen.image, program.wasm, f"{name}.wasm")


VALUES = """(module
  (memory 1) (memory 2)
  (global i32 (i32.const -5)) (global $m (mut i64) (i64.const 1)) (global f64 (f64.const -0.0))
  (global i32 (i32.add (i32.const 0x7fffffff) (i32.const 2))) (global funcref (ref.func $inner))
  (global i64 (i64.mul (i64.const -3) (i64.const 5))) (global v128 (v128.const i64x2 1 -1))
  (data (memory 1) (i32.const 70000) "second")
  (elem declare func $inner)
  (func $inner (export "inner") (param i32 i64 f32 f64 v128 funcref) (result i32) (local $dead i32) (local $i i32)
    (i64.const -9) (f32.const nan:0x200001)
    (loop $next (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 9))))
    drop drop
    (local.set $dead (i32.const 3))
    (drop (i64x2.extract_lane 0 (local.get 4))) (drop (local.get 5))
    (drop (local.get 1)) (drop (local.get 2)) (drop (local.get 3))
    (i32.add (local.get 0) (local.get $dead)))
  (func (export "run") (param i32) (result i32)
    (global.set $m (i64.const -2))
    (i32.const 77)
    (call $inner (i32.const -2) (i64.const 0x8000000000000000) (f32.const -inf) (f64.const nan:0x8000000000123)
      (v128.const i64x2 1 2) (ref.func $inner))
    (drop) (local.get 0) i32.add))"""


def test_values_of_all_types() -> None:
    """Bits are kept, NaNs too; what the convention has no words for is missing."""
    wasm = wat(VALUES)
    for nth in (3, 8):
        frozen = freeze(wasm, "wasmtime", nth, invoke="run", arguments=[Value(I32, 5)], options=EVERYWHERE)
        made = check_dump(frozen.image, wasm, frozen.image.module.sha256.hex())
        inner = FRAME.findall(read(made))[0]
        assert inner[3].startswith("I32(-2), I64(-9223372036854775808), F32(Ieee32(4286578688)), F64(Ieee64(")
        assert inner[3].endswith(f"Missing, Missing, Missing, I32({nth - 1})")
        text = subprocess.run([wasm_tools(), "print", "-"], input=made, capture_output=True, check=True).stdout.decode()
        values = re.findall(r"\(global \(;\d+;\) \w+ (.+)\)", text)
        assert values == [
            "i32.const -5", "i64.const -2", "f64.const -0x0p+0 (;=-0;)", "i32.const -2147483647", "ref.null func",
            "i64.const -15", "v128.const i32x4 0x00000001 0x00000000 0xffffffff 0xffffffff",
        ]


WAITING = """(module
  (func $stop (param i32) STOP)
  (func $one (param i32) (local f64 i64 i64) (nop) (nop)
    (if (local.get 0) (then (call $stop (i32.const 1)))) (nop))
  (func (export "run") (local i32 i32) (nop) (call $one (i32.const 1)) (nop)))"""


def test_offsets_are_counted_as_wasmtime_counts_them() -> None:
    """In a trap it names the instructions in which frames wait; ours names the same for frames in the same calls."""
    trapping = wat(WAITING.replace("STOP", "unreachable"))
    store = wasmtime.Store()
    run: Any = wasmtime.Instance(store, wasmtime.Module(store.engine, trapping), []).exports(store)["run"]
    with pytest.raises(wasmtime.Trap) as trap:
        run(store)
    told = [(f.func_index, f.func_offset, f.module_offset) for f in trap.value.frames][1:]
    assert len(told) == 2
    wasm = wat(WAITING.replace("STOP", "(loop (br_if 0 (local.get 0)))"))
    frozen = freeze(wasm, "wasmtime", 1, invoke="run", options=EVERYWHERE)
    ours = [(int(func), int(offset)) for _, func, offset, _, _ in FRAME.findall(read(coredump(frozen.image, wasm)))]
    assert ours[1:] == [(func, offset) for func, offset, _ in told]
    module = decode(trapping)
    assert [module.body(func).start + offset for func, offset, _ in told] == [at for _, _, at in told]


def test_bad_input() -> None:
    """One error each."""
    frozen = freeze(wat(VALUES), "wasmtime", 3, invoke="run", arguments=[Value(I32, 5)], options=EVERYWHERE)
    image, wasm = frozen.image, frozen.wasm
    with pytest.raises(ImageError, match="another module"):
        coredump(image, wat(exits(1)))
    with pytest.raises(InvalidModule):
        coredump(image, b"\0asm")
    with pytest.raises(UsageError, match="does not carry"):
        coredump(image)
    with pytest.raises(ImageError, match="difference"):
        coredump(replace(image, parent=ParentRef(bytes(32), 1)), wasm)
    carried = replace(image, module=replace(image.module, content=wasm))
    assert coredump(carried, program="x") == coredump(image, wasm, program="x")
