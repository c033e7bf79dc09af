"""The owner of the jobs: what happens to one, whoever asks for it, happens here, one thing at a time.

A change of a job holds its lock: the state is read, the next one written down, then done, then the result written down
(`wasmckpt.api.states` says which states there are, and what a kill between two of these steps leaves). Taking an image
of a program that goes on changes no state and holds no lock, so a program that is slow to reach a safepoint can be
ended.

Starting, freezing and what follows an end run in pools of threads, so that a thousand jobs at once take their turns;
what is to be started is found in the database by the state PENDING, so nothing is forgotten.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Literal

from pydantic import JsonValue

from .. import runtimes
from ..api import ENDED, CheckpointInfo, JobSpec, State, problem_of
from ..errors import (
    CheckpointError,
    Conflict,
    GuestTrap,
    JobEnded,
    NotFound,
    RetryLater,
    RuntimeMissing,
    StorageError,
    UsageError,
    WorkerDied,
)
from ..faults import point
from ..snapshot.job import Checkpoint, Ended
from ..store import Entry, Retention
from ..supervise import GiveUp
from ..wasm.numbers import show_value
from .events import Events
from .healing import Healing
from .records import Record, Records
from .replicas import Replicas
from .runner import Runner
from .start import Surroundings, begin

__all__ = ["Drained", "Jobs"]

_TRAPPED: Final = 134
_WORTH_TRYING: Final = (WorkerDied, RetryLater, StorageError)
"""What may be otherwise when a start is tried again."""
Put = Literal["hibernate", "stop", "idle", "drain", "shutdown", "neighbours"]
"""Why a program is frozen."""
Drained = tuple[list[str], dict[str, CheckpointError]]
"""Names of the jobs that were frozen, and of those that were not, and why."""


class Jobs:
    """Of one agent. ``changed``: called when something may have become due."""

    def __init__(
        self, records: Records, events: Events, around: Surroundings, healing: Healing, changed: Callable[[], object],
    ) -> None:
        config = around.config
        self.records, self.events, self.around, self._changed = records, events, around, changed
        self.healing = healing
        self._runners: dict[str, Runner] = {}
        self._starting: set[str] = set()
        self._locks: dict[str, threading.RLock] = {}
        self._lock = threading.Lock()
        """Of the three above."""
        self._start_pool = ThreadPoolExecutor(config.starting_at_once, "start")
        self._end_pool = ThreadPoolExecutor(config.freezing_at_once, "end")
        self._image_pool = ThreadPoolExecutor(config.freezing_at_once, "image")
        self.counts: Counter[str] = Counter()
        """What has happened since the agent started, for `metrics`."""
        self.unused = True
        """Whether there may be files in the store that nobody needs."""
        self.draining = False
        self.closing = False
        self.untold: Callable[[str], object] = lambda job: False
        """Whether another agent waits to be told what was decided about a job."""
        self.until: Callable[[Record], float] = lambda record: float("inf")
        """How long a job may run here, by the clock of `Job.end_at`."""
        self.may_start: Callable[[Record], bool] = lambda record: True
        """Whether that is long enough for it to be started."""

    # Looking

    def runners(self) -> list[Runner]:
        """Of the jobs that run."""
        with self._lock:
            return list(self._runners.values())

    def runner(self, job: str) -> Runner | None:
        """Of a job, by its id."""
        with self._lock:
            return self._runners.get(job)

    def has(self, job: str) -> bool:
        """Whether it runs here, or is being started."""
        with self._lock:
            return job in self._runners or job in self._starting

    def pid(self, job: str) -> int | None:
        """Of a job's worker."""
        runner = self.runner(job)
        return None if runner is None or runner.job.ended else runner.job.pid

    # Making

    def check(self, spec: JobSpec) -> None:
        """Raises what is known to be wrong with it already: `UsageError`, `RuntimeMissing`, `NotPermitted` ..."""
        self._check_runtime(spec.runtime)
        for name in () if spec.restart.runtimes == "auto" else spec.restart.runtimes:
            runtimes.absent(name)  # that it is not here yet is no reason
        for preopen in spec.preopens:
            self.around.roots.check(preopen.host)
        if spec.checkpoint.journal and self.around.config.worker_user is not None:
            raise UsageError("a program that another user runs cannot keep a journal in the agent's store",
                             hint="leave out checkpoint.journal, or the agent's setting worker_user")
        if spec.invoke is not None:
            from ..wasm.numbers import entry_of

            entry_of(self.around.modules.read(spec.module), spec.invoke, spec.arguments)
        if self.draining or self.closing:
            raise RetryLater("the node is being drained", hint="use another node")

    def _check_runtime(self, name: str) -> None:
        missing: RuntimeMissing | None = runtimes.absent(name)
        if missing is not None:
            raise missing

    # Starting

    def start_due(self) -> None:
        """Begin to start what is pending, as far as there is room."""
        if self.draining or self.closing:
            return
        config = self.around.config
        for record in self.records.in_states([State.PENDING], before=time.time()):
            with self._lock:
                live = len(self._runners.keys() | self._starting)
                if live >= config.most_live:
                    return
                if record.id in self._starting or not self._fits(record) or not self.may_start(record):
                    continue
                self._starting.add(record.id)
            self._start_pool.submit(self._guarded, self._start, record.id)

    def _fits(self, record: Record) -> bool:
        config = self.around.config
        if config.most_memory is None:
            return True
        used = sum(runner.memory or config.default_memory for runner in self._runners.values())
        used += len(self._starting) * config.default_memory
        return used + (record.spec.limits.memory_bytes or config.default_memory) <= config.most_memory

    def _start(self, job: str) -> None:
        try:
            with self.changing(job):
                record = self.records.get(job)
                if record.state is not State.PENDING or self.draining or self.closing or not self.may_start(record):
                    return
                record = self._starts(record)
                point("agent.starting")
                try:
                    until = self.until(record)
                    started = begin(record, self.around, None if until == float("inf") else max(until, 0.0))
                except CheckpointError as problem:
                    self._could_not_start(record, problem)
                    return
                except OSError as problem:  # no descriptors, no memory
                    self._could_not_start(record, StorageError(f"it cannot be started: {problem.strerror or problem}"))
                    return
                runner = started.runner
                with self._lock:  # first: whoever reads that it runs finds it here
                    self._runners[job] = runner
                try:
                    point("agent.started")
                    self.records.move(job, State.RUNNING, text=started.text, data=started.data, wakes=0, wake_at=None,
                                      **started.columns)
                except BaseException:
                    self._forget(runner)
                    raise
                self.counts["starts"] += 1
            runner.job.on_end(lambda: self._soon(self._ended, job, runner))
            if record.spec.hibernate.after_idle_seconds is not None:
                threading.Thread(target=self._watch, args=(runner, record.spec.hibernate.after_idle_seconds),
                                 name=f"idle {record.name}", daemon=True).start()
        finally:
            with self._lock:
                self._starting.discard(job)
            self._changed()

    def _starts(self, record: Record) -> Record:
        runtime = record.runtime
        if not record.runs and record.source == "beginning":
            runtime = self.healing.first_choice(record)
        text = None if runtime == record.runtime else \
            f"starting on {runtime}: {record.runtime} has crashed on this module, each time at the same place"
        return self.records.move(record.id, State.STARTING, record.why, runs=record.runs + 1, runtime=runtime,
                                 text=text)

    # Coming and going between agents (`arrivals`, `departures`)

    def comes(self, runner: Runner) -> None:
        """A job that was prepared runs; `lives` follows when that is written down."""
        with self._lock:
            self._runners[runner.id] = runner

    def lives(self, runner: Runner) -> None:
        """What follows its end is to be done from now on."""
        self.counts["arrivals"] += 1
        runner.job.on_end(lambda: self._soon(self._ended, runner.id, runner))
        settle = self.records.get(runner.id).spec.hibernate.after_idle_seconds
        if settle is not None:
            threading.Thread(target=self._watch, args=(runner, settle), name=f"idle {runner.name}",
                             daemon=True).start()

    def leaves(self, runner: Runner) -> None:
        """A job that is held has gone to another agent: its end is of no interest here."""
        with self._lock:
            if self._runners.get(runner.id) is runner:
                del self._runners[runner.id]

    def _could_not_start(self, record: Record, problem: CheckpointError) -> None:
        if isinstance(problem, _WORTH_TRYING) or self.healing.cannot(record, problem):
            self._crashed(record, problem)
        else:
            self._failed(record, problem)

    # Ends

    def _ended(self, job: str, runner: Runner) -> None:
        with self.changing(job):
            with self._lock:
                if self._runners.get(job) is not runner:
                    return  # whoever ended it has told
            with runner.taking:  # an image that is being added to the store is there first
                self._finish(self.records.get(job), runner)

    def _finish(self, record: Record, runner: Runner) -> None:
        """The program of a job has ended: write down how."""
        self._forget(runner)
        try:
            end = runner.job.wait(0)
        except GuestTrap as trap:
            self._failed(record, trap, exit_code=_TRAPPED)
        except WorkerDied as death:
            self._crashed(record, death)
        except CheckpointError as problem:
            self._failed(record, problem)
        else:
            self._exited(record, end)

    def _exited(self, record: Record, end: Ended) -> None:
        if end.how in ("killed", "stopped"):  # not by us, or we would have told
            self._crashed(record, WorkerDied("the worker was ended"))
            return
        results = [show_value(value).text for value in end.results]
        self.records.move(record.id, State.EXITED, exit_code=end.exit_code, results=results, restarts=0, crashes=[],
                          text=f"ended with exit code {end.exit_code}", data={"exit_code": end.exit_code})
        self.counts["exits"] += 1

    def _failed(
        self, record: Record, problem: CheckpointError, *, exit_code: int | None = None,
        report: Mapping[str, JsonValue] | None = None, **more: Any,
    ) -> None:
        told = problem_of(problem)
        told = told.model_copy(update={"fields": {**told.fields, **(report or {})}})
        self.records.move(record.id, State.FAILED, problem=told, exit_code=exit_code, text=f"failed: {problem}",
                          data={"problem": told.model_dump()}, **more)
        self.counts["failures"] += 1

    def _crashed(self, record: Record, death: CheckpointError) -> None:
        """Its worker has died, or could not be started: again, on another runtime, or no more."""
        self.counts["crashes"] += 1
        if death.fields.get("signal") == "SIGXCPU":
            death.hint = "it has used up limits.cpu_seconds"
            self._failed(record, death)
            return
        if not self.may_start(record) and isinstance(death, WorkerDied):
            self.records.move(record.id, State.PENDING, "neighbours", source="newest", next_try=0,
                              text="ended: most of its neighbours do not answer; it goes on when they do")
            return
        verdict = self.healing.after(record, death)
        decision, crashes = verdict.decision, verdict.crashes

        def learn(db: sqlite3.Connection) -> None:
            if decision.learned is not None:
                self.healing.learn(db, record.module, decision.learned, crashes[-1].how)

        if record.spec.restart.policy == "never":
            self._failed(record, death, crashes=crashes)
        elif isinstance(decision, GiveUp):
            self._failed(record, _given_up(death, decision), report=self.healing.report(record), crashes=crashes,
                         also=learn)
        else:
            where = "" if decision.runtime == record.runtime else f" on {decision.runtime}"
            self.records.move(
                record.id, State.PENDING, "crashed", restarts=decision.crashes, crashes=crashes, source="newest",
                next_try=time.time() + decision.pause, runtime=decision.runtime, also=learn,
                text=f"crashed: {death}; goes on{where} in {decision.pause:g} s",
                data={"problem": problem_of(death).model_dump(), "runtime": decision.runtime},
            )

    def _forget(self, runner: Runner) -> None:
        with self._lock:
            if self._runners.get(runner.id) is runner:
                del self._runners[runner.id]
        runner.close()

    def stop(self, job: str, *, if_match: str | None = None) -> Record:
        """End it at once; nothing happens to one that has ended. Raises `NotFound`, `PreconditionFailed`."""
        with self.changing(job) as record:
            self.records.check(record, if_match)
            return self._stopped(record)

    def _stopped(self, record: Record, why: str = "") -> Record:
        if record.state in ENDED:
            return record
        if (runner := self.runner(record.id)) is not None:
            with self._lock:
                del self._runners[record.id]
            runner.close()
        return self.records.move(record.id, State.STOPPED, why, text="stopped", wake_at=None, wakes=0)

    def delete(self, job: str, *, force: bool = False, if_match: str | None = None) -> None:
        """Forget it, its output and its images. Raises `NotFound`, `PreconditionFailed`; `Conflict`: it lives, and
        ``force`` is not given."""
        with self.changing(job) as record:
            self.records.check(record, if_match)
            if record.state is State.MOVED and self.untold(record.id):
                raise Conflict("the agent to which the job has moved has not yet said that it knows", job=record.name,
                               hint="delete it when it has")
            if record.state not in (*ENDED, State.HIBERNATED) and not force:
                raise Conflict("the job has not ended", job=record.name, state=record.state.value,
                               hint="stop it first, or delete it with force=true")
            self._stopped(record)
            self.records.delete(record.id, lambda db: None if record.state is State.MOVED else
                                Replicas.forget(db, record.id))
            point("agent.job-forgotten")
            self.around.store.remove(record.id)
            self.around.logs(record.id).remove()
            self.unused = True
        with self._lock:
            self._locks.pop(record.id, None)

    # Freezing and waking

    def freeze(
        self, job: str, why: Put, *, wakes: bool = False, if_match: str | None = None, only: Runner | None = None,
    ) -> Record:
        """Put it away as an image, without a process: "stop" makes it STOPPED, all else HIBERNATED. Nothing happens to
        one that is that already.

        Args:
            wakes: it goes on when the agent starts again. only: if that is still its worker.

        Raises:
            NotFound, PreconditionFailed. Conflict: it does not run. What `Runner.take_last` raises; then it goes on, or
            has ended by itself.
        """
        target = State.STOPPED if why == "stop" else State.HIBERNATED
        with self.changing(job) as record:
            self.records.check(record, if_match)
            if record.state is target:
                return record
            if record.state is State.HIBERNATED:
                return self.records.move(record.id, target, text="stopped", wake_at=None, wakes=0)
            runner = self.runner(record.id)
            if record.state is not State.RUNNING or runner is None or (only is not None and only is not runner):
                raise Conflict("the job is not running", job=record.name, state=record.state.value)
            with runner.taking:
                return self._freeze(self.records.move(record.id, State.FREEZING, why), runner, target, wakes)

    def _freeze(self, record: Record, runner: Runner, target: State, wakes: bool) -> Record:
        point("agent.freezing")
        try:
            entry, taken = runner.take_last()
        except CheckpointError as problem:
            self.counts["failed checkpoints"] += 1
            if not runner.job.ended:
                self.records.move(record.id, State.RUNNING, text=f"not frozen: {problem}")
            elif self._has_stopped(runner):  # frozen, but its image could not be added to the store
                self._forget(runner)
                self._failed(record, problem)
            else:
                self._finish(record, runner)
            raise
        point("agent.frozen")
        self.counts["checkpoints"] += 1
        self._forget(runner)
        sleep = record.spec.hibernate.wake_after_seconds
        frozen = self.records.move(
            record.id, target, record.why, checkpoint=entry.number, source="newest", wakes=int(wakes),
            wake_at=None if sleep is None or target is State.STOPPED else time.time() + sleep,
            text=f"{target}, as image {entry.number}", data=_told(entry, taken),
        )
        self._prune(record)
        return frozen

    @staticmethod
    def _has_stopped(runner: Runner) -> bool:
        with contextlib.suppress(CheckpointError):
            return runner.job.wait(0).how == "stopped"
        return False

    def wake(self, job: str, *, if_match: str | None = None) -> Record:
        """Let a hibernated one go on; nothing happens to one that lives. Raises `NotFound`, `PreconditionFailed`;
        `Conflict`: it has ended."""
        with self.changing(job) as record:
            self.records.check(record, if_match)
            if record.state in ENDED:
                raise Conflict("the job has ended", job=record.name, state=record.state.value,
                               hint="start it from its beginning, or restore it from an image")
            if record.state is not State.HIBERNATED:
                return record
            return self.records.move(record.id, State.PENDING, "woken", source="newest", wakes=0, wake_at=None,
                                     next_try=0)

    def begin_again(self, job: str, *, if_match: str | None = None) -> Record:
        """Start one that has ended from its beginning; nothing happens to one that lives. Raises as `wake`."""
        with self.changing(job) as record:
            self.records.check(record, if_match)
            if record.state is State.HIBERNATED:
                raise Conflict("the job is hibernated", job=record.name, hint="wake it, or stop it first")
            if record.state not in ENDED:
                return record
            return self._again(record, "beginning", record.runtime)

    def restore(self, job: str, number: int | None, runtime: str | None, *, if_match: str | None = None) -> Record:
        """Let it go on from an image (None: its newest), whatever it does now; what it did after that is lost.

        Raises:
            NotFound: there is no such job or image. UsageError, RuntimeMissing: no such runtime. PreconditionFailed.
        """
        if runtime is not None:
            self._check_runtime(runtime)
        with self.changing(job) as record:
            self.records.check(record, if_match)
            entry = self.entry(record, number)
            return self._again(self._stopped(record, "restore"), str(entry.number), runtime or record.runtime)

    def _again(self, record: Record, source: str, runtime: str) -> Record:
        return self.records.move(
            record.id, State.PENDING, source=source, runtime=runtime, restarts=0, crashes=[], next_try=0,
            exit_code=None, results=[], problem=None,
        )

    def _watch(self, runner: Runner, settle: float) -> None:
        """Put it away when it has waited so long."""
        while not self.closing and self.runner(runner.id) is runner:
            try:
                runner.job.idle(settle=settle, timeout=60.0)
                self.freeze(runner.id, "idle", only=runner)
            except RetryLater:
                continue
            except (JobEnded, WorkerDied, Conflict, NotFound):
                return
            except CheckpointError as problem:
                self._say(runner.id, "not-watched", f"it is not put away when it waits: {problem}")
                return

    # Images

    def entry(self, record: Record, number: int | None) -> Entry:
        """An image of it; None: the newest. Raises `NotFound`."""
        try:
            return self.around.store.entry(record.id, number)
        except UsageError:
            raise NotFound("the job has no such image" if number else "the job has no image yet", job=record.name,
                           number=number, hint=f"GET /v1/jobs/{record.name}/checkpoints lists them") from None

    def checkpoint(self, job: str) -> Entry:
        """Take an image; of a hibernated one it is there already.

        Raises:
            NotFound, `Conflict`: there is no such job, or it does not run. What `Runner.take` raises.
        """
        record = self.records.get(job)
        if record.state is State.HIBERNATED:
            return self.entry(record, None)
        runner = self.runner(record.id)
        if runner is None:
            raise Conflict("the job is not running", job=record.name, state=record.state.value)
        return self._take(record, runner)[0]

    def _take(self, record: Record, runner: Runner) -> tuple[Entry, Checkpoint]:
        try:
            with runner.taking:
                entry, taken = runner.take()
                point("agent.checkpointed")
                self.records.update(record.id, ("checkpoint", f"image {entry.number}", _told(entry, taken)),
                                    checkpoint=entry.number)
        except CheckpointError as problem:
            self.counts["failed checkpoints"] += not isinstance(problem, JobEnded)
            raise
        self.counts["checkpoints"] += 1
        self.counts["stopped ns"] += int(taken.stopped * 1e9)
        self._prune(record)
        return entry, taken

    def take_due(self, runner: Runner) -> None:
        """Take an image of a schedule, in another thread."""
        runner.scheduled = True
        self._image_pool.submit(self._guarded, self._scheduled, runner)

    def _scheduled(self, runner: Runner) -> None:
        taken, schedule = None, runner.schedule
        assert schedule is not None
        schedule.begin()
        try:
            record = self.records.get(runner.id)
            if record.state is State.RUNNING:
                taken = self._take(record, runner)[1]
        except (JobEnded, NotFound):
            pass
        except CheckpointError as problem:
            self._say(runner.id, "checkpoint-failed", f"no image could be taken: {problem}")
        finally:
            schedule.took(taken)
            runner.scheduled = False
            self._changed()

    def signal(self, job: str, signal: Literal["checkpoint", "hibernate", "wake"]) -> Record:
        """Have something done, without waiting for it; what becomes of it is told by the job's events. Raises
        `NotFound`, and `Conflict` for what cannot be done in its state."""
        record = self.records.get(job)
        if signal == "wake":
            return self.wake(record.id)
        if record.state is not State.RUNNING:
            raise Conflict("the job is not running", job=record.name, state=record.state.value)
        if signal == "checkpoint":
            self._soon(self._told_failure, record, lambda: self.checkpoint(record.id))
        else:
            self._soon(self._told_failure, record, lambda: self.freeze(record.id, "hibernate"))
        return record

    def soon(self, record: Record, do: Callable[[], object]) -> None:
        """Have something done with a job, in another thread; that it could not be done is told by an event."""
        self._soon(self._told_failure, record, do)

    def _told_failure(self, record: Record, do: Callable[[], object]) -> None:
        try:
            do()
        except CheckpointError as problem:
            self._say(record.id, "signal-failed", str(problem))

    def _prune(self, record: Record) -> None:
        with contextlib.suppress(CheckpointError):  # the next one will
            self.unused |= bool(self.around.store.prune(record.id, Retention(record.spec.checkpoint.keep)))

    # All of them

    def drain(self) -> Drained:
        """Start nothing more, and freeze all that run; they go on when the drain is over, or the agent starts again."""
        self.draining = True
        return self._freeze_all("drain", None)

    def undrain(self) -> int:
        """Go on with what was frozen; gives how many."""
        self.draining = False
        drained = [record for record in self.records.in_states([State.HIBERNATED]) if record.wakes]
        for record in drained:
            with contextlib.suppress(Conflict, NotFound):
                self.wake(record.id)
        self._changed()
        return len(drained)

    def _freeze_all(self, why: Put, deadline: float | None) -> Drained:
        frozen: list[str] = []
        failed: dict[str, CheckpointError] = {}
        asked: dict[str, Future[Record]] = {
            runner.name: self._end_pool.submit(self.freeze, runner.id, why, wakes=True) for runner in self.runners()
        }
        for name, future in asked.items():
            try:
                future.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
                frozen.append(name)
            except TimeoutError:
                failed[name] = RetryLater("there was no time left to freeze it")
            except CheckpointError as problem:
                failed[name] = problem
        return frozen, failed

    def close(self) -> Drained:
        """Freeze all that run, and end what cannot be frozen in time; they go on when the agent starts again."""
        self.closing = True
        self._start_pool.shutdown(cancel_futures=True)
        self._image_pool.shutdown(wait=False, cancel_futures=True)
        told = self._freeze_all("shutdown", time.monotonic() + self.around.config.stop_time)
        for runner in self.runners():
            runner.close()
        self._end_pool.shutdown(cancel_futures=True)
        return told

    # Help

    @contextlib.contextmanager
    def changing(self, job: str) -> Iterator[Record]:
        """Nobody else changes it meanwhile. Raises `NotFound`."""
        found = self.records.get(job).id
        with self._lock:
            lock = self._locks.setdefault(found, threading.RLock())
        with lock:
            yield self.records.get(found)

    def _soon(self, do: Callable[..., object], *given: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the agent stops: it will find out when it starts again
            self._end_pool.submit(self._guarded, do, *given)

    def _guarded(self, do: Callable[..., object], *given: Any) -> None:
        """What goes wrong in a thread is not lost."""
        try:
            do(*given)
        except NotFound:
            pass  # it was deleted meanwhile
        except Exception as problem:
            self.internal_error(problem)

    def internal_error(self, problem: Exception) -> None:
        """Tell of a bug."""
        self.counts["internal errors"] += 1
        with contextlib.suppress(CheckpointError):
            self.events.say(None, "internal-error", f"{type(problem).__name__}: {problem}")

    def _say(self, job: str, kind: str, text: str) -> None:
        with contextlib.suppress(CheckpointError):
            self.events.say(job, kind, text)


def _given_up(death: CheckpointError, decision: GiveUp) -> CheckpointError:
    """The last crash, and why it was the last."""
    problem = type(death)(f"{death.what}; {decision.why}", hint=death.hint)
    problem.fields = dict(death.fields)
    return problem


def checkpoint_info(record: Record, entry: Entry) -> CheckpointInfo:
    """What a client sees of an image."""
    return CheckpointInfo(
        job=record.name, number=entry.number, taken=entry.taken, size=entry.size, position=entry.position,
        frames=entry.frames, runtime=entry.runtime, sha256=entry.sha256.hex(), module=entry.module.hex(),
    )


def _told(entry: Entry, taken: Checkpoint) -> dict[str, Any]:
    return {"number": entry.number, "size": entry.size, "frames": entry.frames, "stopped_seconds": taken.stopped}
