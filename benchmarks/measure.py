"""Timing: variants take turns, minima of rounds on fresh instances, spread kept."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Start", "Times", "geo_mean", "interleaved", "percentile"]

Start = Callable[[], tuple[Callable[[], float], Callable[[], None]]]
"""Makes a fresh instance; gives what runs one round on it (its seconds) and what frees it."""


@dataclass(slots=True)
class Times:
    """Seconds of one variant: for each fresh instance the seconds of its rounds."""

    instances: list[list[float]]

    @property
    def best(self) -> float:
        """Fastest round of all."""
        return min(min(rounds) for rounds in self.instances)

    def ratio(self, to: Times) -> float:
        """Fastest round against the other's fastest."""
        return self.best / to.best

    def ratios(self, to: Times) -> tuple[float, float]:
        """Least and greatest ratio over the fresh instances taken alone: what placement and noise are worth."""
        each = [min(a) / min(b) for a, b in zip(self.instances, to.instances, strict=True)]
        return min(each), max(each)


def interleaved(variants: Mapping[str, Start], *, fresh: int, rounds: int) -> dict[str, Times]:
    """Each of ``fresh`` times: an instance of each variant, then ``rounds`` rounds in which the variants take turns,
    each time beginning with another one."""
    times = {name: Times([]) for name in variants}
    names = list(variants)
    for turn in range(fresh):
        started = {name: variants[name]() for name in names[turn % len(names):] + names[:turn % len(names)]}
        for name in names:
            times[name].instances.append([])
        try:
            for n in range(rounds):
                first = (turn + n) % len(names)
                for name in names[first:] + names[:first]:
                    times[name].instances[-1].append(started[name][0]())
        finally:
            for _, free in started.values():
                free()
    return times


def geo_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which ``part`` of all lie (nearest rank)."""
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]
