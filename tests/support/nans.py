"""A module that does every instruction with open NaNs on many bit patterns, and what comes out of it."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Sequence
from functools import cache

from wasmtime import wat2wasm

from wasmckpt import runtimes
from wasmckpt.instrument.linker import PREFIX
from wasmckpt.instrument.nans import MAKING_NANS
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import run_in_guest_thread
from wasmckpt.snapshot.program import Host, Program, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.opcodes import TABLE
from wasmckpt.wasm.values import F32, F64, V128

__all__ = ["MOVING", "SLOT", "module", "operations", "outcomes", "patterns"]

SLOT = 16
"""Bytes of an operand and of a result."""
MOVING = ("f32.neg", "f32.abs", "f32.copysign", "f64.neg", "f64.abs", "f64.copysign")
_MOVING_VECTORS = tuple(f"{shape}.{name}" for shape in ("f32x4", "f64x2") for name in ("neg", "abs", "pmin", "pmax"))
"""Instructions that must keep the bits that they are given."""
_RESULTS = 1 << 17


def operations(*, vectors: bool, moving: bool = False) -> list[str]:
    """Names of the instructions that make NaNs; or of those that only move bits."""
    if moving:
        return [*MOVING, *(_MOVING_VECTORS if vectors else ())]
    return [TABLE[code].name for code in MAKING_NANS if vectors or code < 0xFD0000]


def patterns(seed: int, count: int) -> list[bytes]:
    """Pairs of operands, 32 bytes each: special values and random bits, with many NaNs of all kinds among them."""
    rng = random.Random(seed)
    special32 = (0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFA00000, 0x3F800000,
                 0xBF800000, 0x7F7FFFFF, 1)
    special64 = (0, 1 << 63, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, 0xFFF8 << 48, (0x7FF << 52) + 1,
                 0xFFF4 << 48, 0x3FF << 52, 0xBFF << 52, (0x7FF << 52) - 1, 1)

    def lanes() -> bytes:
        kind = rng.randrange(4)
        if kind == 0:
            return b"".join(struct.pack("<I", rng.choice(special32)) for _ in range(4))
        if kind == 1:
            return b"".join(struct.pack("<Q", rng.choice(special64)) for _ in range(2))
        if kind == 2:  # NaNs, quiet and signalling, with random payloads
            return b"".join(struct.pack("<Q", rng.choice((0x7FF, 0xFFF)) << 52 | rng.getrandbits(52)) for _ in range(2))
        return rng.randbytes(16)

    return [lanes() + lanes() for _ in range(count)]


@cache
def module(seed: int, count: int, names: Sequence[str]) -> bytes:
    """Its export ``run`` does each of the instructions ``names`` on each pair; results from address 128 KiB on."""
    data = b"".join(patterns(seed, count))
    assert len(data) <= _RESULTS
    assert len(names) * count * SLOT <= 7 * _RESULTS
    ops = {op.name: op for op in TABLE.values()}
    words = {F32: "f32", F64: "f64", V128: "v128"}
    body = []
    for n, name in enumerate(names):
        op = ops[name]
        assert op.pops
        assert op.pushes
        operands = " ".join(f"({words[kind]}.load offset={SLOT * k} (local.get $p))" for k, kind in enumerate(op.pops))
        body.append(f"""
          (local.set $p (i32.const 0)) (local.set $q (i32.const {_RESULTS + n * count * SLOT}))
          (loop $l
            ({words[op.pushes[0]]}.store (local.get $q) ({name} {operands}))
            (local.set $p (i32.add (local.get $p) (i32.const {2 * SLOT})))
            (local.set $q (i32.add (local.get $q) (i32.const {SLOT})))
            (br_if $l (i32.lt_u (local.get $p) (i32.const {len(data)}))))""")
    text = "".join(f"\\{byte:02x}" for byte in data)
    return bytes(wat2wasm(f"""(module (memory (export "memory") 17) (data (i32.const 0) "{text}")
      (func (export "run") (local $p i32) (local $q i32) {"".join(body)}))"""))


def outcomes(wasm: bytes, count: int, engine_name: str, canonical: bool) -> bytes:
    """What all instructions made of all pairs, on a runtime of this process."""
    engine = runtimes.load(engine_name)
    entry = entry_for(decode(wasm), "run")
    with contextlib.closing(
        Program.fresh(engine, wasm, Host(), entry, options=Options(canonical_nans=canonical))
    ) as program:
        run_in_guest_thread(program.run, stack_bytes=engine.thread_stack_bytes(program.stack_bytes))
        return program.instance.memory(PREFIX + "memory0").read(_RESULTS, count * SLOT)
