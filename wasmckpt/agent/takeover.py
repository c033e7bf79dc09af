"""A job becomes this agent's although its owner has not said so, since most of its voters have; or is another's now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..api import ENDED, State
from ..errors import CheckpointError, Conflict
from ..faults import point
from ..formats import Image, save
from ..store import Series
from .logs import STREAMS
from .replicas import Kept
from .runner import Runner
from .start import produced_by

if TYPE_CHECKING:
    from .service import Agent
    from .standbys import Standby

__all__ = ["let_go", "take_over"]

_PIECE: Final = 1 << 20
_ATTEMPTS: Final = 20
"""Bits of a job's epoch for attempts to move it, which rise under one term."""


def take_over(agent: Agent, kept: Kept, term: int, runtime: str) -> None:
    """It goes on here from the newest image that was kept, or from its beginning if it had none yet. What it had
    written up to there is here too. Raises `Conflict`: it is here already."""
    job, jobs = kept.job, agent.jobs
    with agent.standbys.taken(job, kept.ballot.newest[1]) as standby:
        handed = agent.replicas.hand_out(kept)
        number, begins = None, kept.begins
        if handed is not None and agent.replicas.is_main(handed[0]):  # it was here when that was taken
            number, begins = handed[1], agent.records.get(job).begins
        else:
            if handed is not None:
                image = handed[0].load(job, handed[1])
                # Images from an earlier stay here have smaller numbers.
                number = agent.store.add(job, lambda path: save(image, path), module=agent.modules.read(
                    kept.spec.module), after=handed[1] - 1).number
            _copy_output(agent, kept)
        point("neighbours.taking-over")
        agent.records.arrive(
            job, _free_name(agent, kept), kept.spec, runtime if standby is None else standby.runtime,
            term << _ATTEMPTS, number, begins, lambda db: agent.replicas.owns(db, job, term), why="taken over",
            state=State.PENDING if standby is None else State.ARRIVING, source="newest" if number else "beginning",
            text=f"taken over from {agent.replicas.owner_of(kept)}"
                 + (f", from image {number}" if number else ", from its beginning"),
        )
        jobs.counts["take-overs"] += 1
        if standby is not None and number is not None:
            _let_run(agent, kept, standby, agent.store.load(job, number))
    agent.replicas.drop(job)
    jobs.start_due()


def _copy_output(agent: Agent, kept: Kept) -> None:
    logs, given = agent.jobs.around.logs(kept.job), agent.replicas.logs(kept.job)
    for stream in STREAMS:
        at, end = kept.begins[stream], given.size(stream)
        logs.cut(stream, at)  # and not made anew: a worker that stands by has it open
        while at < end and (data := given.read(stream, at, at, _PIECE).data):
            logs.append(stream, data)
            at += len(data)


def _let_run(agent: Agent, kept: Kept, standby: Standby, image: Image) -> None:
    """The worker that stood by goes on, if there is still time for that; if it cannot, another one is started."""
    jobs = agent.jobs
    record = agent.records.get(kept.job)
    folders, logs = list(standby.folders), jobs.around.logs(kept.job)
    try:
        for stream, end in produced_by(image.host).items():
            logs.cut(stream, end)
        job = standby.go(image, jobs.until(record))
    except CheckpointError as problem:
        agent.records.move(kept.job, State.PENDING, text=f"the worker that stood by is of no use: {problem}")
        return
    series = Series(agent.store, kept.job, agent.modules.read(kept.spec.module))
    runner = Runner(record, job, series, folders, jobs.around.config.freeze_time)
    jobs.comes(runner)
    agent.records.move(kept.job, State.RUNNING, text=f"running on {standby.runtime}: a worker stood by",
                       data={"runtime": standby.runtime}, runs=record.runs + 1)
    jobs.lives(runner)


def let_go(agent: Agent, job: str, term: int, site: str) -> None:
    """Another agent owns it from that term on: what still runs here ends. What has ended here stays as it is."""
    jobs = agent.jobs
    with jobs.changing(job) as record:
        if record.state in ENDED or record.state is State.ARRIVING:
            agent.replicas.elected(record.id, 0)
            return
        if (runner := jobs.runner(record.id)) is not None:
            jobs.leaves(runner)
            runner.close()
        agent.records.move(record.id, State.MOVED, site, wakes=0, wake_at=None,
                           also=lambda db: agent.replicas.owns(db, record.id, 0),
                           text=f"{site} has taken it over", data={"to": site, "term": term})
        jobs.counts["taken over by others"] += 1


def _free_name(agent: Agent, kept: Kept) -> str:
    """Its own, or another one if that is another job's here."""
    try:
        agent.records.free(kept.job, kept.name)
    except Conflict:
        return f"{kept.name[:50]}-{kept.job[:8]}"
    return kept.name
