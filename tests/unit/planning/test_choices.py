"""Journal or images, memory or storage, hidden or not: the answers, against brute force."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from wasmckpt.errors import UsageError
from wasmckpt.planning import (
    Model,
    compare_journal,
    compare_replicas,
    hide_transfer,
    mean_time_to_loss,
    simulate,
    useful_fraction,
)
from wasmckpt.planning.journal import journal_fraction

from ...support.tiers import by_tier

FAILURES = by_tier(check=4_000, test=20_000, soak=200_000)


# Journal


@pytest.mark.parametrize(
    ("speed", "checkpoint", "mtbf"), list(itertools.product((1.0, 2.0, 8.0), (0.5, 20.0), (300.0, 5e4)))
)
def test_the_journals_interval_is_the_best(speed: float, checkpoint: float, mtbf: float) -> None:
    model = Model(1, mtbf, checkpoint, 5.0)
    found = compare_journal(model, cost=0.0, replay=speed)
    grid = [found.interval * 1.03 ** n for n in range(-150, 151)]
    assert max(journal_fraction(model, t, 0.0, speed) for t in grid) <= found.useful * (1 + 1e-12)
    if speed == 1.0:
        assert found.interval == pytest.approx(found.interval_without, rel=1e-4)
        assert found.useful == pytest.approx(found.useful_without)
    elif checkpoint / mtbf < 1e-3:
        assert found.interval == pytest.approx(math.sqrt(2 * checkpoint * mtbf * speed), rel=0.05), "the first order"


@pytest.mark.parametrize("speed", [1.0, 3.0, 10.0])
def test_a_job_with_a_journal_does_what_is_promised(speed: float) -> None:
    """The simulated useful fraction, at the best interval and around it."""
    model = Model(4, 4000.0, 15.0, 40.0)
    best = compare_journal(model, cost=0.0, replay=speed).interval
    for interval in (best, best / 3, best * 3):
        seen = simulate(model, interval, failures=FAILURES, seed=8, replay=speed).fraction
        expected = journal_fraction(model, interval, 0.0, speed)
        assert seen == pytest.approx(expected, abs=4 * (1 - expected) / math.sqrt(FAILURES))


def test_what_a_journal_may_cost() -> None:
    """Below break-even the journal is the better one, above it images are."""
    model = Model(1, 1000.0, 5.0, 10.0)
    even = compare_journal(model, cost=0.0, replay=4.0).break_even
    assert 0 < even < 1
    assert compare_journal(model, cost=even * 0.99, replay=4.0).longer_journal
    assert not compare_journal(model, cost=even * 1.01, replay=4.0).longer_journal
    assert compare_journal(model, cost=0.0, replay=0.5).break_even == 0, "a replay that is slower than the first time"


def test_the_longest_replay_is_kept() -> None:
    model = Model(1, 1e6, 5.0, 10.0)
    free = compare_journal(model, cost=0.01, replay=2.0, rate=1000.0)
    assert free.size == pytest.approx(1000 * free.interval)
    bound = compare_journal(model, cost=0.01, replay=2.0, longest=free.replay / 10)
    assert bound.replay == pytest.approx(free.replay / 10)
    assert bound.useful < free.useful
    assert compare_journal(model, cost=0.01, replay=2.0, longest=free.replay * 10).replay == pytest.approx(free.replay)


# Replicas


@pytest.mark.parametrize(("copies", "repair"), [(1, 5.0), (2, 20.0), (3, 40.0), (4, 100.0)])
def test_the_mean_time_until_all_copies_are_gone(copies: int, repair: float) -> None:
    """A chain of exponential deaths and repairs, played many times."""
    chance = random.Random(copies)
    rounds = by_tier(check=300, test=1500, soak=20_000)
    total = 0.0
    for _ in range(rounds):
        gone = 0
        while gone < copies:
            dies, comes = (copies - gone) / 100.0, gone / repair
            total += chance.expovariate(dies + comes)
            gone += 1 if chance.random() < dies / (dies + comes) else -1
    assert total / rounds == pytest.approx(mean_time_to_loss(copies, 100.0, repair), rel=4 / math.sqrt(rounds))


def test_known_times_to_loss() -> None:
    assert mean_time_to_loss(1, 100.0, 7.0) == pytest.approx(100.0)
    assert mean_time_to_loss(2, 100.0, 1.0) == pytest.approx((3 + 100.0) * 100.0 / 2), "two disks, as in every textbook"
    assert mean_time_to_loss(2, 100.0, 0.0) == math.inf


def compared(**changes: Any) -> Any:
    """A job of 64 nodes; memory is fast and dear."""
    mtbf = changes.pop("mtbf", 100 * 86400.0)
    nodes = changes.pop("nodes", 64)
    month = 30 * 86400 * 2**30
    return compare_replicas(
        Model(nodes, mtbf, 0.1, 2.0), Model(nodes, mtbf, 3.0, 120.0),
        **{
            "size": 2.0**30, "memory_price": 3 / month, "storage_price": 0.02 / month, "node_price": 1 / 3600,
            **changes,
        },
    )


def test_break_even_by_price_and_by_failures() -> None:
    """On either side of both break-evens the costs say the same, and a scan finds no other change of sign above."""
    found = compared()
    price, mtbf = found.break_even_price, found.break_even_mtbf
    assert price > 0
    assert mtbf is not None
    for factor, cheaper in ((0.99, True), (1.01, False)):
        assert compared(memory_price=price * factor).replica is cheaper
        assert compared(mtbf=mtbf * factor).replica is cheaper
    assert not any(compared(mtbf=mtbf * 1.3 ** n).replica for n in range(1, 40))
    assert compared(memory_price=price).cost_memory == pytest.approx(found.cost_storage)


def test_there_may_be_no_break_even() -> None:
    """A replica that costs more time than storage is never cheaper at any price of memory."""
    slow = Model(1, 1e6, 9.0, 200.0)
    fast = Model(1, 1e6, 1.0, 2.0)
    found = compare_replicas(slow, fast, size=1e9, memory_price=1e-15, storage_price=0.0, node_price=1e-3)
    assert found.break_even_price < 0
    assert found.break_even_mtbf is None
    assert not found.replica


@pytest.mark.parametrize(("copies", "together", "dies"), [(1, 1, False), (1, 2, True), (2, 2, False), (2, 3, True)])
def test_copies_that_may_die_together(copies: int, together: int, dies: bool) -> None:
    """Machines in groups; each event of a group takes ``together`` of them, with all that stands on them: played, the
    rate of losses of everything is the one that was calculated."""
    share, mtbf, nodes = 0.2, 1000.0, 12
    found = compared(copies=copies, together=together, group_share=share, mtbf=mtbf, nodes=nodes, repair=1e-9)
    assert found.by_group is dies
    assert found.enough_copies == together
    alone = compared(copies=copies, together=1, group_share=share, mtbf=mtbf, nodes=nodes, repair=1e-9)
    assert (found.useful_memory < alone.useful_memory) is dies
    if not dies:
        return
    chance = random.Random(1)
    groups = nodes // together
    now, losses, rounds = 0.0, 0, by_tier(check=2000, test=20_000, soak=200_000)
    for _ in range(rounds):
        now += chance.expovariate(groups * share / mtbf)  # each machine of the group counts it as its own
        group = chance.randrange(groups)
        struck = set(range(group * together, (group + 1) * together))
        owner = group * together
        losses += {owner + n for n in range(copies + 1)} <= struck  # the neighbours hold the replicas
    lost = 3600.0 * losses / now
    assert found.useful_memory == pytest.approx(alone.useful_memory / (1 + lost), rel=0.1)
    assert found.loss_mtbf == pytest.approx(mtbf / share, rel=0.01)


# Transfer


@pytest.mark.parametrize(("step", "changes", "copies"), list(itertools.product((0.5, 2.0), (1e6, 3e8, 5e9), (1, 3))))
def test_the_pipeline_takes_as_long_as_its_slower_stage(step: float, changes: float, copies: int) -> None:
    """A thousand steps, one after the other: a step's sending begins when it is computed and the line is free, and the
    next but one step waits for it (two buffers)."""
    found = hide_transfer(step, changes, 1e9, copies=copies)
    sending = changes * copies / 1e9
    computed = sent = before = 0.0
    for _ in range(1000):
        computed = max(computed, before) + step
        before, sent = sent, max(sent, computed) + sending
    assert computed / 1000 == pytest.approx(found.step, rel=0.01)
    assert found.free is (sending <= step)
    assert found.slowdown == pytest.approx(found.step / step)
    assert hide_transfer(step, found.largest_changes, 1e9, copies=copies).ratio == pytest.approx(1)
    assert hide_transfer(step, changes, found.least_bandwidth, copies=copies).ratio == pytest.approx(1)


def test_nothing_to_send_is_free() -> None:
    assert hide_transfer(1.0, 0.0, 1.0).free


MODEL = Model(1, 1000.0, 1.0, 1.0)


@pytest.mark.parametrize("bad", [
    lambda: compare_journal(MODEL, cost=1.0), lambda: compare_journal(MODEL, cost=-0.1),
    lambda: compare_journal(MODEL, cost=math.nan), lambda: compare_journal(MODEL, cost=0.1, replay=0.0),
    lambda: compare_journal(MODEL, cost=0.1, rate=-1.0), lambda: compare_journal(MODEL, cost=0.1, longest=0.0),
    lambda: hide_transfer(0.0, 1.0, 1.0), lambda: hide_transfer(1.0, -1.0, 1.0),
    lambda: hide_transfer(1.0, 1.0, math.inf), lambda: hide_transfer(1.0, 1.0, 1.0, copies=0),
    lambda: compared(size=0.0), lambda: compared(copies=0), lambda: compared(together=0),
    lambda: compared(copies=100), lambda: compared(group_share=1.5), lambda: compared(memory_price=-1.0),
    lambda: compared(loss=math.inf), lambda: mean_time_to_loss(65, 1.0, 1.0), lambda: mean_time_to_loss(2, 0.0, 1.0),
])
def test_numbers_that_make_no_sense(bad: object) -> None:
    assert callable(bad)
    with pytest.raises(UsageError):
        bad()


def test_useful_fraction_is_the_journals_at_speed_one() -> None:
    assert journal_fraction(MODEL, 30.0, 0.0, 1.0) == pytest.approx(useful_fraction(MODEL, 30.0))
