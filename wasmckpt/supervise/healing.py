"""After a crash: again, on another kind of runtime, or no more.

A worker's crash may be chance (somebody killed it, memory was short), or it may come again each time the program gets
there: the runtime has a bug that this program meets. So crashes *at one place* are counted. Where exactly a program
stood when its process died nobody can say; what is known is the newest image, and how the process died. Two crashes are
at one place if they were on one runtime, in one way, and no newer image was taken between them: the program was gone on
with from the same image, and came to the same end.

Then the same image is given to another runtime, which is what images are for. A runtime of another kind comes first:
wasmtime and wasmer share a code generator, and with it its bugs. One that cannot run the program, or cannot hold its
frames, is passed over. When there is none left it is given up.

What others do to a process (SIGKILL, SIGTERM ...) says nothing about the runtime; neither does a start that failed
because the disk was full. Such crashes count only towards ``most``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..lazydata import dataclass

__all__ = ["UNABLE", "Again", "Attempt", "Decision", "GiveUp", "Policy", "after_crash", "is_of_the_runtime", "others"]

UNABLE: Final = "unable"
"""How an attempt ended on a runtime that cannot run the program."""
LONGEST_PAUSE: Final = 60.0
"""Seconds between two attempts, at most."""
_CRASHES: Final = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGABRT", "SIGFPE", "SIGTRAP", "SIGSYS", "SIGEMT",
                             "SIGSTKFLT"})
_FASTEST_FIRST: Final = ("wasmtime", "wasmer", "wamr", "wasmedge", "wasm3")
_KIND: Final = {"wasmtime": "cranelift", "wasmer": "cranelift"}
"""Runtimes that share what crashes; every other one is a kind of its own."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A time that the program's worker died, or could not be started.

    Attributes:
        at: seconds since 1970.
        how: the signal's name; "status N": it ended by itself; `UNABLE`; or the class of what kept it from starting.
        image: number of the newest image then; None: there was none.
    """

    at: float
    runtime: str
    how: str
    image: int | None

    def at_one_place(self, other: Attempt) -> bool:
        """Whether both were the same crash."""
        return (self.runtime, self.how, self.image) == (other.runtime, other.how, other.image)


@dataclass(frozen=True, slots=True)
class Policy:
    """When to do what.

    Attributes:
        most: crashes in a row on one runtime after which it is given up.
        at_one_place: of these so many at one place are enough to try another runtime; 0: never.
        backoff: seconds before the second attempt, twice as many before each one after it.
        runtimes: those that may be tried, in this order.
    """

    most: int
    at_one_place: int
    backoff: float
    runtimes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Again:
    """Go on with it.

    Attributes:
        pause: seconds before. crashes: in a row on this runtime, this one included.
        learned: the runtime that is not to be used for this module any more; None: that was not why.
    """

    runtime: str
    pause: float
    crashes: int
    learned: str | None = None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It is over. ``why``: for people. ``learned``: as of `Again`."""

    why: str
    learned: str | None = None


Decision = Again | GiveUp


def is_of_the_runtime(how: str) -> bool:
    """Whether a death is the runtime's own doing."""
    return how in _CRASHES or how.startswith("status ")


def others(runtime: str, here: Iterable[str]) -> list[str]:
    """Runtimes to go on with after one has crashed: other kinds first, then by speed."""
    there = set(here) - {runtime}
    kind = _KIND.get(runtime, runtime)
    return sorted((name for name in _FASTEST_FIRST if name in there),
                  key=lambda name: _KIND.get(name, name) == kind)


def after_crash(attempts: Sequence[Attempt], crashes: int, policy: Policy) -> Decision:
    """What to do after the last of these attempts.

    Args:
        attempts: since the program was last calm, oldest first, at least one. crashes: before it, in a row, on its
            runtime.
    """
    last, crashes = attempts[-1], crashes + 1
    same = 0
    for attempt in reversed(attempts):
        if not attempt.at_one_place(last):
            break
        same += 1
    place = last.how == UNABLE or (
        policy.at_one_place > 0 and same >= policy.at_one_place and is_of_the_runtime(last.how))
    if place:
        learned = None if last.how == UNABLE else last.runtime
        tried = {attempt.runtime for attempt in attempts}
        for name in policy.runtimes:
            if name not in tried:
                return Again(name, 0.0, 0, learned)
        if len(tried) > 1:
            return GiveUp(_listed(attempts), learned)
    if crashes > policy.most:
        return GiveUp(f"it has crashed {crashes} times in a row")
    pause = 0.0 if crashes == 1 else min(policy.backoff * 2.0 ** min(crashes - 2, 30), LONGEST_PAUSE)
    return Again(last.runtime, pause, crashes)


def _listed(attempts: Sequence[Attempt]) -> str:
    how = {attempt.runtime: attempt.how for attempt in attempts}
    ends = [f"{name} ({'cannot run it' if end == UNABLE else end})" for name, end in how.items()]
    return f"no runtime gets past that place: {', '.join(ends)}"
