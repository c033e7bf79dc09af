"""What a checkpoint costs beside the stop: the arithmetic, from accounts; and that the accounts are the kernel's."""

from __future__ import annotations

import threading
import time

import pytest

from wasmckpt import Job
from wasmckpt.snapshot import cost
from wasmckpt.snapshot.cost import Meter, Sample, Spent, slowdown

from ...cli.programs import FOREVER, wat

MS = 1_000_000


def sample(now: int, ran: int, waited: int = 0, faults: int = 0, resident: int = 0, others: int = 0) -> Sample:
    """Times in milliseconds."""
    return Sample(now * MS, ran * MS, waited * MS, faults, resident, others * MS)


LAST, BEFORE = sample(0, 0), sample(1000, 1000, faults=100)


@pytest.mark.parametrize(("after", "stopped", "busy_machine", "slowed", "work"), [
    # It ran all the time beside its stop.
    (sample(1100, 1095, faults=100), 5, False, 0.15, 0),
    # The worker's other threads took its core for 40 ms.
    (sample(1100, 1055, 40, faults=100, others=70), 5, False, 40.15, 70),
    # It stood in a host call for 30 ms, since stage two held the GIL.
    (sample(1100, 1065, faults=100, others=70), 5, False, 30.15, 70),
    # Cores were idle for stage two; or none was.
    (sample(1100, 1095, faults=100, others=70), 5, False, 0.15, 70),
    (sample(1100, 1095, faults=100, others=70), 5, True, 70.15, 70),
    # A thousand pages were copied; and another thousand were new, which is the program's own affair.
    (sample(1100, 1095, faults=1100), 5, False, 1.65, 0),
    (sample(1100, 1095, faults=2100, resident=1000), 5, False, 1.65, 0),
    # It ran more than before, for its own reasons.
    (sample(1100, 1100, faults=0), 0, False, 0.0, 0),
])
def test_what_is_counted(after: Sample, stopped: int, busy_machine: bool, slowed: float, work: int) -> None:
    found = slowdown(LAST, BEFORE, after, stopped * MS, crowded=busy_machine)
    assert found.slowed == pytest.approx(slowed * MS)
    assert found.work == work * MS


def test_what_others_take_is_not_counted() -> None:
    """The machine is shared: the thread had half a core before, and has half a core now."""
    before = sample(1000, 500, 500)
    found = slowdown(LAST, before, sample(1100, 545, 550), 5 * MS, crowded=False)
    assert found.slowed == pytest.approx(0, abs=MS // 10)


def test_a_sleeping_program_loses_nothing() -> None:
    before = sample(1000, 10)
    assert slowdown(LAST, before, sample(1100, 10), 5 * MS, crowded=False).slowed == 0


def test_the_first_one_has_nothing_to_compare_with() -> None:
    assert slowdown(None, BEFORE, sample(1100, 1010, 20, faults=100), 0, crowded=False) == Spent(20 * MS, 0)


def test_the_accounts_are_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread's own time is its own, work of other threads and of children is the work; without accounts: nothing."""
    monkeypatch.setattr(cost, "crowded", lambda: False)
    meter = Meter(threading.get_native_id())
    meter.begin()
    worker = threading.Thread(target=lambda: [sum(range(1000)) for _ in range(10_000)])
    began = time.thread_time()
    worker.start()
    worker.join()
    assert time.thread_time() - began < 0.1
    assert meter.end(0).work > 20 * MS
    gone = Meter(0)
    gone.begin()
    assert gone.end(0) == Spent(0, 0)


def test_a_checkpoint_says_what_it_cost() -> None:
    """More than nothing of work, and the sum."""
    with Job.start(wat(FOREVER)) as job:
        for _ in range(2):
            taken = job.checkpoint()
            assert 0 < taken.work < 10
            assert taken.cost == taken.stopped + taken.slowed >= taken.stopped > 0
