"""``cache warm``: the next start and the next resume find the module rewritten and compiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from wasmckpt import runtimes
from wasmckpt.formats import Entry
from wasmckpt.instrument import cache
from wasmckpt.snapshot import kept
from wasmckpt.snapshot.program import Host, Program

from .conftest import Cli

LARGE = f"""(module {{}} (memory 1) (data (i32.const 0) "{'x' * 9000}")
  (func (export "run") (param i32) (result i32) (loop $l (br_if $l (local.tee 0 (i32.shr_u (local.get 0)
  (i32.const 1))))) (local.get 0)))"""
WASM = bytes(wat2wasm(LARGE.format("")))


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "default_folder", lambda: tmp_path / "rewritten")
    monkeypatch.setattr(kept, "default_folder", lambda: tmp_path / "compiled")


def test_a_start_after_it_rewrites_and_compiles_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "m.wasm"
    path.write_bytes(WASM)
    done = cli("cache", "warm", path)
    assert (done.code, done.out) == (0, "")
    assert "rewritten and compiled for wasmtime" in done.err
    engine = runtimes.load("wasmtime")

    def never(*args: object, **kwargs: object) -> object:
        raise AssertionError("it was to be ready")

    monkeypatch.setattr(engine, "compile", never)
    monkeypatch.setattr(cache, "instrument", never)
    started = Program.fresh(engine, WASM, Host(), Entry(("run",), 0, ()))
    started.close()


def test_an_interpreter_keeps_the_rewriting_only(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.wasm"
    path.write_bytes(WASM)
    done = cli("cache", "warm", "--runtime", "wasm3", "--json", path)
    assert json.loads(done.out)["compiled"] is False
    assert (tmp_path / "rewritten").exists()
    assert not (tmp_path / "compiled").exists()


def test_imported_globals_are_not_known_yet(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.wasm"
    path.write_bytes(bytes(wat2wasm(LARGE.format('(import "env" "g" (global i32))'))))
    done = cli("cache", "warm", path)
    assert done.code == 0
    assert "first run" in done.err
    assert not (tmp_path / "compiled").exists()


def test_bad_modules_are_refused(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.wasm"
    path.write_bytes(WASM[:-3])
    assert cli("cache", "warm", path).code == 65
    assert cli("cache", "warm", tmp_path / "absent").code == 64
