"""Which backend works here: asked by writing, not by version numbers or error codes."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Final

from ..errors import CheckpointError, UsageError
from ..lazydata import dataclass
from .compare import Compare
from .kernel import MACHINE_PAGE
from .runs import PAGE, Runs
from .soft_dirty import SoftDirty
from .tracker import Extent, Tracker, TrackingLost
from .uffd import Uffd

__all__ = ["BACKENDS", "Verdict", "choose", "probe"]

BACKENDS: Final[dict[str, type[Tracker]]] = {cls.name: cls for cls in (Uffd, SoftDirty, Compare)}
"""By name, the best first."""
_PAGES: Final = 16


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a backend works here; ``why`` not, in one sentence."""

    name: str
    works: bool
    why: str = ""


def probe(name: str) -> Verdict:
    """Try a backend on a little memory: what is written must be told, what is not must not."""
    area = mmap.mmap(-1, (_PAGES + 1) * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            try:
                area.madvise(mmap.MADV_NOHUGEPAGE)
            except OSError:
                pass  # a kernel without huge pages
        held = ctypes.c_char.from_buffer(area)
        try:
            return Verdict(name, True) if not (why := _try(name, ctypes.addressof(held), area)) else Verdict(
                name, False, why)
        finally:
            del held
    except (TrackingLost, OSError) as problem:
        return Verdict(name, False, problem.what if isinstance(problem, CheckpointError) else str(problem))
    finally:
        area.close()


def _try(name: str, base: int, area: mmap.mmap) -> str:
    """What is wrong, or nothing."""
    for page in range(_PAGES):
        area[page * PAGE] = 1
    with BACKENDS[name]([lambda: (base, _PAGES * PAGE)]) as tracker:
        if tracker.collect() != [((0, _PAGES),)]:
            return "the first look does not tell everything"
        if tracker.collect() != [()]:
            return "it tells pages that nobody wrote"
        for pages in ((3,), (0, 15), (7, 8)):
            for page in pages:
                area[page * PAGE + 5] = 9
            told = _pages(tracker.collect()[0])
            if not told.issuperset(pages):
                return "the kernel takes the request and then tells of no write"
            if told != set(pages) and MACHINE_PAGE == PAGE:
                return "it tells pages that nobody wrote"
            for page in pages:
                area[page * PAGE + 5] = 0
            tracker.collect()
    return ""


def _pages(runs: Runs) -> set[int]:
    return {page for first, number in runs for page in range(first, first + number)}


def choose(memories: Sequence[Extent], name: str = "auto") -> Tracker:
    """The best tracker that works here, or the one that is named.

    Raises:
        UsageError: no such backend. TrackingLost: the one that was named does not work here, and why.
    """
    if name != "auto":
        if name not in BACKENDS:
            raise UsageError(f"unknown way to find written pages {name!r}", hint=f"known: {', '.join(BACKENDS)}, auto")
        verdict = probe(name)
        if not verdict.works:
            raise TrackingLost(f"{name} does not work here: {verdict.why}", hint="take auto, or compare")
        return BACKENDS[name](memories)
    for verdict in map(probe, BACKENDS):
        if verdict.works:
            return BACKENDS[verdict.name](memories)
    raise TrackingLost("no way to find written pages works here")
