"""How much a test run covers: the tier, what each tier samples, and when a missing requirement is a failure.

Two environment variables, both set by the Makefile (docs/testing.md tells what each tier is for):

``WASMCKPT_TIER``     ``check``, ``test`` (the default) or ``soak``
``WASMCKPT_REQUIRE``  comma-separated names of things that must be there (``clang``, ``wasm3`` ...): without one of
                      them a test fails instead of being skipped, so that CI cannot go green by running nothing
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Final, NoReturn, TypeVar

import pytest

__all__ = ["MOST_CASES", "REQUIRED", "TIER", "TIERS", "by_tier", "every_nth", "few_of_each", "missing"]

TIERS: Final = ("check", "test", "soak")
TIER: Final = os.environ.get("WASMCKPT_TIER") or "test"
if TIER not in TIERS:
    raise pytest.UsageError(f"WASMCKPT_TIER is {TIER!r}; it must be one of {', '.join(TIERS)}")

REQUIRED: Final = frozenset(name.strip() for name in os.environ.get("WASMCKPT_REQUIRE", "").split(",") if name.strip())

MOST_CASES: Final = 8
"""Of a test with more cases ``check`` takes so many: it is there for every edit, and has to end within minutes."""

T = TypeVar("T")


def by_tier(*, check: T, test: T, soak: T) -> T:
    """The one of three values that belongs to this run's tier: sizes, step widths, numbers of examples."""
    return {"check": check, "test": test, "soak": soak}[TIER]


def every_nth(items: Sequence[T], *, check: int, test: int, soak: int = 1) -> list[T]:
    """Every n-th item, n by tier, always with the first and the last one: both ends are where things break."""
    step = by_tier(check=check, test=test, soak=soak)
    chosen = list(items[::step])
    if items and (len(items) - 1) % step:
        chosen.append(items[-1])
    return chosen


def few_of_each(ids: Sequence[str], most: int) -> set[str]:
    """At most ``most`` cases of each test, by pytest's ids, in which ``[`` begins the case; always the same ones."""
    tests: dict[str, list[str]] = {}
    for name in ids:
        tests.setdefault(name.partition("[")[0], []).append(name)
    return {name for test, cases in tests.items()
            for name in random.Random(test).sample(cases, min(most, len(cases)))}


def missing(name: str, reason: str) -> NoReturn:
    """Ends the test because ``name`` is not here: skipped with ``reason``, or failed if the run requires ``name``."""
    if name in REQUIRED:
        pytest.fail(f"{name} is required in this run: {reason}", pytrace=False)
    pytest.skip(reason)
