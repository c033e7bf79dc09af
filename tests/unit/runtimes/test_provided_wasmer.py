"""The recipe of wasmer against a cargo that does as it is told: what is said, kept, and refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes.provided import wasmer

_CARGO = """#!/bin/sh
echo "$1" >> {log}
case "$1" in
--version) echo "cargo {version} (0123456 2026-01-01)";;
fetch) test -f "$4" || exit 9;;
tree) for i in $(seq 45); do echo "crate$i v1.0.0"; done; echo "crate1 v1.0.0";;
build) test "$DOCS_RS" = 1 || exit 9
  for i in $(seq 45); do echo "   Compiling crate$i v1.0.0" >&2; done
  {build}
  while [ "$1" != --target-dir ]; do shift; done
  mkdir -p "$2/release" && echo code > "$2/release/libwasmckpt_wasmer.so";;
esac
"""


def _tools(folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: str = "1.95.0", build: str = "",
           without: str = "") -> Path:
    """Makes a folder with the tools the only one on the path; gives the file with cargo's commands."""
    tools, log = folder / "tools", folder / "log"
    tools.mkdir()
    for name in {"cargo", "cc", "sh", "seq", "mkdir", "echo", "test"} - {without}:
        if name == "cargo":
            (tools / name).write_text(_CARGO.format(log=log, version=version, build=build))
            (tools / name).chmod(0o755)
        else:
            (tools / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("HOME", str(folder))
    return log


def test_it_leaves_the_library_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _tools(tmp_path, monkeypatch)
    folder = tmp_path / "wasmer"
    folder.mkdir()
    said: list[str] = []
    wasmer.install(folder, said.append)
    assert os.listdir(folder) == [wasmer.FILE]
    assert (folder / wasmer.FILE).read_text() == "code\n"
    assert log.read_text().split() == ["--version", "fetch", "tree", "build"]
    assert "45 crates" in said[1]
    assert said[2:] == [f"compiling wasmer: {n} of about 45 crates" for n in (20, 40)]


def test_an_interrupted_build_goes_on_in_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    _tools(tmp_path, monkeypatch, build=f'test -e {kept} || {{ : > {kept}; kill -9 $$; }}')
    folder = tmp_path / "wasmer"
    folder.mkdir()
    with pytest.raises(RuntimeMissing, match=r"ended by signal 9 .*; try again"):
        wasmer.install(folder, lambda _: None)
    assert not (folder / wasmer.FILE).exists()
    wasmer.install(folder, lambda _: None)
    assert os.listdir(folder) == [wasmer.FILE]


@pytest.mark.parametrize(("tools", "words"), [
    ({"without": "cargo"}, "there is no cargo here; install Rust 1.95"),
    ({"without": "cc"}, "there is no cc here"),
    ({"version": "1.94.1"}, "too old: cargo 1.94.1"),
    ({"version": "unknown"}, "too old"),
    ({"build": "echo 'error: no space left' >&2; exit 101"}, "cargo failed: error: no space left"),
])
def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: dict[str, str],
                                 words: str) -> None:
    _tools(tmp_path, monkeypatch, **tools)
    folder = tmp_path / "wasmer"
    folder.mkdir()
    with pytest.raises(RuntimeMissing) as caught:
        wasmer.install(folder, lambda _: None)
    assert words in str(caught.value).replace(" (runtime wasmer)", "")
    assert not (folder / wasmer.FILE).exists()
