"""Exits: sites that store the same values share one on compilers; what is left out for measuring only is left out."""

from __future__ import annotations

import pytest
import wasmtime

from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options

_CALLS = 6
_TEXT = f"""(module (memory 1)
  (func $spin (param i32) (loop $l (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1))))))
  (func $f (export "run") (param i32 i64) (result i64)
    {"(call $spin (local.get 0))" * _CALLS} (i64.add (local.get 1) (i64.extend_i32_u (local.get 0)))))"""
MODULE = bytes(wasmtime.wat2wasm(_TEXT))


def _body(**options: object) -> bytes:
    return instrument(MODULE, Options(**options)).linker.bodies[1]  # type: ignore[arg-type]


def _exits(body: bytes) -> int:
    """Exits at the function's end: the first begins behind ``return end``, each other one behind ``br end``, where all
    go to one place, and behind ``return end``, where each returns."""
    return body.count(b"\x0f\x0b") + sum(body.count(bytes([0x0C, depth, 0x0B])) for depth in range(1, _CALLS))


def test_sites_that_store_the_same_share_an_exit() -> None:
    assert _exits(_body()) == 1
    assert _exits(_body(share_exits=False)) == _CALLS
    assert len(_body()) < len(_body(share_exits=False))


def test_exits_leave_at_one_place() -> None:
    """On compilers, which restore registers at each ``return``; a single exit needs no such place."""
    for options, returns in (({}, 1), ({"share_exits": False}, 1), ({"poll": "global"}, _CALLS)):
        assert _body(**options).count(b"\x0f\x0b") == returns
    assert _body().count(b"\x02\x40") == 1
    assert _body(share_exits=False).count(b"\x02\x40") == _CALLS + 1


def test_interpreters_do_not_pay_for_the_number() -> None:
    assert _body(poll="global") == _body(poll="global", share_exits=False)


def test_each_site_keeps_its_number() -> None:
    """Sharing changes no site: offsets, slots and order are the same, so images are."""
    assert list(instrument(MODULE, Options()).sites) == list(instrument(MODULE, Options(share_exits=False)).sites)


@pytest.mark.parametrize(("part", "sites"), [("loops", _CALLS), ("calls", 1), ("values", _CALLS + 1)])
def test_what_is_left_out_for_measuring(part: str, sites: int) -> None:
    """The parts that the benchmark suite ``ablation`` leaves out; the module stays valid and runs."""
    out = instrument(MODULE, Options(leave_out=(part,)))
    assert len(out.sites) == sites
    config = wasmtime.Config()
    config.wasm_multi_memory = config.wasm_threads = True
    store = wasmtime.Store(wasmtime.Engine(config))
    run = wasmtime.Instance(store, wasmtime.Module(store.engine, out.wasm), []).exports(store)["run"]
    assert isinstance(run, wasmtime.Func)
    assert run(store, 5, 1 << 40) == (1 << 40) + 5
