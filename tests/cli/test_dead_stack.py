"""``--discard-dead-stack``: a smaller image and the same end; what cannot be proved is refused, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wasmckpt.formats import load

from ..support.dead_stack import built
from .conftest import Cli

WAVES = ("--invoke", "waves")


@pytest.mark.slow
def test_an_image_without_dead_stack(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.wasm"
    path.write_bytes(built("-Wl,--stack-first"))
    want = cli("run", *WAVES, path, "--", "3000")
    at = ("--checkpoint-at", "150000", "--stop")
    kept = cli("run", *WAVES, *at, "-o", "kept.wckpt", path, "--", "3000")
    left = cli("run", *WAVES, *at, "-o", "left.wckpt", "--discard-dead-stack", path, "--", "3000")
    assert (want.code, kept.code, left.code) == (0, 0, 0), left.err
    assert load("left.wckpt").frames == load("kept.wckpt").frames
    pages = [sum([len(raw) // 4096 for _, raw in load(name).memories[0].data]) for name in ("left.wckpt", "kept.wckpt")]
    assert pages[0] < pages[1]
    for runtime in ("wasmtime", "wasm3"):
        done = cli("restore", "--runtime", runtime, "--module", path, "--discard-dead-stack", "left.wckpt")
        assert (done.code, done.out) == (0, want.out)
    done = cli("migrate", "--from", "wasm3", "--to", "wasmtime", "--after", "50ms", "--discard-dead-stack", "--json",
               *WAVES, path, "--", "3000")
    assert done.code == 0
    assert want.out.strip() in str(json.loads(done.out.splitlines()[-1])["results"])


def test_what_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.wasm"
    path.write_bytes(built())
    done = cli("run", *WAVES, "--discard-dead-stack", path, "--", "3")
    assert done.code == 69
    assert "--stack-first" in done.err
    assert done.out == ""
    assert cli("run", *WAVES, path, "--", "3").code == 0
