"""Programs frozen in the middle, exported as modules, go on where nobody knows of us: on wasmtime, Node and WasmEdge
with their own WASI. What came out before and after is, put together, what the undisturbed program writes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from wasmckpt.errors import NotSupported
from wasmckpt.interop import Exported, export
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import I32

from ..matrix.check import positions, safepoints
from ..support.pairs import SEED, runtimes_of
from ..support.partner import REFERENCE
from ..support.samples import Sample, cases, names, sample
from ..support.tiers import TIER, by_tier
from .frozen import Frozen, freeze
from .plain import RUNNERS, run_plainly, valid

QUICK = (("fib", "tiny"), ("exits", "default"))
LEFT_OUT = {
    "wordcount": "it has files open nearly all the time: see test_losses", "append": "as wordcount",
    "stock": "as wordcount",
    "time": "what it writes depends on clocks that go on", "threaded": "it is refused",
}
CONSTANTS = ("imported", "shift", "extended")
"""They import constants, see test_edges."""
CHANGING = ("primes", "lua")
"""How many safepoints they pass depends on clocks and random numbers."""
LARGE = ("sqlite", "lua", "primes", "stock", "bank")


def commands() -> Iterator[object]:
    for name in names(kind="command"):
        if name in LEFT_OUT:
            continue
        for case in (["tiny"] if "tiny" in cases(name) else [c for c in cases(name) if c != "large"]):
            marks = [] if (name, case) in QUICK else [pytest.mark.soak] if name in LARGE[:3] else [pytest.mark.slow]
            yield pytest.param(name, case, id=f"{name}-{case}", marks=marks)


def count_of(program: Sample, folder: Path) -> int:
    from ..support.moving import World

    def world() -> World:
        folder.mkdir(exist_ok=True)
        return World(program, folder=folder)

    return safepoints(program.wasm, "wasmtime", sample=program, world=world)


def export_checked(frozen: Frozen, **more: object) -> Exported:
    """Exported; valid to somebody else; the original's functions are in it, byte for byte."""
    made = export(frozen.image, frozen.wasm, **more)  # type: ignore[arg-type]
    valid(made.wasm)
    before, after = decode(frozen.wasm), decode(made.wasm)
    for one, other in zip(before.bodies, after.bodies, strict=False):
        assert before.data[one.start:one.end] == after.data[other.start:other.end]
    assert after.start is None
    assert len(after.memories) == max(1, len(before.memories)) or not frozen.image.frames or made.multi_memory
    return made


@pytest.mark.parametrize(("name", "case"), list(commands()))
def test_a_command_goes_on(name: str, case: str, tmp_path: Path) -> None:
    """Frozen at several points on several runtimes, finished on the three that have a WASI of their own."""
    program = sample(name, case)
    count = count_of(program, tmp_path / "count")
    if name in CHANGING:
        count = count * 3 // 4
    sources = [*runtimes_of(name), *([REFERENCE] if name not in LARGE else [])]
    draw = random.Random(f"{SEED} {name}")
    for number, nth in enumerate(positions(count, by_tier(check=2, test=2, soak=12), SEED)):
        engine = draw.choice(sources) if TIER != "check" else ("wasmtime", "wasm3")[number % 2]
        folder = tmp_path / f"source{number}"
        folder.mkdir()
        try:
            frozen = freeze(program.wasm, engine, nth, sample=program, folder=folder)
        except AssertionError:
            assert engine == REFERENCE, "it counts otherwise"
            continue
        if any(item["kind"] == "file" for item in frozen.image.host["descriptors"]):  # type: ignore[attr-defined]
            with pytest.raises(NotSupported, match="is an open file"):
                export(frozen.image, frozen.wasm)
            continue
        made = export_checked(frozen)
        assert (made.entry, made.results, made.multi_memory) == ("_start", (), len(decode(program.wasm).memories) > 1)
        for runner in by_tier(check=RUNNERS[:2], test=(RUNNERS[0], RUNNERS[1 + number % 2]), soak=RUNNERS):
            target = tmp_path / f"target{number}{runner}"
            shutil.copytree(folder, target)
            left = replace(program, files={p.name: p.read_bytes() for p in folder.iterdir()})
            ended = run_plainly(runner, made.wasm, left, stdin=program.stdin[frozen.consumed:], folder=target)
            where = (runner, engine, nth, SEED)
            assert frozen.output + ended.output == program.stdout + program.stderr, where
            assert (ended.exit_code, ended.trapped) == (program.exit_code, program.traps), where
            for file, content in program.files_after.items():
                assert ended.files[file] == content, where


def modules() -> Iterator[object]:
    for name in names():
        program = [c for c in cases(name) if c in ("tiny", "default")][-1]
        if name not in CONSTANTS and sample_kind(name) != "command":
            marks = [] if name in ("multi", "start", "tables") else [pytest.mark.slow]
            yield pytest.param(name, program, id=name, marks=marks)


def sample_kind(name: str) -> str:
    from ..support.samples import manifest

    return str(manifest()[name].get("kind", "command"))


@pytest.mark.parametrize(("name", "case"), list(modules()))
def test_an_export_goes_on(name: str, case: str) -> None:
    """Of a plain module: an export `resume` gives the results of the one that had been called; on wasmtime and, where
    it knows the features, on Node. Start functions and `_initialize` in progress are finished first, or have been."""
    program = sample(name, case)
    call = program.calls[0]
    count = safepoints(program.wasm, "wasmtime", invoke=call.export, arguments=call.args, sample=program)
    engines = runtimes_of(name)
    for number, nth in enumerate(positions(count, by_tier(check=2, test=2, soak=12), SEED)):
        engine = engines[number % len(engines)]
        frozen = freeze(program.wasm, engine, nth, invoke=call.export, arguments=call.args, sample=program)
        made = export_checked(frozen)
        assert made.entry == "resume"
        assert made.results == tuple(value.type for value in call.results)
        wanted = tuple(value.bits for value in call.results)
        on_node = not {"multi-memory", "exceptions"} & program.features and all(
            value.type in (I32, 0x7E) for value in call.results
        )
        for runner in RUNNERS[: 1 + on_node]:
            ended = run_plainly(runner, made.wasm, program, invoke="resume")
            assert ended.results == wanted, (runner, engine, nth)
            if len(program.calls) == 1:
                log = tuple(v & 0xFFFFFFFF for v in program.host_log)
                assert frozen.log + ended.log == log, (runner, engine, nth)
