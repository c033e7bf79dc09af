"""The interval of a running program, from what its own checkpoints cost.

The rule is an account. Time that passes earns ``overhead`` seconds a second (0.035: the bound); a checkpoint spends
what it cost. The next one begins when the account, all earlier ones paid, holds what it is expected to cost. So the
total stays under the bound as long as costs are as expected; one that is not is paid off before anything else, so the
total is under the bound again when the next one begins. Cheap checkpoints come close together.

In the long run the interval is ``cost / overhead``. Where the cost itself grows with the interval (a program that
dirties pages at some rate) this is an iteration that ends where both agree: a larger rate stretches the interval, and
since no more than the whole memory can be dirty, it always ends.

Two limits and one goal bend the rule:

- never sooner than ``shortest``: more images than that help nobody;
- never later than ``longest``, the most that a failure may throw away. Where the two cannot both be had this one wins,
  and the overhead is what it is (`Pace.over_bound`);
- with an ``mtbf`` the interval is never below the best one for it (`intervals.best_interval`): images beyond that cost
  more than failures do.

What is expected of the next one: the last cost or the average of the last ones (each counting half of the one after
it), whichever is larger. So dearer checkpoints are believed at once, and cheaper ones over a few; a single spike is not
only paid for but doubted for some time.

Before the first one nothing is known: it comes after ``first`` seconds and measures. Until it is paid the total may lie
above the bound, by no more than that one.

The clock is the caller's: any numbers that rise, so that tests need no time.
"""

from __future__ import annotations

from typing import Final

from ..errors import UsageError
from .checks import at_least_zero, fraction, positive
from .intervals import best_interval

__all__ = ["DEFAULT_OVERHEAD", "Pace"]

DEFAULT_OVERHEAD: Final = 0.035
"""Of all time."""
SHORTEST: Final = 1.0
LONGEST: Final = 3600.0
_WEIGHT: Final = 0.5
"""Of the newest cost in the average."""
_SAVED: Final = 2.0
"""Checkpoints that the account may hold: what is saved over a quiet hour is not spent in a burst."""


class Pace:
    """When to take the next checkpoint.

    Args:
        overhead: bound of what all checkpoints cost, as a fraction of time. shortest, longest: seconds between the
            beginnings of two of them. first: seconds until the first one; None: ``shortest``.
        mtbf: mean seconds between failures, if known.
        now: the caller's clock; None: `start` will tell.

    Raises:
        UsageError: a number is out of its range.

    Attributes:
        due: when the next one should begin, on the caller's clock. spent: seconds that all have cost.
        taken: how many. over_bound: whether ``longest`` made the last interval shorter than the bound allows.
    """

    def __init__(
        self, overhead: float = DEFAULT_OVERHEAD, *, shortest: float = SHORTEST, longest: float = LONGEST,
        first: float | None = None, mtbf: float | None = None, now: float | None = None,
    ) -> None:
        if not fraction("the overhead", overhead):
            raise UsageError("an overhead of nothing leaves no room for checkpoints")
        positive("the shortest interval", shortest)
        if positive("the longest interval", longest) < shortest:
            raise UsageError("the longest interval is shorter than the shortest", longest=longest, shortest=shortest)
        if mtbf is not None:
            positive("the MTBF", mtbf)
        self._overhead, self._shortest, self._longest, self._mtbf = overhead, shortest, longest, mtbf
        self._first = shortest if first is None else at_least_zero("the first interval", first)
        self._account = 0.0
        """Seconds that are earned and not spent; below zero: owed."""
        self._average = 0.0
        self.spent = 0.0
        self.taken = 0
        self.over_bound = False
        self._started = False
        self._seen = self._began = 0.0
        self.due = self._first
        if now is not None:
            self.start(now)

    def start(self, now: float) -> None:
        """The program begins now, unless that was said before: then time goes on."""
        if not self._started:
            self._started = True
            self._seen = self._began = now
            self.due = now + self._first

    @property
    def expected(self) -> float:
        """Seconds that the next one is expected to cost; 0 before the first."""
        return self._average

    def took(self, cost: float, *, began: float, now: float) -> float:
        """A checkpoint has been taken, whoever asked for it, or has failed; gives `due`, which it moves.

        Args:
            cost: seconds that the program lost by it. began: when it began, now: when it was over.
        """
        cost = at_least_zero("the cost of a checkpoint", cost)
        self._earn(now)
        self._account -= cost
        self.spent += cost
        self.taken += 1
        self._average = max(cost, cost if self.taken == 1 else _WEIGHT * cost + (1 - _WEIGHT) * self._average)
        allowed = max(
            now + max(0.0, self._average - self._account) / self._overhead,
            began + self._average / self._overhead,  # what was saved by dearer expectations is not spent in a burst
        )
        if self._mtbf is not None and self._average:
            allowed = max(allowed, began + best_interval(self._average, self._mtbf))
        self.over_bound = allowed > began + self._longest
        self.due = max(now, min(max(allowed, began + self._shortest), began + self._longest))
        return self.due

    def overhead(self, now: float) -> float:
        """What all checkpoints so far have cost, as a fraction of the time since the beginning."""
        return self.spent / (now - self._began) if now > self._began else 0.0

    def _earn(self, now: float) -> None:
        self._account += self._overhead * max(0.0, now - self._seen)
        self._seen = max(self._seen, now)
        if self.taken:
            self._account = min(self._account, _SAVED * self._average)
