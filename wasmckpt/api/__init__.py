"""What an agent and its clients say to each other: the documents of its REST interface, as types.

Both sides use these classes, so they cannot differ; the OpenAPI document is made of them.

    states       the life of a job, as a diagram and a table     jobs    what a job is to be, and what it is
    checkpoints  images of jobs      modules  programs           events  what happened, in order
    migrations   moves to other agents                           neighbours  agents that look after another's jobs
    node         the machine, its runtimes                       problem an error (RFC 9457)
    page         a part of a long list
"""

from .checkpoints import CheckpointInfo, MemoryMap, Restore
from .events import Event
from .jobs import (
    CheckpointPolicy,
    Crash,
    HibernationPolicy,
    JobInfo,
    JobLimits,
    JobSpec,
    Preopen,
    RestartPolicy,
    Signal,
    SpecInfo,
    Stop,
)
from .migrations import ArrivalOutcome, Migrate, MigrationInfo
from .modules import ModuleInfo
from .neighbours import (
    Candidacy,
    Entrusted,
    Inquiry,
    Leases,
    Neighbour,
    Over,
    Promise,
    Promises,
    Replica,
    Vote,
    Willing,
)
from .node import Battery, Health, NodeInfo, Readiness, RuntimeInfo, Temperature
from .page import Page
from .problem import Problem, problem_of, raised_by
from .states import ENDED, LIVE, MOVES, State

__all__ = [
    "ENDED", "LIVE", "MOVES", "ArrivalOutcome", "Battery", "Candidacy", "CheckpointInfo", "CheckpointPolicy", "Crash",
    "Entrusted", "Event", "Health", "HibernationPolicy", "Inquiry", "JobInfo", "JobLimits", "JobSpec", "Leases",
    "MemoryMap", "Migrate", "MigrationInfo", "ModuleInfo", "Neighbour", "NodeInfo", "Over", "Page", "Preopen",
    "Problem", "Promise", "Promises", "Readiness", "Replica", "RestartPolicy", "Restore", "RuntimeInfo", "Signal",
    "SpecInfo", "State", "Stop", "Temperature", "Vote", "Willing", "problem_of", "raised_by",
]
