"""Rewriting takes memory in proportion to the module: at most fifteen times its size, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest

from wasmckpt.wasm.codes import Codes
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.validate import Code, analyze

from ...support.samples import sample
from ...support.tiers import missing
from ...support.toolchain import Unavailable
from ..wasm.generated import smith

MOST: Final = 15
KEPT: Final = ("calls", "catches", "func", "heights", "imms", "label_values", "loops", "match", "ops", "outward",
               "padded", "pos", "special", "tail_calls")
"""What is known of a function, but for what is asked for while it is analyzed."""

_CHILD: Final = """
import json, re, sys
from pathlib import Path
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
def growth(wasm, options):
    before = peak()
    instrument(wasm, options).wasm
    return (peak() - before) / len(wasm)
small, wasm = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]).read_bytes()
growth(small, Options())  # what is imported and made once
if "planted" in sys.argv:
    from wasmckpt.instrument import instrument as module
    from wasmckpt.wasm.validate import analyze
    class Kept(module.Codes):
        def __init__(self, module):
            super().__init__(module)
            self.kept = [analyze(module, func) for func in self]
    module.Codes = Kept
print(json.dumps(growth(wasm, Options(side_modules=True))))
"""


def growth(name: str, *words: str) -> float:
    try:
        small, large = sample("nbody"), sample(name)
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    done = subprocess.run([sys.executable, "-c", _CHILD, str(small.path), str(large.path), *words], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    return float(json.loads(done.stdout))


@pytest.mark.slow
def test_at_most_fifteen_times_the_module() -> None:
    assert growth("sqlite") < MOST


@pytest.mark.slow
def test_keeping_what_was_analyzed_is_seen() -> None:
    """The same with all functions' codes kept as they are."""
    assert growth("lua", "planted") > MOST


@pytest.mark.parametrize("seed", range(6))
def test_packed_and_unpacked_is_the_same(seed: int) -> None:
    if hasattr(Code, "__slots__"):  # a compiled class has none
        assert {*KEPT, "moved", "watched"} == set(Code.__slots__)
    module = decode(smith(seed))
    codes = Codes(module)
    assert len(codes) == len(module.bodies)
    for func, code in codes.items():
        fresh = analyze(module, func)
        for name in KEPT:
            assert getattr(code, name) == getattr(fresh, name), (func, name)
    with pytest.raises(KeyError):
        codes[len(module.func_types)]


@pytest.mark.parametrize("seed", range(3))
def test_functions_that_use_an_instruction(seed: int) -> None:
    """All that have one with that first byte, and no others."""
    module = decode(smith(seed))
    codes = Codes(module)
    for first in (0x10, 0x11, 0x1A, 0x26, 0xFC, 0xFD):
        users = {func for func, code in codes.items()
                 if any(first == (op if op < 0x100 else op >> 16) for op in code.ops)}
        assert {func for func, _ in codes.using({first})} == users
