"""Jobs whose worker has died: what `wasmckpt.supervise.healing` decides about them, and what is learnt from it.

A runtime that has crashed on a module at one place (as often as the job's policy says) is not used for that module's
new jobs any more, for `_REMEMBERED` seconds, or until somebody says that it may: a newer version of it may be better.
(``DELETE /v1/modules/SHA256/lessons``.) Who asks for a runtime by name when a job is restored gets it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from .. import runtimes
from ..api import Crash, State
from ..errors import CheckpointError, NotSupported, RuntimeMissing, WorkerDied
from ..lazydata import dataclass
from ..store import Store
from ..supervise import UNABLE, Attempt, Decision, Policy, after_crash, others
from .database import Database
from .records import Record

__all__ = ["Healing", "Verdict"]

_CALM: Final = 600.0
"""Seconds of life after which earlier crashes count no more."""
_REMEMBERED: Final = 30 * 86400.0
_MOST_CRASHES: Final = 50
_MOST_FRAMES: Final = 50


@dataclass(frozen=True, slots=True)
class Verdict:
    """``decision`` about a job, and its ``crashes`` with the last one."""

    decision: Decision
    crashes: list[Crash]


class Healing:
    """Of one agent."""

    def __init__(self, database: Database, store: Store) -> None:
        self._database, self._store = database, store

    def after(self, record: Record, death: CheckpointError) -> Verdict:
        """What is to be done with a job, as it was when its worker died or could not be started."""
        calm = record.state is State.RUNNING and time.time() - record.changed > _CALM
        newest = self._store.newest(record.id)
        crash = Crash(at=time.time(), runtime=record.runtime, how=_how(death),
                      image=None if newest is None else newest.number)
        crashes = [*([] if calm else record.crashes), crash][-_MOST_CRASHES:]
        policy = record.spec.restart
        decision = after_crash(
            [Attempt(one.at, one.runtime, one.how, one.image) for one in crashes], 0 if calm else record.restarts,
            Policy(policy.most, policy.at_one_place, policy.backoff_seconds, self._others(record)),
        )
        return Verdict(decision, crashes)

    def cannot(self, record: Record, problem: CheckpointError) -> bool:
        """Whether the runtime that was chosen for it here, and by nobody else, cannot run it."""
        return (isinstance(problem, (NotSupported, RuntimeMissing)) and record.runtime != record.spec.runtime
                and (bool(record.crashes) or record.spec.runtime in self.avoided(record.module)))

    def first_choice(self, record: Record) -> str:
        """The runtime for a job that has not run yet: the one that was asked for, if it has not crashed on others of
        that module."""
        if record.spec.restart.runtimes == [] or record.runtime not in (avoided := self.avoided(record.module)):
            return record.runtime
        return next((name for name in self._others(record) if name not in avoided), record.runtime)

    def _others(self, record: Record) -> list[str]:
        """To go on with, in this order; those that have crashed on the module last."""
        wanted, here = record.spec.restart.runtimes, runtimes.available()
        if wanted == "auto":
            own = record.spec.runtime
            candidates = [*others(own, here), *([own] if own in here else [])]
        else:
            candidates = [name for name in wanted if name in here]
        avoided = self.avoided(record.module)
        return sorted(candidates, key=lambda name: name in avoided)

    # Lessons

    def avoided(self, module: str) -> set[str]:
        """Runtimes that are not to be used for a module."""
        return {row[0] for row in self._database.rows(
            "SELECT runtime FROM lesson WHERE module = ?", (module,))}

    @staticmethod
    def learn(db: sqlite3.Connection, module: str, runtime: str, how: str) -> None:
        """It has crashed there."""
        db.execute("INSERT OR REPLACE INTO lesson VALUES (?, ?, ?, ?)", (module, runtime, how, time.time()))

    def forget(self, module: str) -> None:
        """All that was learnt of a module."""
        with self._database.transaction() as db:
            db.execute("DELETE FROM lesson WHERE module = ?", (module,))

    @staticmethod
    def tidy(db: sqlite3.Connection) -> None:
        """Forget what was learnt long ago."""
        db.execute("DELETE FROM lesson WHERE learned < ?", (time.time() - _REMEMBERED,))

    # The report

    def report(self, record: Record) -> Mapping[str, JsonValue]:
        """Where a job's newest image stands, innermost frame first."""
        if (newest := self._store.newest(record.id)) is None:
            return {}
        try:
            frames = self._store.image(newest.sha256, whole=False).frames
        except CheckpointError as problem:
            return {"image": newest.number, "frames": f"cannot be read: {problem.what}"}
        points = [frame.point for frame in reversed(frames[-_MOST_FRAMES:])]
        return {"image": newest.number, "frames": [
            f"f{point.func}+{point.offset:#x} ({point.kind.name.lower()})" for point in points
        ]}


def _how(death: CheckpointError) -> str:
    if isinstance(death, WorkerDied):
        fields = death.fields
        return str(fields.get("signal") or (f"status {fields['status']}" if "status" in fields else "ended"))
    return UNABLE if isinstance(death, (NotSupported, RuntimeMissing)) else type(death).__name__
