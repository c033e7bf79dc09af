"""The comparison can fail: what an image loses of a command's host state shows in what the command leaves behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wasmckpt.formats import Image

from ..support.moving import Trace, World, move
from ..support.partner import REFERENCE
from ..support.samples import Sample, sample
from .check import closing_world, safepoints

Change = Callable[[dict[str, Any]], None]
"""Changes one descriptor's record in an image."""


def lose_offset(record: dict[str, Any]) -> None:
    if record["kind"] == "file":
        record["offset"] = 0


def forget_input(record: dict[str, Any]) -> None:
    if "consumed" in record:
        record["consumed"] = 0


def life(program: Sample, folder: Path, nth: int, change: Change | None) -> Trace:
    """One life with one move, at the ``nth`` safepoint; 0: none."""
    world = World(program, folder=Path(tempfile.mkdtemp(dir=folder)))

    def touch(image: Image) -> Image:
        descriptors = [dict(record) for record in image.host["descriptors"]]  # type: ignore[attr-defined]
        for record in descriptors:
            if change:
                change(record)
        return replace(image, host={**image.host, "descriptors": descriptors})

    with closing_world(world):
        return move(program.wasm, ("wasmtime", REFERENCE), nth, world=world, most_hops=1, touch=touch)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change", "shows"), [
    ("wordcount", lose_offset, "files"), ("append", lose_offset, "stdout"), ("sleepy", forget_input, "wasi"),
])
def test_lost_host_state_is_seen(name: str, change: Change, shows: str, tmp_path: Path) -> None:
    """At one of some places; the same image unchanged is right there."""
    program = sample(name, "tiny")
    whole = life(program, tmp_path, 0, None)
    count = safepoints(program.wasm, "wasmtime", sample=program,
                       world=lambda: World(program, folder=Path(tempfile.mkdtemp(dir=tmp_path))))
    for n in (count * part // 12 for part in range(11, 0, -1)):
        if getattr(life(program, tmp_path, n, change), shows) != getattr(whole, shows):
            assert life(program, tmp_path, n, None) == whole
            return
    pytest.fail("it was lost, and nothing shows it")
