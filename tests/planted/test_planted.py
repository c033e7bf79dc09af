"""The tests can fail: one bug of each kind, planted into rewriter, capture or resume, and the suite's check sees it.

The check is the matrix's own (`difference`), on a few programs that are made of what the kinds of bugs break.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from wasmtime import wat2wasm

from wasmckpt.formats import MemoryState
from wasmckpt.host import RepeatCall
from wasmckpt.instrument import continuations, emit, function, records, spill
from wasmckpt.instrument.flow import live_at
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.instrument.records import read_frames, read_globals
from wasmckpt.instrument.sites import Site
from wasmckpt.runtimes import HostFunction
from wasmckpt.snapshot import program as program_module
from wasmckpt.snapshot.pages import diff_memory
from wasmckpt.wasm.module import FuncType
from wasmckpt.wasm.values import I32, WIDTH

from ..field.harness import SPIN, Life, live
from ..matrix.check import difference, runner, safepoints
from ..support.moving import COUNTING, EVERYWHERE
from ..support.tiers import by_tier

PROGRAMS = {
    "operands": f"""(module (import "env" "log" (func $log (param i32))) {SPIN}
      (memory (export "memory") 2 3) (data (i32.const 4000) "some text across two pages {'x' * 90}")
      (global $g (mut i64) (i64.const -77))
      (func $mix (param $a i32) (param $b i64) (result i64)
        (local.get $b) (i64.const 1000) (i64.extend_i32_u (local.get $a)) (call $spin (i32.const 2))
        i64.sub i64.mul (global.get $g) i64.add global.set $g (global.get $g))
      (func (export "run") (result i64) (local $i i32) (local $f f64) (local $j i32) (local $s i64)
        (local.set $f (f64.const 0.5)) (local.set $j (i32.const 3))
        loop $l
          (i64.const 7) (i64.extend_i32_u (i32.mul (local.get $i) (local.get $j)))
          (call $mix (local.get $i) (i64.add (local.get $s) (i64.const 3)))
          i64.sub i64.xor local.set $s
          (call $log (local.get $i))
          (i64.store (i32.add (i32.const 4090) (i32.mul (local.get $i) (i32.const 5000))) (local.get $s))
          (local.set $f (f64.mul (local.get $f) (f64.const 1.5)))
          (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 9)))
        end
        (i64.add (local.get $s) (i64.reinterpret_f64 (local.get $f)))))""",
    "nested": f"""(module {SPIN}
      (func (export "run") (result i32) (local $i i32) (local $j i32) (local $s i32)
        block $out
          loop $o
            (local.set $j (i32.const 4))
            block $mid
              loop $n
                (local.set $s (i32.add (i32.mul (local.get $s) (i32.const 3)) (local.get $j)))
                (call $spin (i32.const 1))
                (br_if $mid (i32.eq (local.get $j) (local.get $i)))
                (br_if $out (i32.gt_u (local.get $i) (i32.const 5)))
                (br_if $n (local.tee $j (i32.sub (local.get $j) (i32.const 1))))
              end
              (local.set $s (i32.xor (local.get $s) (i32.const 0x55)))
            end
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            br $o
          end
        end local.get $s))""",
    "deep": """(module (func $f (param $n i32) (param $v i64) (result i64)
        (if (i32.eqz (local.get $n)) (then (return (local.get $v))))
        (i64.sub (i64.mul (local.get $v) (i64.const 5))
          (call $f (i32.sub (local.get $n) (i32.const 1)) (i64.add (local.get $v) (i64.const 9)))))
      (func (export "run") (result i64) (call $f (i32.const 40) (i64.const 3))))""",
}


ALL = by_tier(check=False, test=True, soak=True)


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted rewriter rewrites; it must not be given the work of the right one."""
    monkeypatch.setattr(program_module, "cached_instrument",
                        lambda module, options, *, imported: instrument(module, options, imported))


def seen(options: Options | None = None, engines: tuple[str, ...] = ("wasmtime", "wasm3")) -> Iterator[str]:
    """What the check says of the sample programs, frozen at a few distances. The expected traces were made before."""
    for name, text in PROGRAMS.items():
        wasm = bytes(wat2wasm(text))
        for plan in (options,) if options else (EVERYWHERE, COUNTING) if ALL else (EVERYWHERE,):
            run = runner(wasm, plan, invoke="run", most_hops=12)
            for n in (2, 3, 5) if ALL else (3,):
                if wrong := difference(run, engines, n, EXPECTED[name]):
                    assert not wrong.startswith(("TypeError", "AttributeError", "NameError")), "the plant is broken"
                    yield f"{name}, {plan.plan}, {n}: {wrong}"


EXPECTED = {name: runner(bytes(wat2wasm(text)), COUNTING, invoke="run")(["wasmtime"], 0)
            for name, text in PROGRAMS.items()}


def test_without_a_bug_nothing_is_seen() -> None:
    """The twin of all that follow."""
    assert list(seen()) == []


def after(call: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """``call`` with its result changed."""
    return lambda *args, **named: change(call(*args, **named))


def test_a_live_local_dropped_from_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    """The highest live local of each place is taken for dead."""
    def forget(found: tuple[dict[int, int], int]) -> tuple[dict[int, int], int]:
        return {i: bits & ~(1 << bits.bit_length() - 1) if bits else 0 for i, bits in found[0].items()}, found[1]

    monkeypatch.setattr(function, "live_at", after(live_at, forget))
    assert any(seen())


def test_an_exit_shared_by_sites_that_store_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sites of a function share one exit, which stores what the first one needs."""
    def exits(sites: Sequence[tuple[int, list[tuple[int, bytes]]]], *, share: bool) -> list[Any]:
        return [([number for number, _ in sites], sites[0][1])]

    monkeypatch.setattr(function, "_exits", exits)
    assert any(seen())


@pytest.mark.slow
def test_two_records_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two frames around the middle change places."""
    def swap(frames: list[Any]) -> list[Any]:
        if len(frames) > 3:
            frames[1], frames[2] = frames[2], frames[1]
        return frames

    monkeypatch.setattr(program_module, "read_frames", after(read_frames, swap))
    assert any(seen())


def test_the_flag_is_lowered_during_unwinding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The poll that freezes lowers the flag at once: the callers do not unwind."""
    def poll(self: spill.Helpers) -> bytes:
        less = emit.global_get(self.count) + b"\x42\x01\x7d" + emit.global_set(self.count)
        code = less + emit.global_get(self.count) + b"\x50"
        return emit.call(self.linker.add_function("poll", FuncType((), (I32,)), [], code))

    monkeypatch.setattr(spill.Helpers, "_poll", poll)
    assert any(seen())


def test_a_page_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last changed run of pages is not written down."""
    def miss(state: MemoryState) -> MemoryState:
        return MemoryState(state.index, state.pages, state.data[:-1], state.zero)

    monkeypatch.setattr(program_module, "diff_memory", after(diff_memory, miss))
    assert any(seen())


def test_initial_pages_that_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a segment that became zero or changed back is compared with nothing."""
    monkeypatch.setattr(program_module, "initial_pages", lambda *_: {})
    text = f"""(module {SPIN} (memory 1) (data (i32.const 8) "gone") (func (export "run") (result i32)
      (i32.store (i32.const 8) (i32.const 0)) (call $spin (i32.const 4)) (i32.load (i32.const 8))))"""
    run = runner(bytes(wat2wasm(text)), EVERYWHERE, invoke="run")
    assert difference(run, ["wasmtime"], 2, run(["wasmtime"], 0))


def test_a_call_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that stands after a call is taken for one before it: the call is made again."""
    class Doubled(records._Reader):
        def __init__(self, site: Site, kind: int) -> None:
            super().__init__(site, kind)
            if kind == records.AT_SAFEPOINT and site.is_import:
                super().__init__(site, records.REPEAT_CALL)

    monkeypatch.setattr(records, "_Reader", Doubled)
    assert any("log" in wrong for wrong in seen())


def test_an_interrupted_call_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that asked to be repeated is taken for done."""
    real = read_frames
    wasm = bytes(wat2wasm("""(module (import "env" "take" (func $take (param i32) (result i32)))
      (func (export "run") (result i32) (i32.add (call $take (i32.const 5)) (call $take (i32.const 6)))))"""))

    def lived() -> tuple[int, ...]:
        life = Life()
        tried: list[int] = []

        def take(i: int) -> int:
            if i not in tried:
                tried.append(i)
                life.freeze()
                raise RepeatCall
            return i * 10

        return live(wasm, ["wasmtime", "wasm3"], life, {("env", "take"): HostFunction((I32,), (I32,), take)}).results

    assert lived() == (110,)
    monkeypatch.setattr(program_module, "read_frames", lambda window, sites, *, repeat: real(
        window, sites, repeat=False))
    assert lived() != (110,)


@pytest.mark.slow
@pytest.mark.parametrize("by", [1, 2, 3])
def test_wrong_offsets(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames stand a few bytes further than they do, where another instruction starts or none."""
    def shift(frames: list[Any]) -> list[Any]:
        return [(place._replace(offset=place.offset + by), values) for place, values in frames]

    monkeypatch.setattr(program_module, "read_frames", after(read_frames, shift))
    assert any(seen())


@pytest.mark.slow
def test_wrong_provenance_in_continuations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed program, frozen again, says where its copy stands, not where the original does."""
    real = function.Origin.offset

    def wrong(self: function.Origin, at: int) -> int:
        return real(self, at) if self.pieces is None else at

    monkeypatch.setattr(function.Origin, "offset", wrong)
    assert any(seen())


def test_operands_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def push(self: continuations._Draft, locals_: list[int]) -> None:
        for local in reversed(locals_):
            self._emit(emit.local_get(local))

    monkeypatch.setattr(continuations._Draft, "_push", push)
    assert any(seen())


@pytest.mark.slow
def test_slots_in_the_wrong_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two values of one type change places in the record."""
    real = function._Rewriter._site

    def site(self: Any, *args: Any) -> Any:
        found, at, sources = real(self, *args)
        for n in range(len(sources) - 1):
            if sources[n][0] == sources[n + 1][0]:
                sources[n], sources[n + 1] = sources[n + 1], sources[n]
                break
        return found, at, sources

    monkeypatch.setattr(function._Rewriter, "_site", site)
    assert any(seen())


def test_a_wrong_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting constant that nobody stores is remembered wrong."""
    real = function._Rewriter._constant_bits
    monkeypatch.setattr(function._Rewriter, "_constant_bits", lambda self, i: real(self, i) ^ 1)
    assert any(seen())


@pytest.mark.slow
@pytest.mark.parametrize("by", [1, -1])
def test_wrong_branch_depths_in_continuations(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real = continuations._Draft._distance
    monkeypatch.setattr(continuations._Draft, "_distance", lambda self, outward, path: max(
        0, real(self, outward, path) + by * (outward < len(path))))
    assert any(seen())


def test_a_loop_that_is_never_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The skip rule takes all loops for safe: a program that should pass safepoints passes none."""
    wasm = bytes(wat2wasm(f"""(module {SPIN} (func (export "run") (call $spin (i32.const 30))))"""))
    assert safepoints(wasm, "wasmtime", COUNTING, invoke="run") >= 30 // COUNTING.unroll
    monkeypatch.setattr(function, "loops_to_poll", lambda _, ending=(): set())
    assert safepoints(wasm, "wasmtime", COUNTING, invoke="run") < 5


def test_a_window_that_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records beyond the window's first size go where they do not belong."""
    text = """(module (memory (export "memory") 1) (func $f (param $n i32) (param $v i64) (result i64)
        (if (i32.eqz (local.get $n)) (then (return (local.get $v))))
        (i64.xor (i64.mul (local.get $v) (i64.const 5))
          (call $f (i32.sub (local.get $n) (i32.const 1)) (i64.add (local.get $v) (i64.const 9)))))
      (func (export "run") (result i64) (call $f (i32.const 1500) (i64.const 3))))"""
    run = runner(bytes(wat2wasm(text)), EVERYWHERE, invoke="run", most_hops=2)
    expected = run(["wasmtime"], 0)
    monkeypatch.setattr(spill, "CONTROL_PAGES", 0)
    monkeypatch.setattr(spill.Helpers, "_more", lambda self: self.linker.add_function(
        "more", FuncType((I32,), ()), [], emit.i32_const(self.linker.window_base) + emit.global_set(self.sp)))
    assert difference(run, ["wasmtime", "wasm3"], 2, expected)


@pytest.mark.slow
def test_a_global_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "read_globals", after(
        read_globals, lambda found: ([], found[1])))
    assert any(seen())


@pytest.mark.slow
def test_bits_of_a_value_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record's 64-bit values come back as 32 bits."""
    real = continuations._Frame._load

    def load(self: continuations._Frame, place: Any) -> None:
        narrow = {0x7E: b"\x35\x00"}  # i64.load32_u
        kept = emit.load
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(emit, "load", lambda kind, memory, offset=0: (
                narrow[kind] + kept(kind, memory, offset)[2:] if kind in narrow and not memory
                else kept(kind, memory, offset)))
            real(self, place)

    assert WIDTH[0x7E] == 8
    monkeypatch.setattr(continuations._Frame, "_load", load)
    assert any(seen(engines=("wasm3", "wasm3")))
