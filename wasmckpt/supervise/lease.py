"""Who runs a program when machines fail: leases, votes and fencing, as a machine without I/O and without a clock.

A program that neighbours look after has *voters*: the site that owns it, and those that keep its newest images. More
than half of them decide. The owner asks each of them, over and over, for a *lease*: the promise to vote for nobody else
for `DURATION` seconds. It may run the program only as long as more than half (itself included) have promised; when it
cannot be sure of that any more it ends the program, before the promises do. A voter whose promise is over may vote for
another site, which takes the program over from its newest image if more than half do. Each take-over has a new *term*,
a fencing token; what comes under an older one is refused. Only who was elected for a term, or was given the program by
its owner, asks for leases under it. An owner that has lost voters, since they have voted for a candidate that was not
elected, lets itself be elected again for a newer term, while it runs: those who have promised to vote for nobody else
vote for it. Candidates ask whether they would be elected before they disturb anybody by a vote. This is the election of
Raft (Ongaro and Ousterhout, "In search of an understandable consensus algorithm", 2014, sections 5.2 and 5.4.1; asking
first: Ongaro's thesis, 9.6) with leases instead of a log.

Rejected: one neighbour that takes over by itself when it hears nothing. A cut cable between two machines then makes two
copies, and no timeout prevents that. So with two voters nobody takes over by itself: a third one is needed, which may
be a machine that runs nothing, or a person, who says that the owner is gone.

What it rests on, beside majorities: that clocks run at the same speed to within `DRIFT` (they need not show the same
time), and that a program ends when its site says so. The owner counts from before it asked, the voter from when it was
asked, so whatever the network does the owner's deadline comes first.

::

    owner                                     voter
    asks at t for its term   --renew-->       term not older than any it has seen: promises until now + DURATION
    promised until t + its share of DURATION  <--granted
    fewer than half: ends the program
                                              promise over (or to that very site), a candidate of a newer term with
                                              an image that is not older than its own: one vote a term, which is a
                                              promise too
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ..lazydata import dataclass, replace

__all__ = ["DRIFT", "DURATION", "Ballot", "Tenure", "Version", "Voter", "majority"]

DURATION: Final = 10.0
"""Seconds that a promise lasts, by the voter's clock."""
DRIFT: Final = 0.01
"""How much faster one clock may run than another, as a part."""

Version = tuple[int, int]
"""Of an image: the term of the owner that took it, and its number."""


def majority(voters: int) -> int:
    """The fewest that are more than half."""
    return voters // 2 + 1


@dataclass(frozen=True, slots=True)
class Ballot:
    """What a voter keeps over a crash, of one program.

    Attributes:
        term: the highest that it has seen. site: whom it has voted for in it, or knows as its owner. newest: of the
            images that it has.
    """

    term: int = 0
    site: str = ""
    newest: Version = (0, 0)


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter between two messages. ``promised``: until then, by its own clock, it votes for nobody else.

    Whoever drives it writes the new `Ballot` down before it answers.
    """

    ballot: Ballot
    promised: float

    @staticmethod
    def started(ballot: Ballot, now: float, duration: float = DURATION) -> Voter:
        """After a start: promises from before it are not remembered, so there may be one."""
        return Voter(ballot, now + duration)

    def renew(self, now: float, site: str, term: int, duration: float = DURATION) -> tuple[Voter, bool]:
        """The owner of a term asks for a lease; gives whether it has one."""
        known = self.ballot
        if term < known.term or (term == known.term and known.site not in ("", site)):
            return self, False
        return Voter(replace(known, term=term, site=site), max(self.promised, now + duration)), True

    def vote(
        self, now: float, site: str, term: int, newest: Version, duration: float = DURATION,
    ) -> tuple[Voter, bool]:
        """A candidate asks for a vote, with its newest image; gives whether it has it. The same one may ask again."""
        if not self.would(now, site, term, newest):
            return self, False
        return Voter(replace(self.ballot, term=term, site=site), max(self.promised, now + duration)), True

    def would(self, now: float, site: str, term: int, newest: Version) -> bool:
        """Whether it would vote for a candidate; nothing is promised by that."""
        known = self.ballot
        if (term, site) == (known.term, known.site):
            return True
        return term > known.term and newest >= known.newest and (now >= self.promised or site == known.site)

    def kept(self, term: int, version: Version) -> tuple[Voter, bool]:
        """An owner brings an image; gives whether it may be kept. What an owner of an older term brings may not."""
        if term < self.ballot.term or version[0] > term:
            return self, False
        return replace(self, ballot=replace(self.ballot, newest=max(version, self.ballot.newest))), True


@dataclass(frozen=True, slots=True)
class Tenure:
    """A site that owns a program, or wants to, in one term.

    Attributes:
        deadlines: until when each voter has promised, this site's own too, by this site's clock.
    """

    site: str
    term: int
    voters: frozenset[str]
    deadlines: tuple[tuple[str, float], ...] = ()

    @staticmethod
    def of(site: str, term: int, voters: Collection[str]) -> Tenure:
        """Nobody has promised yet, not even the site itself, which is one of the voters."""
        if site not in voters:
            raise ValueError("an owner is one of its voters")
        return Tenure(site, term, frozenset(voters))

    def granted(self, voter: str, asked: float, duration: float = DURATION) -> Tenure:
        """A voter has promised, or voted, when asked at that time of this site's clock."""
        if voter not in self.voters:
            return self
        known = dict(self.deadlines)
        known[voter] = max(known.get(voter, asked), asked + duration * (1 - DRIFT))
        return replace(self, deadlines=tuple(sorted(known.items())))

    @property
    def deadline(self) -> float:
        """Until when the program may run here; minus infinity: it may not."""
        if len(self.voters) == 1:
            return float("inf")
        need = majority(len(self.voters))
        latest = sorted((until for _, until in self.deadlines), reverse=True)
        return latest[need - 1] if len(latest) >= need else float("-inf")

    def may_run(self, now: float) -> bool:
        """Whether more than half have promised until later than now."""
        return now < self.deadline
