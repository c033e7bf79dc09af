"""What the suite holds, file by file: a suite that shrinks, or an assertion that is skipped, is a failing test.

``counts.json`` is made anew by ``BLESS=1 python -m pytest tests/spec``; look at the difference before you commit it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Final

from ..support import spec
from ..support.tiers import every_nth, missing
from ..support.toolchain import Unavailable

__all__ = ["PROGRAMS", "VERSIONS", "check_counts", "load", "recorded", "sampled", "totals"]

VERSIONS: Final[tuple[spec.Version, ...]] = (
    "wasm-v1", "wasm-v2", "proposals/multi-memory", "proposals/tail-call", "proposals/extended-const",
    "proposals/simd", "proposals/exceptions",
)

BLESS: Final = bool(os.environ.get("BLESS"))
FILE: Final = Path(__file__).with_name("counts.json")
PROGRAMS: Final = Path(__file__).with_name("counts_programs.json")
"""Counts of runtimes with us between: another file, since other tests make it."""

Counts = dict[str, dict[str, int]]
"""Key of the script, ``version/name``, to counts by what was counted."""


def recorded(file: Path = FILE) -> Counts:
    """All counts that are on record."""
    return json.loads(file.read_text()) if file.exists() else {}


def totals(file: Path = FILE) -> Counter[str]:
    """Sums over all scripts."""
    total: Counter[str] = Counter()
    for row in recorded(file).values():
        total.update(row)
    return total


def sampled(check: int, test: int = 1) -> list[str]:
    """Keys of the scripts that this tier runs, every n-th. From the file: collecting tests fetches nothing."""
    if BLESS:
        return [f"{version}/{name}" for version in VERSIONS for name in spec.script_names(version)]
    return every_nth(sorted(recorded()), check=check, test=test)


def load(key: str) -> spec.Script:
    """A script by its key; without what is needed to fetch it the test is skipped."""
    version, _, name = key.rpartition("/")
    assert version in VERSIONS
    try:
        return spec.script(version, name)
    except Unavailable as reason:
        missing(reason.need, reason.reason)


def check_counts(key: str, kind: str, counts: dict[str, int], file: Path = FILE) -> None:
    """Compare counts with the recorded ones; ``kind`` begins their names."""
    found = {f"{kind}: {name}": count for name, count in sorted(counts.items()) if count}
    known = recorded(file)
    row = {name: count for name, count in known.get(key, {}).items() if name.startswith(f"{kind}: ")}
    if not BLESS:
        assert found == row, f"{key}: other counts than recorded"
        return
    kept = {name: count for name, count in known.get(key, {}).items() if name not in row}
    known[key] = dict(sorted({**kept, **found}.items()))
    file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
