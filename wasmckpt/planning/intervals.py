"""The best time between checkpoints, and how much of the time is then useful.

Sources:

- Young: J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9),
  1974: ``sqrt(2 C M)``. First order: right as long as the interval is short beside the MTBF.
- Daly: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
  Computer Systems 22(3), 2006. From there also the expected time without approximation,
  ``M e^(R/M) (e^((t + C)/M) - 1)`` for each ``t`` of work, under failures that are exponential and may strike during a
  checkpoint and a restart as well. (A failure during a restart begins the restart anew.)
- ETTR (effective training time ratio): A. Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning
  Research Clusters", HPCA 2025: ``1 - N r (u0 + t/2)``. It counts what failures cost, not what the checkpoints do.

The optimum of the exact expression has no closed form without Lambert's W: setting its derivative to zero gives
``1 - e^-((t + C)/M) = t/M``, whose left side rises above its right one and crosses it once between 0 and M; halving
finds it. A journal changes one term: see `journal`; here ``replay`` says how many times faster than the first time
lost work is done again.
"""

from __future__ import annotations

import math
from typing import Final

from ..lazydata import dataclass
from .checks import at_least_zero, positive, whole

__all__ = [
    "Model", "Sense", "best_interval", "daly_interval", "ettr", "expected_time", "useful_fraction", "young_interval",
]

_HALVINGS: Final = 200
NEAR_MTBF: Final = 0.1
"""An interval (or restart) above this part of the MTBF leaves the range of the first-order forms: the simulation
shows errors of some 1 % in the useful fraction from there on, growing fast."""
_HOPELESS: Final = 700.0
"""MTBFs that a step may take; e to that power is the end of floating point, and no job ever does it."""


@dataclass(frozen=True, slots=True)
class Model:
    """A job on machines that fail.

    Attributes:
        nodes: how many it needs at once. mtbf: mean seconds between failures of one of them.
        checkpoint: seconds that the job loses for one checkpoint. restart: seconds from a failure until it computes
            again from its last image (noticed, machine found, image read).

    Raises:
        UsageError: a number is zero, negative, infinite or none.
    """

    nodes: int
    mtbf: float
    checkpoint: float
    restart: float

    def __post_init__(self) -> None:
        whole("nodes", self.nodes)
        positive("the MTBF", self.mtbf)
        positive("the cost of a checkpoint", self.checkpoint)
        at_least_zero("the cost of a restart", self.restart)

    @property
    def system_mtbf(self) -> float:
        """Mean seconds between failures of any node: the sum of many independent streams is one of the summed rate."""
        return self.mtbf / self.nodes


@dataclass(frozen=True, slots=True)
class Sense:
    """How far the approximations may be trusted here: ``ratio`` of the interval, with its checkpoint, or of the restart
    to the MTBF of all nodes, whichever is larger; ``good`` below `NEAR_MTBF`."""

    ratio: float

    @classmethod
    def of(cls, model: Model, interval: float) -> Sense:
        """Of an interval."""
        return cls(max(interval + model.checkpoint, model.restart) / model.system_mtbf)

    @property
    def good(self) -> bool:
        """Whether first-order forms hold."""
        return self.ratio < NEAR_MTBF


def young_interval(checkpoint: float, mtbf: float) -> float:
    """Young 1974: ``sqrt(2 C M)``, seconds of computing between two checkpoints. Raises `UsageError`."""
    return math.sqrt(2 * positive("the cost of a checkpoint", checkpoint) * positive("the MTBF", mtbf))


def daly_interval(checkpoint: float, mtbf: float) -> float:
    """Daly 2006, equation 37: a power series behind Young's for C < 2M, and M above. Raises `UsageError`."""
    first = young_interval(checkpoint, mtbf)
    if checkpoint >= 2 * mtbf:
        return mtbf
    part = math.sqrt(checkpoint / (2 * mtbf))
    return first * (1 + part / 3 + part * part / 9) - checkpoint


def best_interval(checkpoint: float, mtbf: float) -> float:
    """The interval with the greatest useful fraction, without approximation. Raises `UsageError`.

    The restart has no part in it: it multiplies the time by a factor that is the same for each interval.
    """
    c = positive("the cost of a checkpoint", checkpoint) / positive("the MTBF", mtbf)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if -math.expm1(-(middle + c)) > middle:
            low = middle
        else:
            high = middle
        if high - low <= 1e-15 * high:
            break
    return high * mtbf


def expected_time(
    interval: float, checkpoint: float, restart: float, mtbf: float, *, replay: float = 1.0
) -> float:
    """Expected seconds for ``interval`` seconds of work and the checkpoint after it; infinite if it never gets done.

    Lost work is done again ``replay`` times as fast. Each moment x of new work is struck by a failure with probability
    dx/M, which then costs what it costs to get through ``R + x/s`` in one piece, ``M (e^((R + x/s)/M) - 1)``; the
    checkpoint has to be got through in one piece as well. Summed up::

        M e^(R/M) ( s (e^(t/(sM)) - 1) + e^(t/(sM)) (e^(C/M) - 1) )

    With s = 1 this is Daly's. Raises `UsageError`.
    """
    m = positive("the MTBF", mtbf)
    t = positive("the interval", interval)
    c = at_least_zero("the cost of a checkpoint", checkpoint)
    r = at_least_zero("the cost of a restart", restart)
    s = positive("the speed of a replay", replay)
    if r / m + t / (s * m) + c / m > _HOPELESS:
        return math.inf
    done = math.exp(t / (s * m))
    return m * math.exp(r / m) * (s * math.expm1(t / (s * m)) + done * math.expm1(c / m))


def useful_fraction(model: Model, interval: float) -> float:
    """Expected useful time over time passed, without approximation; between 0 and 1. Raises `UsageError`."""
    return interval / expected_time(interval, model.checkpoint, model.restart, model.system_mtbf)


def ettr(model: Model, interval: float, *, checkpoints: bool = False) -> float:
    """``1 - N r (u0 + t/2)``: what failures leave of the time, to first order; never below 0.

    Args:
        checkpoints: count what they cost as well: times ``t / (t + C)``.

    Raises:
        UsageError: the interval is none.
    """
    positive("the interval", interval)
    left = max(0.0, 1 - (model.restart + interval / 2) / model.system_mtbf)
    return left * (interval / (interval + model.checkpoint) if checkpoints else 1.0)
