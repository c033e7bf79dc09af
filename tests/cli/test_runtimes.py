"""``wasmckpt runtimes``: what is here, and how the rest gets here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from wasmckpt import runtimes
from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes import provided

from .conftest import Cli


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing is installed, and no library is named."""
    monkeypatch.setenv("WASMCKPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in provided.NAMES:
        monkeypatch.setenv(f"WASMCKPT_{name.upper()}_LIBRARY", "")
    return tmp_path


def test_all_are_listed_with_what_to_type(cli: Cli, empty: Path) -> None:
    rows = {row["name"]: row for row in json.loads(cli("runtimes", "--json").out)}
    assert list(rows) == list(runtimes.names())
    assert (rows["wasmtime"]["source"], rows["wasmtime"]["lacks"]) == ("Python package", [])
    shown = cli("runtimes")
    assert shown.code == 0
    for name in provided.NAMES:
        assert rows[name]["version"] is None
        assert f"{name} is not installed" in shown.out
        assert f"wasmckpt runtimes install {name}" in shown.out


def test_a_library_that_is_named_is_used_or_complained_about(cli: Cli, empty: Path) -> None:
    absent, wrong = empty / "absent.so", empty / "wrong.so"
    wrong.write_bytes(b"no library")
    for path, words in ((absent, "is not there"), (wrong, "cannot be used")):
        shown = cli("--library", f"wamr={path}", "runtimes")
        assert shown.code == 0
        assert words in shown.out
        assert path.name in shown.out
    for given in ("v8=x", "wamr"):
        assert cli("--library", given, "runtimes").code == 64


def test_what_is_installed_and_does_not_work_is_removed(cli: Cli, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def recipe(folder: Path, say: object) -> None:
        (folder / "lib.so").write_bytes(b"no library")

    monkeypatch.setattr(provided, "recipe", lambda _: SimpleNamespace(VERSION="1", FILE="lib.so", install=recipe))
    monkeypatch.setattr("wasmckpt.cli.runtimes.facts_apart",
                        lambda names: [runtimes.Facts(names[0], None, "it is broken", None)])
    done = cli("runtimes", "install", "wamr")
    assert done.code == RuntimeMissing.exit_code
    assert "wamr was built, and does not work: it is broken" in done.err
    assert not list((empty / "cache" / "runtimes").glob("wamr-1-*" + os.uname().machine))


def test_install_and_remove_tell_what_they_did(cli: Cli, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def recipe(folder: Path, say: object) -> None:
        assert callable(say)
        for percent in range(100):
            say(f"compiling: {percent} %")
        (folder / "lib.so").write_bytes(b"")

    monkeypatch.setattr(provided, "recipe", lambda _: SimpleNamespace(VERSION="1", FILE="lib.so", install=recipe))
    monkeypatch.setattr("wasmckpt.cli.runtimes.facts_apart",
                        lambda names: [runtimes.Facts(names[0], "1", "", None)])
    done = cli("runtimes", "install", "wamr", "wamr")
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines() == ["wasmckpt: wamr: compiling: 0 %", "wasmckpt: wamr 1 is installed"]
    assert cli("runtimes", "remove", "wamr").err == "wasmckpt: wamr: removed\n"
    assert cli("runtimes", "remove", "wamr").err == "wasmckpt: wamr: there was nothing to remove\n"


@pytest.mark.parametrize("arguments", [("install",), ("install", "v8"), ("remove", "wasmtime"), ("bogus",)])
def test_what_makes_no_sense(cli: Cli, empty: Path, arguments: tuple[str, ...]) -> None:
    done = cli("runtimes", *arguments)
    assert done.code == 64
    assert done.err.startswith("wasmckpt: error: ")
