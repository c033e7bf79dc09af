"""Bodies with other numbers of functions and globals: nothing else changes, whatever stands between."""

from __future__ import annotations

import pytest
from wasmtime import wat2wasm

from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import Module
from wasmckpt.wasm.opcodes import TABLE
from wasmckpt.wasm.renumber import Renumbered, Unmovable, renumber
from wasmckpt.wasm.validate import analyze

from ...support.samples import cases, names, sample

FAR = 1 << 20
"""More than a number of the samples, and longer."""
BOUND = {"memory.init", "data.drop", "table.init", "elem.drop", "ref.func"}


def bodies(module: Module) -> list[bytes]:
    return [module.data[body.start : body.end] for body in module.bodies]


@pytest.mark.parametrize("name", [name for name in names() if name not in ("sqlite", "lua", "primes")])
def test_there_and_back_is_the_identity(name: str) -> None:
    """Over all functions of a sample; those that name segments or functions as values say so."""
    module = decode(sample(name, cases(name)[0]).wasm)
    for func, body in enumerate(bodies(module), module.imported_funcs):
        code = analyze(module, func)
        bound = {TABLE[op].name for op in code.ops} & BOUND
        if bound:
            with pytest.raises(Unmovable) as refused:
                renumber(body, lambda f: f, lambda g: g)
            assert refused.value.fields["need"] in bound
            continue
        called = [imm for op, imm in zip(code.ops, code.imms, strict=True) if op in (0x10, 0x12)]
        apart = Renumbered(body)
        assert list(apart.functions) == list(dict.fromkeys(called))
        moved = apart.with_numbers(lambda f: f + FAR, lambda g: g + FAR)
        back = renumber(moved, lambda f: f - FAR, lambda g: g - FAR)
        assert renumber(back, lambda f: f, lambda g: g) == back
        assert len(back) <= len(body)
        assert back == body or len(back) < len(body)  # padded numbers come back in their shortest form


TEXT = """(module (memory 1) (memory $n 1) (table $t 4 funcref) (global $g (mut i32) (i32.const 0)) (tag $e (param i32))
  (data $d "abc") (elem $s func $f) (func $f (param i32)) (func $main {}))"""


@pytest.mark.parametrize("code", [
    "(i32.store $n offset=0x102324 (i32.const 0x2310) (i32.load $n (i32.const 0x1023)))",
    "(f32.const 0x1.1023p4) drop (f64.const 0x1.10231023p4) drop (i64.const 0x1023102310231023) drop",
    "(v128.const i32x4 0x10231023 0x23102310 0x12341210 0x24232310) (i8x16.shuffle 16 16 16 1 2 3 4 5 6 7 8 9 0 1 2 3 "
    "(v128.const i32x4 0 0 0 0)) drop (v128.load8_lane $n offset=16 3 (i32.const 1) (v128.const i32x4 0 0 0 0)) drop",
    "(block (br_table 0 0 0 0 (i32.const 16))) (loop (result i32) (i32.const 16)) drop",
    "(select (result funcref) (ref.null func) (ref.null func) (i32.const 1)) drop",
    "(block $b (result i32) (try_table (catch $e $b) (catch_all 1) (i32.const 16) (throw $e)) (i32.const 1)) drop",
    "(memory.copy $n 0 (i32.const 0) (i32.const 0) (i32.const 0)) (memory.fill $n (i32.const 1) (i32.const 2) "
    "(i32.const 3)) (table.size $t) drop (i32.trunc_sat_f64_s (f64.const 16)) drop",
    "(call_indirect $t (param i32) (i32.const 16) (i32.const 1))", "(drop (i32.atomic.load offset=16 (i32.const 16)))",
])
def test_what_looks_like_a_call_is_left_alone(code: str) -> None:
    """Immediates of all forms, with the bytes of calls and of globals in them."""
    module = decode(bytes(wat2wasm(TEXT.format(f"(call $f (global.get $g)) {code} (global.set $g (i32.const 16)) "
                                               "(return_call $f (i32.const 35))"))))
    body = bodies(module)[1]
    moved = renumber(body, lambda f: {0: 300}[f], lambda g: {0: 200}[g])
    assert moved != body
    assert len(moved) == len(body) + 4
    assert renumber(moved, lambda f: {300: 0}[f], lambda g: {200: 0}[g]) == body


@pytest.mark.parametrize(("name", "code"), [
    ("memory.init", "(memory.init $d (i32.const 0) (i32.const 0) (i32.const 0))"), ("data.drop", "data.drop $d"),
    ("table.init", "(table.init $t $s (i32.const 0) (i32.const 0) (i32.const 0))"), ("elem.drop", "elem.drop $s"),
    ("ref.func", "(drop (ref.func $f))"),
])
def test_what_only_its_module_has_is_refused(name: str, code: str) -> None:
    module = decode(bytes(wat2wasm(TEXT.format(code))))
    with pytest.raises(Unmovable, match=name.replace(".", r"\.")):
        renumber(bodies(module)[1], lambda f: f, lambda g: g)
