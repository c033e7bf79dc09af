"""Stores whose images are encrypted and signed: chains, compaction, export and checks go on as without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasmckpt.errors import ImageError, UsageError
from wasmckpt.formats import keys, load
from wasmckpt.formats.files import rewrap, seal_of
from wasmckpt.store import Retention, Series, Store

from .images import MODULE, Program, memory_of


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys, in use for all that is written and asked of all that is read."""
    for name, kind in (("old.key", keys.ENCRYPTION), ("new.key", keys.ENCRYPTION), ("a.sign", keys.SIGNING)):
        key = keys.generate(kind)
        keys.write_keys(tmp_path / name, [key])
    keys.write_keys(tmp_path / "a.pub", [keys.public_of(key)], public=True)
    monkeypatch.setenv("WASMCKPT_CONFIG", str(tmp_path / "empty.toml"))
    (tmp_path / "empty.toml").touch()
    monkeypatch.setenv("WASMCKPT_ENCRYPT_WITH", str(tmp_path / "old.key"))
    monkeypatch.setenv("WASMCKPT_SIGN_WITH", str(tmp_path / "a.sign"))
    monkeypatch.setenv("WASMCKPT_REQUIRE_SIGNED_BY", str(tmp_path / "a.pub"))
    return tmp_path


def _filled(folder: Path) -> tuple[Store, dict[int, bytes]]:
    store = Store(folder, create=True)
    program, series = Program(), Series(store, "j1", MODULE, longest=3)
    return store, dict(program.take(series) for _ in range(6))


def test_chains_and_compaction(ring: Path) -> None:
    """Each image is sealed, whole ones that a compaction has made too; names, sizes and parents are as ever."""
    store, held = _filled(ring / "store")
    assert [entry.position for entry in store.entries()] == [0, 1, 2, 0, 1, 2]
    store.compact("j1")
    assert {number: memory_of(store, "j1", number) for number in held} == held
    assert store.verify() == []
    assert list((store.path / "packs").iterdir()) == [], "what is encrypted shares no pages"
    for path in (store.path / "images").iterdir():
        seal = seal_of(path)
        assert seal.keys
        assert seal.signer is not None
    for entry in store.entries():
        assert entry.size == (store.path / "images" / f"{entry.sha256.hex()}.wckpt").stat().st_size
    store.prune("j1", Retention(last=1))
    assert store.gc().files > 0
    assert memory_of(store, "j1") == held[6]
    store.export("j1", ring / "out.wckpt")
    assert seal_of(ring / "out.wckpt").keys
    again = Store(ring / "again", create=True)
    again.import_image("j2", ring / "out.wckpt")
    assert memory_of(again, "j2") == held[6]


def test_without_the_key_or_the_signature(ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged, and what cannot be read, is named by `verify`; nothing is written that is less protected."""
    store, held = _filled(ring / "store")
    monkeypatch.delenv("WASMCKPT_SIGN_WITH")
    with pytest.raises(UsageError, match="is signed"):
        store.compact("j1")
    monkeypatch.delenv("WASMCKPT_ENCRYPT_WITH")
    assert {problem.what.partition(",")[0] for problem in store.verify()} >= {"the image is encrypted"}
    with pytest.raises(ImageError, match="no key"):
        store.load("j1")
    with pytest.raises(ImageError, match="no key"):
        store.compact("j1")
    monkeypatch.setenv("WASMCKPT_DECRYPT_WITH", str(ring / "old.key"))
    assert memory_of(store, "j1") == held[6]
    with pytest.raises(UsageError, match="is encrypted"):
        store.compact("j1")
    path = store.path / "images" / f"{store.entry('j1', 6).sha256.hex()}.wckpt"
    unsigned = load(path)
    monkeypatch.delenv("WASMCKPT_REQUIRE_SIGNED_BY")
    from wasmckpt.formats import save

    assert save(unsigned, path) == store.entry("j1", 6).sha256, "a copy that has lost its signature, and nothing else"
    assert memory_of(store, "j1") == held[6]
    monkeypatch.setenv("WASMCKPT_REQUIRE_SIGNED_BY", str(ring / "a.pub"))
    with pytest.raises(ImageError, match="not signed"):
        store.load("j1")
    assert [problem.sha256 for problem in store.verify()] == [store.entry("j1", 6).sha256]
    assert memory_of(store, "j1", 5) == held[5]


def test_another_key_for_a_store(ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, held = _filled(ring / "store")
    monkeypatch.setenv("WASMCKPT_ENCRYPT_WITH", str(ring / "new.key"))
    monkeypatch.setenv("WASMCKPT_DECRYPT_WITH", str(ring / "old.key"))
    for path in (store.path / "images").iterdir():
        rewrap(path)
    monkeypatch.delenv("WASMCKPT_DECRYPT_WITH")
    os.unlink(ring / "old.key")
    assert store.verify() == []
    assert {number: memory_of(store, "j1", number) for number in held} == held


def test_the_same_image_sealed_anew(ring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the same name, and another size, which the store notes."""
    store = Store(ring / "store", create=True)
    monkeypatch.delenv("WASMCKPT_ENCRYPT_WITH")
    Program().take(Series(store, "j1"))
    plain = store.entry("j1").size
    monkeypatch.setenv("WASMCKPT_ENCRYPT_WITH", str(ring / "old.key"))
    Program().take(Series(store, "j1"))
    one, two = store.entries("j1")
    assert one.sha256 == two.sha256
    assert one.size == two.size > plain
    assert store.verify() == []


def test_a_store_without_seals_is_refused_where_signatures_are_asked_for(
    ring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that share pages have no signature, whatever form their files have."""
    required = os.environ["WASMCKPT_REQUIRE_SIGNED_BY"]
    for name in ("REQUIRE_SIGNED_BY", "ENCRYPT_WITH", "SIGN_WITH"):
        monkeypatch.delenv(f"WASMCKPT_{name}")
    store, held = _filled(ring / "store")
    assert memory_of(store, "j1") == held[6]
    monkeypatch.setenv("WASMCKPT_REQUIRE_SIGNED_BY", required)
    for act in (lambda: store.load("j1"), lambda: store.compact("j1"), lambda: store.export("j1", ring / "out")):
        with pytest.raises(ImageError, match="not signed"):
            act()
    assert {problem.what.partition(",")[0] for problem in store.verify()} >= {"the image is not signed"}
