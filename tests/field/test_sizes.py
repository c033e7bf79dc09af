"""How large a program may be in each dimension: what runs plain on a runtime is frozen, moved and goes on there.

`test_limits` has depths, locals, nesting and sites; here are bytes and counts. Small in ``check``, of the size that the
name says in ``soak``.
"""

from __future__ import annotations

import time

import pytest

from wasmckpt import runtimes
from wasmckpt.errors import NotSupported
from wasmckpt.snapshot.pages import initial_pages
from wasmckpt.wasm.decode import decode

from ..matrix.check import ENGINES
from ..support.tiers import by_tier
from .harness import SPIN, assemble, i64, moves

NEXT = dict(zip(ENGINES, [*ENGINES[1:], ENGINES[0]], strict=True))
"""Each runtime's target: around in a circle."""


def there_and_on(text: str, result: int, *engines: str) -> None:
    """A program whose ``run`` gives an i64, on each of the runtimes, moved to the next."""
    wasm = assemble(text)
    for engine in engines:
        moves(wasm, [i64(result)], chains=(), most=1, pairs=[(engine, NEXT[engine])])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_function_of_a_megabyte(engine: str) -> None:
    """Straight code, a loop in the middle of it, values that wait over all of it."""
    steps = by_tier(check=1000, test=7000, soak=70_000)
    value = 1
    lines = []
    for n in range(steps):
        lines.append(f"(local.set $x (i64.add (i64.mul (local.get $x) (i64.const 3)) (i64.const {n * 77777})))")
        value = (value * 3 + n * 77777) & 0xFFFF_FFFF_FFFF_FFFF
        if n % (steps // 4) == 0:
            lines.append("(call $spin (i32.const 2))")
    text = f"""{SPIN} (func (export "run") (result i64) (local $x i64) (local.set $x (i64.const 1))
      i64.const 5 {" ".join(lines)} local.get $x i64.add)"""
    wasm = assemble(text)
    if steps == 70_000:
        assert decode(wasm).body(1).end - decode(wasm).body(1).expr > 1_000_000
    there_and_on(text, (value + 5) & 0xFFFF_FFFF_FFFF_FFFF, engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_hundred_thousand_functions_in_a_table(engine: str) -> None:
    """Each calls another one through a table of them all, a thousand deep."""
    count = by_tier(check=500, test=2000, soak=100_000)
    deep = min(count, 1000)
    functions = " ".join(
        f"(func $f{n} (type $t) (i64.add (i64.mul (local.get 1) (i64.const 31)) "
        f"(call $next (i32.sub (local.get 0) (i32.const 1)) (i64.const {n}) (i32.const {(n * 17 + 5) % count}))))"
        for n in range(count)
    )
    text = f"""(type $t (func (param i32 i64) (result i64))) {SPIN}
      (table {count} funcref) (elem (i32.const 0) {" ".join(f"$f{n}" for n in range(count))})
      (func $next (param i32 i64 i32) (result i64)
        (if (result i64) (i32.eqz (local.get 0)) (then (call $spin (i32.const 3)) (local.get 1))
          (else (call_indirect (type $t) (local.get 0) (local.get 1) (local.get 2)))))
      {functions}
      (func (export "run") (result i64) (call $next (i32.const {deep}) (i64.const 9) (i32.const {count - 1})))"""
    order, at, given = [], count - 1, 9
    for _ in range(deep):
        order.append((at, given))
        at, given = (at * 17 + 5) % count, at
    value = given
    for _, before in reversed(order):
        value = (before * 31 + value) & 0xFFFF_FFFF_FFFF_FFFF
    there_and_on(text, value, engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_br_table_of_thousands(engine: str) -> None:
    """As an interpreter's loop, or a coroutine's states: each label once in the table, with code of its own."""
    count = by_tier(check=100, test=1000, soak=4000)
    arms = " ".join(
        f"end (local.set $x (i64.xor (i64.rotl (local.get $x) (i64.const 7)) (i64.const {n * 12345}))) "
        + ("(call $spin (i32.const 1)) " if n % (count // 3) == 0 else "") + f"br {count - n}"
        for n in range(count)
    )
    text = f"""{SPIN} (func (export "run") (result i64) (local $x i64) (local $at i32) (local $left i32)
      (local.set $left (i32.const 400)) (local.set $x (i64.const 1))
      block $out loop $again
        (br_if $out (i32.eqz (local.get $left)))
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (local.set $at (i32.rem_u (i32.add (i32.mul (local.get $at) (i32.const 13)) (i32.const 7))
                                  (i32.const {count})))
        block $done {"block " * count} (local.get $at) br_table {" ".join(map(str, range(count)))} 0
        {arms} end (br $again) end end local.get $x)"""
    value, at = 1, 0
    for _ in range(400):
        at = (at * 13 + 7) % count
        value = ((value << 7 | value >> 57) & 0xFFFF_FFFF_FFFF_FFFF) ^ at * 12345
    there_and_on(text, value, engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_ten_thousand_globals_and_segments(engine: str) -> None:
    """All changed, all saved; as many segments, each of a few bytes."""
    count = by_tier(check=200, test=1000, soak=10_000)
    text = f"""(memory 3) {SPIN}
      {" ".join(f'(global $g{n} (mut i64) (i64.const {n}))' for n in range(count))}
      {" ".join(f'(data (i32.const {n * 16}) "{n % 256:02x}")'.replace('"', '"' + chr(92), 1) for n in range(count))}
      (func (export "run") (result i64) (local $x i64) (local $at i32)
        {" ".join(f"(global.set $g{n} (i64.add (global.get $g{n}) (i64.const 3)))" for n in range(count))}
        (call $spin (i32.const 3))
        {" ".join(f"(local.set $x (i64.add (i64.mul (local.get $x) (i64.const 3)) (global.get $g{n})))"
                  for n in range(0, count, 7))}
        loop $sum
          (local.set $x (i64.add (local.get $x) (i64.load8_u (local.get $at))))
          (br_if $sum (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 16))) (i32.const {count * 16})))
        end local.get $x)"""
    value = 0
    for n in range(0, count, 7):
        value = (value * 3 + n + 3) & 0xFFFF_FFFF_FFFF_FFFF
    value += sum(n % 256 for n in range(count))
    there_and_on(text, value & 0xFFFF_FFFF_FFFF_FFFF, engine)


GIB = 16384
"""Pages of 64 KiB."""


def large(pages: int, grown: int) -> tuple[str, int]:
    """A program that writes at both ends and in the middle of a memory, and grows it, around a loop; its result."""
    last = (pages + grown) * 65536 - 8
    text = f"""(memory {pages}) {SPIN}
      (func (export "run") (result i64)
        (i64.store (i32.const 8) (i64.const 1)) (i64.store (i32.const {pages * 32768}) (i64.const 20))
        (i64.store (i32.const {pages * 65536 - 8}) (i64.const 300)) (call $spin (i32.const 2))
        (drop (memory.grow (i32.const {grown}))) (i64.store (i32.const {last}) (i64.const 4000))
        (call $spin (i32.const 2))
        (i64.add (i64.add (i64.load (i32.const 8)) (i64.load (i32.const {pages * 32768})))
          (i64.add (i64.load (i32.const {last})) (i64.extend_i32_u (memory.size)))))"""
    return text, 4021 + pages + grown


@pytest.mark.slow
@pytest.mark.parametrize("gib", by_tier(check=[3.9], test=[3.9], soak=[1.9, 2.5, 3.9]))
def test_a_memory_of_gibibytes(gib: float) -> None:
    """On each runtime that can have it; one that cannot says so, before anything runs."""
    text, result = large(int(gib * GIB), 64)
    for engine in by_tier(check=["wasm3"], test=["wasm3"], soak=ENGINES):
        most = runtimes.load(engine).capabilities.max_memory_pages
        pair = (engine, engine)
        if (int(gib * GIB) + 64 + 1024) > most:
            with pytest.raises(NotSupported, match="memory"):
                moves(text, [i64(result)], chains=(), most=1, pairs=[pair])
        else:
            moves(text, [i64(result)], chains=(), most=1, pairs=[pair])


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["wasmtime", "wasmer", "wasmedge"])
def test_a_memory_of_four_gibibytes(engine: str) -> None:
    """All that there can be; nothing is left to grow by, and -1 says so."""
    if engine not in ENGINES:
        pytest.skip(f"{engine} is not here")
    text = f"""(memory 65536) {SPIN} (func (export "run") (result i64)
      (i64.store (i32.const -8) (i64.const 7)) (call $spin (i32.const 3))
      (i64.add (i64.load (i32.const -8)) (i64.extend_i32_s (memory.grow (i32.const 1)))))"""
    moves(text, [i64(6)], chains=(), most=1, pairs=[(engine, engine)])


def test_what_segments_make_is_found_in_time_that_grows_with_them() -> None:
    """16 MiB of data: a tenth of a second, where it had taken nine when the rest was copied for each page."""
    size = 16 << 20
    module = decode(assemble(f"""(module (memory 300) (data (i32.const 100) "{"a" * size}"))"""))
    began = time.process_time()
    pages = initial_pages(module, 0, {})
    assert time.process_time() - began < 2.5
    assert len(pages) == (size + 100 + 4095) // 4096
    assert pages[0] == bytes(100) + b"a" * 3996
