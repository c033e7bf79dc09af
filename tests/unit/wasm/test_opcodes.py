"""The table of opcodes, row by row, against wasm-tools (names) and wasmtime (types, immediates, limits)."""

from __future__ import annotations

import re
import subprocess

import pytest

from wasmckpt.errors import InvalidModule, NotSupported
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.encode import encode
from wasmckpt.wasm.opcodes import BY_NAME, TABLE, Op
from wasmckpt.wasm.validate import validate
from wasmckpt.wasm.values import I32

from ...support.spec import wasm_tools
from ...support.tiers import missing
from ...support.toolchain import Unavailable
from .generated import accepted_by_wasmtime
from .modules import LOCALS, module

ROWS = list(TABLE.values())

OTHER_TYPE = dict(zip(LOCALS, [*list(LOCALS)[1:], I32], strict=True))

# What stands before an instruction whose operands are not in the table, and its immediates; all leave the stack as is.
SPECIAL: dict[str, tuple[bytes, bytes, bytes]] = {
    "unreachable": (b"", b"", b""), "nop": (b"", b"", b""), "end": (b"\x02\x40", b"", b""),
    "block": (b"", b"\x40", b"\x0b"), "loop": (b"", b"\x40", b"\x0b"), "if": (b"\x41\0", b"\x40", b"\x0b"),
    "else": (b"\x41\0\x04\x40", b"", b"\x0b"), "br": (b"", b"\0", b""), "br_if": (b"\x41\0", b"\0", b""),
    "br_table": (b"\x41\0", b"\1\0\0", b""), "return": (b"", b"", b""), "call": (b"", b"\0", b""),
    "call_indirect": (b"\x41\0", b"\0\0", b""), "return_call": (b"", b"\0", b""),
    "return_call_indirect": (b"\x41\0", b"\0\0", b""), "drop": (b"\x41\0", b"", b""),
    "select": (b"\x42\0\x42\0\x41\0", b"", b"\x1a"), "select_t": (b"\xd0\x70\xd0\x70\x41\0", b"\1\x70", b"\x1a"),
    "local.get": (b"", b"\0", b"\x1a"), "local.set": (b"\x41\0", b"\0", b""), "local.tee": (b"\x41\0", b"\0", b"\x1a"),
    "global.get": (b"", b"\0", b"\x1a"), "global.set": (b"\x41\0", b"\0", b""),
    "table.get": (b"\x41\0", b"\1", b"\x1a"), "table.set": (b"\x41\0\xd0\x6f", b"\1", b""),
    "table.grow": (b"\xd0\x6f\x41\0", b"\1", b"\x1a"), "table.fill": (b"\x41\0\xd0\x6f\x41\0", b"\1", b""),
    "ref.null": (b"", b"\x6f", b"\x1a"), "ref.is_null": (b"\xd0\x70", b"", b"\x1a"), "ref.func": (b"", b"\0", b"\x1a"),
    "throw": (b"", b"\0", b""), "throw_ref": (b"\xd0\x69", b"", b""), "try_table": (b"", b"\x40\1\0\0\0", b"\x0b"),
}

IMMEDIATES = {
    "-": b"", "zero": b"\0", "memarg": b"\0\0", "memarg_lane": b"\0\0\0", "lane": b"\0", "lanes16": bytes(range(16)),
    "i32": b"\x7f", "i64": b"\x7f", "f32": bytes(4), "f64": bytes(8), "v128": bytes(16), "mem": b"\0",
    "data_mem": b"\0\0", "data": b"\0", "mem_mem": b"\0\1", "elem_table": b"\0\0",
    "elem": b"\0", "table_table": b"\0\0", "table": b"\0",
}


def code(op: Op) -> bytes:
    if op.code <= 0xFF:
        return bytes([op.code])
    first, sub = op.code >> 16, op.code & 0xFFFF
    return bytes([first, sub]) if sub < 0x80 else bytes([first, sub & 0x7F | 0x80, sub >> 7])


def body(op: Op) -> bytes:
    """A body with the instruction, its operands before it and its results dropped after it."""
    if op.pops is None or op.pushes is None:
        before, fixed, after = SPECIAL[op.name]
        return before + code(op) + fixed + after
    operands = b"".join(b"\x20" + bytes([LOCALS[kind]]) for kind in op.pops)
    return operands + code(op) + immediates(op) + b"\x1a" * len(op.pushes)


def immediates(op: Op) -> bytes:
    """Of an instruction whose operands are in the table; an atomic access has the alignment of its size, no other."""
    if op.feature == "atomics" and op.imm == "memarg":
        found = re.search(r"(?:load|store|rmw|wait)(8|16|32|64)", op.name)
        size = int(found[1]) // 8 if found else 8 if op.name.startswith("i64") else 4
        return bytes([size.bit_length() - 1, 0])
    return IMMEDIATES[op.imm]


def test_the_table_is_complete() -> None:
    """Counted in the specification's index of instructions, and the proposals beyond it."""
    features = [op.feature for op in TABLE.values()]
    assert {name: features.count(name) for name in sorted(set(features))} == {
        "atomics": 67, "bulk-memory": 7, "exceptions": 3, "mvp": 172, "reference-types": 9, "saturating-conversions": 8,
        "sign-extension": 5, "simd": 236, "tail-calls": 2,
    }
    assert len(BY_NAME) == len(TABLE)


@pytest.mark.parametrize("op", ROWS, ids=lambda op: op.name)
def test_types_and_immediates(op: Op) -> None:
    wasm = module([body(op)])
    assert accepted_by_wasmtime(wasm) == ""
    decoded = decode(wasm)
    validate(decoded)
    assert encode(decoded, {}) == wasm


@pytest.mark.parametrize("op", [op for op in ROWS if op.pops is not None], ids=lambda op: op.name)
def test_a_wrong_operand_is_refused(op: Op) -> None:
    """The twin: the same body with the last operand's type changed, or, without operands, a result dropped twice."""
    assert op.pops is not None
    assert op.pushes is not None
    kinds = [*op.pops[:-1], OTHER_TYPE[op.pops[-1]]] if op.pops else []
    operands = b"".join(b"\x20" + bytes([LOCALS[kind]]) for kind in kinds)
    drops = b"\x1a" * (len(op.pushes) + (not op.pops))
    wasm = module([operands + code(op) + immediates(op) + drops])
    assert accepted_by_wasmtime(wasm) != ""
    with pytest.raises(InvalidModule, match="type mismatch"):
        validate(decode(wasm))


@pytest.mark.parametrize("op", [op for op in ROWS if op.imm.startswith("memarg")], ids=lambda op: op.name)
def test_alignment_up_to_the_natural_one(op: Op) -> None:
    """The greatest alignment that we accept is the greatest that wasmtime accepts; a second memory may be named."""
    lane = b"\0" if op.imm == "memarg_lane" else b""
    accepted = []
    for align in range(6):
        raw = body(op).replace(code(op) + immediates(op), code(op) + bytes([align, 0]) + lane)
        named = body(op).replace(code(op) + immediates(op), code(op) + bytes([align | 0x40, 1, 0]) + lane)
        for wasm in (module([raw]), module([named])):
            ours = True
            try:
                validate(decode(wasm))
            except InvalidModule:
                ours = False
            assert ours == (accepted_by_wasmtime(wasm) == "")
            accepted.append(ours)
    assert 2 <= sum(accepted) <= 10 if op.feature != "atomics" else sum(accepted) == 2


@pytest.mark.parametrize("op", [op for op in ROWS if "lane" in op.imm], ids=lambda op: op.name)
def test_lanes_up_to_the_last_one(op: Op) -> None:
    for lane in (1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 255):
        other = IMMEDIATES[op.imm][:-1] + bytes([lane])
        wasm = module([body(op).replace(code(op) + IMMEDIATES[op.imm], code(op) + other)])
        ours = True
        try:
            validate(decode(wasm))
        except InvalidModule:
            ours = False
        assert ours == (accepted_by_wasmtime(wasm) == ""), lane


def test_names_as_wasm_tools_prints_them() -> None:
    try:
        tool = wasm_tools()
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    wasm = module([b"\x01\x01" + body(op) for op in ROWS])
    done = subprocess.run([tool, "print", "-"], input=wasm, capture_output=True, text=False, check=True)
    functions = done.stdout.decode().split("\n  (func ")[1:]
    assert len(functions) == len(ROWS)
    for op, text in zip(ROWS, functions, strict=True):
        printed = {"select_t": "select (result funcref)"}.get(op.name, op.name)
        assert re.search(rf"\n\s+{re.escape(printed)}(?![\w.])", text), f"{op.name} is not in {text}"


def test_every_other_code_is_refused() -> None:
    known = {op.code for op in TABLE.values()}
    codes = [n for n in range(0x100) if n not in known and n not in (0xFC, 0xFD, 0xFE)]
    codes += [first << 16 | sub for first in (0xFC, 0xFD, 0xFE) for sub in range(0x130)]
    for number in codes:
        if number in known:
            continue
        row = Op(number, "?", "-", (), (), "?")
        wasm = module([code(row) + bytes(20)])
        assert accepted_by_wasmtime(wasm) != "", hex(number)
        with pytest.raises((InvalidModule, NotSupported)) as caught:
            validate(decode(wasm))
        assert caught.value.fields["function"] == 0
        assert isinstance(caught.value.fields["offset"], int)
