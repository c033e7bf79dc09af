"""How deep and how large programs may be: what a runtime holds plain it holds rewritten, and moves (A8, A12)."""

from __future__ import annotations

import itertools

import pytest

from wasmckpt import formats, runtimes
from wasmckpt.errors import GuestTrap, NotSupported
from wasmckpt.formats import Image
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import Engine
from wasmckpt.snapshot.program import Host, Program, Status, entry_for
from wasmckpt.snapshot.stack import guest_stack
from wasmckpt.wasm.decode import decode

from ..matrix.check import ENGINES, PAIRS
from ..support.moving import COUNTING, EVERYWHERE, run_program
from ..support.pairs import BASE, SEED
from ..support.tiers import TIER, by_tier
from .harness import SPIN, assemble, i32, i64, moves

LOCALS = {"wasm3": 1900, "wamr": 16_300, "wasmtime": 50_000, "wasmer": 50_000, "wasmedge": 50_000,
          "wasmedge-aot": 50_000}
STACK = by_tier(check=64 << 10, test=256 << 10, soak=2 << 20)

DEEP = {
    "small": """(func $f (param i32) (result i32)
        (if (i32.eqz (local.get 0)) (then (call $spin (i32.const 3)) (return (i32.const 7))))
        (i32.add (i32.const 1) (call $f (i32.sub (local.get 0) (i32.const 1)))))""",
    "eight values": f"""(func $g (param i32 {"i64 " * 8}) (result i64)
        (if (i32.eqz (local.get 0)) (then (call $spin (i32.const 3)) (return (local.get 1))))
        {"(i64.xor" * 7} (call $g (i32.sub (local.get 0) (i32.const 1))
          {" ".join(f"(i64.add (local.get {n}) (i64.const {n}))" for n in range(1, 9))})
        {" ".join(f"(local.get {n}))" for n in range(2, 9))})
      (func $f (param i32) (result i32) (i32.wrap_i64 (call $g (local.get 0)
        {" ".join(f"(i64.const {n})" for n in range(8))})))""",
    "mutual": """(func $f (param i32) (result i32)
        (if (i32.eqz (local.get 0)) (then (call $spin (i32.const 3)) (return (i32.const 7))))
        (i32.add (i32.const 1) (call $g (i32.sub (local.get 0) (i32.const 1)) (i64.const 5))))
      (func $g (param i32 i64) (result i32)
        (if (i32.eqz (local.get 0)) (then (call $spin (i32.const 3)) (return (i32.const 8))))
        (i32.xor (i32.wrap_i64 (local.get 1)) (call $f (i32.sub (local.get 0) (i32.const 1)))))""",
    "one site, many callees": """(type $t (func (param i32) (result i32)))
      (table 3 funcref) (elem (i32.const 0) $a $b $c)
      (func $a (type $t) (i32.add (i32.const 1) (call $f (local.get 0))))
      (func $b (type $t) (i32.mul (i32.const 3) (call $f (local.get 0))))
      (func $c (type $t) (local i64) (local.set 1 (i64.const 9))
        (i32.xor (call $f (local.get 0)) (i32.wrap_i64 (local.get 1))))
      (func $f (param i32) (result i32)
        (if (i32.eqz (local.get 0)) (then (call $spin (i32.const 3)) (return (i32.const 7))))
        (i32.sub (call_indirect (type $t) (i32.sub (local.get 0) (i32.const 1))
                   (i32.rem_u (local.get 0) (i32.const 3))) (i32.const 2)))""",
}


def program(name: str) -> bytes:
    return assemble(f'{SPIN} {DEEP[name]} (func (export "run") (param i32) (result i32) (call $f (local.get 0)))')


def plain(engine: Engine, wasm: bytes, depth: int, stack: int) -> tuple[int, ...] | None:
    """What the runtime gives without us; None where its stack is too small."""
    instance = engine.instantiate(engine.compile(wasm), {}, stack_bytes=stack)
    try:
        return runtimes.run_in_guest_thread(
            lambda: instance.call("run", [depth]), stack_bytes=engine.thread_stack_bytes(stack))
    except GuestTrap as trap:
        if trap.fields["kind"] != "stack overflow":
            raise
        return None
    finally:
        instance.close()


def deepest(engine: Engine, wasm: bytes, stack: int) -> int:
    """The largest argument that the runtime can run plain."""
    low, high = 1, 1 << 20
    while low < high:
        middle = (low + high + 1) // 2
        if plain(engine, wasm, middle, stack) is None:
            high = middle - 1
        else:
            low = middle
    return low


def moved(wasm: bytes, pair: tuple[str, str], depth: int, stack: int, options: Options) -> tuple[tuple[int, ...], int]:
    """Frozen at the bottom and once on the way up; stacks are as a worker gives them. Results, most frames."""
    engine = runtimes.load(pair[0])
    running = Program.fresh(engine, wasm, Host(), entry_for(decode(wasm), "run", [i32(depth)]), options=options,
                            stack_bytes=guest_stack(engine, wasm, None, stack))
    most = 0
    for hop in itertools.count():
        running.freeze_at((2, depth // 2)[hop] if hop < 2 else 1 << 62)
        outcome = run_program(engine, running)
        if outcome.status is not Status.FROZEN:
            running.close()
            return outcome.results, most
        image: Image = formats.decode(formats.encode(running.capture()))
        most = max(most, len(image.frames))
        running.close()
        engine = runtimes.load(pair[1 - hop % 2])
        running = Program.restored(engine, wasm, Host(), image, options=options,
                                   stack_bytes=guest_stack(engine, wasm, image, stack))
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize("share", by_tier(check=[1], test=[0.95, 1], soak=[0.95, 0.96, 0.97, 0.98, 0.99, 1]))
@pytest.mark.parametrize(("name", "pair"), [
    pytest.param(name, pair, id=f"{name}-{'-'.join(pair)}") for number, pair in enumerate(PAIRS)
    for name in (DEEP if set(pair) <= set(BASE) or TIER == "soak" else [list(DEEP)[(SEED + number) % len(DEEP)]])
])
def test_as_deep_as_the_runtime_goes_without_us(name: str, pair: tuple[str, str], share: float) -> None:
    """At 95 to 100 % of the depth at which the original program overflows its stack; one that has no limit of its own
    is given wasmtime's."""
    wasm = program(name)
    engine = runtimes.load(pair[0])
    if "depth-counter" in engine.capabilities.lowerings:
        engine = runtimes.load("wasmtime")
    depth = int(deepest(engine, wasm, STACK) * share)
    expected = plain(engine, wasm, depth, STACK)
    results, frames = moved(wasm, pair, depth, STACK, EVERYWHERE)
    assert results == expected
    assert frames > depth


@pytest.mark.slow
@pytest.mark.parametrize("pair", by_tier(check=PAIRS, test=PAIRS[1:3] + PAIRS[4:], soak=PAIRS), ids="-".join)
@pytest.mark.parametrize("name", by_tier(check=["small"], test=["mutual"], soak=["small", "mutual"]))
def test_a_hundred_thousand_frames(name: str, pair: tuple[str, str]) -> None:
    wasm = program(name)
    depth = 100_000
    expected = plain(runtimes.load("wasmtime"), wasm, depth, 32 << 20)
    results, frames = moved(wasm, pair, depth, 16 << 20, COUNTING)
    assert (results, frames > depth) == (expected, True)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_ten_thousand_sites_in_a_function(engine: str) -> None:
    calls = by_tier(check=1000, test=10_000, soak=40_000)
    text = f"""{SPIN} (global $n (mut i32) (i32.const 0))
      (func $f (global.set $n (i32.add (global.get $n) (i32.const 1))) (call $spin (i32.const 1)))
      (func (export "run") (result i32) {"call $f " * calls} global.get $n)"""
    moves(text, [i32(calls)], chains=(), most=1, pairs=[(engine, engine)])


@pytest.mark.parametrize("form", ["block", "if", "block in a loop"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_thousand_nested_blocks(form: str, engine: str) -> None:
    """As C compilers write a large switch; a loop around all of them, a place in the middle of the innermost one."""
    depth = by_tier(check=200, test=1000, soak=5000)
    opening = {"block": "block", "if": "i32.const 1 if", "block in a loop": "block"}[form]
    around = ("loop", "(br_if 0 (i32.lt_u (local.get $n) (i32.const 6))) end") if "loop" in form else ("", "")
    text = f"""{SPIN} (func (export "run") (result i32) (local $n i32)
      {around[0]} {f"{opening} " * depth}
        (call $spin (i32.const 2)) (local.set $n (i32.add (local.get $n) (i32.const 3)))
        (br_if {depth // 2} (i32.eq (local.get $n) (i32.const 3)))
      {"end " * depth} {around[1]} local.get $n)"""
    moves(text, [i32(6 if "loop" in form else 3)], chains=(2,), most=2, pairs=[(engine, engine)])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_hundred_nested_loops(engine: str) -> None:
    """A continuation copies each loop around its place: what it costs grows with the square of the nesting."""
    depth = by_tier(check=20, test=60, soak=200)
    text = f"""{SPIN} (func (export "run") (result i32) (local $n i32)
      {"loop " * depth} (call $spin (i32.const 2)) (local.set $n (i32.add (local.get $n) (i32.const 1)))
      {"(br_if 0 (i32.lt_u (local.get $n) (i32.const 3))) end " * depth} local.get $n)"""
    moves(text, [i32(3)], chains=(), most=2, pairs=[(engine, engine)])


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "n"), [(name, LOCALS[name]) for name in ENGINES])
def test_as_many_locals_as_the_runtime_holds(engine: str, n: int) -> None:
    """All of the specification's 50,000 where the runtime has them. Values that wait for a call need places beside."""
    picked = range(0, n, n // 50)
    text = f"""{SPIN} (func (export "run") (result i64) (local {"i64 " * n})
      {"".join(f"(local.set {i} (i64.const {i + 1}))" for i in picked)} (call $spin (i32.const 3))
      i64.const 0 {"".join(f"local.get {i} i64.add " for i in picked)})"""
    moves(text, [i64(sum(i + 1 for i in picked))], chains=(2,), most=2, pairs=[(engine, engine)])


@pytest.mark.slow
def test_more_waiting_operands_than_wasm3_has_slots_are_refused_by_name() -> None:
    """Each is in a local too where it is made by a call: half as many as in the plain program."""
    def text(n: int) -> str:
        made = "".join(f"(i32.const {i}) call $v " for i in range(n))
        return f"""{SPIN} (func $v (param i32) (result i32) (call $spin (i32.const 1)) local.get 0)
          (func (export "run") (result i32) {made} {"i32.add " * (n - 1)})"""

    moves(text(60), [i32(1770)], chains=(30,), most=1, pairs=[("wasm3", "wasm3")])
    with pytest.raises(NotSupported, match="stack height"):
        moves(text(1500), None, pairs=[("wasm3", "wasm3")])
