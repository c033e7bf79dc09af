"""The cache of rewritten modules gives what rewriting gives, or nothing; it never stands in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from wasmtime import wat2wasm

from wasmckpt.instrument import cache
from wasmckpt.instrument.cache import cached_instrument
from wasmckpt.instrument.continuations import extend
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.instrument.records import AT_SAFEPOINT, Place
from wasmckpt.wasm.values import F64, I32

WASM = bytes(wat2wasm("""(module (memory 1) (table 2 funcref) (elem (i32.const 0) $f)
  (global $g (mut f64) (f64.const -0.0)) (data $d "abc")
  (func $f (param i32) (result i32) (loop (br_if 0 (local.get 0))) (local.get 0))
  (func (export "run") (param $n i32) (result i32) (data.drop $d)
    (i32.const -1) (call_indirect (param i32) (result i32) (local.get $n) (i32.const 0)) (i32.add)
    (f64.const -1) (call $f (local.get $n)) (drop) (drop)))"""))
PLACE = Place(0, 2, AT_SAFEPOINT, ((0, I32),), ())


def _entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_same_module_sites_and_continuations(tmp_path: Path) -> None:
    fresh = instrument(WASM, Options())
    for _ in range(2):
        kept = cached_instrument(WASM, Options(), tmp_path)
        assert kept.wasm == fresh.wasm
        assert list(kept.sites) == list(fresh.sites)
        assert (kept.spilled_globals, kept.dropped) == ([(0, F64)], [("data", 0)])
        assert kept.features == fresh.features
    assert len(_entries(tmp_path)) == 1
    assert extend(kept, [PLACE]) == extend(fresh, [PLACE])
    assert kept.wasm == fresh.wasm


def test_other_options_are_other_entries(tmp_path: Path) -> None:
    cached_instrument(WASM, Options(), tmp_path)
    assert cached_instrument(WASM, Options(unroll=1), tmp_path).wasm == instrument(WASM, Options(unroll=1)).wasm
    assert len(_entries(tmp_path)) == 2


@pytest.mark.parametrize("damage", [b"", b"x" * 40, None])
def test_a_damaged_entry_is_made_anew(tmp_path: Path, damage: bytes | None) -> None:
    cached_instrument(WASM, Options(), tmp_path)
    entry, = _entries(tmp_path)
    good = entry.read_bytes()
    entry.write_bytes(good[:-1] + bytes([good[-1] ^ 1]) if damage is None else damage)
    assert cached_instrument(WASM, Options(), tmp_path).wasm == instrument(WASM, Options()).wasm
    assert entry.read_bytes() == good


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert cached_instrument(WASM, Options(), tmp_path / "file").wasm == instrument(WASM, Options()).wasm


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached_instrument(WASM, Options(), tmp_path)
    first, = _entries(tmp_path)
    cached_instrument(WASM, Options(unroll=1), tmp_path)
    second, = set(_entries(tmp_path)) - {first}
    os.utime(first, (1, 1))
    os.utime(second, (2, 2))
    cached_instrument(WASM, Options(), tmp_path)  # used again: now the second is the older one
    monkeypatch.setattr(cache, "MOST_BYTES", first.stat().st_size * 5 // 2)
    cached_instrument(WASM, Options(unroll=2), tmp_path)
    cache.trim(tmp_path)
    assert first in _entries(tmp_path)
    assert second not in _entries(tmp_path)
