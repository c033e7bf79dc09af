"""A job with injected failures: what the formulas promise, seen to happen.

The formulas rest on assumptions (failures without memory, one rate for all); a simulation needs none of them. Each
node has its own clock of failures and is replaced by a new one when it fails. `simulate` goes from event to event: a
failure, or the end of as many whole steps as fit before the next one, so that a year of checkpoints each second takes
no longer than its failures are many. Failures are exponential, or Weibull with a ``shape`` (below 1: young nodes fail
more often, as in most published logs).
"""

from __future__ import annotations

import heapq
import math
import random

from ..errors import UsageError
from ..lazydata import dataclass
from .checks import positive, whole
from .intervals import Model

__all__ = ["Simulated", "simulate"]

_MOST_NODES = 1_000_000
_MOST_FAILURES = 10_000_000


@dataclass(frozen=True, slots=True)
class Simulated:
    """What happened to one job.

    Attributes:
        useful: seconds of work done, and kept. passed: seconds that it took. failures: that struck it.
        checkpoints: seconds that went into finished ones. restarting: into restarts. lost: into work, replay and
            checkpoints that a failure took away.
    """

    useful: float
    passed: float
    failures: int
    checkpoints: float
    restarting: float
    lost: float

    @property
    def fraction(self) -> float:
        """Useful time over time passed."""
        return self.useful / self.passed if self.passed else 0.0


def simulate(
    model: Model, interval: float, *, failures: int = 10_000, seed: int = 0, shape: float = 1.0, replay: float = 1.0,
    steps: float = math.inf,
) -> Simulated:
    """Run a job until so many failures have struck it.

    Args:
        interval: seconds of work between checkpoints. failures: how many; the error of the fraction shrinks with their
            square root. seed: the same one gives the same run.
        shape: of the Weibull distribution of one node's life, whose mean is ``model.mtbf``; 1: exponential.
        replay: how many times faster than the first time lost work is done again, see `journal`; 1: at the same speed.
        steps: end after so many finished checkpoints, if that comes first.

    Raises:
        UsageError: a number is out of its range.
    """
    positive("the interval", interval)
    positive("the shape", shape)
    positive("the speed of a replay", replay)
    if whole("failures", failures) > _MOST_FAILURES or model.nodes > _MOST_NODES:
        raise UsageError("that is more than a simulation can do in reasonable time", failures=failures,
                         nodes=model.nodes, hint="take fewer failures, or one node with the MTBF of all")
    chance = random.Random(seed)
    scale = model.mtbf / math.gamma(1 + 1 / shape)
    dies = [(chance.weibullvariate(scale, shape), node) for node in range(model.nodes)]
    heapq.heapify(dies)
    step = interval + model.checkpoint
    now = useful = finished = restarting = lost = 0.0
    restart = debt = 0.0  # seconds of restart that are still to come; of work since the last image, to be done again
    struck = done = 0
    while struck < failures and done < steps:
        died, node = dies[0]
        room = died - now
        if restart <= room:
            restarting += restart
            room -= restart
            again = debt / replay
            first = again + (interval - debt) + model.checkpoint
            if first <= room:
                ended = int(min(1 + (room - first) // step, steps - done))
                done += ended
                useful += ended * interval
                finished += ended * model.checkpoint
                lost += again
                passed = first + (ended - 1) * step
                room -= passed
                again = debt = 0.0
                if done >= steps:
                    now += restart + passed
                    break
            new = min(max(0.0, room - again), interval - debt)
            debt += new
            lost += room - new
        else:
            restarting += room
        now, restart = died, model.restart
        struck += 1
        heapq.heapreplace(dies, (died + chance.weibullvariate(scale, shape), node))
    return Simulated(useful, now, struck, finished, restarting, lost + debt)
