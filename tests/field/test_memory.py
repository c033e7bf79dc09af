"""Linear memory: bases that move, growth, what the guest can see of us, export names that runtimes look for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from wasmckpt import formats
from wasmckpt.wasm.values import Value

from ..matrix.check import ENGINES, PAIRS, closing_world, engines_for, pairs_for
from ..support.moving import COUNTING, EVERYWHERE, World, move
from ..support.tiers import by_tier
from .harness import SPIN, assemble, i32, moves

# A2: the base moves on growth

@pytest.mark.parametrize("pages", [1, 17, 500])
def test_growth_between_safepoints(pages: int) -> None:
    """Marks in the first and the last page; the target starts with one page."""
    last = (pages + 1) * 65536 - 4
    trace = moves(f"""(import "env" "hook" (func $hook)) (memory (export "memory") 1 600)
      (func (export "run") (result i32)
        (i32.store (i32.const 0) (i32.const 1)) (call $hook)
        (drop (memory.grow (i32.const {pages})))
        (i32.store (i32.const 0) (i32.const 2)) (i32.store (i32.const {last}) (i32.const 3)) (call $hook)
        (i32.add (i32.add (i32.load (i32.const 0)) (i32.load (i32.const {last})))
                 (i32.mul (memory.size) (i32.const 1000))))""", [i32(5 + 1000 * (pages + 1))], chains=(2,))
    assert trace.memory


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_an_image_has_the_size_of_now(pair: tuple[str, str]) -> None:
    wasm = assemble(f"""{SPIN} (memory 1 600) (func (export "run") (result i32)
      (drop (memory.grow (i32.const 500))) (call $spin (i32.const 3)) memory.size)""")
    world = World()
    with closing_world(world):
        trace = move(wasm, pair, 2, options=EVERYWHERE, world=world, invoke="run", keep_images=True)
    assert trace.results == (501,)
    assert {formats.decode(raw).memories[0].pages for raw in trace.images} == {501}
    assert max(map(len, trace.images)) < 2000, "pages that nobody touched take no room"


# A4: nothing of ours can be seen

@pytest.mark.parametrize(("step", "size", "result"), [
    (4, "1 3", -1618501330), (by_tier(check=512, test=64, soak=4), "2 2", None), (4096, "40", None),
])
def test_the_guest_hashes_all_of_its_memory(step: int, size: str, result: int | None) -> None:
    """In the loop that hashes it; also where memory may not grow or has no maximum."""
    text = f"""(memory (export "memory") {size})
      (data (i32.const 100) "at the start") (data (i32.const 65000) "at the end")
      (func (export "run") (result i32) (local $a i32) (local $h i32) (local $end i32)
        (i32.store (i32.const 65532) (i32.const 0x5eed))
        (local.set $end (i32.mul (memory.size) (i32.const 65536)))
        (local.set $h (i32.const 1))
        loop $l
          (local.set $h (i32.add (i32.mul (local.get $h) (i32.const 31)) (i32.load (local.get $a))))
          (br_if $l (i32.lt_u (local.tee $a (i32.add (local.get $a) (i32.const {step}))) (local.get $end)))
        end
        (i32.add (local.get $h) (i32.mul (memory.size) (i32.const 1000000))))"""
    if result is not None:
        text = text.replace('(data (i32.const 100) "at the start") (data (i32.const 65000) "at the end")', "")
    moves(text, None if result is None else [i32(result)], chains=(101, 7), most=3)


@pytest.mark.parametrize(("minimum", "maximum"), [("0", ""), ("0", "0"), ("0", "1"), ("1", "1"), ("1", "")])
@pytest.mark.parametrize("grown", [0, 1, 2])
def test_memories_of_no_page_and_of_one(minimum: str, maximum: str, grown: int) -> None:
    """Size and all answers of memory.grow stay the same while frozen, also where there is no memory to borrow."""
    top = int(maximum) if maximum else 65536
    first = int(minimum)
    after = first + grown if first + grown <= top else first
    answer = first if first + grown <= top else 0xFFFFFFFF
    # Where the window is borrowed from the guest's memory, a memory without pages has nothing to lend.
    empty = after == 0 or (first == 0 and grown)
    second = engines_for("multi-memory")
    pairs: Sequence[tuple[str, str]] = [(a, second[n % len(second)]) for n, a in enumerate(ENGINES)] if empty else PAIRS
    moves(f"""{SPIN} (memory {minimum} {maximum}) (global $kept (mut i64) (i64.const -3))
      (func $deep (param $n i32) (result i32) (call $spin (i32.const 1))
        (if (i32.eqz (local.get $n)) (then (return (memory.size))))
        (i32.add (local.get $n) (i32.sub (call $deep (i32.sub (local.get $n) (i32.const 1))) (local.get $n))))
      (func (export "run") (result i32 i32 i32 i64)
        (memory.grow (i32.const {grown})) (call $deep (i32.const 4)) (memory.size) (global.get $kept))""",
          [i32(answer), i32(after), i32(after), Value(0x7E, (1 << 64) - 3)], chains=() if empty else (3,), most=4,
          pairs=pairs)


@pytest.mark.parametrize("window", ["0x0", "0x3fff0"])
def test_what_lies_where_frames_are_handed_over_is_put_back(window: str) -> None:
    """Wasm3 has one memory only: records borrow its first bytes on a resume."""
    moves(f"""{SPIN} (memory 4 4) (data (i32.const 0) "{'untouched ' * 30}")
      (data (i32.const 0x3fff0) "to the very end.")
      (func $deep (param $n i32) (result i64) (call $spin (i32.const 1))
        (if (i32.eqz (local.get $n)) (then (return (i64.load (i32.const {window})))))
        (i64.add (call $deep (i32.sub (local.get $n) (i32.const 1))) (i64.load (i32.const {window}))))
      (func (export "run") (result i64) (call $deep (i32.const 30)))""", None, chains=(20,), most=4)


# A21: special names

@pytest.mark.parametrize("names", [
    ("__data_end", "__heap_base"), ("__stack_pointer", "__global_base"), ("_start2", "a b"),
])
def test_export_names_that_runtimes_look_for(names: tuple[str, str]) -> None:
    wasm = assemble(f"""(memory (export "memory") 1 1)
      (global (export "{names[0]}") i32 (i32.const 1024)) (global (export "{names[1]}") i32 (i32.const 1040))
      (func (export "run") (result i32) (local $i i32) (local $a i32)
        (local.set $a (i32.const 65535))
        loop $l
          (i32.store8 (local.get $a) (local.get $i)) (local.set $a (i32.sub (local.get $a) (i32.const 1000)))
          (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 60)))
        end
        (i32.add (i32.mul (i32.load8_u (i32.const 65535)) (i32.const 100)) (i32.load8_u (i32.const 6535))))""")
    moves(wasm, [i32(59)], chains=(9,))
    world = World()
    with closing_world(world):
        trace = move(wasm, ENGINES, 9, world=world, invoke="run", keep_images=True)
    assert all(formats.decode(raw).memories[0].pages == 1 for raw in trace.images)


# A23: growth at the limit

@pytest.mark.parametrize(("top", "step"), list(product([3, 5], [1, 2])))
def test_growth_at_the_limit(top: int, step: int) -> None:
    """Before and after a move: the module's own maximum, zeroed pages, -1 beyond, also for deltas that overflow."""
    calls, results = [], []
    pages = 1
    for delta in [step, step, step, 65536, 0xFFFFFFFF, 0]:
        calls.append(f"(memory.grow (i32.const {delta})) (call $spin (i32.const 2)) (memory.size)")
        fits = pages + delta <= top
        results += [i32(pages if fits else -1), i32(pages + delta if fits else pages)]
        pages += delta if fits else 0
    moves(f"""{SPIN} (memory 1 {top}) (func (export "run") (result {"i32 " * (len(results) + 1)})
      {" ".join(calls)}
      (i32.store (i32.const {pages * 65536 - 4}) (i32.const 1)) (i32.load (i32.const {pages * 65536 - 4})))""",
          [*results, i32(1)], chains=(4,))


def test_pages_that_become_zero_or_come_back_are_kept() -> None:
    """An initial page cleared, one half cleared, one grown and cleared again."""
    moves(f"""{SPIN} (memory 2 4) (data (i32.const 4000) "across a border of two pages of the image, and then some more"
        "{'x' * 200}") (data (i32.const 69632) "cleared")
      (func (export "run") (result i64) (local $i i32)
        (i64.store (i32.const 69632) (i64.const 0)) (call $spin (i32.const 2))
        (drop (memory.grow (i32.const 1)))
        (i32.store (i32.const 140000) (i32.const 5)) (call $spin (i32.const 2))
        (i32.store (i32.const 140000) (i32.const 0))
        (local.set $i (i32.const 4000))
        loop $l (i32.store8 (local.get $i) (i32.const 0))
          (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 4096))) end
        (call $spin (i32.const 2))
        (i64.add (i64.load (i32.const 4096)) (i64.load (i32.const 69632))))""", None, chains=(3,))


@pytest.mark.parametrize("plan", [COUNTING, EVERYWHERE], ids=["shipped", "all"])
def test_every_memory_of_several(plan: object) -> None:
    """A7's second half: one grown, marks at both ends."""
    assert plan
    moves(f"""{SPIN} (memory $a (export "memory") 1 2) (memory $b 2 4)
      (func (export "run") (result i32)
        (i32.store $a (i32.const 65532) (i32.const 111)) (i32.store $b (i32.const 131068) (i32.const 222))
        (drop (memory.grow $b (i32.const 1))) (i32.store $b (i32.const 196604) (i32.const 333))
        (call $spin (i32.const 5)) (drop (memory.grow $b (i32.const 2))) (call $spin (i32.const 2))
        (i32.add (i32.add (i32.load $a (i32.const 65532)) (i32.load $b (i32.const 131068)))
                 (i32.add (i32.load $b (i32.const 196604)) (i32.mul (memory.size $b) (i32.const 10000)))))""",
          [i32(30666)], pairs=pairs_for("multi-memory"))
