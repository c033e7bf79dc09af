"""The hand-over of a program from one site to another: two phases and a fencing token, as a machine without I/O.

A site is whoever may own a program: an agent. What it knows of one program, and keeps over a crash, is its `Standing`.
Of all sites one at most is the program's OWNER, and only an owner's program runs. The owner that wants to give it away
takes a new *token*, one more than any before it, and writes that down before it does anything else; the token is part
of each message, and a site refuses whatever comes under one that is not newer than what it has seen. So nothing of an
earlier attempt, however late it arrives, has any effect.

::

    source: OWNER                                       target: ABSENT (or GONE: it had the program before)
    BEGIN     token+1 written down
              pages flow, the program runs
    COPIED    the program is held        PREPARE  ->    image, output and PREPARED are written down
    GONE written down                  <-  READY        stands before the program's next instruction
                                          COMMIT  ->    it runs; OWNER is written down
    the held program ends
    (settled)                            <-  DONE

The decision is one write: GONE, at the source. Before it the source may call everything off at any time, for any
reason, by itself: it lets the held program go on and tells the target (ABORT). After it the source never runs the
program again. The target decides nothing: once PREPARED it waits for COMMIT or ABORT, which the source repeats until it
hears DONE, over crashes of both. So a source that is gone for ever at that moment leaves the target waiting; a person
(or a lease) has to say that it is gone. Everything else sorts itself out.

`step` is the machine. Whoever drives it does the effects in their order, one by one, and gives it no other event of the
same program meanwhile. ``docs/live-migration.md`` has the table; ``tests/migrate/explorer.py`` tries all interleavings.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final

from ..lazydata import dataclass, replace

__all__ = ["FRESH", "Do", "Effect", "Event", "Kind", "Message", "Phase", "Role", "Standing", "step"]


class Role(StrEnum):
    """What a site is to a program."""

    ABSENT = "absent"
    OWNER = "owner"
    PREPARED = "prepared"
    """It has all that it takes to run it, and waits to be told whether it may."""
    GONE = "gone"
    """It was the owner, and has given it away."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a site knows of a program and keeps over a crash.

    Attributes:
        token: the highest fencing token that it has used or seen.
        settled: nobody waits to be told what became of the attempt with that token.
    """

    role: Role
    token: int = 0
    settled: bool = True


FRESH: Final = Standing(Role.ABSENT)
"""Of a site that has never heard of the program."""


class Phase(Enum):
    """How far an owner is with giving its program away; forgotten in a crash, after which it is IDLE."""

    IDLE = "idle"
    COPYING = "copying"
    HOLDING = "holding"


class Kind(StrEnum):
    """Of a message. The first, fourth and fifth go from source to target, the others back."""

    PREPARE = "prepare"
    READY = "ready"
    REFUSED = "refused"
    COMMIT = "commit"
    ABORT = "abort"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Message:
    """What one site tells the other about the attempt with a token."""

    kind: Kind
    token: int


class Event(Enum):
    """What else than a message makes a site act."""

    BEGIN = "begin"
    """It is to give the program away."""
    COPIED = "copied"
    """Enough of its pages are at the target."""
    CANCEL = "cancel"
    """It is to keep it: somebody says so, something has failed, or it took too long."""
    TICK = "tick"
    """Some time has passed."""


class Do(Enum):
    """What a site is to do."""

    PERSIST = "persist"
    """Write `Effect.standing` down, so that it outlives a power cut; as PREPARED together with the program's image and
    its output so far, which PREPARE brought."""
    HOLD = "hold"
    """The program stands still, with all its frames."""
    RELEASE = "release"
    """The held program goes on as if nothing had been."""
    END = "end"
    """The held program is gone."""
    RUN = "run"
    """The program that was prepared runs."""
    DROP = "drop"
    """What was prepared is thrown away."""
    SEND = "send"


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing to do; ``standing`` of PERSIST, ``message`` of SEND."""

    do: Do
    standing: Standing | None = None
    message: Message | None = None


Step = tuple[Phase, list[Effect]]


def step(standing: Standing, phase: Phase, event: Event | Message) -> Step:
    """What a site does when something happens: its new phase, and the effects in their order."""
    if isinstance(event, Message):
        return _told(standing, phase, event)
    if standing.role is Role.OWNER:
        return _as_owner(standing, phase, event)
    if standing.role is Role.GONE and event is Event.TICK and not standing.settled:
        return phase, [_send(Kind.COMMIT, standing.token)]
    return phase, []


def _as_owner(standing: Standing, phase: Phase, event: Event) -> Step:
    if event is Event.BEGIN and phase is Phase.IDLE:
        return Phase.COPYING, [_persist(Standing(Role.OWNER, standing.token + 1, settled=False))]
    if event is Event.COPIED and phase is Phase.COPYING:
        return Phase.HOLDING, [Effect(Do.HOLD), _send(Kind.PREPARE, standing.token)]
    if event is Event.CANCEL and phase is not Phase.IDLE:
        return _called_off(standing, phase)
    if event is Event.TICK and phase is Phase.IDLE and not standing.settled:
        return phase, [_send(Kind.ABORT, standing.token)]
    return phase, []


def _called_off(standing: Standing, phase: Phase) -> Step:
    release = [Effect(Do.RELEASE)] if phase is Phase.HOLDING else []
    return Phase.IDLE, [*release, _send(Kind.ABORT, standing.token)]


def _told(standing: Standing, phase: Phase, message: Message) -> Step:
    if message.kind is Kind.PREPARE:
        return phase, _prepare(standing, message.token)
    if message.kind is Kind.COMMIT:
        return phase, _commit(standing, message.token)
    if message.kind is Kind.ABORT:
        return phase, _abort(standing, message.token)
    if message.kind is Kind.READY:
        return _ready(standing, phase, message.token)
    current = message.token == standing.token
    if message.kind is Kind.REFUSED and current and standing.role is Role.OWNER and phase is not Phase.IDLE:
        return _called_off(standing, phase)
    if message.kind is Kind.DONE and current and phase is Phase.IDLE and not standing.settled:
        return phase, [_persist(replace(standing, settled=True))]
    return phase, []


# At the source

def _ready(standing: Standing, phase: Phase, token: int) -> Step:
    if standing.role is Role.OWNER and phase is Phase.HOLDING and token == standing.token:
        gone = Standing(Role.GONE, token, settled=False)
        return Phase.IDLE, [_persist(gone), _send(Kind.COMMIT, token), Effect(Do.END)]
    if standing.role is Role.GONE and token == standing.token:
        return phase, [_send(Kind.COMMIT, token)]
    return phase, [_send(Kind.ABORT, token)]


# At the target

def _prepare(standing: Standing, token: int) -> list[Effect]:
    if token > standing.token and standing.role is not Role.OWNER:
        drop = [Effect(Do.DROP)] if standing.role is Role.PREPARED else []
        return [*drop, _persist(Standing(Role.PREPARED, token)), _send(Kind.READY, token)]
    if token == standing.token and standing.role is Role.PREPARED:
        return [_send(Kind.READY, token)]
    return [_send(Kind.REFUSED, token)]


def _commit(standing: Standing, token: int) -> list[Effect]:
    if token > standing.token:
        return []  # nobody is told so about what was never prepared
    done = _send(Kind.DONE, token)
    if standing.role is Role.PREPARED and token == standing.token:
        # It runs first: the source has written GONE, and will say COMMIT again if this site dies in between.
        return [Effect(Do.RUN), _persist(Standing(Role.OWNER, token)), done]
    return [done]


def _abort(standing: Standing, token: int) -> list[Effect]:
    done = _send(Kind.DONE, token)
    if token < standing.token or standing.role is Role.OWNER:
        return [done]
    if standing.role is Role.PREPARED:
        return [Effect(Do.DROP), _persist(Standing(Role.ABSENT, token)), done]
    # It may come before PREPARE, which is then too late. One who has given the program away with a lower token has been
    # understood, or nobody could try a higher one.
    return [_persist(Standing(Role.ABSENT, token)), done] if token > standing.token else [done]


def _persist(standing: Standing) -> Effect:
    return Effect(Do.PERSIST, standing=standing)


def _send(kind: Kind, token: int) -> Effect:
    return Effect(Do.SEND, message=Message(kind, token))
