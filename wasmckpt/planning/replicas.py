"""A replica in a neighbour's memory, or images on storage.

Memory is fast and dear, and dies with its machine. What decides:

- **Time.** Checkpoints to memory, and restarts from it, cost other seconds than those to storage; each way has its own
  best interval and useful fraction (`intervals`). The difference, times what the job's nodes cost, is what the
  replica earns.
- **Memory.** ``copies`` replicas of the image, at the price of memory.
- **Death of all copies.** The job itself is one more. Two ways: in a group that dies together (a rack, a power supply):
  ``together`` machines at once, in the part ``group_share`` of all failures of a machine. If the replicas are no more
  than the group takes besides the job, ``copies < together``, such an event is the end of all; with ``together`` copies
  or more, one lies outside. Or one after the other, each before the loss of the one before was made good, which takes
  ``repair`` seconds: a chain of births and deaths, solved exactly in `mean_time_to_loss`. Each such loss costs ``loss``
  seconds of work, of all nodes: what is to be done again from an older image elsewhere, or from the beginning.

Break-even is where both ways cost the same money; it is linear in the price of memory.
"""

from __future__ import annotations

import math

from ..errors import UsageError
from ..lazydata import dataclass, replace
from .checks import at_least_zero, fraction, positive, whole
from .intervals import Model, best_interval, useful_fraction

__all__ = ["ReplicaChoice", "compare_replicas", "mean_time_to_loss"]

_MOST_COPIES = 64
_NEVER = 1e-300
"""Per second."""


@dataclass(frozen=True, slots=True)
class ReplicaChoice:
    """The answer; money is in the unit of the prices, per second.

    Attributes:
        useful_memory, useful_storage: fractions of time, each at its best interval (``interval_memory``,
            ``interval_storage``, seconds); losses of all copies are counted in the first.
        loss_mtbf: mean seconds between losses of all copies of one node's image. by_group: whether one event can do it.
        enough_copies: the least number of replicas that no event takes all of.
        cost_memory, cost_storage: of keeping the images, and of the useful time that is missing.
        break_even_price: of a byte of memory for a second, at which both cost the same; below it the replica is
            cheaper. Negative: it is never.
        break_even_mtbf: of one node; below it (more failures) the replica is cheaper; None: there is none between a
            second and a thousand million years.
    """

    useful_memory: float
    useful_storage: float
    interval_memory: float
    interval_storage: float
    loss_mtbf: float
    by_group: bool
    enough_copies: int
    cost_memory: float
    cost_storage: float
    break_even_price: float
    break_even_mtbf: float | None

    @property
    def replica(self) -> bool:
        """Whether the replica is cheaper."""
        return self.cost_memory < self.cost_storage


def mean_time_to_loss(copies: int, mtbf: float, repair: float) -> float:
    """Mean seconds until all ``copies`` are gone at once, from all of them there, each dying after ``mtbf`` and made
    anew within ``repair`` on average, independently.

    A birth-death chain over the number that is gone: with ``d_i = (n - i) / mtbf`` and ``u_i = i / repair`` the
    expected time from i to i + 1 gone is ``h_i = (1 + u_i h_(i-1)) / d_i``; the answer is their sum (Karlin and Taylor,
    "A First Course in Stochastic Processes", chapter 4). For two copies: ``(3 + mtbf / repair) mtbf / 2``.
    Raises `UsageError`.
    """
    if whole("copies", copies) > _MOST_COPIES:
        raise UsageError(f"more than {_MOST_COPIES} copies", given=copies)
    positive("the MTBF", mtbf)
    at_least_zero("the time of repair", repair)
    if not repair:
        return mtbf if copies == 1 else math.inf
    total = step = 0.0
    for gone in range(copies):
        step = (1 + gone / repair * step) * mtbf / (copies - gone)
        total += step
    return total


@dataclass(frozen=True, slots=True)
class _Case:
    """What is compared, for any failure rate."""

    memory: Model
    storage: Model
    size: float
    copies: int
    together: int
    group_share: float
    repair: float
    loss: float
    storage_price: float
    node_price: float
    images: int

    def loss_rates(self) -> tuple[float, float]:
        """Per second, of one node's image in memory: by deaths one after the other, by one of a group."""
        alone = 1 / mean_time_to_loss(self.copies + 1, self.memory.mtbf, self.repair)
        return alone, 0.0 if self.copies >= self.together else self.group_share / self.memory.mtbf

    def useful(self) -> tuple[float, float, float, float]:
        """Fractions and intervals: memory, storage."""
        m = best_interval(self.memory.checkpoint, self.memory.system_mtbf)
        s = best_interval(self.storage.checkpoint, self.storage.system_mtbf)
        alone, group = self.loss_rates()
        nodes = self.memory.nodes
        # Seconds lost per second, all nodes waiting. One event takes the images of several nodes, and costs once.
        lost = self.loss * nodes * (alone + group / min(self.together, nodes))
        return useful_fraction(self.memory, m) / (1 + lost), useful_fraction(self.storage, s), m, s

    def costs(self, memory_price: float) -> tuple[float, float]:
        """Money per second: memory, storage."""
        memory, storage, _, _ = self.useful()
        nodes = self.memory.nodes
        return (
            memory_price * self.size * self.copies * nodes + (1 - memory) * self.node_price * nodes,
            self.storage_price * self.size * self.images * nodes + (1 - storage) * self.node_price * nodes,
        )


def compare_replicas(
    memory: Model, storage: Model, *, size: float, copies: int = 1, together: int = 1, group_share: float = 0.0,
    repair: float = 60.0, loss: float = 3600.0, memory_price: float, storage_price: float, node_price: float,
    images: int = 2,
) -> ReplicaChoice:
    """Compare both ways.

    Args:
        memory, storage: the job with the costs of checkpoint and restart of each way; same nodes, same MTBF.
        size: bytes of one node's image. copies: replicas of it. together: machines that die in one event of a group,
            the job's among them; 1: each for itself. group_share: part of a machine's failures that are such events.
        repair: seconds until a replica that died is there again. loss: seconds of work that the loss of all costs.
        memory_price, storage_price: of a byte for a second. node_price: of a node for a second.
        images: kept on storage for each node.

    Raises:
        UsageError: a number is out of its range.
    """
    positive("the image's size", size)
    whole("copies", copies)
    whole("machines that die together", together)
    fraction("the share of group failures", group_share)
    at_least_zero("the time of repair", repair)
    at_least_zero("the loss", loss)
    at_least_zero("the price of memory", memory_price)
    at_least_zero("the price of storage", storage_price)
    at_least_zero("the price of a node", node_price)
    whole("images", images)
    case = _Case(memory, storage, size, copies, together, group_share, repair, loss, storage_price, node_price, images)
    useful_memory, useful_storage, interval_memory, interval_storage = case.useful()
    cost_memory, cost_storage = case.costs(memory_price)
    without_memory, _ = case.costs(0.0)
    bytes_held = size * copies * memory.nodes
    return ReplicaChoice(
        useful_memory, useful_storage, interval_memory, interval_storage, 1 / max(sum(case.loss_rates()), _NEVER),
        copies < together and group_share > 0, together, cost_memory, cost_storage,
        (cost_storage - without_memory) / bytes_held, _break_even_mtbf(case, memory_price),
    )


def _break_even_mtbf(case: _Case, memory_price: float) -> float | None:
    """The largest MTBF of a node below which the replica is cheaper, by halving between a change of sign."""
    def gain(mtbf: float) -> float:
        there = replace(case, memory=replace(case.memory, mtbf=mtbf), storage=replace(case.storage, mtbf=mtbf))
        memory, storage = there.costs(memory_price)
        return storage - memory

    grid = [10 ** (n / 4) for n in range(67)]  # a second to a thousand million years
    gains = [gain(mtbf) for mtbf in grid]
    for i in range(len(grid) - 1, 0, -1):
        if gains[i] <= 0 < gains[i - 1]:
            low, high = grid[i - 1], grid[i]
            while high / low > 1 + 1e-9:
                middle = math.sqrt(low * high)
                low, high = (middle, high) if gain(middle) > 0 else (low, middle)
            return low
    return None
