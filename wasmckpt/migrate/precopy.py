"""When to stop the program: how many rounds, and what the stop will take.

After each round it is known how fast the wire is and how fast the program writes. If it was stopped now, it would stand
still while what it has written since the last image is sent (``bytes / rate``), and for what always takes its time
(the stop itself, the way there and back, rebuilding the frames: ``fixed``, a guess)::

    expected = fixed + bytes written since the last image, as many as the last time at least
                     / bytes of pages that come across in a second

Stop as soon as that is within the limit: right after a small round was sent (`stop_soon`), since what the other side
still does for that is done while the last image is made; or when it has said that it has it, and then only if hardly
anything was written meanwhile, or the round after that was no better. Where rounds do not shrink any more, since the
program writes as fast as the wire takes it, the limit is doubled, up to ``most_downtime``; beyond that the move is
given up, and says by how much (`RetryLater`), unless ``force`` is given.
"""

from __future__ import annotations

import time
from typing import Final

from ..errors import RetryLater, UsageError
from ..lazydata import dataclass, field

__all__ = ["Options", "Progress", "Rounds"]

_SHRINKS: Final = 0.8
"""A round that is larger than this part of the one before does not count as smaller."""
_LITTLE: Final = 1 << 18
"""Bytes for which another round is not worth while."""
_FIXED: Final = 0.02
"""Seconds of a stop that have nothing to do with pages, until it is known better."""


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of a move, in seconds.

    Attributes:
        downtime: that the program may stand still, if that can be had. most_downtime: if it cannot.
        force: stop however long it takes, rather than giving up.
        most_rounds, most_time: after which the decision is made with what there is.
        attempts: stops after which the target rebuilds the program while it stands still, if its frames were each time
            where they had not been seen before.
        patience: that the target may take to rebuild a program that stands still.
    """

    downtime: float = 0.05
    most_downtime: float = 2.0
    force: bool = False
    most_rounds: int = 30
    most_time: float = 3600.0
    attempts: int = 3
    patience: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.downtime <= self.most_downtime:
            raise UsageError("the limit of the stop is larger than 0, and at most most_downtime",
                             downtime=self.downtime, most_downtime=self.most_downtime)
        if self.most_rounds < 1 or self.most_time <= 0 or self.attempts < 1 or self.patience <= 0:
            raise UsageError("a move has one round at least, and some time")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a move stands.

    Attributes:
        step: "connected", "round", "stopping", "again" (it stood where it had not been seen, and goes on), "moved".
        round: number of the last one. pages: that it told of. sent: bytes on the wire so far.
        seconds: that it took. rate: of the wire, dirtied: by the program, in bytes a second.
        expected: seconds of a stop now. limit: what is allowed now.
    """

    step: str
    round: int = 0
    pages: int = 0
    sent: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    dirtied: float = 0.0
    expected: float = 0.0
    limit: float = 0.0


@dataclass(slots=True)
class Rounds:
    """Decides, round by round. All times are seconds on one clock."""

    options: Options
    began: float = field(default_factory=time.monotonic)
    limit: float = 0.0
    number: int = 0
    rate: float = 0.0
    dirtied: float = 0.0
    fixed: float = _FIXED
    _last: float = 0.0
    _stalled: int = 0
    _before: float = 0.0
    _calm: bool = False

    def __post_init__(self) -> None:
        self.limit = self.options.downtime

    def looked(self, pages_bytes: int, interval: float) -> None:
        """An image of the program holds so many bytes that it wrote within ``interval`` seconds (0: all it has)."""
        if interval > 0:
            self.dirtied = pages_bytes / interval
            self._stalled = self._stalled + 1 if pages_bytes > _SHRINKS * self._last and self._last else 0
        self._before, self._last = self._last, float(pages_bytes)

    def sent(self, count: int, seconds: float) -> None:
        """A round is at the target: pages of so many bytes, in so long (packed or spared, fewer bytes went there)."""
        self.number += 1
        if seconds > 0 and count > 1 << 16:
            now = count / seconds
            self.rate = now if not self.rate else 0.5 * self.rate + 0.5 * now

    def expected(self, since: float) -> float:
        """Seconds of a stop now, when the last image was taken ``since`` seconds ago. It counts as large as the last
        one at least: a program that writes to the same pages again and again has written to all of them very soon."""
        return self.fixed + max(self._last if self.dirtied else 0.0, self.dirtied * since) / (self.rate or 1e9)

    def stop_soon(self) -> bool:
        """Whether to stop although the other side has not said yet that it has the last round. What it is busy with,
        that round and perhaps the writing down of the one before, has to be as small as the limit wants it; some of
        that is over when the last image is made (`_FIXED`)."""
        if self.number < 2 or not self.rate:
            return False
        behind = max(0.0, self._last / self.rate - _FIXED)
        return self.expected(0.0) + behind <= self.limit and self._before <= self.limit * self.rate

    def stop_now(self, since: float) -> bool:
        """Whether to stop, now that the other side has all that was sent. Raises `RetryLater`: it would take too long,
        and further rounds make it no better."""
        options = self.options
        if self.number == 1:
            return False  # how fast it writes is seen in the second
        expected = self.expected(since)
        if expected <= self.limit:
            if self._calm or self.dirtied * since <= _LITTLE:
                return True
            self._calm = True  # a round like this one, and the stop right behind it
            return False
        over = self.number >= options.most_rounds or time.monotonic() - self.began > options.most_time
        if self._stalled >= 2 or over:
            self._stalled = 0
            while self.limit < options.most_downtime and expected > self.limit:
                self.limit = min(2 * self.limit, options.most_downtime)
                if not over:
                    break
            if expected <= self.limit:
                return True
            if self.limit >= options.most_downtime:
                if options.force:
                    return True
                raise RetryLater(
                    f"the program writes {self.dirtied / 1e6:.2f} MB a second, and the wire takes "
                    f"{self.rate / 1e6:.2f}: it would have to stand still for {expected:.2f} s, more than "
                    f"{options.most_downtime:g}",
                    hint="it goes on where it is; allow a longer stop, or move it when it is calmer",
                )
        return False
