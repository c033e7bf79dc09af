"""``--canonical-nans``: the bits of 0/0 do not depend on the processor, and images remember it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wasmckpt.formats import load

from .conftest import Cli
from .programs import wat

DIVIDES = """(module
  (func (export "run") (param $n i32) (param $zero f64) (result i64) (local $sum i64)
    (loop $next
      (local.set $sum (i64.add (local.get $sum)
        (i64.shr_u (i64.reinterpret_f64 (f64.div (local.get $zero) (local.get $zero))) (i64.const 63))))
      (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (local.get $sum)))"""
"""``run(n, 0.0)`` counts how often 0/0 has its sign set: n times on x86-64, never on arm64 or if it is canonical."""


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["wasmtime", "wasm3"])
def test_a_whole_life(runtime: str, cli: Cli, tmp_path: Path) -> None:
    """Run, frozen, shown, gone on with on each runtime without a word about NaNs, moved. The twin counts signs."""
    path = tmp_path / "m.wasm"
    path.write_bytes(wat(DIVIDES))
    call = ("--invoke", "run", path, "--", "4000", "0")
    plain = cli("run", "--runtime", runtime, *call)
    assert (plain.code, plain.out.strip()) == (0, "4000")
    with_it = cli("run", "--runtime", runtime, "--canonical-nans", *call)
    assert (with_it.code, with_it.out.strip()) == (0, "0"), with_it.err
    stop = ("--checkpoint-at", "300", "--stop")
    done = cli("run", "--runtime", runtime, "--canonical-nans", *stop, "-o", "i.wckpt", *call)
    assert done.code == 0, done.err
    assert load("i.wckpt").canonical_nans
    assert "canonical" in cli("inspect", "i.wckpt").out
    assert json.loads(cli("inspect", "--json", "i.wckpt").out)["canonical_nans"] is True
    for target in ("wasmtime", "wasm3"):
        gone_on = cli("restore", "--runtime", target, "--module", path, "i.wckpt")
        assert (gone_on.code, gone_on.out.strip()) == (0, "0"), gone_on.err
    left = cli("run", "--runtime", runtime, *stop, "-o", "j.wckpt", *call)
    assert left.code == 0
    assert "canonical" not in cli("inspect", "j.wckpt").out
    assert cli("restore", "--module", path, "j.wckpt").out.strip() == "4000"
    differ = cli("diff", "--json", "i.wckpt", "j.wckpt", "--module", path)
    assert any(found["where"] == "canonical_nans" for found in json.loads(differ.out)["differences"]), differ.out


def test_moved_and_instrumented(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.wasm"
    path.write_bytes(wat(DIVIDES))
    done = cli("migrate", "--from", "wasm3", "--to", "wasmtime", "--after", "30ms", "--canonical-nans", "--json",
               "--invoke", "run", path, "--", "30000000", "0")
    assert done.code == 0, done.err
    last = json.loads(done.out.splitlines()[-1])
    assert "4000" not in str(last["results"])
    assert "30000000" not in str(last["results"])
    for options in ((), ("--canonical-nans",)):
        assert cli("instrument", *options, "-o", f"{len(options)}.wasm", path).code == 0
    sizes = [(Path(f"{n}.wasm")).stat().st_size for n in (0, 1)]
    assert sizes[0] < sizes[1] < sizes[0] + 200
