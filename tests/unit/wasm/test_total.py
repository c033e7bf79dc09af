"""Reading is total: any bytes give a module, `InvalidModule` or `NotSupported`, nothing else, and soon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.errors import InvalidModule, NotSupported
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.encode import encode
from wasmckpt.wasm.leb128 import uleb
from wasmckpt.wasm.validate import validate

from ...support.tiers import by_tier
from .generated import accepted_by_wasmtime, flipped, smith
from .modules import module

PREAMBLE = b"\0asm\1\0\0\0"

RANDOM_SECTIONS = st.lists(st.tuples(st.integers(0, 14), st.binary(max_size=40)), max_size=8).map(
    lambda sections: PREAMBLE + b"".join(bytes([n]) + uleb(len(raw)) + raw for n, raw in sections))


def outcome(wasm: bytes) -> str:
    """Read, validate and write; an error says where, and its offset lies in the module."""
    try:
        decoded = decode(wasm)
        validate(decoded)
    except (InvalidModule, NotSupported) as error:
        offset = error.fields.get("offset", 0)
        assert isinstance(offset, int)
        assert 0 <= offset <= len(wasm)
        str(error)
        return type(error).__name__
    assert encode(decoded, {}) == wasm
    return ""


@given(st.binary(max_size=200))
def test_random_bytes(wasm: bytes) -> None:
    outcome(wasm)
    outcome(PREAMBLE + wasm)


@given(RANDOM_SECTIONS)
def test_random_sections(wasm: bytes) -> None:
    assert (outcome(wasm) == "") == (accepted_by_wasmtime(wasm) == "")


@given(st.binary(max_size=60))
def test_random_bodies(body: bytes) -> None:
    wasm = module([body])
    assert (outcome(wasm) == "") == (accepted_by_wasmtime(wasm) == "")


@pytest.mark.parametrize("seed", range(by_tier(check=6, test=40, soak=200)))
def test_flipped_bytes_are_judged_as_by_wasmtime(seed: int) -> None:
    wasm = smith(seed, max_instructions="60")
    for i in range(by_tier(check=30, test=100, soak=500)):
        changed = flipped(wasm, i)
        ours, theirs = outcome(changed), accepted_by_wasmtime(changed)
        assert (ours == "") == (theirs == ""), f"seed {seed}, flip {i}: ours {ours!r}, wasmtime {theirs!r}"


@pytest.mark.parametrize("seed", range(by_tier(check=2, test=10, soak=100)))
def test_cut_short_at_every_byte(seed: int) -> None:
    wasm = smith(seed, max_instructions="30", max_funcs="4")
    for size in range(len(wasm)):
        outcome(wasm[:size])
    assert outcome(wasm) == ""


@pytest.mark.parametrize("number", [*range(1, 14)])
def test_an_announced_count_costs_nothing(number: int) -> None:
    """Four billion items announced in a section of a few bytes: refused before memory is taken for them."""
    for count in (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\x7f"):
        for rest in (b"", bytes(20)):
            content = count + rest
            assert outcome(PREAMBLE + bytes([number]) + uleb(len(content)) + content) != ""


def test_an_announced_count_in_a_body_costs_nothing() -> None:
    huge = b"\xff\xff\xff\xff\x0f"
    for body in (b"\x41\0\x0e" + huge, b"\x41\0\x0e" + huge + bytes(50), b"\x1c" + huge):
        assert outcome(module([body])) == "InvalidModule"
    for declared in (b"\1" + huge + b"\x7f", b"\2" + huge + b"\x7f" + huge + b"\x7f", huge):
        wasm = PREAMBLE + b"\1\4\1\x60\0\0" + b"\3\2\1\0"
        content = declared + b"\x0b"
        code = b"\1" + uleb(len(content)) + content
        assert outcome(wasm + b"\x0a" + uleb(len(code)) + code) == "InvalidModule"


def test_deep_nesting_is_no_recursion() -> None:
    for opener in (b"\x02\x40", b"\x03\x40", b"\x41\0\x04\x40"):
        assert outcome(module([opener * 50_000 + b"\x0b" * 50_000])) == ""
