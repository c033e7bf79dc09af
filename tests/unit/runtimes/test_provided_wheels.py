"""A library in a package of its own: what is in it, who finds it, and what goes first."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from wasmckpt.errors import RuntimeMissing, StorageError, UsageError
from wasmckpt.runtimes import provided
from wasmckpt.runtimes.provided import wheels

_CODE = os.urandom(3000) + b"\0GLIBC_2.17\0GLIBC_2.2.5\0GLIBC_2.3\0"  # of these the wheel's tag takes the newest


@pytest.fixture(params=["wamr", "wasmer"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A runtime whose library is in an otherwise empty cache."""
    name: str = request.param
    monkeypatch.setenv("WASMCKPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(f"WASMCKPT_{name.upper()}_LIBRARY", raising=False)
    file = provided.folder_of(name) / provided.recipe(name).FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(_CODE)
    return name


def test_a_package_installs_and_is_found_before_the_cache(installed: str, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = wheels.build(installed, tmp_path / "dist")
    assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{os.uname().machine}.whl")
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--target", site, wheel],
                   check=True, timeout=120)
    monkeypatch.syspath_prepend(str(site))
    found = provided.library(installed)
    assert found == site / f"wasmckpt_{installed}" / provided.recipe(installed).FILE
    assert found.read_bytes() == _CODE
    own = tmp_path / "own.so"
    own.write_bytes(b"mine")
    monkeypatch.setenv(f"WASMCKPT_{installed.upper()}_LIBRARY", str(own))
    assert provided.library(installed) == own


def test_the_same_library_gives_the_same_bytes(installed: str, tmp_path: Path) -> None:
    first, second = wheels.build(installed, tmp_path / "a"), wheels.build(installed, tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert {name.split("/")[0] for name in names} == {
        f"wasmckpt_{installed}", f"wasmckpt_{installed}-{provided.recipe(installed).VERSION}.dist-info",
    }


def test_what_cannot_be_packed(installed: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="wamr, wasmer"):
        wheels.build("wasmedge", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        wheels.build(installed, tmp_path / "file")
    (provided.folder_of(installed) / provided.recipe(installed).FILE).unlink()
    with pytest.raises(RuntimeMissing, match=f"runtimes install {installed}"):
        wheels.build(installed, tmp_path)
    assert [path.name for path in tmp_path.glob("*.whl")] == []
