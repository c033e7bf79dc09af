"""The neutral module does what the original does, validates, and its map of offsets is exact."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import wasmtime
from wasmtime import wat2wasm

from wasmckpt.errors import NotSupported
from wasmckpt.instrument.cache import cached_instrument
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.neutral.build import Neutral, neutralize
from wasmckpt.instrument.neutral.plan import NEUTRAL, make_plan
from wasmckpt.instrument.options import Options
from wasmckpt.wasm.codes import Codes
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import Module
from wasmckpt.wasm.validate import validate
from wasmckpt.wasm.values import EXNREF, F32, F64, I32, I64, REFERENCES, V128

from ...support.samples import sample
from ...support.tiers import by_tier
from ..wasm.generated import smith

SEEDS = by_tier(check=10, test=120, soak=3000)


def analyzed(module: Module) -> Codes:
    validate(module)
    return Codes(module)


def made_neutral(wasm: bytes) -> tuple[Module, Codes, Neutral | None]:
    module = decode(wasm)
    codes = analyzed(module)
    return module, codes, neutralize(module, codes, {})


def check(module: Module, codes: Codes, neutral: Neutral) -> None:
    """No references are left where something could be frozen, indices are those of the original, offsets map."""
    made = neutral.module
    config = wasmtime.Config()
    config.wasm_multi_memory = config.wasm_tail_call = config.wasm_exceptions = True
    wasmtime.Module.validate(wasmtime.Store(wasmtime.Engine(config)).engine, made.data)
    again = analyzed(made)
    assert {item.kind.name for item in made.imports} <= {"FUNC"}
    assert all(kind.type not in REFERENCES for kind in made.globals)
    assert made.func_types[: len(module.func_types)] == module.func_types
    assert [(item.name, item.kind, item.index) for item in made.exports] == [
        (item.name, item.kind, item.index) for item in module.exports]
    for func, code in codes.items():
        types = [NEUTRAL.get(t, t) for t in module.local_types(func)]
        assert made.local_types(func)[: len(types)] == types
        assert not REFERENCES & {*types}
        there = set(again[func].pos)
        for i, offset in enumerate(code.pos[:-1]):
            begin = neutral.neutral_offset(func, offset, in_call=False)
            assert begin in there
            assert neutral.original_offset(func, begin) == offset
            if i in code.calls:
                call = neutral.neutral_offset(func, offset, in_call=True)
                at = bisect_left(again[func].pos, call)
                assert again[func].ops[at] == code.ops[i]
                assert neutral.original_offset(func, call) == offset
                waiting = [entry & 255 for entry in code.calls[i][0]]
                assert [entry & 255 for entry in again[func].calls[at][0]] == [
                    NEUTRAL.get(t, t) for t in waiting]
                after = neutral.original_offset(func, again[func].pos[at + 1])
                assert after == code.pos[i + 1]
        for waiting_, _ in again[func].calls.values():
            assert not REFERENCES & {entry & 255 for entry in waiting_}


def test_modules_without_references_pass_untouched() -> None:
    """Nothing of it costs anything where it is not needed."""
    for name in ("fib", "matmul", "qsort", "vm"):
        module, _, neutral = made_neutral(sample(name, "tiny").wasm)
        assert neutral is None
        assert instrument(module, Options()).source is module


# What each operation does, on bare wasmtime

FUNCTIONS = """(type $t (func (result i32))) (type $r (func (param funcref) (result i32)))
  (type $n (func (param i32) (result i32))) (type $x (func (param externref) (result i32)))
  (func $f (type $t) i32.const 7) (func $g (type $t) i32.const 11) (func $h (type $r) (ref.is_null (local.get 0)))
  (func $i (type $n) (local.get 0)) (func $j (type $x) (ref.is_null (local.get 0)))
  (elem $p func $f $g $h) (elem $q funcref (ref.null func) (ref.func $i) (global.get $k))
  (elem $e externref (ref.null extern))
  (elem declare func $f $g $h $i $j) (global $k funcref (ref.func $g)) (global $m (mut funcref) (ref.func $f))"""
ITEMS = ("(ref.func $f)", "(ref.func $g)", "(ref.func $h)", "(ref.func $i)", "(ref.func $j)", "(ref.null func)",
         "(global.get $m)", "(global.get $k)", "(table.get $a (i32.const 0))", "(table.get $b (i32.const 2))")


def operation(draw: random.Random) -> str:
    """One instruction on tables with operands that mostly fit."""
    def number(top: int = 6) -> str:
        return f"(i32.const {draw.choice((0, 1, 2, 3, draw.randrange(top), draw.randrange(top), top, -1))})"

    table, other = draw.choice("aab"), draw.choice("aab")
    item = draw.choice(ITEMS)
    segment = draw.choice(("$p", "$q", "0", "$p"))
    return draw.choice((
        f"(table.set ${table} {number()} {item})",
        f"(drop (table.grow ${table} {item} {number(9)}))",
        f"(table.fill ${table} {number()} {item} {number(8)})",
        f"(table.copy ${table} ${other} {number()} {number()} {number()})",
        f"(table.copy ${table} ${other} {number()} {number()} {number()})",
        f"(table.init ${table} {segment} {number()} {number(4)} {number(4)})",
        f"(global.set $m {item})",
        "elem.drop $p" if draw.random() < 0.1 else "nop",
        "(table.init $ext $e (i32.const 1) (i32.const 0) (i32.const 1))",
        f"(drop (table.grow $ext (ref.null extern) {number()}))",
    ))


def script(seed: int) -> tuple[bytes, list[str]]:
    """A module whose exports change tables and ask what is in them, and the calls to make."""
    draw = random.Random(seed)
    sizes = [draw.randrange(1, 5), draw.randrange(3, 6)]
    most = [draw.choice(("", str(size + draw.randrange(8)))) for size in sizes]
    tables = f"""(table $a {sizes[0]} {most[0]} funcref) (table $b {sizes[1]} {most[1]} funcref)
      (table $ext 2 externref) (table $real 2 funcref)
      (elem (table $a) (i32.const 0) func $g) (elem (table $real) (i32.const 0) func $f $i)"""
    parts = [tables, FUNCTIONS]
    calls = []
    for n in range(12):
        parts.append(f'(func (export "op{n}") {operation(draw)})')
        calls.append(f"op{n}")
    for table in ("a", "b", "ext", "real"):
        parts.append(f'(func (export "size {table}") (result i32) (table.size ${table}))')
        calls.append(f"size {table}")
    for table in ("a", "b", "real"):
        for kind, argument in (("t", ""), ("r", "(ref.null func)"), ("n", "(i32.const 5)"), ("x", "(ref.null extern)")):
            parts.append(f'(func (export "call {table} {kind}") (param i32) (result i32) '
                         f'(call_indirect ${table} (type ${kind}) {argument} (local.get 0)))')
            calls += [f"call {table} {kind}:{slot}" for slot in (*range(7), 12, -1)]
    return bytes(wat2wasm("(module " + " ".join(parts) + ")")), calls


def outcomes(wasm: bytes, calls: Sequence[str]) -> list[object]:
    config = wasmtime.Config()
    config.wasm_multi_memory = True
    store = wasmtime.Store(wasmtime.Engine(config))
    exports = wasmtime.Instance(store, wasmtime.Module(store.engine, wasm), []).exports(store)
    found: list[object] = []
    for call in calls:
        name, _, argument = call.partition(":")
        function = exports[name]
        assert isinstance(function, wasmtime.Func)
        try:
            found.append(function(store, *([int(argument)] if argument else [])))
        except wasmtime.Trap as trap:
            found.append(trap.trap_code)
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_operations_on_tables_do_the_same(seed: int) -> None:
    """After each: sizes, what a call through each slot returns or how it traps, by each of four types."""
    wasm, calls = script(seed)
    module, codes, neutral = made_neutral(wasm)
    assert neutral is not None
    check(module, codes, neutral)
    assert outcomes(neutral.module.data, calls) == outcomes(wasm, calls)


def test_the_scripts_reach_what_they_are_for() -> None:
    """Results, and each kind of trap, are among the outcomes of the scripts."""
    seen = [outcome for seed in range(10) for outcome in outcomes(*script(seed))]
    codes = {outcome for outcome in seen if isinstance(outcome, wasmtime.TrapCode)}
    assert codes == {wasmtime.TrapCode.TABLE_OUT_OF_BOUNDS, wasmtime.TrapCode.INDIRECT_CALL_TO_NULL,
                     wasmtime.TrapCode.BAD_SIGNATURE}
    assert sum(isinstance(outcome, int) for outcome in seen) > len(seen) // 20


@pytest.mark.parametrize("seed", range(by_tier(check=8, test=60, soak=3000)))
def test_generated_modules(seed: int) -> None:
    """Modules with anything in them: the neutral one is valid, offsets map both ways, and it does the same."""
    try:
        module, codes, neutral = made_neutral(smith(
            seed, max_memory32_bytes="1000000", canonicalize_nans="true", max_imports=str(seed % 2 * 5),
            **(EXCEPTIONS if seed % 3 == 0 else {"max_tables": "4", "max_table_elements": "1000"})))
    except NotSupported as refusal:
        if refusal.fields["need"] not in ("imported reference", "a huge table", "exceptions"):
            raise
        return
    if neutral:
        check(module, codes, neutral)
        if not module.imports:
            for one, other in zip(lives(module, module), lives(module, neutral.module), strict=False):
                assert one == other


EXCEPTIONS = {"exceptions_enabled": "true", "max_tables": "0", "min_tables": "0", "min_element_segments": "0",
              "max_element_segments": "0", "min_tags": "1", "max_tags": "3"}
VALUES = {I32: 5, I64: 7, F32: 1.5, F64: 2.5}


def lives(original: Module, run: Module) -> Iterator[object]:
    """What the exports of a module give, one after the other, until its fuel is used up; then what it holds."""
    config = wasmtime.Config()
    config.wasm_multi_memory = config.wasm_tail_call = config.wasm_exceptions = config.consume_fuel = True
    store = wasmtime.Store(wasmtime.Engine(config))
    store.set_fuel(2_000_000)
    null = None if run is original else 0
    try:
        exports = wasmtime.Instance(store, wasmtime.Module(store.engine, run.data), []).exports(store)
    except wasmtime.Trap as trap:
        yield trap.trap_code
        return
    except wasmtime.WasmtimeError as error:  # the start function's exception
        yield str(error).splitlines()[-1].strip()
        return
    for item in original.exports:
        found = exports[item.name]
        if isinstance(found, wasmtime.Func):
            kind = original.signature(item.index)
            if {V128, EXNREF} & {*kind.params, *kind.results}:
                continue
            try:
                made = found(store, *[VALUES.get(t, null) for t in kind.params])
            except wasmtime.WasmtimeError as error:  # an exception that nobody catches
                yield str(error).splitlines()[-1].strip()
            except wasmtime.Trap as trap:
                if trap.trap_code == wasmtime.TrapCode.OUT_OF_FUEL:
                    return
                yield trap.trap_code
            else:
                values = [] if not kind.results else [made] if len(kind.results) == 1 else made
                yield [shown(t, value) for t, value in zip(kind.results, values, strict=True)]
        elif isinstance(found, wasmtime.Memory):
            yield found.read(store, 0, found.data_len(store))
        elif isinstance(found, wasmtime.Global) and original.globals[item.index].type not in (V128, EXNREF):
            value = found.value(store)
            yield shown(original.globals[item.index].type, value.value if isinstance(value, wasmtime.Val) else value)


def shown(kind: int, value: object) -> str:
    """A value, of a reference whether it is null."""
    return ("a reference" if value else "null") if kind in REFERENCES else repr(value)


def test_only_what_must_be_becomes_an_array() -> None:
    """A table that is only called through stays, unless types that differ by references only meet in it."""
    text = """(module (type $n (func (param i32))) (type $r (func (param funcref)))
      (table $calls 2 funcref) (table $changed 2 funcref) (elem (table $calls) (i32.const 0) func $f)
      (func $f (type {}) (call_indirect $calls (type $n) (i32.const 1) (i32.const 0))
        (table.set $changed (i32.const 0) (ref.func $f))))"""
    for kind, arrays in (("$n", (1,)), ("$r", (0, 1))):
        module = decode(bytes(wat2wasm(text.format(kind).replace("(type $r (func (param funcref)))", "")
                                       if kind == "$n" else text.format(kind))))
        plan = make_plan(module, analyzed(module))
        assert plan is not None
        assert plan.tables == arrays


def test_pack_and_unpack() -> None:
    wasm, _ = script(3)
    module, _, neutral = made_neutral(wasm)
    assert neutral is not None
    again = Neutral.unpack(module, neutral.pack())
    assert again.pack() == neutral.pack()
    assert again.offsets.keys() == neutral.offsets.keys()
    for func, code in analyzed(module).items():
        for offset in code.pos:
            for in_call in (False, True):
                assert again.neutral_offset(func, offset, in_call=in_call) == neutral.neutral_offset(
                    func, offset, in_call=in_call)


def test_the_cache_keeps_it(tmp_path: Path) -> None:
    """What comes from the cache knows the original, and has the same code."""
    wasm, _ = script(5)
    first = cached_instrument(wasm, Options(), tmp_path)
    second = cached_instrument(wasm, Options(), tmp_path)
    assert second.wasm == first.wasm
    assert second.source.data == wasm
    assert second.neutral is not None
    assert second.neutral.module.data == first.module.data
    assert not second.codes
    assert second.features == first.features


def test_values_of_imported_globals_are_part_of_the_key(tmp_path: Path) -> None:
    """They are constants of the neutral module."""
    wasm = bytes(wat2wasm('(module (import "e" "g" (global (mut i32))) (func (result i32) global.get 0))'))
    one = cached_instrument(wasm, Options(), tmp_path, imported={0: 1})
    two = cached_instrument(wasm, Options(), tmp_path, imported={0: 2})
    assert one.wasm != two.wasm
    assert cached_instrument(wasm, Options(), tmp_path, imported={0: 1}).wasm == one.wasm
