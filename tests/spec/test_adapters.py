"""Wasmtime, through its adapter and without anything of ours in the module, passes what an adapter can be asked.

Not Wasm3: it does not check the bounds of active segments, so the suite damages the process's heap.
"""

from __future__ import annotations

from collections import Counter

import pytest

from wasmckpt import runtimes
from wasmckpt.errors import RuntimeMissing

from ..support import spec
from ..support.tiers import missing
from .counts import check_counts, load, recorded, sampled
from .on_adapter import SYNONYMS, AdapterBackend


@pytest.mark.parametrize("key", [
    key for key in sampled(check=8) if not recorded().get(key, {}).get("reference: registered")])
def test_wasmtime_passes_the_suite(key: str) -> None:
    try:
        engine = runtimes.load("wasmtime")
    except RuntimeMissing as reason:
        missing("wasmtime", str(reason))
    report = spec.run_script(load(key), AdapterBackend(engine), SYNONYMS)
    assert report.failed == []
    counts = Counter({"passed": report.passed})
    counts.update({f"skipped, {reason}": count for reason, count in report.skipped.items()})
    check_counts(key, "wasmtime", dict(counts))


def test_little_is_skipped() -> None:
    totals: Counter[str] = Counter()
    for row in recorded().values():
        totals.update(row)
    passed, skipped = totals["wasmtime: passed"], sum(n for key, n in totals.items() if key.startswith("wasmtime: sk"))
    assert passed > 60_000
    assert skipped < 2_500
