"""The validator: it judges as wasmtime does, and the reference interpreter finds the same types at each offset."""

from __future__ import annotations

import contextlib

import pytest

from wasmckpt.errors import InvalidModule, NotSupported
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import Module
from wasmckpt.wasm.validate import analyze, validate
from wasmckpt.wasm.values import F32, F64, FUNCREF, I32, I64

from ...spec.counts import load, sampled
from ...support.interpreter.code import compile_function
from ...support.spec import AssertFailsToLoad, LoadModule
from ...support.tiers import by_tier
from .generated import accepted_by_wasmtime, flipped, mutated, smith
from .modules import module

SEEDS = range(by_tier(check=12, test=150, soak=3000))


class Everything:
    """A container of all offsets."""

    def __contains__(self, offset: object) -> bool:
        return True


def same_types(wasm: bytes) -> int:
    """Compare operand types at every instruction of every function; returns the number of instructions."""
    decoded = decode(wasm)
    count = 0
    for func in range(decoded.imported_funcs, len(decoded.func_types)):
        ours = analyze(decoded, func, Everything())
        theirs = compile_function(decoded, func)
        assert list(ours.watched) == ours.pos[:-1] == theirs.offsets
        for offset, types in zip(theirs.offsets, theirs.types, strict=True):
            assert ours.watched[offset] == types, f"function {func}, offset {offset:#x}"
        body = decoded.body(func)
        assert ours.pos[-1] == body.end - body.expr
        same_places(decoded, func)
        count += len(theirs.offsets)
    return count


def same_places(decoded: Module, func: int) -> None:
    """Loops and calls that the validator lists are those that can be reached, with the types found there."""
    ours, theirs = analyze(decoded, func), compile_function(decoded, func)
    loops = {i for i, op in enumerate(ours.ops) if op == 0x03 and theirs.types[i] is not None}
    assert set(ours.loops) == loops
    for i, stack in ours.loops.items():
        assert tuple(entry & 255 for entry in stack) == theirs.types[i + 1]
    calls = {i for i, op in enumerate(ours.ops) if op in (0x10, 0x11) and theirs.types[i] is not None}
    assert set(ours.calls) == calls
    for i, (waiting, arguments) in ours.calls.items():
        assert tuple(entry & 255 for entry in (*waiting, *arguments)) == theirs.types[i]
    assert set(ours.tail_calls) <= {i for i, op in enumerate(ours.ops) if op in (0x12, 0x13)}
    for opening, closing in ours.match.items():
        assert ours.ops[closing] in (0x05, 0x0B)
        assert opening < closing


@pytest.mark.parametrize("seed", SEEDS)
def test_generated_modules_are_valid_with_the_same_types(seed: int) -> None:
    wasm = smith(seed)
    assert accepted_by_wasmtime(wasm) == ""
    validate(decode(wasm))
    same_types(wasm)


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_mutated_modules_are_judged_as_by_wasmtime(seed: int) -> None:
    """A mutation keeps a module valid; two bytes changed in it mostly do not."""
    wasm = smith(seed, max_instructions="100")
    for step in range(4):
        wasm = mutated(wasm, seed + step) or wasm
        assert accepted_by_wasmtime(wasm) == ""
        validate(decode(wasm))
        same_types(wasm)
        for i in range(10):
            changed = flipped(wasm, i)
            try:
                validate(decode(changed))
                ours = True
            except (InvalidModule, NotSupported):
                ours = False
            assert ours == (accepted_by_wasmtime(changed) == ""), f"seed {seed}, step {step}, flip {i}"


@pytest.mark.parametrize("seed", SEEDS[::3])
def test_functions_of_random_bytes_are_judged_as_by_wasmtime(seed: int) -> None:
    wasm = smith(seed, allow_invalid_funcs="true", max_instructions="60")
    try:
        validate(decode(wasm))
        ours = ""
    except (InvalidModule, NotSupported) as error:
        ours = str(error)
    assert (ours == "") == (accepted_by_wasmtime(wasm) == ""), ours


@pytest.mark.parametrize("key", sampled(check=12))
def test_types_in_the_suite(key: str) -> None:
    for command in load(key).commands:
        if isinstance(command, LoadModule | AssertFailsToLoad):
            with contextlib.suppress(NotSupported):  # of GC; how many these are is on record in spec/counts.json
                same_types(command.wasm)


@pytest.mark.parametrize(("body", "offset", "types"), [
    (b"\x42\0\x41\0\x04\x7e\x42\1\x05\x42\2\x0b\x1a\x1a", 4, (I64, I32)),  # at the if
    (b"\x42\0\x41\0\x04\x7e\x42\1\x05\x42\2\x0b\x1a\x1a", 6, (I64,)),  # in it
    (b"\x42\0\x41\0\x04\x7e\x42\1\x05\x42\2\x0b\x1a\x1a", 8, (I64, I64)),  # at else
    (b"\x42\0\x41\0\x04\x7e\x42\1\x05\x42\2\x0b\x1a\x1a", 9, (I64,)),  # behind else
    (b"\x42\0\x41\0\x04\x7e\x42\1\x05\x42\2\x0b\x1a\x1a", 12, (I64, I64)),  # behind end
    (b"\x42\0\x0c\0\x1a", 4, None),  # behind a branch
    (b"\x02\x40\x00\x0b\x01", 3, None),  # at an end that is reached by no one
    (b"\x02\x40\x00\x0b\x01", 4, ()),  # behind it
    (b"\x02\x7f\x00\x0b\x1a", 4, (I32,)),
    (b"\x20\2\x20\5\x1a\x1a", 2, (F32,)),
    (b"\x20\2\x20\5\x1a\x1a", 4, (F32, FUNCREF)),
    (b"\x20\3\x20\3\x41\0\x1b\x1a", 7, (F64,)),
])
def test_types_at_offsets(body: bytes, offset: int, types: tuple[int, ...] | None) -> None:
    decoded = decode(module([body]))
    assert analyze(decoded, 0, {offset}).watched == {offset: types}


def test_offsets_that_no_instruction_starts_at_are_not_answered() -> None:
    decoded = decode(module([b"\x41\xff\xff\xff\x0f\x1a"]))
    assert list(analyze(decoded, 0, range(20)).watched) == [0, 5, 6]


def test_errors_say_where() -> None:
    wasm = module([b"", b"\x01\x01\x6a"])
    with pytest.raises(InvalidModule) as caught:
        validate(decode(wasm))
    assert caught.value.fields["function"] == 1
    assert wasm[int(str(caught.value.fields["offset"]))] == 0x6A


@pytest.mark.parametrize(("body", "need"), [
    (b"\x06\x40\x0b", "legacy-exceptions"), (b"\x18\0", "legacy-exceptions"),
    (b"\xd0\x6e\x1a", "gc"), (b"\xfb\0\0\x1a", "gc"), (b"\x14\0", "gc"),
    (b"\xfd\x80\x02", "relaxed-simd"), (b"\xfe\x7f", "threads"), (b"\xfc\x13", "wide-arithmetic"),
])
def test_unsupported_instructions_are_named(body: bytes, need: str) -> None:
    with pytest.raises(NotSupported) as caught:
        validate(decode(module([body])))
    assert caught.value.fields["need"] == need
    assert caught.value.fields["function"] == 0
    assert "offset" in caught.value.fields
