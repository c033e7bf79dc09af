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

Room is left for moves between agents. The one that owns a job says so by the job's ``epoch``, its fencing token: it
rises with each change of owner, and a message or an image with a lower one is refused. At the source a job will go from
RUNNING to HANDING_OVER (held; the target was told to take it), and from there to MOVED (an end, with the target's
address) or back to RUNNING; at the target from ARRIVING to RUNNING, or to nothing. Who owns it in between is said by
the row of the migration, written in the same transaction as the state.
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


_ANY_END: Final = (State.STOPPED, State.EXITED, State.FAILED)
MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.PENDING: frozenset({State.STARTING, State.STOPPED, State.FAILED}),
    State.STARTING: frozenset({State.RUNNING, State.PENDING, *_ANY_END}),
    State.RUNNING: frozenset({State.FREEZING, State.PENDING, *_ANY_END}),
    State.FREEZING: frozenset({State.RUNNING, State.HIBERNATED, State.PENDING, *_ANY_END}),
    State.HIBERNATED: frozenset({State.PENDING, State.STOPPED}),
    **dict.fromkeys(_ANY_END, frozenset({State.PENDING})),
}
"""Where each state may lead."""
ENDED: Final = frozenset(_ANY_END)
"""Nothing happens any more by itself."""
LIVE: Final = frozenset({State.STARTING, State.RUNNING, State.FREEZING})
"""There is a worker's process, or it cannot be known that there is none."""
