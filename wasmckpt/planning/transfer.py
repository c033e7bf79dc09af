"""Whether sending a step's changes hides behind the computation of the next one.

A program that computes in steps, and sends what each of them changed while the next one runs, is a pipeline of two
stages; it goes as fast as the slower one. With the time to compute a step over the time to send its changes, ``ratio``:
at 1 or more the transfer is free, below it each step takes ``1 / ratio`` of its time. (The first step of all is not
hidden; over many it does not count.)
"""

from __future__ import annotations

import math

from ..lazydata import dataclass
from .checks import at_least_zero, positive, whole

__all__ = ["Transfer", "hide_transfer"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """The answer: ``ratio``, seconds of sending for one step, seconds that a step takes then, and bytes of changes and
    bytes per second at which it would be just free."""

    ratio: float
    sending: float
    step: float
    largest_changes: float
    least_bandwidth: float

    @property
    def free(self) -> bool:
        """Whether it costs nothing."""
        return self.ratio >= 1

    @property
    def slowdown(self) -> float:
        """Time of a step with the transfer, over that without."""
        return max(1.0, 1 / self.ratio)


def hide_transfer(step: float, changes: float, bandwidth: float, *, copies: int = 1) -> Transfer:
    """Whether the changes of one step are sent in the time of one step.

    Args:
        step: seconds to compute it. changes: bytes that it changes. bandwidth: bytes per second. copies: how many
            receivers there are, one after the other.

    Raises:
        UsageError: a number is out of its range.
    """
    positive("the step", step)
    at_least_zero("the changes", changes)
    positive("the bandwidth", bandwidth)
    whole("copies", copies)
    sending = changes * copies / bandwidth
    return Transfer(
        step / sending if sending else math.inf, sending, max(step, sending), step * bandwidth / copies,
        changes * copies / step,
    )
