"""The one question of all these tests: does a program that was moved leave the same behind as one that was not?"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import wasmtime

from wasmckpt import runtimes
from wasmckpt.errors import GuestTrap
from wasmckpt.formats import PAGE_SIZE
from wasmckpt.instrument.linker import PREFIX
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import run_in_guest_thread
from wasmckpt.snapshot.program import Program, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import Value

from ..support.moving import COUNTING, EVERYWHERE, Trace, World, move, run_program
from ..support.pairs import BASE, ring, runtimes_for
from ..support.samples import Call, Sample
from ..support.tiers import TIER

__all__ = [
    "ENGINES", "PAIRS", "PLANS", "difference", "engines_for", "pairs_for", "positions", "run_plain", "runner",
    "safepoints", "without_globals",
]


def engines_for(*features: str) -> tuple[str, ...]:
    """The runtimes that have these features (in a sample's words); in ``check`` those of `BASE`."""
    return tuple(name for name in runtimes_for(features) if TIER != "check" or name in BASE)


def pairs_for(*features: str) -> tuple[tuple[str, str], ...]:
    """Ordered pairs of runtimes that have these features: `BASE` with itself, and a `ring` through the others."""
    names = engines_for(*features)
    base = [name for name in names if name in BASE]
    return (*itertools.product(base, base), *ring(names))


ENGINES = engines_for()
PAIRS = pairs_for()
PLANS = (COUNTING, EVERYWHERE)

Run = Callable[[Sequence[str], int], Trace]
"""``run(engines, nth)``, see `moving.move`."""


def runner(
    wasm: bytes, options: Options = COUNTING, *, sample: Sample | None = None, call: Call | None = None,
    invoke: str | None = None, arguments: Sequence[Value] = (), most_hops: int = 10_000,
    world: Callable[[], World] | None = None, stack_bytes: int = runtimes.DEFAULT_STACK_BYTES,
) -> Run:
    """How to run one program in one plan; each run gets a world of its own."""
    if call:
        invoke, arguments = call.export, call.args

    def run(engines: Sequence[str], nth: int) -> Trace:
        place = world() if world else World(sample)
        with closing_world(place):
            return move(wasm, engines, nth, options=options, world=place, invoke=invoke, arguments=arguments,
                        most_hops=most_hops, stack_bytes=stack_bytes)

    return run


def difference(run: Run, engines: Sequence[str], nth: int, expected: Trace) -> str:
    """What a moved run left behind otherwise; empty where it is the same. Errors count as differences."""
    try:
        got = run(engines, nth)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if got == expected:
        return ""
    parts = [
        f"{name}: {getattr(got, name)!r:.200} instead of {getattr(expected, name)!r:.200}"
        for name in ("results", "trap", "exit_code", "stdout", "log", "memory", "globals", "tables", "files", "wasi")
        if getattr(got, name) != getattr(expected, name)
    ]
    return f"after {got.hops} hops: " + "; ".join(parts)


def safepoints(
    wasm: bytes, engine: str, options: Options = COUNTING, *, sample: Sample | None = None, invoke: str | None = None,
    arguments: Sequence[Value] = (), world: Callable[[], World] | None = None,
) -> int:
    """How many safepoints an undisturbed run passes: the counter tells, it only goes down."""
    loaded = runtimes.load(engine)
    place = world() if world else World(sample)
    with closing_world(place), contextlib.closing(
        Program.fresh(loaded, wasm, place.host(), entry_for(decode(wasm), invoke, arguments), options=options)
    ) as program:
        with contextlib.suppress(GuestTrap):
            run_program(loaded, program)
        return (1 << 62) - program.instance.get_global(PREFIX + "count")


@contextlib.contextmanager
def closing_world(world: World) -> Iterator[None]:
    """The world ends with the program's life: its files are closed."""
    try:
        yield
    finally:
        world.leave()
        world.stdout.close()
        world.stdin.close()


def positions(count: int, most: int, seed: int | str) -> list[int]:
    """At most ``most`` of the numbers 1 to ``count``, the first and the last among them; all where they fit."""
    if most < 1 or count < 1:
        return []
    if count <= most:
        return list(range(1, count + 1))
    if most < 3:
        return [(count + 1) // 2, count][:most]
    picked = random.Random(seed).sample(range(2, count), most - 2)
    return sorted([1, count, *picked])


def run_plain(wasm: bytes, export: str, arguments: Sequence[int] = ()) -> Trace:
    """Run an export of the original module on bare wasmtime, nothing of ours in it. For modules without a start
    function and without NaNs; imports: ``env.log``. Globals are not looked at."""
    log: list[int] = []
    config = wasmtime.Config()
    config.wasm_multi_memory = True
    config.wasm_tail_call = True
    store = wasmtime.Store(wasmtime.Engine(config))
    module = wasmtime.Module(store.engine, wasm)
    linker = wasmtime.Linker(store.engine)
    linker.define_func("env", "log", wasmtime.FuncType([wasmtime.ValType.i32()], []),
                       lambda value: log.append(value & 0xFFFFFFFF))
    exports = linker.instantiate(store, module).exports(store)
    fresh = linker.instantiate(store, module).exports(store)
    function = exports[export]
    assert isinstance(function, wasmtime.Func)
    types = [str(t) for t in function.type(store).results]
    trap = ""
    results: tuple[int, ...] = ()
    try:
        got = run_in_guest_thread(lambda: function(store, *arguments), stack_bytes=16 << 20)
        values = [] if not types else [got] if len(types) == 1 else list(got)
        results = tuple(_bits(t, v) for t, v in zip(types, values, strict=True))
    except wasmtime.Trap as error:
        trap = str(error.trap_code.name if error.trap_code else error)
    digest = hashlib.sha256()
    memories = [item for item in exports.values() if isinstance(item, wasmtime.Memory)]
    for index, (memory, before) in enumerate(zip(
        memories, [item for item in fresh.values() if isinstance(item, wasmtime.Memory)], strict=True,
    )):
        now = bytes(memory.read(store, 0, memory.data_len(store)))
        was = bytes(before.read(store, 0, before.data_len(store))).ljust(len(now), b"\0")
        runs: list[tuple[int, bytes]] = []
        zero: list[tuple[int, int]] = []
        for page in range(len(now) // PAGE_SIZE):
            content = now[page * PAGE_SIZE:(page + 1) * PAGE_SIZE]
            if content == was[page * PAGE_SIZE:(page + 1) * PAGE_SIZE]:
                continue
            if not any(content):
                if zero and sum(zero[-1]) == page:
                    zero[-1] = (zero[-1][0], zero[-1][1] + 1)
                else:
                    zero.append((page, 1))
            elif runs and runs[-1][0] + len(runs[-1][1]) // PAGE_SIZE == page:
                runs[-1] = (runs[-1][0], runs[-1][1] + content)
            else:
                runs.append((page, content))
        digest.update(repr((index, len(now) >> 16, tuple(zero))).encode())
        for page, data in runs:
            digest.update(page.to_bytes(4, "little") + data)
    return Trace(results, trap, log=tuple(log), memory=digest.hexdigest())


def _bits(kind: str, value: float) -> int:
    if kind == "f32":
        return int.from_bytes(struct.pack("<f", value), "little")
    if kind == "f64":
        return int.from_bytes(struct.pack("<d", value), "little")
    return int(value) & (0xFFFFFFFF if kind == "i32" else 0xFFFFFFFFFFFFFFFF)


def without_globals(trace: Trace) -> Trace:
    """To compare with `run_plain`."""
    return replace(trace, globals=())
