"""Exported modules where it is tight: deep recursion, memories without room, programs between calls; and what is
refused, each with a twin that is not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wasmckpt import Job, WasiConfig, formats, runtimes
from wasmckpt.errors import ImageError, InvalidModule, JobEnded, NotSupported, UsageError
from wasmckpt.formats import GlobalState, ParentRef, StopKind
from wasmckpt.interop import export
from wasmckpt.interop.window import Window
from wasmckpt.lazydata import replace
from wasmckpt.runtimes import HostGlobal
from wasmckpt.snapshot.program import Program, Status, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import ExternKind
from wasmckpt.wasm.values import EXTERNREF, I32, I64, Value

from ..cli.conftest import wait_for
from ..cli.programs import CAT, COUNT, count_result, exits, talk, talk_output, wat
from ..support.moving import COUNTING, EVERYWHERE, World, run_program
from ..support.samples import Sample, sample
from ..support.spec import wasm_tools
from .frozen import Frozen, freeze
from .plain import RUNNERS, run_plainly, valid

N = 100
RESULT = count_result(N) & 0xFFFFFFFF


@pytest.fixture(scope="module")
def any_sample() -> Sample:
    """For its arguments and variables, which nobody here looks at."""
    return sample("multi", "default")


def counting(nth: int = 50) -> Frozen:
    return freeze(wat(COUNT), "wasmtime", nth, invoke="run", arguments=[Value(I32, N)], options=EVERYWHERE)


RECURSION = """(module
  (memory (export "memory") {pages} {pages})
  (global $hash (mut i64) (i64.const 0))
  (func $deep (param $n i32) (result i64) (local $x i64)
    (local.set $x (i64.mul (i64.extend_i32_u (local.get $n)) (i64.const 0x9e3779b97f4a7c15)))
    (if (result i64) (local.get $n)
      (then (i64.xor (i64.rotl (call $deep (i32.sub (local.get $n) (i32.const 1))) (i64.const 7)) (local.get $x)))
      (else (call $rest))))
  (func $rest (result i64) (local $i i32)
    (loop $next
      (global.set $hash (i64.add (i64.mul (global.get $hash) (i64.const 31)) (i64.extend_i32_u (local.get $i))))
      (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 100))))
    (global.get $hash))
  (func $fill (local $i i32)
    (if (i32.eqz (i32.const {pages})) (then (return)))
    (loop $next
      (i64.store (local.get $i) (i64.add (i64.extend_i32_u (local.get $i)) (i64.const 0x0101010101010101)))
      (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 8))) (i32.const {bytes})))))
  (func (export "run") (param $n i32) (result i64 i32) (local $i i32)
    {fill}
    (global.set $hash (i64.const 5))
    (global.set $hash (call $deep (local.get $n)))
    (if (i32.const {pages}) (then (loop $next
      (global.set $hash (i64.add (i64.mul (global.get $hash) (i64.const 31)) (i64.load (local.get $i))))
      (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 8))) (i32.const {bytes}))))))
    (global.get $hash) (memory.size)))"""
"""``run(n)`` hashes what it has on the way back from n calls, then its whole memory; gives its size, too."""


def recursion(pages: int, *, full: bool) -> bytes:
    return wat(RECURSION.format(pages=pages, bytes=pages << 16, fill="(call $fill)" if full else ""))


@pytest.mark.parametrize(("pages", "full", "frames", "pieces", "borrowed"), [
    (0, False, 10_000, 1, False), (1, False, 10_000, 2, True), (1, True, 20_000, 4, True), (40, True, 10_000, 1, True),
    (40, False, 10_000, 1, True),
])
@pytest.mark.slow
def test_ten_thousand_frames(
    pages: int, full: bool, frames: int, pieces: int, borrowed: bool, any_sample: Sample,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever room the memory has for their records, it is the guest's own afterwards, all of it."""
    wasm, arguments = recursion(pages, full=full), [Value(I32, frames)]
    laid: list[Window] = []
    lay = Window.lay

    def noting(self: Window, memory: dict[int, bytes]) -> None:
        laid.append(self)
        lay(self, memory)

    monkeypatch.setattr(Window, "lay", noting)
    engine = runtimes.load("wasmtime")
    with contextlib.closing(Program.fresh(
        engine, wasm, World().host(), entry_for(decode(wasm), "run", arguments), options=COUNTING, stack_bytes=64 << 20,
    )) as program:
        wanted = run_program(engine, program).results
    nth = (pages << 13) * full + 50  # in the loop that follows the deepest call; calls count on the way back
    frozen = freeze(
        wasm, "wasmtime", nth, invoke="run", arguments=arguments, options=EVERYWHERE, stack_bytes=64 << 20,
    )
    assert len(frozen.image.frames) > frames
    made = export(frozen.image, wasm)
    valid(made.wasm)
    assert (len(laid[0].pieces), made.borrowed, made.multi_memory) == (pieces, borrowed, not borrowed)
    assert len(made.wasm) < len(wasm) + 500_000 + full * (pages << 16)
    for runner in RUNNERS[: 1 + borrowed]:  # Node has one memory only
        assert run_plainly(runner, made.wasm, any_sample, invoke="resume").results == wanted


def test_a_module_without_a_memory_gets_one(any_sample: Sample) -> None:
    frozen = counting()
    made = export(frozen.image, frozen.wasm)
    assert (len(decode(made.wasm).memories), made.borrowed, made.multi_memory) == (1, False, False)
    for runner in RUNNERS[:2]:
        assert run_plainly(runner, made.wasm, any_sample, invoke="resume").results == (RESULT,)


@pytest.mark.slow
def test_a_program_of_ten_thousand_frames_in_c() -> None:
    """By WASI, on all that have it; Node and WasmEdge with the stack that they are given."""
    program = sample("deep", "deep")
    # In the loop that follows the deepest call, and after a third of the way back.
    for nth, least in ((1_000, 10_000), (6_000, 5_000)):
        frozen = freeze(program.wasm, "wasmtime", nth, sample=program, stack_bytes=64 << 20)
        assert len(frozen.image.frames) > least
        made = export(frozen.image, frozen.wasm)
        for runner in RUNNERS:
            assert frozen.output + run_plainly(runner, made.wasm, program).output == program.stdout, (runner, nth)


@pytest.mark.parametrize("bug", ["put_back", "lay"])
def test_a_window_that_is_not_put_back_or_not_laid_is_seen(
    bug: str, any_sample: Sample, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """These tests can fail: with the bug planted the result is another one."""
    wasm = recursion(1, full=True)
    frozen = freeze(wasm, "wasmtime", 8192 + 50, invoke="run", arguments=[Value(I32, 20)], options=EVERYWHERE)
    right = run_plainly("wasmtime", export(frozen.image, wasm).wasm, any_sample, invoke="resume")
    with monkeypatch.context() as patch:
        patch.setattr(Window, bug, lambda self, other: b"")
        wrong = export(frozen.image, wasm)
    got = run_plainly("wasmtime", wrong.wasm, any_sample, invoke="resume")
    assert got != right


@pytest.mark.parametrize("engine", ["wasm3", "wasmtime", "wamr"])
def test_what_was_exported_is_a_program_again(engine: str, any_sample: Sample) -> None:
    """It runs under us, also where there is one memory only, is frozen and exported, and so on; nothing is lost."""
    if engine not in runtimes.available():
        pytest.skip(f"{engine} is not here")
    wasm, output = wat(talk(6, 20)), b""
    for _ in range(3):
        frozen = freeze(wasm, engine, 50, options=EVERYWHERE)
        output += frozen.output
        wasm = export(frozen.image, frozen.wasm).wasm
        valid(wasm)
    assert len(decode(wasm).memories) == 1
    assert output + run_plainly("wasmtime", wasm, any_sample).output == talk_output(6, 20)


def test_it_goes_on_once() -> None:
    """Whoever calls again gets a trap, not a second life from what is no more there."""
    frozen = counting()
    made = export(frozen.image, frozen.wasm, name="again")
    import wasmtime

    store = wasmtime.Store()
    instance = wasmtime.Instance(store, wasmtime.Module(store.engine, made.wasm), [])
    again: Any = instance.exports(store)["again"]
    assert again(store) & 0xFFFFFFFF == RESULT
    with pytest.raises(wasmtime.Trap):
        again(store)


STEPS = """(module
  (import "env" "log" (func $log (param i32)))
  (func $count (param $what i32) (local $i i32)
    (loop $next
      (call $log (i32.add (local.get $what) (local.get $i)))
      (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 3)))))
  (func $start (call $count (i32.const 10)))
  (start $start)
  (func (export "_initialize") (call $count (i32.const 20)))
  (func (export "other") (call $count (i32.const 40)))
  (func (export "run") (param $n i32) (param f64) (result i32) (call $count (i32.const 30)) (local.get $n)))"""


@pytest.mark.parametrize("nth", range(1, 22, 3))
def test_what_follows_the_present_step(nth: int, any_sample: Sample) -> None:
    """Start section, ``_initialize``, then the export with its arguments: each once, whichever was under way."""
    arguments = [Value(I32, 0xFFFFFFFE), Value(0x7C, 0x4000000000000000)]
    frozen = freeze(wat(STEPS), "wasmtime", nth, invoke="run", arguments=arguments, options=EVERYWHERE)
    made = export(frozen.image, frozen.wasm)
    valid(made.wasm)
    exported = {item.name for item in decode(made.wasm).exports}
    assert exported == {"other", "run", "resume"}
    for runner in RUNNERS[:2]:
        ended = run_plainly(runner, made.wasm, any_sample, invoke="resume")
        assert frozen.log + ended.log == (10, 11, 12, 20, 21, 22, 30, 31, 32)
        assert ended.results == (0xFFFFFFFE,)


def test_a_program_between_two_calls(any_sample: Sample) -> None:
    """Nothing goes on; its exports are there, and what the calls before have done."""
    wasm = wat("""(module (memory (export "memory") 1) (global $g (mut i64) (i64.const 1))
      (func (export "_initialize") (i32.store (i32.const 60000) (i32.const 1)))
      (func (export "set") (global.set $g (i64.const 77)) (i32.store8 (i32.const 9) (i32.const 8))
        (drop (memory.grow (i32.const 1))))
      (func (export "get") (result i64)
        (i64.add (global.get $g) (i64.extend_i32_u (i32.add (memory.size) (i32.load (i32.const 9)))))))""")
    engine = runtimes.load("wasmtime")
    with contextlib.closing(
        Program.fresh(engine, wasm, World().host(), entry_for(decode(wasm), "set"), options=COUNTING)
    ) as program:
        run_program(engine, program)
        image = formats.decode(formats.encode(program.capture_idle()))
    made = export(image, wasm)
    assert (made.entry, made.results, made.borrowed) == (None, (), False)
    assert {item.name for item in decode(made.wasm).exports} == {"memory", "set", "get"}
    for runner in RUNNERS[:2]:
        assert run_plainly(runner, made.wasm, any_sample, invoke="get").results == (77 + 2 + 8,)


IMPORTING = """(module
  (import "env" "memory" (memory 1 3))
  (import "env" "table" (table 4 funcref))
  (import "env" "shared" (global $shared (mut i64)))
  (import "env" "log" (func $log (param i32)))
  (func $seven (result i32) (i32.const 7))
  (elem (i32.const 2) func $seven)
  (func (export "run") (result i64) (local $i i32)
    (drop (memory.grow (i32.const 1)))
    (loop $next
      (global.set $shared (i64.add (global.get $shared)
        (i64.extend_i32_u (call_indirect (result i32) (i32.const 2)))))
      (i64.store (i32.const 80000) (global.get $shared))
      (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 20))))
    (i64.add (i64.load (i32.const 80000)) (i64.extend_i32_u (memory.size)))))"""


def test_imports_become_definitions(any_sample: Sample) -> None:
    """A plain runtime has no memory, table or global to give; functions are asked for as before."""
    wasm = wat(IMPORTING)
    shared = {("env", "shared"): HostGlobal(I64, True, 1000)}
    frozen = _freeze_with(wasm, shared)
    made = export(frozen.image, wasm)
    valid(made.wasm)
    assert [item.kind for item in decode(made.wasm).imports] == [ExternKind.FUNC]
    assert [loss.kind for loss in made.losses] == ["import"]
    assert not made.losses[0].wrong
    assert run_plainly("wasmtime", made.wasm, any_sample, invoke="resume").results == (1000 + 20 * 7 + 2,)


def _freeze_with(wasm: bytes, given: dict[tuple[str, str], HostGlobal]) -> Frozen:
    engine = runtimes.load("wasmtime")
    world = World(imported=given)
    with contextlib.closing(
        Program.fresh(engine, wasm, world.host(), entry_for(decode(wasm), "run"), options=EVERYWHERE)
    ) as program:
        program.freeze_at(10)
        assert run_program(engine, program).status is Status.FROZEN
        return Frozen(wasm, formats.decode(formats.encode(program.capture())), b"", tuple(world.log), 0)


def test_an_imported_constant_is_refused(any_sample: Sample) -> None:
    """An image does not hold it. The same global, if it is mutable, is carried."""
    for mutable in (True, False):
        kind = "(mut i64)" if mutable else "i64"
        wasm = wat(f"""(module (import "env" "k" (global $k {kind})) (memory 1)
          (func (export "run") (result i64) (local $i i32)
            (loop $next (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 99))))
            (global.get $k)))""")
        frozen = _freeze_with(wasm, {("env", "k"): HostGlobal(I64, mutable, 12345)})
        if mutable:
            made = export(frozen.image, wasm)
            assert run_plainly("wasmtime", made.wasm, any_sample, invoke="resume").results == (12345,)
        else:
            with pytest.raises(NotSupported, match=r"env\.k"):
                export(frozen.image, wasm)


def test_references_to_the_host_are_refused(any_sample: Sample) -> None:
    """Null ones are carried."""
    wasm = wat("""(module (global $e (mut externref) (ref.null extern))
      (func (export "run") (result i32) (local $i i32) (local $r externref)
        (local.set $r (global.get $e))
        (loop $next (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 99))))
        (ref.is_null (local.get $r))))""")
    frozen = freeze(wasm, "wasmtime", 10, invoke="run")
    made = export(frozen.image, wasm)
    valid(made.wasm)
    assert run_plainly("wasmtime", made.wasm, any_sample, invoke="resume").results == (1,)
    held = replace(frozen.image, globals=(GlobalState(0, EXTERNREF, 5),))
    with pytest.raises(NotSupported, match="of the host"):
        export(held, wasm)


HELD = """(module
  (tag $empty) (tag $pair (param f64 i32))
  (memory 1)
  (func $spin (local $i i32)
    (loop $next (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 9)))))
  (func $hold (param $which i32) (local $held exnref) (local $none exnref)
    (block $caught (result exnref)
      (try_table (catch_all_ref $caught)
        (if (local.get $which) (then (throw $pair (f64.const nan:0x8000000000777) (i32.const -3)))
          (else (throw $empty))))
      (return))
    (local.set $held)
    (call $spin)
    (if (ref.is_null (local.get $none)) (then (throw_ref (local.get $held)))))
  (func (export "run") (param $which i32) (result i64 i32)
    (block $pair (result f64 i32)
      (block $empty
        (try_table (catch $pair $pair) (catch $empty $empty) (call $hold (local.get $which)))
        (unreachable))
      (return (i64.const 1) (i32.const 2)))
    (local.set $which) (i64.reinterpret_f64) (local.get $which)))"""
"""Holds an exception while it does something else, as what cleans up does, and throws it on."""


@pytest.mark.parametrize(("which", "wanted"), [(0, (1, 2)), (1, (0x7FF8000000000777, 0xFFFFFFFD))])
def test_an_exception_that_is_held(which: int, wanted: tuple[int, ...], any_sample: Sample) -> None:
    """It is thrown on with what it carries."""
    wasm = subprocess.run([wasm_tools(), "parse", "-"], input=HELD.encode(), capture_output=True, check=True).stdout
    frozen = freeze(wasm, "wasmtime", 4, invoke="run", arguments=[Value(I32, which)], options=EVERYWHERE)
    assert len(frozen.image.frames) == 3
    made = export(frozen.image, wasm)
    valid(made.wasm)
    assert run_plainly("wasmtime", made.wasm, any_sample, invoke="resume").results == wanted


def test_a_call_in_progress_is_made_again(any_sample: Sample) -> None:
    """Frozen while it waits for input; what comes next it reads in its new life, nothing twice."""
    wasm = wat(CAT)
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as output:
        with Job.start(wasm, config=WasiConfig(stdin=reading, stdout=output.fileno())) as job:
            os.write(writing, b"before ")
            wait_for(lambda: os.fstat(output.fileno()).st_size == 7, "the first half")
            while True:
                taken = job.checkpoint().data
                assert taken is not None
                image = formats.decode(taken)
                if image.frames[-1].point.kind is StopKind.REPEAT:
                    break
        output.seek(0)
        before = output.read()
    os.close(reading)
    os.close(writing)
    made = export(image, wasm)
    assert [loss.what for loss in made.losses if loss.kind == "stdin"] == [
        "7 bytes of standard input have been read: give it what comes behind them",
    ]
    for runner in RUNNERS:
        assert before + run_plainly(runner, made.wasm, any_sample, stdin=b"after").output == b"before after"


def test_bad_input(any_sample: Sample) -> None:
    """One error each, and no module."""
    frozen = counting()
    image, wasm = frozen.image, frozen.wasm
    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ImageError, "another module", lambda: export(image, wat(exits(1)))),
        (InvalidModule, "version", lambda: export(image, b"\0asm")),
        (UsageError, "does not carry", lambda: export(image)),
        (ImageError, "difference", lambda: export(replace(image, parent=ParentRef(bytes(32), 1)), wasm)),
        (UsageError, "'swap' already", lambda: export(image, wasm, name="swap")),
        (ImageError, "does not wait", lambda: export(replace(image, frames=image.frames[:1] * 2), wasm)),
        (ImageError, "damaged", lambda: export(replace(image, host={"descriptors": 3}), wasm)),
    ]
    for kind, text, attempt in cases:
        with pytest.raises(kind, match=text):
            attempt()
    carried = replace(image, module=replace(image.module, content=wasm))
    assert run_plainly("wasmtime", export(carried).wasm, any_sample, invoke="resume").results == (RESULT,)


def test_a_program_that_has_ended(tmp_path: Path) -> None:
    wasm = wat(talk(1, 5))
    engine, world = runtimes.load("wasmtime"), World()
    with contextlib.closing(
        Program.fresh(engine, wasm, world.host(), entry_for(decode(wasm)), options=COUNTING)
    ) as program:
        run_program(engine, program)
        image = program.capture_idle()
    world.leave()
    with pytest.raises(JobEnded):
        export(image, wasm)
