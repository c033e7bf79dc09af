"""What an agent finds when it starts, and what it makes of it (`wasmckpt.api.states`).

After a graceful stop all jobs that ran are hibernated, and go on. After a kill some are in states with a process, which
is dead, since workers die with their agent (`wasmckpt.snapshot.worker`: adopting them would need a runtime's process
that outlives its parent, and a socket that is there for the next one). They go on from their newest images; with a
journal nothing of what came after that is lost or done twice.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Final

from ..api import LIVE, State, problem_of
from ..errors import Conflict, NotFound, WorkerDied
from .jobs import Jobs
from .records import Record

__all__ = ["mend", "recover", "sweep"]

_GOES_ON: Final = ("drain", "shutdown")


def recover(jobs: Jobs) -> int:
    """Make every job's state a true one again; gives how many had lost their worker."""
    lost = jobs.records.in_states(LIVE)
    for record in lost:
        _recover(jobs, record, "the agent had died")
    for record in jobs.records.in_states([State.HIBERNATED]):
        if record.wakes:
            with contextlib.suppress(Conflict, NotFound):
                jobs.wake(record.id)
    return len(lost)


def mend(jobs: Jobs) -> None:
    """The same for single jobs while the agent runs: the disk was full, say, when an end was to be written down."""
    for record in jobs.records.in_states(LIVE):
        with contextlib.suppress(Conflict, NotFound), jobs.changing(record.id) as now:
            if now.state in LIVE and not jobs.has(now.id):
                _recover(jobs, now, "it was lost")


def _recover(jobs: Jobs, record: Record, what: str) -> None:
    newest = jobs.around.store.newest(record.id)
    number = None if newest is None else newest.number
    if record.state is State.FREEZING and number is not None and number > (record.checkpoint or 0):
        target = State.STOPPED if record.why == "stop" else State.HIBERNATED
        jobs.records.move(record.id, target, record.why, checkpoint=number, source="newest",
                          wakes=int(record.why in _GOES_ON), text=f"{target}, as image {number}; {what}")
        return
    if record.spec.restart.policy == "never":
        death = problem_of(WorkerDied(f"{what}, and the program with it", hint="its restart policy is never"))
        jobs.records.move(record.id, State.FAILED, problem=death, checkpoint=number, text=what)
        return
    # What it was to start from stands until it was running: then a restore from an older image is not forgotten.
    source = record.source if record.state is State.STARTING else "newest"
    where = "from its beginning" if number is None or source == "beginning" else f"from image {number}"
    jobs.records.move(record.id, State.PENDING, "agent-died", source=source, next_try=0, checkpoint=number,
                      text=f"{what}: it goes on {where}")


def sweep(jobs: Jobs, incoming: Path) -> None:
    """Take away what was never finished, and what belongs to jobs that are deleted. Before anything is started."""
    known = jobs.records.ids()
    store = jobs.around.store
    for path in jobs.around.folder.iterdir():
        if path.name not in known:
            shutil.rmtree(path, ignore_errors=True)
    for job in {entry.job for entry in store.entries()} - known:
        store.remove(job)
    for path in incoming.iterdir():
        path.unlink(missing_ok=True)
    wanted = " ".join(record.problem.hint for record in jobs.records.in_states([State.FAILED]) if record.problem)
    for path in store.scratch.glob("last-*.wckpt"):
        if path.name not in wanted:
            path.unlink(missing_ok=True)
    jobs.around.modules.tidy()
