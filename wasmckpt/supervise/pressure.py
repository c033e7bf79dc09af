"""When a machine is no good place for programs any more: its battery is low, it is hot, has too much to do, or too
little memory.

What is over a limit for a moment is no reason; it has to last. And what has begun is over only when there is some
distance to the limit again, or programs would come and go with each degree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from ..lazydata import dataclass

__all__ = ["ALL_LEAVE", "Facts", "Kind", "Limits", "Pressure"]


class Kind(StrEnum):
    """What is wrong with a machine."""

    BATTERY = "battery"
    TEMPERATURE = "temperature"
    LOAD = "load"
    MEMORY = "memory"


ALL_LEAVE: Final = frozenset({Kind.BATTERY, Kind.TEMPERATURE})
"""All programs leave for these; for the others one after the other, until it is better."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Of a machine, now; None: it has no such sensor.

    Attributes:
        battery: percent, while it is not plugged in. temperature: of the hottest sensor, in degrees Celsius.
        load: of the last minute, for each processor. memory: percent that is available.
    """

    battery: float | None
    temperature: float | None
    load: float | None
    memory: float | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Beyond which a machine is no good place; None: however much it is. Units are those of `Facts`.

    Attributes:
        lasting: seconds for which it has to be so.
    """

    battery: float | None = None
    temperature: float | None = None
    load: float | None = None
    memory: float | None = None
    lasting: float = 30.0


_WRONG: Final[Mapping[Kind, Callable[[float, float], bool]]] = {
    Kind.BATTERY: lambda found, limit: found < limit,
    Kind.TEMPERATURE: lambda found, limit: found > limit,
    Kind.LOAD: lambda found, limit: found > limit,
    Kind.MEMORY: lambda found, limit: found < limit,
}
_EASED: Final[Mapping[Kind, Callable[[float], float]]] = {
    Kind.BATTERY: lambda limit: limit + 5.0,
    Kind.TEMPERATURE: lambda limit: limit - 5.0,
    Kind.LOAD: lambda limit: limit * 0.8,
    Kind.MEMORY: lambda limit: limit * 1.5,
}
"""The limit that counts for what has begun."""


class Pressure:
    """Of one machine, looked at now and then."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._since: dict[Kind, float] = {}
        self._on: set[Kind] = set()

    def look(self, now: float, facts: Facts) -> frozenset[Kind]:
        """What is wrong; ``now``: seconds of a clock that never goes back."""
        for kind in Kind:
            limit: float | None = getattr(self._limits, kind.value)
            found: float | None = getattr(facts, kind.value)
            if limit is None or found is None:
                wrong = False
            elif kind in self._on:
                wrong = _WRONG[kind](found, _EASED[kind](limit))
            else:
                wrong = _WRONG[kind](found, limit)
            if not wrong:
                self._on.discard(kind)
                self._since.pop(kind, None)
            elif now - self._since.setdefault(kind, now) >= self._limits.lasting:
                self._on.add(kind)
        return frozenset(self._on)
