"""The WASI community's own test suite (github.com/WebAssembly/wasi-testsuite), which no package registry carries.

`WASMCKPT_WASI_TESTSUITE` names a folder with its prebuilt tests (its branch ``prod/testsuite-base``); without it this
is skipped. All 72 tests of preview 1 passed, undisturbed on wasmtime and moved to and fro from Wasm3 at ever more
safepoints.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from wasmckpt import Job, WasiConfig

from ..support.tiers import missing

FOLDER = os.environ.get("WASMCKPT_WASI_TESTSUITE", "")
PROGRAMS = sorted(Path(FOLDER).glob("tests/*/testsuite/wasm32-wasip1/*.wasm")) if FOLDER else [Path("absent")]

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def given() -> None:
    if not FOLDER:
        missing("wasi-testsuite", "WASMCKPT_WASI_TESTSUITE is not set")
    assert len(PROGRAMS) >= 72


def run(path: Path, first: str, second: str, every: int) -> None:
    """One test, moved between two runtimes each ``every`` safepoints, which grows by a third each time (0: never)."""
    described = path.with_suffix(".json")
    expected = json.loads(described.read_text()) if described.exists() else {}
    wasm = path.read_bytes()
    with (
        tempfile.TemporaryDirectory() as scratch, open(os.devnull) as nothing,
        tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors,
    ):
        preopens = []
        if expected.get("root"):
            shutil.copytree(path.parent / expected["root"], Path(scratch, "root"))
            preopens = [(Path(scratch, "root"), "/")]
        config = WasiConfig(
            args=[path.name, *expected.get("args", [])], env=expected.get("env", {}), preopens=preopens,
            stdin=nothing.fileno(), stdout=output.fileno(), stderr=errors.fileno(),
        )
        job = Job.start(wasm, first, config=config, freeze_at=every)
        while every:
            with job:
                assert job.frozen.wait(100)
                if job.ended:
                    break
                image = job.checkpoint(stop=True).data
            assert image is not None
            first, second, every = second, first, every * 4 // 3 + 1
            job = Job.restore(image, first, module=wasm, config=config, freeze_at=every)
        with job:
            ended = job.wait(100)
        output.seek(0)
        errors.seek(0)
        assert ended.exit_code == expected.get("exit_code", 0), errors.read().decode(errors="replace")
        assert output.read().decode() == expected.get("stdout", "")


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_undisturbed(path: Path) -> None:
    run(path, "wasmtime", "wasm3", 0)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_moved(path: Path) -> None:
    run(path, "wasm3", "wasmtime", 5)
