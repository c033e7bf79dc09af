"""How the field cases are run: frozen once at each safepoint, in chains, and at moments that a host function picks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from wasmtime import wat2wasm

from wasmckpt import formats, runtimes
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import HostFunction
from wasmckpt.snapshot.program import Host, Program, Status, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import F32, F64, I32, I64, Value

from ..matrix.check import PAIRS, PLANS, difference, positions, runner, safepoints
from ..support.moving import Trace, World, run_program
from ..support.pairs import BASE
from ..support.partner import REFERENCE
from ..support.tiers import TIER, by_tier

__all__ = ["SPIN", "Life", "assemble", "f32", "f64", "i32", "i64", "live", "moves"]

USUAL = {*BASE, REFERENCE}
SPIN = """(func $spin (param $n i32)
  loop $l (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))) end)"""
"""Text of a function that passes ``n`` safepoints."""


def assemble(text: str) -> bytes:
    """WAT to binary; fields without ``(module`` around them are put into one."""
    return bytes(wat2wasm(text if text.lstrip().startswith("(module") else f"(module {text})"))


def i32(value: int) -> Value:
    return Value(I32, value & 0xFFFFFFFF)


def i64(value: int) -> Value:
    return Value(I64, value & 0xFFFFFFFFFFFFFFFF)


def f32(bits: int) -> Value:
    return Value(F32, bits)


def f64(bits: int) -> Value:
    return Value(F64, bits)


def moves(
    wasm: bytes | str, results: Sequence[Value] | None, *, invoke: str = "run", arguments: Sequence[Value] = (),
    log: Sequence[int] = (), pairs: Sequence[tuple[str, str]] = PAIRS, world: Callable[[], World] | None = None,
    chains: Sequence[int] = (2, 5), most: int | None = None,
) -> Trace:
    """Assert that a program gives ``results`` and ``log`` undisturbed, frozen once at each safepoint (in check and
    test at some of them) and moved, and in chains of moves; in both plans and for all pairs (in test, pairs with other
    runtimes than `BASE` at one safepoint and in one chain, each in one of the plans).

    Returns:
        What it leaves behind.
    """
    if isinstance(wasm, str):
        wasm = assemble(wasm)
    places = min(most or 10_000, by_tier(check=1, test=2, soak=60))
    quick = TIER == "check"
    if quick and len(pairs) > 2:
        pairs = [pair for pair in pairs if pair[0] != pair[1]]
    last = None
    for plan in PLANS[-1:] if quick else PLANS:
        run = runner(wasm, plan, invoke=invoke, arguments=arguments, world=world)
        once = runner(wasm, plan, invoke=invoke, arguments=arguments, world=world, most_hops=1)
        chain = runner(wasm, plan, invoke=invoke, arguments=arguments, world=world,
                       most_hops=by_tier(check=3, test=8, soak=60))
        expected = run([pairs[0][0]], 0)
        if results is not None:
            assert expected.results == tuple(v.bits for v in results)
        assert expected.log == tuple(log)
        for engine in dict.fromkeys(pair[0] for pair in pairs):
            assert run([engine], 0) == expected, engine
        count = safepoints(wasm, pairs[0][0], plan, invoke=invoke, arguments=arguments, world=world)
        for number, pair in enumerate(pairs):
            less = quick or not set(pair) <= USUAL
            if TIER == "test" and less and plan is PLANS[number % 2]:
                continue
            few = TIER != "soak" and less
            for n in positions(count, 1 if few else places, number):
                assert not (wrong := difference(once, pair, n, expected)), (plan.plan, pair, n, wrong)
            for n in chains[:1] if few else chains:
                assert not (wrong := difference(chain, pair, n, expected)), (plan.plan, pair, "chain", n, wrong)
        assert last in (None, expected), "the plan changes nothing that can be seen"
        last = expected
    assert last is not None
    return last


@dataclass
class Life:
    """One life of a program that host functions may freeze: ``program`` is the instance of now."""

    program: Program | None = None
    hops: int = 0
    results: tuple[int, ...] = ()
    images: list[bytes] = field(default_factory=list)

    def freeze(self) -> None:
        """Ask for a freeze, as a controller does."""
        assert self.program is not None
        self.program.request_freeze()


def live(
    wasm: bytes, engines: Sequence[str], life: Life, functions: Mapping[tuple[str, str], HostFunction], *,
    invoke: str = "run", arguments: Sequence[Value] = (), options: Options = Options(),  # noqa: B008 - frozen
) -> Life:
    """Run with the flag of live mode; whenever the program freezes, it goes on on the next engine."""
    host = Host(dict(functions))
    place = 0
    engine = runtimes.load(engines[0])
    program = Program.fresh(engine, wasm, host, entry_for(decode(wasm), invoke, arguments), options=options)
    try:
        while True:
            life.program = program
            outcome = run_program(engine, program)
            if outcome.status is not Status.FROZEN:
                life.results = outcome.results
                return life
            raw = formats.encode(program.capture())
            life.images.append(raw)
            program.close()
            place = (place + 1) % len(engines)
            engine = runtimes.load(engines[place])
            program = Program.restored(engine, wasm, host, formats.decode(raw), options=options)
            life.hops += 1
            assert life.hops < 1000, "no progress"
    finally:
        program.close()
