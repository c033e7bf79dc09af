"""The controller, on a clock of its own: programs are curves of cost, and the bound is looked at at every moment."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from wasmckpt.errors import UsageError
from wasmckpt.planning import Pace, best_interval

BOUND = 0.035


class Life:
    """A program and its checkpoints: ``cost(began, interval)`` says what one costs, of which ``shown`` passes."""

    def __init__(self, pace: Pace, cost: Callable[[float, float], float], *, until: float, shown: float = 1.0) -> None:
        self.intervals: list[tuple[float, float, float]] = []
        """Beginning, seconds since the last, cost."""
        last = 0.0
        self.worst_at_begin = 0.0
        while pace.due < until:
            now = pace.due
            paid = cost(now, now - last)
            self.intervals.append((now, now - last, paid))
            if pace.taken > 1:
                self.worst_at_begin = max(self.worst_at_begin, pace.spent / now)
            assert pace.took(paid, began=now, now=now + paid * shown) == pace.due
            last = now
        self.total = pace.spent / until

    def between(self, first: float, last: float) -> list[float]:
        """Intervals that began in a span of time."""
        return [interval for began, interval, _ in self.intervals if first <= began < last]


def test_a_steady_cost_gives_cost_over_bound() -> None:
    life = Life(Pace(BOUND), lambda now, interval: 0.2, until=1000)
    settled = life.between(100, 1000)
    assert all(interval == pytest.approx(0.2 / BOUND, rel=1e-6) for interval in settled)
    assert BOUND * 0.95 < life.total <= BOUND


@pytest.mark.parametrize("shown", [0.0, 1.0, 20.0])
def test_cheap_ones_come_at_the_shortest_interval(shown: float) -> None:
    """Also if most of a checkpoint is beside the program, and takes longer than it costs."""
    life = Life(Pace(BOUND, shortest=0.5), lambda now, interval: 0.001, until=100, shown=shown)
    assert all(interval == pytest.approx(0.5) for interval in life.between(1, 100))
    assert life.total == pytest.approx(0.002, rel=0.05)


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_holds_whatever_the_costs_do(seed: int) -> None:
    """Steps up and down, spikes, noise, slow waves: from the second on no checkpoint begins while the total, all
    earlier ones counted, is above the bound; and at the end it is below, but for what the last one was too dear."""
    draw = random.Random(seed)
    level = 0.05

    def cost(now: float, interval: float) -> float:
        nonlocal level
        if draw.random() < 0.03:
            level = draw.choice([0.002, 0.01, 0.05, 0.3, 1.5])
        spike = 30 if draw.random() < 0.02 else 1
        return level * spike * draw.uniform(0.7, 1.3) * (1 + 0.5 * math.sin(now / 50))

    life = Life(Pace(BOUND, shortest=0.05, longest=1e6), cost, until=20_000)
    assert len(life.intervals) > 100
    assert life.worst_at_begin <= BOUND * (1 + 1e-9)
    assert life.total <= BOUND + max(paid for _, _, paid in life.intervals[-3:]) / 20_000


def test_a_step_up_is_believed_at_once_and_down_over_a_few() -> None:
    life = Life(Pace(BOUND), lambda now, interval: 1.0 if 500 <= now < 1500 else 0.1, until=3000)
    dear, cheap = 1.0 / BOUND, 0.1 / BOUND
    assert life.between(560, 1500) == pytest.approx([dear] * len(life.between(560, 1500)), rel=1e-6)
    after = life.between(1530, 3000)
    assert after[-1] == pytest.approx(cheap, rel=1e-3)
    assert sum(interval > 1.1 * cheap for interval in after) <= 6
    assert after == sorted(after, reverse=True), "without swinging"


def test_a_spike_is_paid_off() -> None:
    """One that costs a hundred times as much: nothing for as long as that takes, then as before."""
    spikes = iter([0.05] * 20 + [5.0])
    life = Life(Pace(BOUND), lambda now, interval: next(spikes, 0.05), until=2000)
    at = next(began for began, _, paid in life.intervals if paid == 5.0)
    following = [began for began, _, _ in life.intervals if began > at]
    assert following[0] - at >= 5.0 / BOUND
    assert life.between(following[8], 2000)[-1] == pytest.approx(0.05 / BOUND, rel=1e-3)


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.03])
def test_it_stretches_with_the_dirty_rate(rate: float) -> None:
    """The cost grows with the interval until the whole memory is dirty: the interval ends where both agree."""
    whole = 3.0

    def cost(now: float, interval: float) -> float:
        return 0.02 + min(whole, rate * interval)

    life = Life(Pace(BOUND, shortest=0.1), cost, until=5_000)
    (*_, last) = life.intervals
    assert last[1] == pytest.approx(0.02 / (BOUND - rate), rel=0.02)
    assert life.total <= BOUND


def test_a_program_that_dirties_faster_than_the_bound_allows() -> None:
    """No interval is long enough for a cost that grows with it as fast, until all memory is dirty: then it fits."""
    life = Life(Pace(BOUND), lambda now, interval: min(3.0, 0.2 * interval), until=20_000)
    (*_, last) = life.intervals
    assert last[1] == pytest.approx(3.0 / BOUND, rel=0.02)
    assert life.worst_at_begin <= BOUND


def test_a_quiet_hour_is_no_credit_for_a_burst() -> None:
    """Checkpoints that were asked for by others count, and a long pause earns two at most."""
    pace = Pace(BOUND, shortest=0.1)
    now = 0.0
    for _ in range(5):
        now = pace.due
        pace.took(0.1, began=now, now=now + 0.1)
    now += 3600
    begun = []
    for _ in range(6):
        begun.append(now)
        now = pace.took(0.1, began=now, now=now + 0.1)
    assert begun[-1] - begun[1] >= 3 * 0.1 / BOUND
    assert pace.taken == 11


def test_the_longest_interval_wins_over_the_bound_and_says_so() -> None:
    pace = Pace(BOUND, longest=5.0)
    life = Life(pace, lambda now, interval: 1.0, until=200)
    assert all(interval <= 5.0 + 1e-9 for interval in life.between(1, 200))
    assert pace.over_bound
    assert life.total == pytest.approx(0.2, rel=0.05)
    cheap = Pace(BOUND, longest=50.0)
    Life(cheap, lambda now, interval: 0.1, until=200)
    assert not cheap.over_bound


def test_a_checkpoint_longer_than_the_longest_interval() -> None:
    """Then the next begins when it is over: never in the past."""
    pace = Pace(BOUND, longest=5.0)
    assert pace.took(1.0, began=1.0, now=60.0) == 60.0


def test_no_more_images_than_failures_are_worth() -> None:
    """With a rate of failures: the best interval for it where that is longer."""
    life = Life(Pace(BOUND, mtbf=86400.0), lambda now, interval: 0.01, until=5000)
    assert life.between(1000, 5000)[-1] == pytest.approx(best_interval(0.01, 86400.0))
    rare = Life(Pace(BOUND, mtbf=10.0), lambda now, interval: 0.2, until=1000)
    assert rare.between(500, 1000)[-1] == pytest.approx(0.2 / BOUND), "the bound is the bound"


def test_what_it_tells() -> None:
    pace = Pace(0.1, first=3.0, now=100.0)
    assert (pace.due, pace.expected, pace.overhead(100.0)) == (103.0, 0.0, 0.0)
    pace.took(0.5, began=103.0, now=104.0)
    assert (pace.expected, pace.spent, pace.taken) == (0.5, 0.5, 1)
    assert pace.overhead(110.0) == pytest.approx(0.05)


@pytest.mark.parametrize("bad", [
    lambda: Pace(0.0), lambda: Pace(1.0), lambda: Pace(-0.1), lambda: Pace(math.nan), lambda: Pace(shortest=0.0),
    lambda: Pace(shortest=10.0, longest=5.0), lambda: Pace(longest=math.inf), lambda: Pace(mtbf=0.0),
    lambda: Pace(first=-1.0), lambda: Pace().took(-1.0, began=0.0, now=1.0),
    lambda: Pace().took(math.nan, began=0.0, now=1.0),
])
def test_numbers_that_make_no_sense(bad: object) -> None:
    assert callable(bad)
    with pytest.raises(UsageError):
        bad()
