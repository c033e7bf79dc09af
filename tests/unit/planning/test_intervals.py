"""Young, Daly, ETTR and the exact expression, against the simulation with injected failures and against search."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from wasmckpt.errors import UsageError
from wasmckpt.planning import (
    Model,
    Sense,
    best_interval,
    daly_interval,
    ettr,
    simulate,
    useful_fraction,
    young_interval,
)

from ...support.tiers import by_tier

FAILURES = by_tier(check=4_000, test=20_000, soak=200_000)
GRID = [
    (c, m, r) for c, m, r in itertools.product((0.1, 2.0, 30.0), (100.0, 3_000.0, 80_000.0), (0.0, 20.0)) if c < m
]


def tolerance(fraction: float) -> float:
    """Four standard errors of a fraction whose lost part is a mean over that many failures, roughly exponential."""
    return 4 * (1 - fraction) / math.sqrt(FAILURES) + 1e-6


@pytest.mark.parametrize(("checkpoint", "mtbf", "restart"), GRID)
def test_the_exact_expression_is_what_happens(checkpoint: float, mtbf: float, restart: float) -> None:
    """At the best interval, far below and far above it: the useful fraction of a simulated job."""
    model = Model(1, mtbf, checkpoint, restart)
    best = best_interval(checkpoint, mtbf)
    for interval in (best, best / 5, best * 3):
        expected = useful_fraction(model, interval)
        seen = simulate(model, interval, failures=FAILURES, seed=7).fraction
        assert seen == pytest.approx(expected, abs=tolerance(expected)), interval


@pytest.mark.parametrize(("checkpoint", "mtbf", "restart"), GRID)
def test_the_best_interval_is_the_best(checkpoint: float, mtbf: float, restart: float) -> None:
    """No interval of a fine grid has a greater useful fraction."""
    model = Model(1, mtbf, checkpoint, restart)
    best = best_interval(checkpoint, mtbf)
    top = useful_fraction(model, best)
    for n in range(-400, 401):
        assert useful_fraction(model, best * 1.02 ** n) <= top * (1 + 1e-12)
    assert top > max(useful_fraction(model, best * 0.9), useful_fraction(model, best * 1.1)), "not a plateau"


def test_the_simulation_finds_the_same_best() -> None:
    """Of intervals that lie apart by a factor the simulated best is the one nearest to the calculated."""
    model = Model(1, 1000.0, 20.0, 10.0)
    best = best_interval(20.0, 1000.0)
    seen = {
        factor: simulate(model, best * factor, failures=FAILURES, seed=3).fraction for factor in (0.3, 0.55, 1, 1.8, 3)
    }
    assert max(seen, key=lambda factor: seen[factor]) == 1


@pytest.mark.parametrize("part", [1e-6, 1e-5, 1e-4, 1e-3])
def test_young_and_daly_are_right_where_checkpoints_are_cheap(part: float) -> None:
    """Young's interval is off by less than the root of C/M, Daly's by less than C/M, the fraction by nearly nothing."""
    model = Model(1, 1.0, part, 0.0)
    best = best_interval(part, 1.0)
    assert young_interval(part, 1.0) == pytest.approx(best, rel=math.sqrt(part))
    assert daly_interval(part, 1.0) == pytest.approx(best, rel=part)
    for interval in (young_interval(part, 1.0), daly_interval(part, 1.0)):
        assert useful_fraction(model, interval) == pytest.approx(useful_fraction(model, best), rel=2 * part)


def test_where_the_approximations_fail() -> None:
    """Near the MTBF: Young's interval grows past the MTBF, ETTR falls to nothing while work is still done, and `Sense`
    says so; the exact expression still agrees with the simulation."""
    model = Model(1, 100.0, 80.0, 30.0)
    young, best = young_interval(80.0, 100.0), best_interval(80.0, 100.0)
    assert young > 100 > best
    assert daly_interval(80.0, 100.0) == pytest.approx(best, rel=0.02), "Daly's series holds longer"
    assert daly_interval(300.0, 100.0) == 100.0
    assert ettr(model, young) < 0.1
    seen = simulate(model, best, failures=FAILURES, seed=1)
    assert seen.fraction == pytest.approx(useful_fraction(model, best), rel=0.1)
    assert seen.fraction > useful_fraction(model, young)
    assert not Sense.of(model, best).good
    assert Sense.of(Model(1, 100.0, 0.001, 0.1), 0.5).good


@pytest.mark.parametrize("nodes", [1, 16, 500])
def test_ettr_holds_as_long_as_the_sense_is_good(nodes: int) -> None:
    """With checkpoints counted it is within 1 % of what happens; without, it is what a free checkpoint would give."""
    for interval in (10.0, 300.0, 3000.0):
        model = Model(nodes, 5e4 * nodes, 1.5, 60.0)
        assert Sense.of(model, interval).good
        seen = simulate(model, interval, failures=FAILURES // 4, seed=nodes).fraction
        assert ettr(model, interval, checkpoints=True) == pytest.approx(seen, rel=0.01)
        free = Model(nodes, 5e4 * nodes, 1e-9, 60.0)
        assert ettr(free, interval) == pytest.approx(useful_fraction(free, interval), rel=0.01)


def test_nodes_add_up() -> None:
    """Many nodes fail like one that fails so much more often."""
    many, one = Model(50, 5000.0, 1.0, 3.0), Model(1, 100.0, 1.0, 3.0)
    assert useful_fraction(many, 20.0) == useful_fraction(one, 20.0)
    a, b = (simulate(m, 20.0, failures=FAILURES, seed=4).fraction for m in (many, one))
    assert a == pytest.approx(b, abs=2 * tolerance(b))


def test_failures_with_memory_are_another_matter() -> None:
    """Where young nodes fail more often, failures come in bursts with long quiet times between them: less is lost than
    the exponential says. The simulation shows it, the formula cannot."""
    model = Model(1, 1000.0, 5.0, 50.0)
    best = best_interval(5.0, 1000.0)
    bursts = simulate(model, best, failures=FAILURES, seed=2, shape=0.5).fraction
    assert bursts > useful_fraction(model, best) + 0.01
    assert simulate(model, best, failures=FAILURES, seed=2, shape=1.0).fraction == pytest.approx(
        useful_fraction(model, best), abs=0.008)


def _step_by_step(model: Model, interval: float, failures: int, seed: int, replay: float) -> tuple[float, float]:
    """The same job, in small pieces of time: work done and time passed. One node, exponential failures."""
    chance = random.Random(seed)
    tick = min(interval, model.checkpoint) / 40
    now = kept = 0.0
    died = chance.expovariate(1 / model.mtbf)
    known = at = 0.0  # work in the journal, work in memory, since the last image
    written, restart, struck = 0.0, 0.0, 0
    while struck < failures:
        now += tick
        if now >= died:
            struck, restart, at, written = struck + 1, model.restart, 0.0, 0.0
            died = now + chance.expovariate(1 / model.mtbf)
        elif restart > 0:
            restart -= tick
        elif at < interval:
            at += tick * (replay if at < known else 1.0)
            known = max(known, at)
        else:
            written += tick
            if written >= model.checkpoint:
                kept += interval
                at = known = written = 0.0
    return kept, now


@pytest.mark.parametrize("replay", [1.0, 4.0])
def test_the_simulations_jumps_leave_nothing_out(replay: float) -> None:
    """A simulation that goes in small steps of time, written for nothing but to be obvious, sees the same."""
    failures = by_tier(check=300, test=1500, soak=20_000)
    model = Model(1, 60.0, 4.0, 8.0)
    kept, passed = _step_by_step(model, 20.0, failures, 5, replay)
    jumped = simulate(model, 20.0, failures=20_000, seed=6, replay=replay)
    assert kept / passed == pytest.approx(jumped.fraction, rel=4.5 / math.sqrt(failures))


def test_the_simulation_accounts_for_every_second() -> None:
    """Same seed, same run; what passed is the sum of its parts; it ends after so many checkpoints."""
    model = Model(3, 3000.0, 10.0, 40.0)
    for replay, shape in ((1.0, 1.0), (3.0, 0.7)):
        one = simulate(model, 150.0, failures=500, seed=9, replay=replay, shape=shape)
        assert one == simulate(model, 150.0, failures=500, seed=9, replay=replay, shape=shape)
        assert one != simulate(model, 150.0, failures=500, seed=10, replay=replay, shape=shape)
        assert one.useful + one.checkpoints + one.restarting + one.lost == pytest.approx(one.passed)
    short = simulate(model, 150.0, failures=10_000, steps=7)
    assert short.useful == 7 * 150.0
    assert short.checkpoints == 7 * 10.0


def test_a_job_that_never_gets_done() -> None:
    model = Model(1, 1.0, 1000.0, 0.0)
    assert useful_fraction(model, 10.0) == 0.0
    assert simulate(model, 10.0, failures=1000).useful == 0


@pytest.mark.parametrize("bad", [
    lambda: Model(0, 1.0, 1.0, 0.0), lambda: Model(1, 0.0, 1.0, 0.0), lambda: Model(1, -5.0, 1.0, 0.0),
    lambda: Model(1, math.inf, 1.0, 0.0), lambda: Model(1, math.nan, 1.0, 0.0), lambda: Model(1, 1.0, 0.0, 0.0),
    lambda: Model(1, 1.0, 1.0, -1.0), lambda: Model(10**12, 1.0, 1.0, 0.0), lambda: young_interval(-1.0, 1.0),
    lambda: daly_interval(1.0, math.inf), lambda: best_interval(0.0, 1.0), lambda: ettr(Model(1, 1.0, 1.0, 0.0), 0.0),
    lambda: useful_fraction(Model(1, 1.0, 1.0, 0.0), math.inf),
    lambda: simulate(Model(1, 1.0, 1.0, 0.0), 1.0, failures=0),
    lambda: simulate(Model(1, 1.0, 1.0, 0.0), 1.0, failures=10**8),
    lambda: simulate(Model(10**7, 1.0, 1.0, 0.0), 1.0),
    lambda: simulate(Model(1, 1.0, 1.0, 0.0), 1.0, shape=0.0),
    lambda: simulate(Model(1, 1.0, 1.0, 0.0), 1.0, replay=-1.0),
])
def test_numbers_that_make_no_sense(bad: object) -> None:
    assert callable(bad)
    with pytest.raises(UsageError):
        bad()
