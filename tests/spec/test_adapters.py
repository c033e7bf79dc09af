"""Wasmtime, through its adapter and without anything of ours in the module, passes what an adapter can be asked.

Not Wasm3: it does not check the bounds of active segments, so the suite damages the process's heap.
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


@pytest.mark.parametrize("key", [
    key for key in sampled(check=8) if not recorded().get(key, {}).get("reference: registered")])
def test_wasmtime_passes_the_suite(key: str) -> None:
    try:
        engine = runtimes.load("wasmtime")
    except RuntimeMissing as reason:
        missing("wasmtime", str(reason))
    report = spec.run_script(load(key), AdapterBackend(engine), SYNONYMS)
    assert report.failed == []
    check_counts(key, "wasmtime", report.counts())


def test_little_is_skipped() -> None:
    total = totals()
    passed, skipped = total["wasmtime: passed"], sum(n for key, n in total.items() if key.startswith("wasmtime: sk"))
    assert passed > 60_000
    assert skipped < 2_500
