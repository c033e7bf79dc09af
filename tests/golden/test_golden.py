"""What the rewriter emits, to be read: each WAT file states its options in its first line, the result lies beside it.

``BLESS=1 python -m pytest tests/golden`` writes the results anew; look at the difference before you commit it.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from wasmtime import wat2wasm

from wasmckpt.cli.instrument import explain, lines
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options

from ..support.spec import wasm_tools
from ..support.tiers import missing
from ..support.toolchain import Unavailable

HERE = Path(__file__).parent
CASES = sorted(path.stem for path in HERE.glob("*.wat"))


def _options(line: str) -> Options:
    """``;; RUN: poll=global unroll=1 ...``: fields of `Options`."""
    words = shlex.split(line.removeprefix(";; RUN:"))
    given = dict(word.split("=") for word in words)
    kinds: dict[str, Any] = {field.name: type(field.default) for field in dataclasses.fields(Options)}
    values: dict[str, Any] = {
        name: text == "True" if kinds[name] is bool else kinds[name](text) for name, text in given.items()
    }
    return Options(**values)


def _printed(wasm: bytes, functions: int) -> str:
    """The first functions of a module as text, without the helpers that all rewritten modules share."""
    try:
        tool = wasm_tools()
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    text = subprocess.run([tool, "print", "-"], input=wasm, capture_output=True, check=True).stdout.decode()
    parts = text.split("\n  (func (;")
    own = [part for part in parts[1:] if part.split(";", 1)[0].isdigit() and int(part.split(";", 1)[0]) < functions]
    return "".join("(func (;" + part.rstrip() + "\n" for part in own)


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    source = (HERE / f"{name}.wat").read_text()
    first = source.splitlines()[0]
    assert first.startswith(";; RUN:"), "the first line states the options"
    out = instrument(bytes(wat2wasm(source)), _options(first))
    result = "\n".join(lines(explain(out))) + "\n\n" + _printed(out.wasm, len(out.module.func_types))
    path = HERE / f"{name}.txt"
    if os.environ.get("BLESS"):
        path.write_text(result)
    assert result == path.read_text()


def test_every_case_has_a_result_and_none_is_left_over() -> None:
    assert sorted(path.stem for path in HERE.glob("*.txt")) == CASES
    assert len(CASES) >= 7
