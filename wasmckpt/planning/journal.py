"""Longer journal or more images: two ways to have less to do again after a failure.

A journal holds the results of what is not repeatable, so that the work since the last image can be done again exactly,
and without the waiting that was part of it: a program that waited half of its time is replayed twice as fast. A fast
replay makes long intervals cheap: to first order the best one is ``sqrt(2 C M s)``, Young's with the MTBF stretched by
the speed ``s`` of the replay. Below that length the journal should grow; beyond it another image pays. The price is
what the recording costs, ``j`` of all time, whatever the interval. All is calculated with the exact expression
(`intervals.expected_time`).

What a journal gives beside time, nothing lost and nothing doubled after a crash, is no matter of arithmetic: who needs
that takes one at any price that is shown here.
"""

from __future__ import annotations

import math
from typing import Final

from ..lazydata import dataclass
from .checks import at_least_zero, fraction, positive
from .intervals import Model, best_interval, expected_time, useful_fraction

__all__ = ["JournalChoice", "compare_journal", "journal_fraction"]

_GOLDEN: Final = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, slots=True)
class JournalChoice:
    """The answer.

    Attributes:
        interval: best seconds between images with the journal. size: bytes that the journal has grown to by then.
            replay: seconds that its replay takes at most. useful: fraction of time, with it.
        interval_without, useful_without: the best without a journal.
        break_even: cost of recording, as a fraction of time, at which both are the same; 0: there is no such cost.
    """

    interval: float
    size: float
    replay: float
    useful: float
    interval_without: float
    useful_without: float
    break_even: float

    @property
    def longer_journal(self) -> bool:
        """Whether the journal, with fewer images, does more useful work than images alone."""
        return self.useful > self.useful_without


def journal_fraction(model: Model, interval: float, cost: float, replay: float) -> float:
    """Useful fraction with a journal that costs the fraction ``cost`` of all time. Raises `UsageError`."""
    time = expected_time(interval, model.checkpoint, model.restart, model.system_mtbf, replay=replay)
    return (1 - fraction("the cost of the journal", cost)) * interval / time


def compare_journal(
    model: Model, *, cost: float, replay: float = 1.0, rate: float = 0.0, longest: float = math.inf,
) -> JournalChoice:
    """Find the best interval with a journal and without.

    Args:
        cost: of the recording, as a fraction of time. replay: speed of a replay, 1: as fast as the first time; a
            program that waited the part w of its time has 1 / (1 - w). rate: bytes of journal per second.
        longest: seconds that a replay may take, however good it would be on average.

    Raises:
        UsageError: a number is out of its range.
    """
    at_least_zero("the journal's rate", rate)
    fraction("the cost of the journal", cost)
    if longest != math.inf:
        positive("the longest replay", longest)
    mtbf = model.system_mtbf
    upper = min(mtbf * max(1.0, replay) * 4, longest * replay)
    interval = _best(model, replay, upper)
    alone = best_interval(model.checkpoint, mtbf)
    with_it, without = journal_fraction(model, interval, 0.0, replay), useful_fraction(model, alone)
    even = 0.0 if with_it <= without or not with_it else 1 - without / with_it
    return JournalChoice(
        interval, rate * interval, interval / replay, with_it * (1 - cost), alone, without, even
    )


def _best(model: Model, replay: float, upper: float) -> float:
    """The interval with the greatest useful fraction, at most ``upper``: it has one peak, found by golden section on
    the logarithm."""
    def lost(x: float) -> float:
        t = math.exp(x)
        return expected_time(t, model.checkpoint, model.restart, model.system_mtbf, replay=replay) / t

    low, high = math.log(upper) - 60, math.log(upper)
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    lost_a, lost_b = lost(a), lost(b)
    while high - low > 1e-9:
        if lost_a <= lost_b or math.isinf(lost_a):  # infinite: too long to be calculated, the peak is to the left
            high, b, lost_b = b, a, lost_a
            a = high - _GOLDEN * (high - low)
            lost_a = lost(a)
        else:
            low, a, lost_a = a, b, lost_b
            b = low + _GOLDEN * (high - low)
            lost_b = lost(b)
    return math.exp((low + high) / 2)
