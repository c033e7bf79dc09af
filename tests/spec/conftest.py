"""Prints at the end of a run what of the suite was run and what was left out, and why."""

from __future__ import annotations

import pytest

from .counts import PROGRAMS, totals


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Totals of instrumented and moved programs, as recorded: each test has compared its own."""
    terminalreporter.section("specification tests, assertions by outcome (all scripts, as on record)")
    for name, count in sorted(totals(PROGRAMS).items()):
        terminalreporter.write_line(f"{count:7,} {name}")
