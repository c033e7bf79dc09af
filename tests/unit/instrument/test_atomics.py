"""Atomic instructions, and plain ones written for them: the same results and traps as wasmtime has with atomic
ones, on every runtime, whether it has atomics or not."""

from __future__ import annotations

import random
import re

import pytest
import wasmtime

from wasmckpt import runtimes
from wasmckpt.errors import GuestTrap, NotSupported
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import run_in_guest_thread
from wasmckpt.snapshot.program import Host, Program, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.opcodes import TABLE, Op
from wasmckpt.wasm.values import I32, I64, TYPE_NAMES, Value

from ...support.pairs import SEED, runtimes_for
from ...support.partner import ReferenceProgram
from ...support.tiers import by_tier

ACCESSES = [op for op in TABLE.values() if op.code >= 0xFE0010]
OFFSETS = (0, 6, 40)
ROUNDS = by_tier(check=40, test=400, soak=2000)


def text(op: Op, offset: int) -> str:
    """A function that does one access with its parameters as operands."""
    assert op.pops is not None
    kinds = "".join(f" {TYPE_NAMES[kind]}" for kind in op.pops)
    result = f"(result {TYPE_NAMES[op.pushes[0]]})" if op.pushes else ""
    operands = " ".join(f"(local.get {n})" for n in range(len(op.pops)))
    return f'(func (export "{op.name} {offset}") (param{kinds}) {result} ({op.name} offset={offset} {operands}))'


def mixed(count: int, seed: int) -> bytes:
    """A module whose ``run`` does ``count`` accesses on one page, aligned ones, and folds what they give."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        op = draw.choice(ACCESSES)
        assert op.pops is not None
        found = re.search(r"(?:load|store|rmw)(8|16|32)", op.name)
        size = int(found[1]) // 8 if found else 8 if op.name.startswith("i64") else 4
        offset = draw.choice(OFFSETS)
        address = draw.randrange(0, 64) * size - offset % size
        operands = [f"(i32.const {max(address, size - offset % size if offset % size else 0)})"]
        for kind in op.pops[1:]:
            bits = draw.choice([0, 1, 255, draw.getrandbits(8), draw.getrandbits(64)])
            low = bits & (0xFFFF_FFFF if kind == I32 else 0xFFFF_FFFF_FFFF_FFFF)
            operands.append(f"({TYPE_NAMES[kind]}.const {low:#x})")
        made = f"({op.name} offset={offset} {' '.join(operands)})"
        if not op.pushes:
            lines.append(made)
            continue
        wide = made if op.pushes == (I64,) else f"(i64.extend_i32_u {made})"
        lines.append(f"(local.set 0 (i64.xor (i64.rotl (local.get 0) (i64.const 5)) {wide}))")
    return bytes(wasmtime.wat2wasm(
        f'(module (memory (export "memory") 1) (func (export "run") (result i64) (local i64) {" ".join(lines)} '
        f"(i64.add (local.get 0) (i64.load (i32.const 0)))))"))


def bare(wasm: bytes, export: str, arguments: list[int]) -> tuple[int | None, str, bytes]:
    """Result, trap, first page on wasmtime, with nothing of ours in it."""
    config = wasmtime.Config()
    config.wasm_threads = True
    store = wasmtime.Store(wasmtime.Engine(config))
    exports = wasmtime.Instance(store, wasmtime.Module(store.engine, wasm), []).exports(store)
    function, memory = exports[export], exports["memory"]
    assert isinstance(function, wasmtime.Func)
    assert isinstance(memory, wasmtime.Memory)
    result, trap = None, ""
    try:
        result = function(store, *arguments)
    except wasmtime.Trap as error:
        trap = error.trap_code.name if error.trap_code else "other"
    return result, trap, bytes(memory.read(store, 0, 65536))


def ours(name: str, wasm: bytes, export: str, arguments: list[Value], options: Options) -> tuple[int, ...]:
    engine = runtimes.load(name)
    program = Program.fresh(engine, wasm, Host(), entry_for(decode(wasm), export, arguments), options=options)
    try:
        return run_in_guest_thread(program.run, stack_bytes=engine.thread_stack_bytes(program.stack_bytes)).results
    finally:
        program.close()


@pytest.mark.parametrize("engine", runtimes_for())
def test_many_accesses_give_what_they_give_on_wasmtime(engine: str) -> None:
    for seed in range(SEED, SEED + by_tier(check=1, test=3, soak=20)):
        wasm = mixed(ROUNDS, seed)
        result, trap, _ = bare(wasm, "run", [])
        assert result is not None, trap
        expected = (result & 0xFFFF_FFFF_FFFF_FFFF,)
        assert ours(engine, wasm, "run", [], Options()) == expected, seed
        reference = ReferenceProgram(wasm, Host(), entry_for(decode(wasm), "run", []))
        assert reference.run().results == expected, seed


@pytest.mark.parametrize("engine", runtimes_for())
@pytest.mark.parametrize(("name", "kind", "expected"), [
    ("i32.atomic.rmw8.cmpxchg_u", "i32", 0x35), ("i32.atomic.rmw16.cmpxchg_u", "i32", 0x2135),
    ("i64.atomic.rmw8.cmpxchg_u", "i64", 0x35), ("i64.atomic.rmw16.cmpxchg_u", "i64", 0x2135),
    ("i64.atomic.rmw32.cmpxchg_u", "i64", 0x12342135)])
@pytest.mark.parametrize("more", [0, 0x4000_0000, 1 << 40], ids=["exact", "31 bits", "41 bits"])
def test_what_a_narrow_exchange_expects_is_wrapped(engine: str, name: str, kind: str, expected: int, more: int) -> None:
    """As the proposal's overview says (and wasmtime does), also where the bits above are not zero."""
    if "rmw32" in name and more == 0x4000_0000:
        more = 1 << 35
    more &= 0xFFFF_FFFF if kind == "i32" else (1 << 64) - 1
    wasm = bytes(wasmtime.wat2wasm(f"""(module (memory (export "memory") 1) (data (i32.const 0) "\\35\\21\\34\\12")
      (func (export "run") (result i64)
        (drop ({name} (i32.const 0) ({kind}.const {expected | more:#x}) ({kind}.const 0)))
        (i64.load (i32.const 0))))"""))
    result, _, _ = bare(wasm, "run", [])
    assert result != 0x12342135, "it was exchanged"
    assert ours(engine, wasm, "run", [], Options()) == (result,)
    assert ReferenceProgram(wasm, Host(), entry_for(decode(wasm), "run", [])).run().results == (result,)


@pytest.mark.parametrize("lowered", [False, True], ids=["as they are", "lowered"])
def test_lowered_there_is_none_left(lowered: bool) -> None:
    """wasmtime without atomics takes the lowered form, and refuses the other."""
    made = instrument(mixed(ROUNDS, SEED), Options(poll="global", lower_atomics=lowered))
    assert ("atomics" in made.features) is not lowered
    config = wasmtime.Config()
    config.wasm_threads = False
    config.wasm_multi_memory = True
    if lowered:
        wasmtime.Module.validate(wasmtime.Engine(config), made.wasm)
    else:
        with pytest.raises(wasmtime.WasmtimeError, match="threads"):
            wasmtime.Module.validate(wasmtime.Engine(config), made.wasm)


TRAPS = [("i32.atomic.rmw.add", [2, 1]), ("i64.atomic.store", [4, 1]), ("i64.atomic.rmw16.cmpxchg_u", [1, 0, 0]),
         ("i32.atomic.load16_u", [65536]), ("i64.atomic.load", [65536]), ("memory.atomic.notify", [2, 1]),
         ("memory.atomic.wait32", [0, 0, 0])]


@pytest.mark.parametrize(("name", "numbers"), TRAPS, ids=[name for name, _ in TRAPS])
@pytest.mark.parametrize("engine", runtimes_for())
def test_traps(engine: str, name: str, numbers: list[int]) -> None:
    """An unaligned access, one out of bounds, and waiting on a memory that nobody shares; an aligned twin does not."""
    op = next(op for op in TABLE.values() if op.name == name)
    assert op.pops is not None
    wasm = bytes(wasmtime.wat2wasm(f'(module (memory (export "memory") 1) {text(op, 0)})'))
    values = [Value(kind, number) for kind, number in zip(op.pops, numbers, strict=True)]
    _, expected, _ = bare(wasm, f"{name} 0", numbers)
    assert expected
    with pytest.raises(GuestTrap) as caught:
        ours(engine, wasm, f"{name} 0", values, Options())
    kind = caught.value.fields["kind"]
    if "atomics" not in runtimes.load(engine).capabilities.features and "OUT_OF_BOUNDS" not in expected:
        assert kind == "unreachable"
    else:
        assert {"HEAP_MISALIGNED": "unaligned atomic", "MEMORY_OUT_OF_BOUNDS": "out of bounds memory access"}.get(
            expected, "other") == kind
    if "wait" not in name:
        ours(engine, wasm, f"{name} 0", [Value(kind_, 8 * (n == 0)) for n, kind_ in enumerate(op.pops)], Options())


def test_a_shared_memory_is_refused_by_name() -> None:
    wasm = bytes(wasmtime.wat2wasm("(module (memory 1 1 shared) (func (drop (i32.atomic.load (i32.const 0)))))"))
    with pytest.raises(NotSupported) as caught:
        instrument(wasm, Options())
    assert caught.value.fields["need"] == "threads"
