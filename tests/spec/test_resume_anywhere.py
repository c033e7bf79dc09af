"""The suite passes just as well if each program is moved into a fresh instance, by an image, again and again."""

from __future__ import annotations

import pytest

from ..support import spec
from .counts import check_counts, load, recorded, sampled, totals
from .resuming import Places, ResumingBackend

LONG = {
    "proposals/tail-call/return_call", "proposals/tail-call/return_call_indirect",
    *[f"wasm-v{version}/{name}" for version in (1, 2) for name in (
        "call", "call_indirect", "memory_copy", "memory_fill", "memory_grow", "skip-stack-guard-page")],
}
"""More than a few seconds each."""


def keys(check: int, test: int, *, long: bool = False) -> list[str]:
    """Scripts whose instances share nothing with each other."""
    rows = recorded()
    return [key for key in sampled(check, test)
            if not rows.get(key, {}).get("reference: registered") and (key in LONG) == long]


@pytest.mark.parametrize("key", keys(check=9, test=2))
def test_moved_at_every_safepoint(key: str) -> None:
    _run(key, "safepoints")


@pytest.mark.parametrize("key", keys(check=16, test=6))
def test_moved_after_every_instruction(key: str) -> None:
    _run(key, "instructions")


@pytest.mark.slow
@pytest.mark.parametrize("key", keys(check=1, test=1, long=True))
def test_long_scripts_moved_at_every_safepoint(key: str) -> None:
    _run(key, "safepoints")


@pytest.mark.soak
@pytest.mark.parametrize("key", keys(check=1, test=1, long=True))
def test_long_scripts_moved_after_every_instruction(key: str) -> None:
    """Minutes each, so their counts are not on record."""
    assert spec.run_script(load(key), ResumingBackend("instructions")).failed == []


def _run(key: str, at: Places) -> None:
    backend = ResumingBackend(at)
    report = spec.run_script(load(key), backend)
    assert report.failed == []
    check_counts(key, f"moved at {at}", {**report.counts(), "moves": backend.moves, "unmoved": backend.unmoved})


def test_moves_happened() -> None:
    total = totals()
    assert total["moved at safepoints: moves"] > 10_000
    assert total["moved at instructions: moves"] > 150_000
