"""What a runtime passes plain it passes instrumented, and when it is frozen and resumed at every safepoint."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from wasmckpt.instrument.options import Options

from ..support import spec
from ..support.moving import COUNTING, EVERYWHERE
from ..support.spec_programs import BareBackend, ProgramBackend
from ..support.tiers import by_tier, every_nth
from .counts import PROGRAMS, check_counts, load, recorded

VERSION_1 = sorted(key for key in recorded() if key.startswith("wasm-v1/"))
RUNTIMES = ["wasmtime", "wasm3"]
SLOW = {"wasm-v1/left-to-right", "wasm-v1/call_indirect"}
"""Hundreds of moves each: seldom."""

KNOWN = {
    "stack overflow": "call stack exhausted",
    "undefined element": "out of bounds table access",
}
"""Words of ours -> the scripts' words for the same trap."""


QUIET = 0x0040_0000
"""The quiet bit of an f32 NaN, which Wasm3 itself sets on some moves (documented; all other bits must be right)."""


def _problems(report: spec.Report) -> list[str]:
    """What failed, without other words for the trap that was asked for and without NaNs that Wasm3 quiets."""
    return [
        text for text in report.failed
        if not any(f"trap {ours!r}, not {theirs!r}" in text for ours, theirs in KNOWN.items()) and not _quieted(text)
    ]


def _quieted(text: str) -> bool:
    found = re.search(r"gave \['f32:(0x[0-9a-f]+)'\], not \(Expected\(type=125, lanes=\((\d+),\)", text)
    if not found:
        return False
    gave, wanted = int(found[1], 16), int(found[2])
    return gave == wanted | QUIET and wanted & 0x7F80_0000 == 0x7F80_0000 and wanted & 0x7F_FFFF != 0


def _compare(key: str, runtime: str, engines: list[str], options: Options, every: int) -> None:
    script = load(key)
    bare = spec.run_script(script, BareBackend(runtime))
    backend = ProgramBackend(engines, options, every=every, most_hops=by_tier(check=3, test=6, soak=1000))
    ours = spec.run_script(script, backend)
    # What the bare runtime refuses and we run (a module lowered for it) may still depend on an import that nobody
    # gives: then it fails as it does on the runtime that takes the module as it is.
    others = spec.run_script(script, BareBackend("wasmtime"))
    lines = {text.split(": ")[0] for text in _problems(bare) + _problems(others)}
    assert [text for text in _problems(ours) if text.split(": ")[0] not in lines] == []
    assert ours.passed >= bare.passed
    if not every:
        counts = Counter({"passed": ours.passed, "bare passed": bare.passed, "skipped": sum(ours.skipped.values())})
        check_counts(key, f"instrumented {runtime}", dict(counts), PROGRAMS)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("key", every_nth(VERSION_1, check=8, test=1))
def test_instrumented_passes_what_the_runtime_passes(key: str, runtime: str) -> None:
    _compare(key, runtime, [runtime], COUNTING, 0)


@pytest.mark.parametrize("engines", [["wasmtime", "wasm3"], ["wasm3", "wasmtime"]], ids="-".join)
@pytest.mark.parametrize("key", [key for key in every_nth(VERSION_1, check=24, test=2) if key not in SLOW])
def test_frozen_and_resumed_at_every_safepoint(key: str, engines: list[str]) -> None:
    _compare(key, "wasm3", engines, EVERYWHERE, 1)


@pytest.mark.soak
@pytest.mark.parametrize("key", sorted(SLOW))
def test_frozen_and_resumed_at_every_safepoint_long(key: str) -> None:
    _compare(key, "wasm3", ["wasm3", "wasmtime"], EVERYWHERE, 1)


def test_totals_of_version_1() -> None:
    """The suite does not shrink, and we run at least what the bare runtimes run."""
    totals: Counter[str] = Counter()
    for key in VERSION_1:
        totals.update(recorded(PROGRAMS)[key])
    assert totals["instrumented wasmtime: passed"] >= totals["instrumented wasmtime: bare passed"] > 16_000
    assert totals["instrumented wasm3: passed"] >= totals["instrumented wasm3: bare passed"] > 14_000
