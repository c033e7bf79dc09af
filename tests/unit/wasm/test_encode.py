"""Writing: what is not replaced passes byte for byte, however oddly it was encoded; what is added is valid."""

from __future__ import annotations

import pytest

from wasmckpt.wasm import encode as enc
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.leb128 import uleb
from wasmckpt.wasm.module import FuncType, GlobalType, Limits, Module
from wasmckpt.wasm.validate import validate
from wasmckpt.wasm.values import F64, I32, I64

from ...support.tiers import by_tier
from .generated import accepted_by_wasmtime, five, padded, smith
from .modules import module

SEEDS = range(by_tier(check=8, test=80, soak=1000))

CUSTOM = [
    b"\0", b"\4name", b"\4name\0\1", b"\4name\7\xff\xff\xff\xff\x0f", b"\x83\x80\x80\x80\0abc", b"\1a" + bytes(300),
    b"\x11__not_ours_at_all" + b"\xff" * 9, "\5ünï".encode(),
]


def with_custom_sections(wasm: bytes) -> bytes:
    """Custom sections of all kinds in front of, between and behind the other sections, some sizes padded."""
    out = wasm[:8]
    decoded = decode(wasm)
    for i, part in enumerate([*decoded.sections, None]):
        for j, content in enumerate(CUSTOM):
            size = five(len(content)) if (i + j) % 2 else uleb(len(content))
            out += b"\0" + size + content
        if part is not None:
            out += wasm[part.header:part.end]
    return out


def identity(wasm: bytes) -> Module:
    decoded = decode(wasm)
    validate(decoded)
    assert enc.encode(decoded, {}) == wasm
    assert accepted_by_wasmtime(wasm) == ""
    return decoded


@pytest.mark.parametrize("seed", SEEDS)
def test_identity_on_generated_modules(seed: int) -> None:
    identity(smith(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_identity_with_padded_integers(seed: int) -> None:
    """The generator pads integers inside entries and bodies, `padded` the sizes and counts of sections."""
    wasm = smith(seed, min_uleb_size=str(1 + seed % 5))
    identity(wasm)
    identity(padded(wasm))


@pytest.mark.parametrize("seed", SEEDS[::4])
def test_identity_with_odd_custom_sections(seed: int) -> None:
    wasm = smith(seed)
    decoded = identity(with_custom_sections(wasm))
    assert len(decoded.customs) >= len(CUSTOM)
    stripped = enc.encode(decoded, {}, keep_custom=frozenset())
    assert not decode(stripped).customs
    assert accepted_by_wasmtime(stripped) == ""
    kept = decode(enc.encode(decoded, {}, keep_custom=frozenset({"name"})))
    assert {section.name for section in kept.customs} == {"name"}


@pytest.mark.parametrize("seed", SEEDS)
def test_appending_moves_no_index(seed: int) -> None:
    """A type, function, memory, global and export more: all old entries are as they were."""
    wasm = smith(seed, max_memories="1", min_uleb_size=str(1 + seed % 5))
    before = decode(wasm)
    kind = FuncType((I32, I64), (F64, I32))
    types, functions = len(before.types), len(before.func_types)
    made = enc.encode(before, {
        1: enc.appended(before, 1, [enc.func_type(kind)]),
        3: enc.appended(before, 3, [uleb(types)]),
        5: enc.appended(before, 5, [enc.limits(Limits(1, 3)), enc.limits(Limits(0, None))]),
        6: enc.appended(before, 6, [enc.global_entry(GlobalType(I64, True), b"\x42\x7f\x0b")]),
        7: enc.appended(before, 7, [enc.export_entry("__added", 0, functions)]),
        10: enc.appended(before, 10, [b"\3\0\0\x0b"]),
    })
    after = decode(made)
    validate(after)
    assert accepted_by_wasmtime(made) == ""
    assert after.types == [*before.types, kind]
    assert after.func_types == [*before.func_types, types]
    assert after.memories == [*before.memories, Limits(1, 3), Limits(0, None)]
    assert after.own_globals[:-1] == before.own_globals
    assert after.exports[:-1] == before.exports
    assert after.export("__added") == functions
    assert [made[b.start:b.end] for b in after.bodies[:-1]] == [wasm[b.start:b.end] for b in before.bodies]
    assert after.elems == before.elems
    assert after.datas == before.datas


def test_a_section_can_be_left_out_or_replaced() -> None:
    decoded = decode(module([b""]))
    without = decode(enc.encode(decoded, {7: None}))
    assert without.exports == []
    assert [s.id for s in without.sections] == [s.id for s in decoded.sections if s.id != 7]
    replaced = decode(enc.encode(decoded, {7: enc.vector([enc.export_entry("ö", 2, 1)])}))
    assert replaced.exports[0].name == "ö"
    started = decode(enc.encode(decoded, {8: b"\0"}))
    assert started.start == 0
    assert [s.id for s in started.sections] == [1, 3, 4, 5, 13, 6, 7, 8, 9, 12, 10, 11]
