"""The reference interpreter passes the official assertions: only then is it an oracle."""

from __future__ import annotations

from collections import Counter

import pytest

from ..support import spec
from ..support.interpreter import NanPolicy
from ..support.interpreter.spectest import ReferenceBackend
from .counts import check_counts, load, recorded, sampled

LONG = {"proposals/tail-call/return_call"}
"""Seconds each: a million calls."""


@pytest.mark.parametrize("key", [key for key in sampled(check=6) if key not in LONG])
def test_reference_passes_the_suite(key: str) -> None:
    _run(key, "canonical")


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(LONG))
def test_reference_passes_the_long_scripts(key: str) -> None:
    _run(key, "canonical")


@pytest.mark.parametrize("name", ["f32", "f64", "float_exprs", "float_misc", "conversions"])
def test_nans_as_x86_makes_them_are_allowed_ones(name: str) -> None:
    _run(f"wasm-v1/{name}", "x86")


def _run(key: str, nan: NanPolicy) -> None:
    script = load(key)
    report = spec.run_script(script, ReferenceBackend(nan))
    assert report.failed == []
    registered = sum(isinstance(command, spec.Register) for command in script.commands)
    check_counts(key, "reference", {**report.counts(), "registered": registered})


def test_nothing_of_version_1_or_2_is_skipped() -> None:
    totals: Counter[str] = Counter()
    for key, row in recorded().items():
        version = key.rpartition("/")[0]
        totals[version] += row.get("reference: passed", 0)
        if version != "proposals/exceptions":  # some modules there need the GC proposal
            assert not any(name.startswith("reference: skipped") for name in row)
    assert totals == {
        "wasm-v1": 16_398, "wasm-v2": 24_094, "proposals/multi-memory": 813, "proposals/tail-call": 78,
        "proposals/extended-const": 122, "proposals/simd": 24_335, "proposals/exceptions": 65,
    }
