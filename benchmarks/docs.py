"""docs/benchmarks.md, made from the kept results."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .facts import sentence
from .report import Goal, Report, goal_table

__all__ = ["PAGE", "page", "write"]

PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks.md"

_HEAD: Final = """# Benchmarks

Made by `python -m benchmarks --write-docs` from `benchmarks/results`; do not edit. To measure again: `make bench`, or
`python -m benchmarks SUITE`; with `--quick` a suite only shows that it works.

How it is measured: ratios within one run. The variants take turns, so that what disturbs one disturbs all. CPU time of
the guest's thread, unless a table says otherwise; the minimum of many rounds on several fresh instances, since where
one instance happens to lie in memory can be worth a third of a tight loop. Each round's result is checked. What fails
is shown. Noise: 1-2 % on geometric means, about 5 % on one kernel; the ranges say more.
"""


def page(reports: Sequence[Report]) -> str:
    """The page's text."""
    parts = [_HEAD]
    goals: list[Goal] = [goal for report in reports for goal in report.goals]
    if goals:
        parts.append("## Goals\n\n" + goal_table(goals))
    for report in reports:
        module = importlib.import_module(f"{__package__}.suites.{report.suite.replace('-', '_')}")
        about = (module.__doc__ or "").strip()
        parts.append(
            f"## {report.name}\n\n{about if not report.names else 'As above.'}\n\n`{report.command}`\n\n"
            f"{sentence(report.facts)}.\n\n"
            + report.markdown()
        )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write(suites: Sequence[str], target: Path = PAGE) -> Path:
    """Write the page from the results that there are, in the suites' order."""
    target.write_text(page(Report.all_kept(suites)))
    return target
