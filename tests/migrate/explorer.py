"""All that can happen to a hand-over between two sites, tried exhaustively.

The world: two sites, a program that says 0, 1 ... N-1 and ends, and a network. What was ever sent can be delivered at
any time and any number of times, or never: so messages are lost, doubled and overtake one another. A site can crash
between any two effects, which are done one by one, and comes back with what it has written down. (Sending goes
together with the effect before it: a crash between the two is the same as a message that is never delivered.) Its
output is a file, which outlives a crash; who goes on from an image cuts it back to there first.

`explore` walks through all states that can be reached within a budget of crashes, attempts, cancellations and images,
and raises `Broken`, with the way there, if in one of them two copies run, two sites own the program, or the output is
not a beginning of what it should be; or if from one of them the end cannot be reached any more without a further fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from wasmckpt.migrate.handover import FRESH, Do, Effect, Event, Kind, Message, Phase, Role, Standing, step

__all__ = ["Broken", "Budget", "Step", "explore"]

Step = Callable[[Standing, Phase, "Event | Message"], tuple[Phase, list[Effect]]]
Output = tuple[int, ...]


class Broken(AssertionError):
    """A state that must not be, and how it came to that."""


@dataclass(frozen=True)
class Budget:
    """How much may happen: crashes and attempts of each site, cancellations and images of both together; ``losses``: of
    all that is under way at a time; ``says``: what the program says before it ends."""

    crashes: int = 1
    attempts: int = 1
    cancels: int = 1
    images: int = 1
    says: int = 2
    losses: int = 0


class _Hashed:
    """Its hash is asked for again and again."""

    _hash: int

    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            found = hash(tuple(value for name, value in self.__dict__.items() if name != "_hash"))
            self.__dict__["_hash"] = found
        return found


@dataclass(frozen=True)
class Site(_Hashed):
    """``program``: how much it has said, while there is a process; ``held``: it stands still. ``image``: how much it
    had said in the newest one. ``waiting``: of an image that was prepared. ``due``: effects still to be done."""

    standing: Standing = FRESH
    phase: Phase = Phase.IDLE
    image: int = 0
    log: Output = ()
    program: int | None = None
    held: bool = False
    up: bool = True
    due: tuple[Effect, ...] = ()
    brought: tuple[int, Output] | None = None
    """With the message whose effects are due."""
    crashes: int = 0
    attempts: int = 0
    __hash__ = _Hashed.__hash__


Letter = tuple[int, Message, "tuple[int, Output] | None"]
"""To which site, what, and what PREPARE brings: the image and the output."""


@dataclass(frozen=True)
class World(_Hashed):
    sites: tuple[Site, Site]
    sent: frozenset[Letter] = frozenset()
    cancels: int = 0
    images: int = 0
    losses: int = 0
    __hash__ = _Hashed.__hash__

    def put(self, number: int, site: Site, **more: object) -> World:
        sites = (site, self.sites[1]) if number == 0 else (self.sites[0], site)
        return replace(self, sites=sites, **more)  # type: ignore[arg-type]


def _begun(
    world: World, number: int, event: Event | Message, machine: Step, brought: tuple[int, Output] | None = None,
    **more: object,
) -> World:
    """Something happens to a site, of which ``more`` changes."""
    site = world.sites[number]
    phase, effects = machine(site.standing, site.phase, event)
    site = replace(site, phase=phase, due=tuple(effects), brought=brought, **more)  # type: ignore[arg-type]
    return _sent(world.put(number, site), number)


def _sent(world: World, number: int) -> World:
    """A site's messages that are due next are sent."""
    site, sent = world.sites[number], world.sent
    while site.due and site.due[0].do is Do.SEND:
        message = site.due[0].message
        assert message is not None
        content = None
        if message.kind is Kind.PREPARE:
            if site.program is None or not site.held:
                raise Broken("PREPARE without a held program")
            content = (site.program, site.log)
        sent |= {(1 - number, message, content)}
        site = replace(site, due=site.due[1:])
    if not site.due:
        site = replace(site, brought=None)
    return world.put(number, site, sent=sent)


def _restarted(site: Site) -> Site:
    """As an agent does it: its own programs go on from their newest images."""
    site = replace(site, up=True)
    return _started(site) if site.standing.role is Role.OWNER else site


def _started(site: Site) -> Site:
    return replace(site, program=site.image, held=False, log=site.log[:site.image])


def _done(world: World, number: int) -> World:
    """The next effect of a site."""
    site = world.sites[number]
    effect, brought = site.due[0], site.brought
    site = replace(site, due=site.due[1:])
    if effect.do is Do.PERSIST:
        assert effect.standing is not None
        site = replace(site, standing=effect.standing)
        if effect.standing.role is Role.PREPARED and brought is not None:
            site = replace(site, image=brought[0], log=brought[1])
    elif effect.do is Do.HOLD:
        site = replace(site, held=True)
    elif effect.do is Do.RELEASE:
        site = replace(site, held=False)
    elif effect.do in (Do.END, Do.DROP):
        site = replace(site, program=None, held=False)
    else:
        assert effect.do is Do.RUN
        site = _started(site)
    return _sent(world.put(number, site), number)


def _without_faults(world: World, machine: Step, says: int) -> Iterator[tuple[str, World]]:
    for number, site in enumerate(world.sites):
        if not site.up:
            yield f"{number} comes back", world.put(number, _restarted(site))
            continue
        if site.due:
            effect = site.due[0]
            yield f"{number}: {effect.do.value} {effect.standing or effect.message or ''}", _done(world, number)
            continue
        if site.program is not None and not site.held and site.program < says:
            yield f"{number} says {site.program}", world.put(
                number, replace(site, program=site.program + 1, log=(*site.log, site.program)))
        yield f"{number} ticks", _begun(world, number, Event.TICK, machine)
        if site.phase is Phase.COPYING:
            ended = site.program is None or site.program >= says
            yield f"{number} has copied", _begun(
                world, number, Event.CANCEL if ended else Event.COPIED, machine)
        if site.phase is Phase.HOLDING:
            yield f"{number} has waited too long", _begun(world, number, Event.CANCEL, machine)
        for to, message, content in world.sent:
            if to == number:
                yield f"{number} gets {message}", _begun(world, number, message, machine, content)


def _faults(world: World, machine: Step, budget: Budget) -> Iterator[tuple[str, World]]:
    if world.losses < budget.losses and world.sent:
        yield "all messages are lost", replace(world, sent=frozenset(), losses=world.losses + 1)
    for number, site in enumerate(world.sites):
        if not site.up:
            continue
        if site.crashes < budget.crashes:
            yield f"{number} crashes", world.put(number, replace(
                site, up=False, phase=Phase.IDLE, program=None, held=False, due=(), brought=None,
                crashes=site.crashes + 1))
        if site.due:
            continue
        running = site.program is not None and not site.held
        if site.attempts < budget.attempts and running and site.phase is Phase.IDLE:
            yield f"{number} begins", _begun(
                world, number, Event.BEGIN, machine, attempts=site.attempts + 1)
        if world.cancels < budget.cancels and site.phase is not Phase.IDLE:
            yield f"{number} calls it off", replace(
                _begun(world, number, Event.CANCEL, machine), cancels=world.cancels + 1)
        if world.images < budget.images and running and site.program != site.image:
            assert site.program is not None
            yield f"{number} takes an image", world.put(
                number, replace(site, image=site.program), images=world.images + 1)


def _check(world: World) -> None:
    if sum(site.program is not None and not site.held for site in world.sites) > 1:
        raise Broken("two copies run")
    if sum(site.standing.role is Role.OWNER for site in world.sites) > 1:
        raise Broken("two sites own it")
    for site in world.sites:
        if site.program is not None and site.log != tuple(range(site.program)):
            raise Broken(f"a program that has said {site.program} has written {site.log}")


def _is_end(world: World, says: int) -> bool:
    """One site owns the program, which has said all; nobody waits for anything."""
    first, second = sorted(world.sites, key=lambda site: site.standing.role is not Role.OWNER)
    return (
        first.standing.role is Role.OWNER and first.program == says and first.phase is Phase.IDLE
        and first.log == tuple(range(says)) and first.standing.settled
        and second.standing.role in (Role.ABSENT, Role.GONE) and second.standing.settled and second.program is None
        and not any(site.due or not site.up for site in world.sites)
    )


def explore(budget: Budget, machine: Step = step) -> int:
    """Walk through all states; gives how many there are. Raises `Broken`."""
    owner = Site(Standing(Role.OWNER), program=0)
    first = World((owner, Site()))
    numbers: dict[World, int] = {first: 0}
    came: list[tuple[int, str]] = [(-1, "")]
    before: list[list[int]] = [[]]
    """Of each state those from which it is reached without a fault."""
    good: list[int] = []
    queue = deque([first])

    def way(number: int) -> str:
        steps: list[str] = []
        while number > 0:
            number, what = came[number]
            steps.append(what)
        return "; ".join(reversed(steps))

    while queue:
        world = queue.popleft()
        number = numbers[world]
        if _is_end(world, budget.says):
            good.append(number)
        calm = [(what, after, True) for what, after in _without_faults(world, machine, budget.says)]
        for what, after, is_calm in [*calm, *((w, a, False) for w, a in _faults(world, machine, budget))]:
            if after == world:
                continue
            found = numbers.get(after)
            if found is None:
                found = numbers[after] = len(came)
                came.append((number, what)); before.append([])
                queue.append(after)
                try:
                    _check(after)
                except Broken as problem:
                    raise Broken(f"{problem}: {way(found)}") from None
            if is_calm:
                before[found].append(number)
    ends = bytearray(len(came))
    stack = list(good)
    for number in good:
        ends[number] = 1
    while stack:
        for earlier in before[stack.pop()]:
            if not ends[earlier]:
                ends[earlier] = 1
                stack.append(earlier)
    stuck = ends.find(0)
    if stuck >= 0:
        raise Broken(f"it cannot end any more: {way(stuck)}")
    return len(came)
