"""What a runtime passes plain it passes instrumented, and when it is frozen and resumed at every safepoint.

Programs move through wasmtime, Wasm3 and the reference interpreter in turn, in both directions; Wasm3 is left out for
modules that it does not take. The numbers of assertions passed and skipped, with the reasons, are on record in
``counts_programs.json`` (made anew by ``BLESS=1``) and printed at the end of a run.
"""

from __future__ import annotations

import re

import pytest

from ..support import spec
from ..support.moving import COUNTING, EVERYWHERE
from ..support.partner import REFERENCE
from ..support.spec_programs import SYNONYMS, BareBackend, ProgramBackend
from ..support.tiers import TIER, by_tier, every_nth
from .counts import BLESS, PROGRAMS, check_counts, load, recorded, totals

RUNTIMES = ("wasmtime", "wasm3")
CYCLES = (("wasmtime", REFERENCE, "wasm3"), ("wasm3", REFERENCE, "wasmtime"))
"""Between them each runtime is followed by each other."""
LONG = {"proposals/tail-call/return_call": ("wasmtime", "wasmtime")}
"""A million calls: too much for the interpreter."""

KEYS = sorted(recorded())
MOVES = {key: row["moves: moves"] for key, row in recorded(PROGRAMS).items() if "moves: moves" in row}
"""Scripts whose programs pass safepoints (most only calculate), with how often they move in the test tier."""
SAMPLED = [key for key in KEYS if key in MOVES] if TIER != "soak" and not BLESS else KEYS
LESS = {"wasmtime": 0, "wasm3": 200}
"""How many assertions the bare runtimes may pass more: Wasm3 takes tail calls, and references that do not run."""

QUIET = 0x0040_0000
"""The quiet bit of an f32 NaN, which Wasm3 itself sets on some moves (documented; all other bits must be right)."""


def _problems(report: spec.Report) -> list[str]:
    """What failed, without NaNs that Wasm3 quiets."""
    return [text for text in report.failed if not _quieted(text)]


def _quieted(text: str) -> bool:
    found = re.search(r"gave \['f32:(0x[0-9a-f]+)'\], not \(Expected\(type=125, lanes=\((\d+),\)", text)
    if not found:
        return False
    gave, wanted = int(found[1], 16), int(found[2])
    return gave == wanted | QUIET and wanted & 0x7F80_0000 == 0x7F80_0000 and wanted & 0x7F_FFFF != 0


def _line(problem: str) -> str:
    return problem.split(": ")[0]


def _run(key: str, backend: spec.Backend) -> spec.Report:
    return spec.run_script(load(key), backend, SYNONYMS)


def _assert_only_its_own_faults(report: spec.Report, bare: spec.Report) -> None:
    """Nothing fails but what fails on the runtime without us."""
    lines = set(map(_line, bare.failed))
    assert [text for text in _problems(report) if _line(text) not in lines] == []


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("key", every_nth(KEYS, check=12, test=1 if BLESS else 2))
def test_instrumented_passes_what_the_runtime_passes(key: str, runtime: str) -> None:
    bare = _run(key, BareBackend(runtime))
    ours = _run(key, ProgramBackend([runtime], COUNTING))
    _assert_only_its_own_faults(ours, bare)
    check_counts(key, f"bare {runtime}", bare.counts(), PROGRAMS)
    check_counts(key, f"instrumented {runtime}", ours.counts(), PROGRAMS)


@pytest.mark.parametrize(("key", "engines"), [
    pytest.param(key, LONG.get(key, cycle), id=f"{key}-{'-'.join(LONG.get(key, cycle))}")
    for key in every_nth(SAMPLED, check=24, test=1)
    for cycle in ([CYCLES[KEYS.index(key) % 2]] if TIER != "soak" else CYCLES)
])
def test_frozen_and_resumed_at_every_safepoint(key: str, engines: tuple[str, ...]) -> None:
    """In check and test at the first ones of some calls, in soak at the first thousand of each."""
    backend = ProgramBackend(engines, EVERYWHERE, hops_a_call=by_tier(check=2, test=4, soak=1000),
                             every_call=by_tier(check=5, test=3, soak=1))
    ours = _run(key, backend)
    _assert_only_its_own_faults(ours, _run(key, BareBackend("wasm3")))
    counts = ours.counts()
    counts["passed"] += len(ours.failed)  # as on Wasm3 without us, or not, by where a program happens to be
    check_counts(key, "moved", counts, PROGRAMS)
    if TIER == "test":
        check_counts(key, "moves", {"moves": backend.hops}, PROGRAMS)


def test_totals() -> None:
    """The suite does not shrink, and we run what the bare runtimes run."""
    total = totals(PROGRAMS)
    for runtime in RUNTIMES:
        assert total[f"instrumented {runtime}: passed"] >= total[f"bare {runtime}: passed"] - LESS[runtime]
    assert total["instrumented wasmtime: passed"] > 65_500
    assert total["instrumented wasm3: passed"] > 37_000
    assert total["moved: passed"] > 65_500
    assert total["moves: moves"] > 1_500
