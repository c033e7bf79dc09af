"""The processes that a test may find below its own: those of the tests, not what serves the whole run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

__all__ = ["SERVICES", "children"]

SERVICES: Final[set[int]] = set()
"""Processes that are started once for all tests (object storage), wherever in the run that is."""


def children() -> set[int]:
    """All children of this process, whichever thread has them, zombies too, without `SERVICES`."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            found |= set(map(int, (task / "children").read_text().split()))
    return found - SERVICES
