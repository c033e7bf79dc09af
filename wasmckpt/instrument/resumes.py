"""What stacks of frames a module's continuations can go on from.

A program that is frozen and goes on in the same process stands at the same few places again and again. So what was made
for one stop is kept for the next: the same instance goes on, and nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ..lazydata import dataclass, field
from .records import Place

__all__ = ["Resumes"]


@dataclass(slots=True)
class Resumes:
    """A set of stacks, by what may follow what.

    Attributes:
        places: where a frame may stand, those of the last stops at the end. following: outer frame -> the next ones.
        entries: outermost frames.
    """

    places: dict[Place, None] = field(default_factory=dict)
    following: dict[Place, dict[Place, None]] = field(default_factory=dict)
    entries: dict[Place, None] = field(default_factory=dict)

    def add(self, frames: Sequence[Place]) -> None:
        """Also this stack, outermost frame first."""
        for place in dict.fromkeys(frames):
            self.places.pop(place, None)
            self.places[place] = None
            self.following.setdefault(place, {})
        for outer, inner in pairwise(frames):
            self.following[outer][inner] = None
        self.entries[frames[0]] = None

    def covers(self, frames: Sequence[Place]) -> bool:
        """Whether this stack can be gone on from."""
        return bool(frames) and frames[0] in self.entries and all(place in self.places for place in frames) and all(
            inner in self.following[outer] for outer, inner in pairwise(frames)
        )

    def newest(self, most: int, size: Callable[[Place], int], fits: Callable[[Place], bool]) -> Resumes:
        """The places of the last stops, as far as their sizes add up to ``most``; entries only if they ``fit``."""
        kept: list[Place] = []
        for place in reversed(self.places):
            most -= size(place)
            if most < 0:
                break
            kept.append(place)
        kept.reverse()
        among = set(kept)
        return Resumes(
            dict.fromkeys(kept),
            {place: dict.fromkeys(inner for inner in self.following[place] if inner in among) for place in kept},
            dict.fromkeys(place for place in self.entries if place in among and fits(place)),
        )
