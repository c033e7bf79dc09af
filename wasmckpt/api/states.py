"""The life of a job.

::

          create                            create, start: false
            |                                        |
            v          start, restore                v
    +--> PENDING <-------------------------------- STOPPED <-----+
    |       |  ^                                                 |
    |       |  | wake; the agent starts again                    |
    |       |  +-------------------------- HIBERNATED <---+      |
    |       v                                             |      |
    |    STARTING ---> FAILED  it cannot run              |      |
    |       |                                             |      |
    |       v                                             |      |
    |    RUNNING ----> EXITED  by itself                  |      |
    |       |  ^  +--> FAILED  it trapped, gave up        |      |
    |       |  |  +--------------------------------------------->+  stop, without an image
    |       |  | the image could not be taken             |      |
    |       v  |                                          |      |
    |    FREEZING ----------------------------------------+----->+  hibernate, drain; stop with an image
    |       |
    +-------+  from STARTING, RUNNING, FREEZING: the worker or the agent died, and the restart policy lets it go on

STOPPED, EXITED and FAILED are ends; from each of them `start` (from the beginning) and `restore` (from an image) lead
back to PENDING. A job without a process is STOPPED or HIBERNATED: the first one stays so until somebody says otherwise,
the second one goes on when it is asked for, or (``wakes``) when the agent starts again or at a time.

What is decided is written down before it is done (PENDING before a worker is started, FREEZING before the program is
stopped), and what was done after it: so an agent that dies finds, when it starts again, one of STARTING, RUNNING and
FREEZING for each job of which it cannot know how far it came. Its worker is dead, since workers die with their agent.
If the image for which it was FREEZING is in the store, that has been done; all others are PENDING, from their newest
image.

A job that moves to another agent stays RUNNING until the other one has all that it takes, and is MOVED in the very
transaction that decides it: then it is the other agent's, and this one never runs it again. There it is ARRIVING from
when it is prepared until its owner has said that it may run (RUNNING) or may not (it is gone). The one that owns a job
says so by the job's ``epoch``, its fencing token, see `wasmckpt.migrate.handover`. A job that has MOVED may come back.

A job that has neighbours (`wasmckpt.agent.neighbours`) is PENDING or HIBERNATED while most of them do not answer. When
they have given it to one of them it is PENDING there, from its newest image, and from whatever state MOVED here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

__all__ = ["ENDED", "LIVE", "MOVES", "State"]


class State(StrEnum):
    """Of a job."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    FREEZING = "freezing"
    HIBERNATED = "hibernated"
    STOPPED = "stopped"
    EXITED = "exited"
    FAILED = "failed"
    MOVED = "moved"
    ARRIVING = "arriving"


_ANY_END: Final = (State.STOPPED, State.EXITED, State.FAILED)
MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.PENDING: frozenset({State.STARTING, State.STOPPED, State.FAILED, State.MOVED}),
    State.STARTING: frozenset({State.RUNNING, State.PENDING, *_ANY_END}),
    State.RUNNING: frozenset({State.FREEZING, State.PENDING, State.MOVED, *_ANY_END}),
    State.FREEZING: frozenset({State.RUNNING, State.HIBERNATED, State.PENDING, *_ANY_END}),
    State.HIBERNATED: frozenset({State.PENDING, State.STOPPED, State.MOVED}),
    **dict.fromkeys(_ANY_END, frozenset({State.PENDING})),
    State.MOVED: frozenset({State.ARRIVING}),
    State.ARRIVING: frozenset({State.RUNNING, State.PENDING, State.MOVED}),
}
"""Where each state may lead."""
ENDED: Final = frozenset({*_ANY_END, State.MOVED})
"""Nothing happens any more by itself, here."""
LIVE: Final = frozenset({State.STARTING, State.RUNNING, State.FREEZING})
"""There is a worker's process, or it cannot be known that there is none."""
