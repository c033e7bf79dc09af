"""The package's public names, and that importing it needs no runtime."""

from __future__ import annotations

import subprocess
import sys

import wasmckpt


def test_all_names_are_there() -> None:
    for name in wasmckpt.__all__:
        assert getattr(wasmckpt, name) is not None


def test_unknown_names_are_refused() -> None:
    assert not hasattr(wasmckpt, "Jobb")


def test_rewriting_and_images_need_no_runtime() -> None:
    """All libraries of runtimes are blocked; only running a program asks for one."""
    code = """
import sys
for name in ("wasmtime", "wasmer", "wasm3", "cffi", "wamr", "wasmedge"):
    sys.modules[name] = None
import wasmckpt, wasmckpt.formats, wasmckpt.snapshot.program, wasmckpt.cli.main
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt import runtimes, errors
module = bytes.fromhex("0061736d01000000" "01040160" "0000" "03020100" "0a09010700" "03400c000b" "0b")
assert len(instrument(module, Options()).sites) == 1
try:
    runtimes.load("wasmtime")
except errors.RuntimeMissing as error:
    assert "pip install" in str(error)
else:
    raise AssertionError("loaded a blocked runtime")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
