"""What a runtime passes plain it passes instrumented, and when it is frozen and resumed at every safepoint.

Programs move through the runtimes of `BASE` and the reference interpreter in turn, in both directions, and through all
runtimes in an order that `SEED` draws; one that does not take a module is left out. Of the scripts each other runtime
gets some that `SEED` draws in ``test``, all of them in ``soak``, none in ``check``. The numbers of assertions passed
and skipped, with the reasons, are on record in ``counts_programs.json`` (made anew by ``BLESS=1``) and printed at the
end of a run.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from wasmckpt import runtimes
from wasmckpt.errors import RuntimeMissing

from ..support import spec
from ..support.moving import COUNTING, EVERYWHERE
from ..support.pairs import BASE, SEED
from ..support.partner import REFERENCE
from ..support.spec_programs import SYNONYMS, BareBackend, ProgramBackend
from ..support.tiers import TIER, by_tier, every_nth, missing
from .counts import BLESS, PROGRAMS, check_counts, load, recorded, totals

OTHERS = tuple(name for name in runtimes.names() if name not in BASE)
CYCLES = ((BASE[0], REFERENCE, BASE[1]), (BASE[1], REFERENCE, BASE[0]))
"""Between them each runtime is followed by each other."""
LONG = {"proposals/tail-call/return_call": ("wasmtime", "wasmtime")}
"""A million calls: too much for the interpreter."""

KEYS = sorted(recorded())
MOVES = {key: row["moves: moves"] for key, row in recorded(PROGRAMS).items() if "moves: moves" in row}
"""Scripts whose programs pass safepoints (most only calculate), with how often they move in the test tier."""
SAMPLED = [key for key in KEYS if key in MOVES] if TIER != "soak" and not BLESS else KEYS
LESS = {"wasm3": 200, "wamr": 360}
"""How many assertions the bare runtimes may pass more: Wasm3 takes tail calls, and references that do not run; on WAMR
tables that change are refused."""
DIES = {("proposals/exceptions/try_table", "wasmedge")}
"""A bare runtime crashes: here of a branch to the label of a ``try_table``. With us it passes."""
EXHAUSTED = "call stack exhausted"
SHARE = 8
"""In ``test`` each other runtime gets one script of so many, and one of so many is moved through all of them."""

CLOSE = by_tier(check=1 << 62, test=1 << 62, soak=20)
"""So many moves at a place before some are left out: thousands of calls of loops that look at each byte of a memory
took twenty minutes a script, with nothing new in them."""

QUIET = 0x0040_0000
"""The quiet bit of an f32 NaN, which Wasm3 itself sets on some moves (documented; all other bits must be right)."""


SIGNALLING = re.compile(
    r"name='(?:f32x4\.|f64x2\.)?(?:ceil|floor|trunc|nearest|min|max)'.* gave \['(?:f32|f64|v128):0x[0-9a-f]*"
    r"(?:7fa00000|ffa00000|7ff4000000000000|fff4000000000000)[0-9a-f]*'\], not \(Expected\(.*'arithmetic'")
"""WasmEdge leaves a signalling NaN as it is where the result of rounding, or of the vectors' min and max, is quiet
(documented; on no other operation)."""


def _problems(report: spec.Report) -> list[str]:
    """What failed, without NaNs that Wasm3 quiets or WasmEdge does not."""
    return [text for text in report.failed if not _quieted(text) and not SIGNALLING.search(text)]


def _quieted(text: str) -> bool:
    found = re.search(r"gave \['f32:(0x[0-9a-f]+)'\], not \(Expected\(type=125, lanes=\((\d+),\)", text)
    if not found:
        return False
    gave, wanted = int(found[1], 16), int(found[2])
    return gave == wanted | QUIET and wanted & 0x7F80_0000 == 0x7F80_0000 and wanted & 0x7F_FFFF != 0


def _line(problem: str) -> str:
    return problem.split(": ")[0]


def _run(key: str, backend: spec.Backend) -> spec.Report:
    script = load(key)
    if isinstance(backend, BareBackend) and (key, backend.engine.name) in DIES:
        return spec.Report(key)
    if isinstance(backend, BareBackend) and "depth-counter" in backend.engine.capabilities.lowerings:
        # Without us a recursion without end takes all memory, and then the process.
        script = replace(script, commands=tuple(
            command for command in script.commands
            if not isinstance(command, spec.AssertTrap) or command.text != EXHAUSTED))
    return spec.run_script(script, backend, SYNONYMS)


def needed(runtime: str) -> None:
    """The test ends here where the runtime is missing."""
    try:
        runtimes.load(runtime)
    except RuntimeMissing as reason:
        missing(runtime, str(reason))


def _assert_only_its_own_faults(report: spec.Report, bare: spec.Report) -> None:
    """Nothing fails but what fails on the runtime without us."""
    lines = set(map(_line, bare.failed))
    assert [text for text in _problems(report) if _line(text) not in lines] == []


def drawn(keys: Sequence[str], what: str) -> list[str]:
    """Some of the keys, by `SEED`; all in ``soak``."""
    if TIER == "soak" or BLESS:
        return list(keys)
    return sorted(random.Random(f"{SEED} {what}").sample(keys, len(keys) // SHARE))


@pytest.mark.parametrize(("key", "runtime"), [
    *itertools.product(every_nth(KEYS, check=12, test=1 if BLESS else 2), BASE),
    *(pytest.param(key, runtime, marks=pytest.mark.slow) for runtime in OTHERS for key in drawn(KEYS, runtime)),
])
def test_instrumented_passes_what_the_runtime_passes(key: str, runtime: str) -> None:
    needed(runtime)
    bare = _run(key, BareBackend(runtime))
    ours = _run(key, ProgramBackend([runtime], COUNTING))
    if runtime in BASE:
        _assert_only_its_own_faults(ours, bare)
    else:
        assert _problems(ours) == []
    check_counts(key, f"bare {runtime}", bare.counts(), PROGRAMS)
    check_counts(key, f"instrumented {runtime}", ours.counts(), PROGRAMS)


@pytest.mark.parametrize(("key", "engines"), [
    pytest.param(key, cycle, id=f"{key}-{'-'.join(cycle)}")
    for key in every_nth(SAMPLED, check=24, test=1)
    for cycle in ([LONG[key]] if key in LONG else CYCLES if TIER == "soak" else [CYCLES[KEYS.index(key) % 2]])
])
def test_frozen_and_resumed_at_every_safepoint(key: str, engines: tuple[str, ...]) -> None:
    """In check and test at the first ones of some calls, in soak up to a thousand times in each call (`CLOSE`)."""
    often = by_tier(check=2, test=4, soak=100 if key in LONG else 1000)
    backend = ProgramBackend(engines, EVERYWHERE, hops_a_call=often, every_call=by_tier(check=5, test=3, soak=1),
                             close=CLOSE)
    ours = _run(key, backend)
    _assert_only_its_own_faults(ours, _run(key, BareBackend("wasm3")))
    counts = ours.counts()
    counts["passed"] += len(ours.failed)  # as on Wasm3 without us, or not, by where a program happens to be
    check_counts(key, "moved", counts, PROGRAMS)
    if TIER == "test":
        check_counts(key, "moves", {"moves": backend.hops}, PROGRAMS)


@pytest.mark.slow
@pytest.mark.parametrize("key", drawn([key for key in SAMPLED if key not in LONG], "moved"))
def test_frozen_and_resumed_through_all_runtimes(key: str) -> None:
    """In an order of its own."""
    partners = [*BASE, *OTHERS, REFERENCE]
    random.Random(f"{SEED} {key}").shuffle(partners)
    print(f"seed {SEED}: {' '.join(partners)}")
    for name in (*BASE, *OTHERS):
        needed(name)
    backend = ProgramBackend(partners, EVERYWHERE, hops_a_call=by_tier(check=2, test=6, soak=1000),
                             every_call=by_tier(check=5, test=3, soak=1), close=CLOSE)
    ours = _run(key, backend)
    _assert_only_its_own_faults(ours, _run(key, BareBackend("wasm3")))
    counts = ours.counts()
    counts["passed"] += len(ours.failed)
    check_counts(key, "moved", counts, PROGRAMS)


def test_totals() -> None:
    """The suite does not shrink, and we run what the bare runtimes run."""
    total = totals(PROGRAMS)
    for runtime in (*BASE, *OTHERS):
        assert total[f"instrumented {runtime}: passed"] >= total[f"bare {runtime}: passed"] - LESS.get(runtime, 0)
    assert total["instrumented wasmtime: passed"] > 65_500
    assert total["instrumented wasm3: passed"] > 37_000
    for runtime, least in (("wamr", 64_100), ("wasmer", 41_300), ("wasmedge", 65_300)):  # wasmer: no vectors cross
        assert total[f"instrumented {runtime}: passed"] >= least
    assert total["moved: passed"] > 65_500
    assert total["moves: moves"] > 1_500
