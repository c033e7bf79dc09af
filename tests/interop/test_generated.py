"""Random programs, frozen anywhere, exported, finished on bare wasmtime: the same results, traps, calls of the host and
memory as if they had never been stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import pytest
import wasmtime

from wasmckpt.errors import GuestTrap
from wasmckpt.interop import coredump, export
from wasmckpt.runtimes import run_in_guest_thread
from wasmckpt.wasm.values import I32, Value

from ..matrix.check import positions, safepoints
from ..matrix.generator import Shape, generate
from ..matrix.test_reference import begun
from ..support.moving import EVERYWHERE
from ..support.pairs import SEED, runtimes_for
from ..support.partner import REFERENCE
from ..support.tiers import by_tier
from .frozen import freeze
from .plain import valid

FIRST: Final = SEED
SHAPES: Final = {
    "scalars": Shape(), "no memory": Shape(memory=False, imports=False),
    "large": Shape(size=150, functions=6, fuel=120), "vectors": Shape(vectors=True, tail_calls=True),
}
ARGUMENT: Final = 5

Left = tuple[tuple[float, ...], str, tuple[int, ...], tuple[bytes, ...]]
"""Results, trap, what went to ``env.log``, memories."""


def run(wasm: bytes, export: str, arguments: Sequence[int]) -> Left:
    """On wasmtime, nothing of ours in it."""
    config = wasmtime.Config()
    config.wasm_tail_call = True
    store = wasmtime.Store(wasmtime.Engine(config))
    linker = wasmtime.Linker(store.engine)
    log: list[int] = []
    linker.define_func("env", "log", wasmtime.FuncType([wasmtime.ValType.i32()], []),
                       lambda value: log.append(value & 0xFFFFFFFF))
    exports = linker.instantiate(store, wasmtime.Module(store.engine, wasm)).exports(store)
    function = exports[export]
    assert isinstance(function, wasmtime.Func)
    results: tuple[float, ...] = ()
    trap = ""
    try:
        got = run_in_guest_thread(lambda: function(store, *arguments), stack_bytes=16 << 20)
        results = tuple(got) if isinstance(got, list) else (got,)
    except wasmtime.Trap as error:
        trap = str(error.trap_code.name if error.trap_code else error)
    memories = [item for item in exports.values() if isinstance(item, wasmtime.Memory)]
    return results, trap, tuple(log), tuple(
        bytes(memory.read(store, 0, memory.data_len(store))) for memory in memories
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.slow
def test_random_programs(shape: str) -> None:
    engines = [*runtimes_for({"simd", "tail-call"} if shape == "vectors" else ()), REFERENCE]
    stopped = 0
    for seed in range(FIRST, FIRST + by_tier(check=1, test=4, soak=100)):
        wasm = bytes(wasmtime.wat2wasm(generate(seed, SHAPES[shape])))
        expected = run(wasm, "run", [ARGUMENT])
        arguments = [Value(I32, ARGUMENT)]
        count = safepoints(wasm, "wasmtime", EVERYWHERE, invoke="run", arguments=arguments)
        for number, nth in enumerate(positions(count, by_tier(check=3, test=4, soak=20), seed)):
            engine = engines[(seed + number) % len(engines)]
            frozen = freeze(wasm, engine, nth, invoke="run", arguments=arguments, options=EVERYWHERE)
            made = export(frozen.image, wasm)
            where = (shape, seed, nth, engine)
            valid(made.wasm)
            results, trap, log, memories = run(made.wasm, "resume", [])
            assert (results, trap, frozen.log + log, memories) == expected, where
            valid(coredump(frozen.image, wasm))
            stopped += 1
    assert stopped


@pytest.mark.parametrize("seed", range(by_tier(check=2, test=4, soak=60)))
def test_images_from_any_instruction(seed: int) -> None:
    """Not only safepoints of ours: an image may name any place, as those of the reference interpreter do."""
    wasm = bytes(wasmtime.wat2wasm(generate(FIRST + seed, Shape(fuel=25))))
    expected = run(wasm, "run", [ARGUMENT])
    log: list[int] = []
    whole = begun(wasm, "run", [Value(I32, ARGUMENT)], log)
    with contextlib.suppress(GuestTrap):
        assert whole.run(10_000_000) == "done"
    for place in positions(whole.instructions - 1, by_tier(check=3, test=10, soak=100), seed):
        log = []
        machine = begun(wasm, "run", [Value(I32, ARGUMENT)], log)
        assert machine.run(place) == "stopped"
        made = export(machine.image(), wasm)
        results, trap, later, memories = run(made.wasm, "resume", [])
        assert (results, trap, (*log, *later), memories) == expected, (seed, place)
