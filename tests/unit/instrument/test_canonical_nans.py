"""Canonical NaNs: the same bits as the compiler's own option gives, on every runtime; nothing else changes."""

from __future__ import annotations

import itertools

import pytest
import wasmtime

from wasmckpt import runtimes
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.nans import CANONICAL, MAKING_NANS
from wasmckpt.instrument.options import Options
from wasmckpt.wasm.opcodes import BY_NAME, TABLE
from wasmckpt.wasm.values import F32, V128

from ...support.nans import SLOT, module, operations, outcomes
from ...support.pairs import SEED, runtimes_for
from ...support.samples import sample
from ...support.tiers import by_tier

COUNT = by_tier(check=60, test=1_000, soak=4_000)


def oracle(wasm: bytes, size: int, *, canonical: bool) -> bytes:
    """Bare wasmtime with its own way of making NaNs canonical; nothing of ours in it."""
    config = wasmtime.Config()
    config.cranelift_nan_canonicalization = canonical
    store = wasmtime.Store(wasmtime.Engine(config))
    exports = wasmtime.Instance(store, wasmtime.Module(store.engine, wasm), []).exports(store)
    run, memory = exports["run"], exports["memory"]
    assert isinstance(run, wasmtime.Func)
    assert isinstance(memory, wasmtime.Memory)
    run(store)
    return bytes(memory.read(store, 1 << 17, (1 << 17) + size))


def has_vectors(engine: str) -> bool:
    return "simd" in runtimes.load(engine).capabilities.features


@pytest.mark.parametrize("engine", runtimes_for())
def test_every_instruction_on_random_bits(engine: str) -> None:
    """All have the bits of the compiler's own option, whichever runtime it is. Without it some have not."""
    print(f"seed {SEED}")
    names = tuple(operations(vectors=has_vectors(engine)))
    parts = 1 if COUNT * len(names) * SLOT <= 7 << 17 else -(-COUNT * len(names) * SLOT // (7 << 17))
    differ: set[str] = set()
    for part in range(parts):
        some = names[part * len(names) // parts:(part + 1) * len(names) // parts]
        wasm = module(SEED, COUNT, some)
        size = COUNT * SLOT * len(some)
        expected = oracle(wasm, size, canonical=True)
        got = outcomes(wasm, COUNT * len(some), engine, True)
        for n, name in enumerate(some):
            at = slice(n * COUNT * SLOT, (n + 1) * COUNT * SLOT)
            assert got[at] == expected[at], (name, engine)
        plain = outcomes(wasm, COUNT * len(some), engine, False)
        step = COUNT * SLOT
        differ |= {name for n, name in enumerate(some)
                   if plain[n * step:(n + 1) * step] != expected[n * step:(n + 1) * step]}
    assert {"f32.div", "f64.div", "f32.sub", "f64.sqrt"} <= differ  # else this could not fail


@pytest.mark.parametrize("engine", runtimes_for())
def test_what_only_moves_bits_is_left_alone(engine: str) -> None:
    """neg, abs, copysign, pmin, pmax: not one byte of the rewritten function is added, no bit differs."""
    names = tuple(operations(vectors=has_vectors(engine), moving=True))
    wasm = module(SEED, COUNT, names)
    can = runtimes.load(engine).capabilities
    made = [instrument(wasm, Options(poll=can.poll, canonical_nans=wanted)).wasm for wanted in (True, False)]
    assert made[0] == made[1]


def test_each_instruction_that_makes_nans_is_known() -> None:
    """By the opcode table: all with floats in and out, but those that move bits, convert integers, or only compare."""
    moving = ("abs", "neg", "copysign", "pmin", "pmax", "load", "const", "splat", "replace_lane", "extract_lane",
              "reinterpret", "convert")
    comparing = ("eq", "ne", "lt", "gt", "le", "ge")
    shapes = ("f32", "f64", "f32x4", "f64x2")
    found = {op.code for op in TABLE.values() if op.name.partition(".")[0] in shapes and "store" not in op.name
             and op.name.partition(".")[2] not in comparing and not op.name.partition(".")[2].startswith(moving)}
    assert found == MAKING_NANS.keys()


CONSUMERS = ("f64.add", "f64.sqrt", "f64.neg", "f64.lt", "i32.trunc_sat_f64_s", "i64.reinterpret_f64", "f32.demote_f64",
             "f64.copysign", "f64.min")


@pytest.mark.parametrize(("first", "second"), list(itertools.product(("f64.div", "f64.sub", "f64.max"), CONSUMERS)))
def test_chains(first: str, second: str) -> None:
    """One after another, without a local between: as the compiler's own option does it, for zeros, infinities, NaNs."""
    op = BY_NAME[second]
    assert op.pops
    assert op.pushes
    word = {0x7F: "i32", 0x7E: "i64", 0x7D: "f32", 0x7C: "f64"}[op.pushes[0]]
    one = f"({first} (f64.load (local.get $p)) (f64.load offset=16 (local.get $p)))"
    other = "(f64.load offset=8 (local.get $p))" if len(op.pops) == 2 else ""
    base = module(SEED, 200, ("f64.add",))
    text = "".join(f"\\{byte:02x}" for byte in _data(base))
    wasm = bytes(wasmtime.wat2wasm(f"""(module (memory (export "memory") 17) (data (i32.const 0) "{text}")
      (func (export "run") (local $p i32) (local $q i32) (local.set $q (i32.const {1 << 17}))
        (loop $l
          ({word}.store (local.get $q) ({second} {one} {other}))
          ({word}.store offset=8 (local.get $q) ({second} {other or one} {one if other else ''}))
          (local.set $p (i32.add (local.get $p) (i32.const 32)))
          (local.set $q (i32.add (local.get $q) (i32.const 16)))
          (br_if $l (i32.lt_u (local.get $p) (i32.const 6400))))))"""))
    for engine in ("wasmtime", "wasm3"):
        assert outcomes(wasm, 200, engine, True) == oracle(wasm, 200 * SLOT, canonical=True), engine


def _data(wasm: bytes) -> bytes:
    from wasmckpt.wasm.decode import decode

    return bytes(decode(wasm).datas[0].data)


def test_the_bits() -> None:
    assert CANONICAL[F32] == 0x7FC00000
    assert all(TABLE[code].pushes in ((F32,), (0x7C,), (V128,)) for code in MAKING_NANS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nbody", "matmul", "raytrace"])
def test_safepoints_keep_their_original_offsets(name: str) -> None:
    """The same safepoints, in the same order, with the same values: what is added moves none of them."""
    wasm = sample(name, "tiny").wasm
    sites = [
        [(site.func, site.offset, site.after, site.locals, site.stack) for site in instrument(
            wasm, Options(canonical_nans=wanted)).sites]
        for wanted in (True, False)
    ]
    assert sites[0] == sites[1]
    assert sites[0]
