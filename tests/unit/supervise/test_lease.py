"""Whatever the network, crashes and clocks do, a program never runs at two sites, and never goes back behind an image
that more than half of the voters have: random histories of three to five sites, always the same ones. Bugs that are
planted are found."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from wasmckpt.supervise.lease import DRIFT, Ballot, Tenure, Voter, majority

from ...support.tiers import by_tier

DURATION = 4.0
HANDED = 0.45
"""Part of a promise that an owner has left when it gives a program away, as in `wasmckpt.agent.neighbours`."""


class Broken(AssertionError):
    pass


@dataclass
class Site:
    """``rate`` of its clock. ``owner``: it has been elected for the term of its tenure. ``running_for``: a term for
    which it wants to be. ``prepared``: when it was, for the program to move here from a site under a term.
    ``inherited``: until then it may run what came here by a move."""

    name: str
    rate: float
    voter: Voter
    tenure: Tenure | None = None
    owner: bool = False
    running_for: Tenure | None = None
    up: bool = True
    prepared: tuple[float, str, int] | None = None
    inherited: float = float("-inf")


@dataclass
class World:
    """Sites, what is under way between them, and the true time. ``safe``: the newest image that a majority has had."""

    sites: list[Site]
    now: float = 0.0
    sent: list[tuple[str, str, str, int, float, tuple[int, int]]] = field(default_factory=list)
    """To, from, kind, term, when it was asked by the asker's clock, image."""
    safe: tuple[int, int] = (0, 0)
    holders: dict[tuple[int, int], set[str]] = field(default_factory=dict)

    def site(self, name: str) -> Site:
        return next(site for site in self.sites if site.name == name)

    def clock(self, site: Site) -> float:
        return self.now * site.rate

    def check(self) -> None:
        running = [site for site in self.sites if runs(self, site)]
        if len(running) > 1:
            raise Broken(f"two copies run: {[site.name for site in running]}")


def runs(world: World, site: Site) -> bool:
    if not site.up or site.tenure is None or not site.owner:
        return False
    return site.tenure.may_run(world.clock(site)) or world.clock(site) < site.inherited


def new_world(names: str, draw: random.Random | None = None) -> World:
    """The first site owns the program, whose first image all have."""
    rates = [1.0 if draw is None else 1 + draw.random() * DRIFT * 0.99 for _ in names]
    ballot = Ballot(1, names[0], (1, 1))
    world = World([Site(name, rate, Voter(ballot, 0.0)) for name, rate in zip(names, rates, strict=True)])
    world.sites[0].tenure, world.sites[0].owner = Tenure.of(names[0], 1, names), True
    world.safe = (1, 1)
    return world


def ask(world: World, site: Site, kind: str, term: int) -> None:
    for other in world.sites:
        if other is not site:
            world.sent.append((other.name, site.name, kind, term, world.clock(site), site.voter.ballot.newest))


def renew(world: World, site: Site) -> None:
    """Also if its own voter has voted for somebody else since: then it has one promise less."""
    assert site.tenure is not None
    if site.owner:
        clock = world.clock(site)
        site.voter, granted = site.voter.renew(clock, site.name, site.tenure.term, DURATION)
        if granted:
            site.tenure = site.tenure.granted(site.name, clock, DURATION)
        ask(world, site, "renew", site.tenure.term)


def stand(world: World, site: Site) -> None:
    """It wants to take over, or, if it is the owner, to go on under a newer term."""
    term = site.voter.ballot.term + 1
    clock = world.clock(site)
    site.voter, granted = site.voter.vote(clock, site.name, term, site.voter.ballot.newest, DURATION)
    if granted:
        running_for = Tenure.of(site.name, term, [one.name for one in world.sites])
        site.running_for = running_for.granted(site.name, clock, DURATION)
        ask(world, site, "vote", term)


def elected(world: World, site: Site) -> None:
    """Once it has most votes it is the owner; what it was under an older term it is no more."""
    if site.running_for is not None and site.running_for.may_run(world.clock(site)):
        site.tenure, site.owner, site.running_for = site.running_for, True, None


def checkpoint(world: World, site: Site) -> None:
    assert site.tenure is not None
    version = (site.tenure.term, site.voter.ballot.newest[1] + 1)
    if site.voter.ballot.newest < world.safe:
        raise Broken(f"{site.name} goes on from {site.voter.ballot.newest}, though {world.safe} is kept by most")
    site.voter, kept = site.voter.kept(site.tenure.term, version)
    if kept:
        world.holders.setdefault(version, set()).add(site.name)
        ask(world, site, "keep", site.tenure.term)


def deliver(world: World, number: int) -> None:
    to, sender, kind, term, asked, version = world.sent[number]
    site = world.site(to)
    if not site.up:
        return
    clock = world.clock(site)
    if kind == "renew":
        site.voter, granted = site.voter.renew(clock, sender, term, DURATION)
    elif kind == "vote":
        site.voter, granted = site.voter.vote(clock, sender, term, version, DURATION)
    elif kind == "keep":
        site.voter, granted = site.voter.kept(term, version)
        if granted:
            holders = world.holders.setdefault(version, set())
            holders.add(to)
            if len(holders) >= majority(len(world.sites)):
                world.safe = max(world.safe, version)
        return
    else:
        if site.tenure is not None and site.tenure.term == term:
            site.tenure = site.tenure.granted(sender, asked, DURATION)
        if site.running_for is not None and site.running_for.term == term:
            site.running_for = site.running_for.granted(sender, asked, DURATION)
            elected(world, site)
        return
    if granted:
        world.sent.append((sender, to, "granted", term, asked, (0, 0)))


def prepare(world: World, site: Site, owner: Site) -> None:
    """The program is to move there."""
    assert owner.tenure is not None
    site.prepared = world.clock(site), owner.name, owner.tenure.term


def hand_over(world: World, site: Site, left: float = HANDED) -> None:
    """Its owner gives the program to a site that is prepared for it, in a state that is newer than any image."""
    assert site.prepared is not None
    prepared, name, term = site.prepared
    owner, site.prepared = world.site(name), None
    if owner.tenure is None or owner.tenure.term != term or not runs(world, owner) or (
            max(owner.tenure.deadline, owner.inherited) - world.clock(owner) < left * DURATION):
        return
    owner.tenure, owner.owner = None, False
    newest = (term + 1, owner.voter.ballot.newest[1] + 1)
    if site.voter.ballot.term < term + 1:
        site.voter = replace(site.voter, ballot=Ballot(term + 1, site.name, newest))
        site.tenure, site.owner = Tenure.of(site.name, term + 1, [one.name for one in world.sites]), True
        site.inherited = prepared + HANDED * DURATION


def crash(world: World, site: Site) -> None:
    """An owner knows that it is the owner when it starts again."""
    site.up, site.prepared, site.running_for, site.inherited = False, None, None, float("-inf")
    if site.tenure is not None:
        site.tenure = Tenure.of(site.name, site.tenure.term, site.tenure.voters)


def restart(world: World, site: Site) -> None:
    site.up = True
    site.voter = Voter.started(site.voter.ballot, world.clock(site), DURATION)


def failures(world: World) -> Iterator[Callable[[], None]]:
    for site in world.sites:
        if site.up:
            yield lambda site=site: crash(world, site)  # type: ignore[misc]
        else:
            yield lambda site=site: restart(world, site)  # type: ignore[misc]


def deeds(world: World) -> Iterator[Callable[[], None]]:
    """All that sites may do next."""
    for site in world.sites:
        if not site.up:
            continue
        yield lambda site=site: stand(world, site)  # type: ignore[misc]
        if site.prepared is not None:
            yield lambda site=site: hand_over(world, site)  # type: ignore[misc]
        if site.tenure is not None:
            yield lambda site=site: renew(world, site)  # type: ignore[misc]
        if runs(world, site):
            for other in world.sites:
                if other is not site and other.up:
                    yield lambda site=site, other=other: prepare(world, other, site)  # type: ignore[misc]
            yield lambda site=site: checkpoint(world, site)  # type: ignore[misc]


def arrivals(world: World) -> Iterator[Callable[[], None]]:
    for number in range(len(world.sent)):
        yield lambda number=number: deliver(world, number)  # type: ignore[misc]


def wander(seed: int, sites: str, steps: int) -> tuple[int, int]:
    """A random history; how many take-overs and images it has seen."""
    draw = random.Random(seed)
    world = new_world(sites, draw)
    for _ in range(steps):
        kind = draw.random()
        if kind < 0.2:
            world.now += draw.choice([0.1, 1.0, DURATION / 2, DURATION])
        else:
            kept = [number for number in range(len(world.sent)) if draw.random() < 0.95]
            world.sent = [world.sent[number] for number in kept][-20:]  # some are lost; none is used up by its arrival
            which = arrivals if kind < 0.65 else deeds if kind < 0.97 else failures
            if found := list(which(world)):
                draw.choice(found)()
        world.check()
    return max(site.voter.ballot.term for site in world.sites), world.safe[1]


def test_random_histories() -> None:
    terms = images = 0
    for seed in range(by_tier(check=300, test=1500, soak=20_000)):
        term, image = wander(seed, "abcde"[:3 + seed % 3], 150)
        terms, images = max(terms, term), max(images, image)
    assert terms > 5, "hardly anybody ever took over"
    assert images > 3, "hardly an image was ever kept"


def test_two_voters_never_take_over() -> None:
    """Neither can tell a dead machine from a cut cable."""
    for seed in range(by_tier(check=100, test=300, soak=3000)):
        draw = random.Random(seed)
        world = new_world("ab", draw)
        crash(world, world.sites[0])
        for _ in range(100):
            world.now += draw.random()
            stand(world, world.sites[1])
            assert not runs(world, world.sites[1])


def test_a_take_over() -> None:
    """Step by step: not before the lease is over, and then with the newest image that there is."""
    world = new_world("abc")
    a, b, c = world.sites
    renew(world, a)
    for number in (0, 1, 2, 3):
        deliver(world, number)
    assert runs(world, a)
    checkpoint(world, a)
    deliver(world, len(world.sent) - 1)  # to c
    assert (b.voter.ballot.newest, c.voter.ballot.newest) == ((1, 1), (1, 2))
    assert world.safe == (1, 2)
    world.now = DURATION * (1 - DRIFT)
    assert not runs(world, a)
    crash(world, a)
    stand(world, c)
    assert not world.sites[2].tenure, "its own promise is not over"
    world.now = DURATION
    stand(world, b)
    sent = len(world.sent)
    deliver(world, sent - 1)
    assert len(world.sent) == sent, "c has a newer image, and does not vote for b"
    stand(world, c)
    for n in range(len(world.sent)):
        deliver(world, n)
    assert b.voter.ballot.site == "b", "it has voted for itself in that term"
    world.now += DURATION
    stand(world, c)
    deliver(world, len(world.sent) - 1)
    deliver(world, len(world.sent) - 1)
    assert runs(world, c)
    assert c.voter.ballot.term > 2
    restart(world, a)
    assert not c.voter.renew(world.clock(c), "a", 1, DURATION)[1], "what it says under its old term is refused"


BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def _bug(make: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    BUGS[make.__name__] = make
    return make


def _voting(patched: pytest.MonkeyPatch, wrong: Callable[..., tuple[Voter, bool]]) -> None:
    patched.setattr(Voter, "vote", wrong)


@_bug
def votes_before_its_promise_is_over(patched: pytest.MonkeyPatch) -> None:
    right = Voter.vote
    _voting(patched, lambda voter, now, *rest: right(voter, now + DURATION, *rest))


@_bug
def votes_twice_in_a_term(patched: pytest.MonkeyPatch) -> None:
    right = Voter.vote
    _voting(patched, lambda voter, now, site, term, *rest: right(
        replace(voter, promised=0.0, ballot=replace(voter.ballot, term=min(voter.ballot.term, term - 1))), now, site,
        term, *rest))


@_bug
def votes_for_an_older_image(patched: pytest.MonkeyPatch) -> None:
    right = Voter.vote
    _voting(patched, lambda voter, now, site, term, newest, *rest: right(voter, now, site, term, (99, 99), *rest))


@_bug
def remembers_no_promise_after_a_start(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Voter, "started", staticmethod(lambda ballot, now, duration: Voter(ballot, now)))


@_bug
def renews_an_older_term(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Voter, "renew", lambda voter, now, site, term, duration: (voter, True))


@_bug
def counts_from_the_answer(patched: pytest.MonkeyPatch) -> None:
    right = Tenure.granted
    patched.setattr(Tenure, "granted", lambda tenure, voter, asked, duration: right(
        tenure, voter, asked + duration / 2, duration))


@_bug
def gives_away_what_it_has_not_for_long(patched: pytest.MonkeyPatch) -> None:
    right = hand_over
    patched.setattr(f"{__name__}.hand_over", lambda world, site: right(world, site, 0.0))


@_bug
def asks_for_leases_unelected(patched: pytest.MonkeyPatch) -> None:
    right = renew

    def claim(world: World, site: Site) -> None:
        if site.running_for is not None:
            site.tenure, site.owner, site.running_for = site.running_for, True, None
        right(world, site)

    patched.setattr(f"{__name__}.renew", claim)


@_bug
def half_is_enough(patched: pytest.MonkeyPatch) -> None:
    patched.setattr("wasmckpt.supervise.lease.majority", lambda voters: voters // 2)


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def histories() -> None:
        for seed in range(20_000):
            wander(seed, "abcde"[:3 + seed % 3], 150)

    BUGS[bug](monkeypatch)
    with pytest.raises(Broken):
        histories()
