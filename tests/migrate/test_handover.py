"""The hand-over in all interleavings: never two running copies, never none for ever, output neither lost nor doubled.
And bugs that were planted into the machine are found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from wasmckpt.migrate.handover import Do, Effect, Event, Kind, Message, Phase, Role, Standing, step

from ..support.tiers import by_tier
from .explorer import Broken, Budget, Step, explore

_SMALL = Budget(crashes=1, attempts=1, cancels=1, images=0, says=1, losses=1)
BUDGETS = by_tier(
    check=[_SMALL],
    test=[Budget(1, 1, 1, 1, 1, 1), Budget(2, 1, 0, 0, 1, 0)],
    soak=[Budget(1, 1, 1, 1, 2, 1), Budget(2, 1, 1, 1, 1, 2), Budget(1, 2, 0, 0, 1, 0), Budget(0, 2, 2, 0, 1, 1)],
)


@pytest.mark.timeout(3600)
@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_all_interleavings(budget: Budget) -> None:
    """There and back again, in whatever order things happen."""
    assert explore(budget) > 1000


# Bugs


def _without(*kinds: Do, role: Role | None = None) -> Step:
    """The machine, some of whose effects are forgotten."""

    def broken(standing: Standing, phase: Phase, event: Event | Message) -> tuple[Phase, list[Effect]]:
        after, effects = step(standing, phase, event)
        return after, [effect for effect in effects if effect.do not in kinds or (
            role is not None and effect.standing is not None and effect.standing.role is not role)]

    return broken


def _late(do: Do, role: Role) -> Step:
    """The machine that writes one role down after everything else."""

    def broken(standing: Standing, phase: Phase, event: Event | Message) -> tuple[Phase, list[Effect]]:
        after, effects = step(standing, phase, event)
        late = [effect for effect in effects if effect.do is do and effect.standing and effect.standing.role is role]
        return after, [effect for effect in effects if effect not in late] + late

    return broken


def _when(kind: Kind | Event, role: Role, becomes: Message | Event | None) -> Step:
    """The machine that takes one message or event for another; None: overhears it."""

    def broken(standing: Standing, phase: Phase, event: Event | Message) -> tuple[Phase, list[Effect]]:
        found = event.kind if isinstance(event, Message) else event
        if found is kind and standing.role is role:
            if becomes is None:
                return phase, []
            if isinstance(becomes, Message):
                token = event.token if isinstance(event, Message) else standing.token
                becomes_ = Message(becomes.kind, token)
                return step(standing, phase, becomes_)
            return step(standing, phase, becomes)
        return step(standing, phase, event)

    return broken


def _runs_at_once(standing: Standing, phase: Phase, event: Event | Message) -> tuple[Phase, list[Effect]]:
    after, effects = step(standing, phase, event)
    if isinstance(event, Message) and event.kind is Kind.PREPARE and any(e.do is Do.PERSIST for e in effects):
        effects = [*effects, Effect(Do.RUN)]
    return after, effects


def _forgets_the_fence(standing: Standing, phase: Phase, event: Event | Message) -> tuple[Phase, list[Effect]]:
    """Whatever PREPARE comes, it is taken."""
    if isinstance(event, Message) and event.kind is Kind.PREPARE and standing.role in (Role.ABSENT, Role.GONE):
        standing = Standing(standing.role, 0, standing.settled)
    return step(standing, phase, event)


def _old_token(standing: Standing, phase: Phase, event: Event | Message) -> tuple[Phase, list[Effect]]:
    """An attempt takes the token of the one before."""
    after, effects = step(standing, phase, event)
    if event is Event.BEGIN:
        effects = [Effect(Do.PERSIST, Standing(Role.OWNER, max(1, standing.token), settled=False))] if effects else []
    return after, effects


def _target_forgets(standing: Standing, phase: Phase, event: Event | Message) -> tuple[Phase, list[Effect]]:
    after, effects = step(standing, phase, event)
    if standing.role is Role.PREPARED:
        effects = [one for one in effects if not one.standing or one.standing.role is Role.PREPARED]
    return after, effects


def _goes_on_after_ready(standing: Standing, phase: Phase, event: Event | Message) -> tuple[Phase, list[Effect]]:
    """A source that was ready to give it away can still be told to keep it."""
    if standing.role is Role.GONE and event is Event.TICK and not standing.settled:
        return phase, [Effect(Do.PERSIST, Standing(Role.OWNER, standing.token, settled=False))]
    return step(standing, phase, event)


@dataclass(frozen=True)
class Bug:
    name: str
    machine: Step
    budget: Budget = _SMALL


BUGS = [
    Bug("the target runs before it is told to", _runs_at_once),
    Bug("a message of an earlier attempt counts", _forgets_the_fence),
    Bug("two attempts with one token", _old_token, Budget(0, 2, 1, 0, 1)),
    Bug("GONE is taken back", _goes_on_after_ready),
    Bug("OWNER is not written down by the target", _target_forgets),
    Bug("GONE is not written down", _without(Do.PERSIST, role=Role.GONE)),
    Bug("GONE is written down after COMMIT was sent", _late(Do.PERSIST, Role.GONE)),
    Bug("PREPARED is not written down", _without(Do.PERSIST, role=Role.PREPARED)),
    Bug("PREPARED is written down after READY was sent", _late(Do.PERSIST, Role.PREPARED)),
    Bug("the program is not held", _without(Do.HOLD)),
    Bug("what was held does not go on", _without(Do.RELEASE)),
    Bug("what was held does not end", _without(Do.END)),
    Bug("COMMIT is not repeated", _when(Event.TICK, Role.GONE, None)),
    Bug("ABORT is not repeated", _when(Event.TICK, Role.OWNER, None)),
    Bug("a target gives up by itself", _when(Event.TICK, Role.PREPARED, Message(Kind.ABORT, 0))),
    Bug("ABORT before PREPARE is not remembered", _when(Kind.ABORT, Role.ABSENT, None)),
]


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    with pytest.raises(Broken):
        explore(bug.budget, bug.machine)


def test_the_page_has_every_rule() -> None:
    """The table of the page is the machine's: each line is tried."""
    page = (Path(__file__).parents[2] / "docs" / "live-migration.md").read_text()
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()
             if line.startswith("| `") and line.count("|") == 7]
    tried = set()
    for role, phase, event, token, now, effects in lines:
        standing = Standing(Role(role.strip("`")), 5, settled=False)
        number = {"same": 5, "newer": 6, "older": 4, "": 5}[token]
        happened = Event(event) if event in {one.value for one in Event} else Message(Kind(event), number)
        after, done = step(standing, Phase(phase or "idle"), happened)
        said = ", ".join(_shown(effect) for effect in done) or "nothing"
        assert (after.value, said) == (now or "idle", effects), (role, phase, event, token)
        tried.add((role, phase, event, token))
    assert len(tried) == len(lines) > 30


def _shown(effect: Effect) -> str:
    if effect.standing is not None:
        settled = " settled" if effect.standing.settled and effect.standing.role is Role.OWNER else ""
        return f"write {effect.standing.role.value} {effect.standing.token - 5:+d}{settled}".replace(" +0", "")
    if effect.message is not None:
        return f"send {effect.message.kind.value}"
    return effect.do.value
