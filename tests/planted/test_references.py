"""Bugs planted into the neutral module and the translation of images are seen by the tests of references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from wasmckpt.errors import ImageError
from wasmckpt.formats import Image, TableState
from wasmckpt.instrument.instrument import Instrumented, instrument
from wasmckpt.instrument.neutral import tables
from wasmckpt.instrument.neutral.offsets import OffsetMap
from wasmckpt.instrument.options import Options
from wasmckpt.snapshot import program as program_module
from wasmckpt.snapshot.terms import Terms
from wasmckpt.wasm.module import FuncType

from ..field.harness import assemble
from ..field.test_references import PROGRAMS, program
from ..field.test_references import test_tail_calls_of_imports as tail_calls_of_imports
from ..matrix.check import difference, runner
from ..support.moving import EVERYWHERE
from ..support.partner import REFERENCE

NAMES = ("an operand under calls and loops", "table.init", "table.grow", "a type that differs by a reference only",
         "elem.drop", "table.set")


def seen(engines: tuple[str, ...] = ("wasmtime", REFERENCE)) -> Iterator[str]:
    """What the check of moves says of a few programs, each frozen at its first safepoints."""
    for name in NAMES:
        run = runner(WASM[name], EVERYWHERE, invoke="run", most_hops=4)
        for n in (1, 2):
            if wrong := difference(run, engines, n, EXPECTED[name]):
                assert not wrong.startswith(("TypeError", "AttributeError", "NameError")), "the plant is broken"
                yield f"{name}, {n}: {wrong}"


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "cached_instrument", uncached)


def uncached(module: Any, options: Options, *, imported: dict[int, int]) -> Instrumented:
    return instrument(module, options, imported)


WASM = {name: assemble(program(PROGRAMS[name][0])) for name in NAMES}
EXPECTED = {name: runner(wasm, EVERYWHERE, invoke="run")([REFERENCE], 0) for name, wasm in WASM.items()}


def test_without_a_bug_nothing_is_seen() -> None:
    """The twin of all that follow."""
    assert list(seen()) == []


def test_a_function_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is taken for the function before it, on the way out."""
    real = Terms.to_reference
    monkeypatch.setattr(Terms, "to_reference", lambda self, kind, bits: real(
        self, kind, bits - 1 if bits > 1 else bits))
    assert any(seen())


def test_a_null_taken_for_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Terms.to_number
    monkeypatch.setattr(Terms, "to_number", lambda self, kind, bits: real(self, kind, bits) or 1)
    assert any(seen(("wasmtime", "wasmtime")))


def test_a_changed_table_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last changed slot of a table is not written down."""
    real = Terms._table

    def miss(self: Terms, *args: Any) -> TableState | None:
        state = real(self, *args)
        return state and TableState(state.index, state.size, state.changed[:-1])

    monkeypatch.setattr(Terms, "_table", miss)
    assert any(seen())


def test_a_tables_size_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The array is there, its length is that of the fresh module."""
    real = Terms.neutral

    def forget(self: Terms, image: Image) -> Image:
        made = real(self, image)
        first = len(self._neutral.source.globals)
        fresh = [kind.limits.minimum for kind in self._neutral.source.tables]
        sizes = {first + n: fresh[table] for n, table in enumerate(self._neutral.tables)}
        return replace(made, globals=tuple(
            replace(state, bits=sizes.get(state.index, state.bits)) for state in made.globals))

    monkeypatch.setattr(Terms, "neutral", forget)
    assert any("table.grow" in wrong for wrong in seen(("wasmtime", "wasmtime")))


def test_a_dropped_segment_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Terms.original
    monkeypatch.setattr(Terms, "original", lambda self, image: replace(real(self, image), dropped_elem=()))
    text = program("elem.drop $p (call $spin (i32.const 2)) "
                   "(table.init $a $p (i32.const 0) (i32.const 0) (i32.const 1)) i32.const 0")
    run = runner(assemble(text), EVERYWHERE, invoke="run")
    assert difference(run, ["wasmtime", REFERENCE], 1, run(["wasmtime"], 0))


@pytest.mark.parametrize("by", [1, -1, 2])
def test_offsets_that_are_not_the_originals(by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame stands a byte beside its place."""
    real = OffsetMap.to_original
    monkeypatch.setattr(OffsetMap, "to_original", lambda self, offset: real(self, offset) + by)
    assert any(seen())


def test_a_waiting_frame_before_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken to stand where its slot is looked up, not at the call."""
    real = OffsetMap.to_neutral
    monkeypatch.setattr(OffsetMap, "to_neutral", lambda self, offset, *, in_call=False: real(self, offset))
    assert any(seen(("wasmtime", "wasmtime")))


def test_a_frame_that_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for one that stands behind its tail call, where the original has no place."""
    tail_calls_of_imports("direct", repeats=False)
    monkeypatch.setattr(Terms, "returned", lambda self, frame: None)
    with pytest.raises((ImageError, AssertionError, KeyError)):
        tail_calls_of_imports("direct", repeats=False)


def test_types_that_differ_by_references_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken for the same: a call passes that should trap."""
    text = program("(table.set $a (i32.const 0) (ref.func $takes)) "
                   "(call_indirect $a (type $n) (i32.const 0) (i32.const 0))")
    run = runner(assemble(text), EVERYWHERE, invoke="run")
    assert run(["wasmtime"], 0).trap == "indirect call type mismatch"
    real = tables.TableFunctions.resolve

    def lax(self: tables.TableFunctions, table: int, kind: FuncType) -> bytes:
        self.plan = replace(self.plan, ambiguous=frozenset())
        return real(self, table, kind)

    monkeypatch.setattr(tables.TableFunctions, "resolve", lax)
    assert not run(["wasmtime"], 0).trap
