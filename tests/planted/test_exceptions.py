"""Bugs planted into what is done for exceptions are seen by the tests of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from wasmckpt.instrument import callgraph, continuations, emit, flow, function
from wasmckpt.instrument.flow import live_at
from wasmckpt.instrument.instrument import Instrumented, instrument
from wasmckpt.instrument.neutral import exceptions
from wasmckpt.instrument.neutral.code import _Instead
from wasmckpt.instrument.options import Options
from wasmckpt.snapshot import program as program_module
from wasmckpt.wasm.validate import Catch, Code

from ..field.harness import assemble
from ..field.test_exceptions import PROGRAMS, program
from ..field.test_exceptions import test_images_are_those_of_the_interpreter as images_are_those_of_the_interpreter
from ..matrix.check import difference, runner
from ..support.moving import COUNTING, EVERYWHERE
from ..support.partner import REFERENCE

pytestmark = pytest.mark.slow

NAMES = ("caught", "a local that only the handler reads", "to a loop", "thrown in a handler", "in a loop", "an operand",
         "several clauses", "branches in a wrapped one", "a float and nothing")
WASM = {name: assemble(program(PROGRAMS[name][0])) for name in NAMES}
EXPECTED = {name: runner(wasm, EVERYWHERE, invoke="run")([REFERENCE], 0) for name, wasm in WASM.items()}


def seen(engines: Sequence[str] = ("wasmtime", "wasmtime")) -> Iterator[str]:
    """What the check of moves says of a few programs, each frozen at its first safepoints or not."""
    for name in NAMES:
        for options in (EVERYWHERE, COUNTING):
            run = runner(WASM[name], options, invoke="run", most_hops=4)
            for n in (0, 1, 2, 3):
                if wrong := difference(run, engines, n, EXPECTED[name]):
                    assert not wrong.startswith(("TypeError", "AttributeError", "NameError")), "the plant is broken"
                    yield f"{name}, {n}: {wrong}"


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncached(module: Any, options: Options, *, imported: dict[int, int]) -> Instrumented:
        return instrument(module, options, imported)

    monkeypatch.setattr(program_module, "cached_instrument", uncached)


def test_without_a_bug_nothing_is_seen() -> None:
    """The twin of all that follow."""
    assert list(seen()) == []


def test_a_try_table_that_is_not_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A continuation has blocks instead: who is thrown at there has no handler any more."""
    real = continuations._Draft._open

    def plain(self: Any, opener: int, path: list[int]) -> None:
        if self.source.ops[opener] == 0x1F:
            self._emit(self._block(self._block_type(opener).results))
        else:
            real(self, opener, path)

    monkeypatch.setattr(continuations._Draft, "_open", plain)
    assert any("uncaught exception" in wrong for wrong in seen())


def test_labels_of_clauses_that_are_not_led_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a continuation a loop on the way has become two blocks."""
    monkeypatch.setattr(continuations._Draft, "_distance", lambda self, outward, path: outward)
    assert any(seen())


def test_clauses_out_of_the_function_that_pass_by_the_exits(monkeypatch: pytest.MonkeyPatch) -> None:
    text = program("(try_table (catch $e 0) (drop (call $thrower (i32.const 9)))) (i32.const 1)")
    run = runner(assemble(text), EVERYWHERE, invoke="run")
    expected = run(["wasmtime"], 0)
    monkeypatch.setattr(function, "with_labels", lambda code, i, raw, depths: emit.try_table(
        b"\x40", code.catches[i]))
    assert difference(run, ["wasmtime"], 0, expected)


def test_what_only_a_handler_reads_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    real = flow.build_flow

    def deaf(code: Code, sites: Any, skips: Any) -> flow.Flow:
        made = real(code, sites, skips)
        made.tries.clear()
        made.kinds = [flow.BLOCK if kind == flow.TRY else kind for kind in made.kinds]
        return made

    monkeypatch.setattr(function, "build_flow", deaf)
    assert any("only the handler" in wrong and "has no value" in wrong for wrong in seen())


def test_what_is_live_in_a_try_table_only_is_in_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local too many is no error to a resume, but it is to the comparison with the interpreter's images."""
    images_are_those_of_the_interpreter("a local that only the handler reads")
    real = live_at
    monkeypatch.setattr(function, "live_at", lambda made: (
        {index: live | 1 for index, live in real(made)[0].items()}, real(made)[1]))
    with pytest.raises(AssertionError):
        images_are_those_of_the_interpreter("a local that only the handler reads")


def test_tags_that_are_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception is packed with the tag before its own."""
    real = exceptions.ExceptionValues._pack
    monkeypatch.setattr(exceptions.ExceptionValues, "_pack", lambda self, tag, *, keep: real(
        self, tag, keep=keep) if tag != 1 else b"\x1a" + emit.i32_const(0) + real(self, 0, keep=keep))
    assert any(seen())


def test_branches_that_do_not_pass_the_added_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Instead, "branch", lambda self, i: None)
    assert any(seen())


def test_clauses_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    real = emit.try_table

    def turned(kind: bytes, clauses: Sequence[Catch]) -> bytes:
        return real(kind, list(reversed(clauses)))

    monkeypatch.setattr(emit, "try_table", turned)
    text = program("(block $b (block $a (result i32) (try_table (catch $e $a) (catch $e $a) (catch_all $b) "
                   "(drop (call $thrower (i32.const 6)))) (return (i32.const 1))) (return (i32.add (i32.const 20)))) "
                   "(i32.const 2)")
    run = runner(assemble(text), EVERYWHERE, invoke="run")
    assert run(["wasmtime"], 0).results == (2,) != run([REFERENCE], 0).results


def test_no_poll_at_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of functions that recurse and catch: there is no safepoint left."""
    text = """(tag $e) (func $tree (param i32) (if (local.get 0) (then (block $a (try_table (catch $e $a)
      (call $tree (i32.sub (local.get 0) (i32.const 1))))))) (throw $e))
      (func (export "run") (block $l (try_table (catch $e $l) (call $tree (i32.const 9)))))"""
    run = runner(assemble(text), COUNTING, invoke="run")
    assert run(["wasmtime"], 3).hops == 3
    real = callgraph.build_call_graph

    def blind(module: Any, codes: Any) -> callgraph.CallGraph:
        graph = real(module, codes)
        graph.entries.clear()
        return graph

    monkeypatch.setattr("wasmckpt.instrument.instrument.build_call_graph", blind)
    assert run(["wasmtime"], 3).hops == 0
