"""Tiers for all tests: which are deselected, and how many examples hypothesis tries; and a process that can load every
runtime that is here."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from wasmckpt import runtimes

from .support.ledger import LEDGER, Ledger, sources_digest
from .support.pairs import SEED
from .support.tiers import MOST_CASES, TIER, by_tier, few_of_each

os.environ["WASMCKPT_SEED"] = str(SEED)  # the same for all processes that the tests are dealt out to

# A run started in the background of a shell, or by nohup, ignores these; so would every program that the tests start
# and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Fixed examples in check and test (a red run can be repeated), fresh ones in soak. None has a time: a process may have
# to wait for a core for longer than hypothesis allows for ten examples.
NO_TIMES: Final[dict[str, Any]] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("check", max_examples=30, derandomize=True, database=None, **NO_TIMES)
settings.register_profile("test", max_examples=200, derandomize=True, database=None, **NO_TIMES)
settings.register_profile("soak", max_examples=2000, print_blob=True, **NO_TIMES)
settings.load_profile(TIER)

_FORKING = Path(__file__).parent / "unit" / "snapshot"


def pytest_configure(config: pytest.Config) -> None:
    """Where a runtime's library brings a C library of its own, all tests run in a process that was started for it: a
    newer one serves the other runtimes as well."""
    if TIER == "soak":
        config.pluginmanager.register(
            Ledger(LEDGER, sources_digest(), keep=bool(os.environ.get("WASMCKPT_SOAK_KEEP"))), "soak-ledger")
    words = next(filter(None, map(runtimes.loader, runtimes.available())), ())
    if not words or os.path.samefile("/proc/self/exe", words[0]):
        return
    if config.getoption("tx", None):  # this process only deals the tests out to others
        config.option.tx = [f"popen//python={shlex.join([*words, sys.executable])}"] * len(config.option.tx)
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()  # give back the standard streams
    sys.stdout.flush()
    os.execv(words[0], [*words, sys.executable, "-m", "pytest", *map(str, config.invocation_params.args)])


def pytest_report_header() -> str:
    return f"tier: {TIER} (WASMCKPT_TIER=check|test|soak), pairs drawn from WASMCKPT_SEED={SEED}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what the tier leaves out; a test that is named on the command line with ``-m`` is left alone. Tests
    that fork this very process come first, while it is small: later a fork takes several times as long."""
    items.sort(key=lambda item: not item.path.is_relative_to(_FORKING))
    if config.option.markexpr:
        return
    left_out: frozenset[str] = by_tier(
        check=frozenset({"slow", "soak"}), test=frozenset({"soak"}), soak=frozenset(),
    )
    if not left_out:
        return
    kept = [item for item in items if not any(item.get_closest_marker(name) for name in left_out)]
    if TIER == "check":
        taken = few_of_each([item.nodeid for item in kept], MOST_CASES)
        kept = [item for item in kept if item.nodeid in taken]
    if left := set(items) - set(kept):
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = kept
