"""How large a module may be, and how much work: what is beyond is refused by name, before time or memory go into it.

Counts are those that engines share (the specification's JavaScript API and wasmtime have the same), so that no module
that runs on a compiler is refused. Work is what grows faster than the module: values that blocks and branches pass on
and that wait at calls, and values that are stored at safepoints. Their limits have a part that any module may use and
a part for each of its bytes; real programs use a tenth of them at most.
"""

from __future__ import annotations

from typing import Final

from ..errors import NotSupported

__all__ = [
    "MAX_BODY", "MAX_COUNTS", "MAX_ITEMS", "MAX_LIVE_BITS", "MAX_LOCALS", "MAX_PARAMS", "MAX_PLACES", "MAX_RESULTS",
    "MAX_STEPS", "MAX_TEXT", "most_locals", "most_stored", "most_values", "within",
]

MAX_LOCALS: Final = 50_000
"""Locals of one function, parameters included."""
MAX_PARAMS: Final = 1_000
MAX_RESULTS: Final = 1_000
MAX_BODY: Final = 7_654_321
"""Bytes of one function's body."""
MAX_ITEMS: Final = 10_000_000
"""Items of one element segment."""
MAX_TEXT: Final = 100_000
"""Bytes of a name."""
MAX_COUNTS: Final[dict[str, int]] = {
    "types": 1_000_000, "imports": 1_000_000, "functions": 1_000_000, "tables": 100, "memories": 100,
    "tags": 1_000_000, "globals": 1_000_000, "exports": 1_000_000, "element segments": 100_000,
    "data segments": 100_000,
}
"""How many of each a module may have."""

MAX_PLACES: Final = 100_000
"""Loops, and calls that may suspend, of one function."""
MAX_LIVE_BITS: Final = 1 << 30
"""Of one function: safepoints times locals."""
MAX_STEPS: Final = 30_000_000
"""Of one function: steps of the analysis of which locals are live. Deep nests of loops may need many passes."""


def most_locals(size: int) -> int:
    """Locals that all functions of a module of ``size`` bytes may have."""
    return 20_000_000 + 8 * size


def most_values(size: int) -> int:
    """Values that all blocks, branches and calls of a module of ``size`` bytes may pass on and keep waiting."""
    return 8_000_000 + 4 * size


def most_stored(size: int) -> int:
    """Values that the safepoints and wrappers of a module of ``size`` bytes may store and pass on."""
    return 4_000_000 + 2 * size


def within(number: int, most: int, what: str, **where: int) -> None:
    """Raise `NotSupported` where there are more than ``most`` of ``what``."""
    if number > most:
        error = NotSupported(f"{number} {what}: the limit is {most}", need="a smaller module")
        error.fields |= where
        raise error
