"""--zstd-level and --zstd-threads: smaller or faster, the same program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasmckpt.formats import load
from wasmckpt.formats.compression import LEVELS, MOST_THREADS

from .conftest import Cli, Module
from .programs import talk, talk_output

pytestmark = pytest.mark.slow

LINES, TURNS, HALF = 20, 20_000, 7_000


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEVEL", "THREADS"):
        monkeypatch.delenv(f"WASMCKPT_ZSTD_{name}", raising=False)


def test_levels_and_threads(cli: Cli, module: Module) -> None:
    """What the worker writes is as it was asked for; the program goes on from any of them; nothing is left set."""
    path = module(talk(LINES, TURNS))
    sizes: dict[int, int] = {}
    for words in ((), ("--zstd-level", 1), ("--zstd-level", 22, "--zstd-threads", 2)):
        done = cli("run", "--checkpoint-at", HALF, "--stop", "-o", f"i{len(sizes)}", "--carry-module", *words, path)
        assert done.code == 0, done.err
        sizes[len(sizes)] = os.stat(f"i{len(sizes)}").st_size
    assert sizes[2] < sizes[1]
    first, *others = [load(f"i{n}") for n in sizes]
    assert [(image.memories, image.frames) for image in others] == [(first.memories, first.frames)] * 2
    assert not [name for name in os.environ if name.startswith("WASMCKPT_ZSTD")]
    assert cli("restore", "i2").out.endswith(talk_output(LINES, TURNS)[-40:].decode())


@pytest.mark.parametrize("option", ["level", "threads"])
def test_what_they_cannot_be(cli: Cli, module: Module, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """Before the program starts; a variable as well as an option."""
    path = module(talk(LINES, TURNS))
    most = LEVELS[-1] if option == "level" else MOST_THREADS
    for value in (0, most + 1, "fast"):
        done = cli("run", "-o", "i", "--checkpoint-at", HALF, f"--zstd-{option}", value, path)
        assert done.code == 64
        assert f"--zstd-{option}" in done.err
        assert done.out == ""
        monkeypatch.setenv(f"WASMCKPT_ZSTD_{option.upper()}", str(value))
        assert cli("run", "-o", "i", "--checkpoint-at", HALF, path).code == 64
        monkeypatch.delenv(f"WASMCKPT_ZSTD_{option.upper()}")
    assert not Path("i").exists()
    assert cli("run", "--checkpoint-at", HALF, "-o", "i", f"--zstd-{option}", most, path).code == 0
