"""The quick way to a version gives what the standard library gives."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from wasmckpt.runtimes.installed import installed_version


def test_read_from_the_folder_beside_the_module() -> None:
    assert installed_version("msgpack", msgpack.__file__) == metadata.version("msgpack")


@pytest.mark.parametrize("place", [None, "/nowhere/at/all.py"])
def test_asked_for_where_there_is_none(place: str | None) -> None:
    assert installed_version("msgpack", place) == metadata.version("msgpack")


def test_two_folders_are_no_answer(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / f"msgpack-{version}.dist-info").mkdir()
    (tmp_path / "module.py").touch()
    assert installed_version("msgpack", str(tmp_path / "module.py")) == metadata.version("msgpack")


def test_not_installed() -> None:
    with pytest.raises(metadata.PackageNotFoundError):
        installed_version("no-such-distribution", None)
