"""Runtimes, through their adapters and without anything of ours in the module, pass what an adapter can be asked.

Not Wasm3: it does not check the bounds of active segments, so the suite damages the process's heap. Not WasmEdge: its
interpreter lets signalling NaNs pass where they must become quiet.
"""

from __future__ import annotations

import pytest

from wasmckpt import runtimes
from wasmckpt.errors import RuntimeMissing

from ..support import spec
from ..support.spec_programs import SYNONYMS
from ..support.tiers import missing
from .counts import check_counts, load, recorded, sampled, totals
from .on_adapter import AdapterBackend

SKIPPED = {"wasmtime": 2_500, "wamr": 3_000, "wasmer": 30_000}
"""How many assertions may be skipped: WAMR has one memory; vectors do not cross wasmer's API."""
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in SKIPPED if name != "wasmtime"]


@pytest.mark.parametrize("key", [
    key for key in sampled(check=8) if not recorded().get(key, {}).get("reference: registered")])
@pytest.mark.parametrize("runtime", ["wasmtime", *OTHERS])
def test_runtimes_pass_the_suite(runtime: str, key: str) -> None:
    try:
        engine = runtimes.load(runtime)
    except RuntimeMissing as reason:
        missing(runtime, str(reason))
    report = spec.run_script(load(key), AdapterBackend(engine), SYNONYMS)
    assert report.failed == []
    check_counts(key, runtime, report.counts())


@pytest.mark.parametrize("runtime", SKIPPED)
def test_little_is_skipped(runtime: str) -> None:
    total = totals()
    skipped = sum(n for key, n in total.items() if key.startswith(f"{runtime}: sk"))
    assert total[f"{runtime}: passed"] + skipped > 60_000
    assert skipped < SKIPPED[runtime]
