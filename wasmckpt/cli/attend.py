"""Looking after a running job from a terminal: signals, times, checkpoints, moves, until it ends.

One loop in the main thread takes events one by one; what takes long (a checkpoint, a move) runs in a thread, one at a
time, so that Ctrl-C is always heard. SIGUSR1 takes a checkpoint, as do the signals that are named for that. Else SIGINT
and SIGTERM end the program as soon as a checkpoint that is being written is whole; a second one at once.
"""

from __future__ import annotations

import heapq
import itertools
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import CheckpointError, GuestTrap, JobEnded, UsageError
from ..lazydata import dataclass
from ..snapshot.job import BeforeCall, Checkpoint, Ended, Job, Move
from ..snapshot.worker_process import kill_all
from ..wasm.decode import decode
from ..wasm.numbers import show_value
from .hearing import hearing
from .interrupt import asked
from .names import function_names
from .often import Often
from .output import amount, count, duration, print_last_line, report, say, working
from .registry import serve

if TYPE_CHECKING:
    from ..host import JournalOptions
    from ..planning import Pace
    from ..store import Series
    from ..store.copier import Copier

__all__ = ["Hooks", "Hop", "Plan", "attend", "moved"]

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE: Final = 600.0
"""Seconds that one checkpoint waits for another, or for a move."""


@dataclass(frozen=True, slots=True)
class Hop:
    """Move to ``runtime``, ``after`` seconds on the one before."""

    runtime: str
    after: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with a running job.

    Attributes:
        output: file of images. carry_module: put the module inside.
        after, every: seconds; take one image, or one every time. at: the job was started to freeze at a safepoint.
        here: take an image when the program asks for one. stop: end with the first image.
        hops: moves, one after the other.
        name: take requests of other terminals under this name. what: shown there. print_results: of an invoked export.
        series: the store that images go to, not the file ``output``. copier: takes them on to a bucket.
        pace: knows what images cost; ``auto``: take one whenever it says so. idle: take one when the program waits, not
            before it says so.
        signals: take one when they come. before: and before calls of these imports.
        journal: that the program keeps.
        module: its bytes, for names of functions. json: print how it ended, as the last line of standard output.
    """

    output: str
    carry_module: bool = False
    after: float | None = None
    every: float | None = None
    at: int = 0
    here: bool = False
    stop: bool = False
    hops: Sequence[Hop] = ()
    name: str | None = None
    what: str = ""
    print_results: bool = False
    module: bytes | None = None
    json: bool = False
    series: Series | None = None
    copier: Copier | None = None
    pace: Pace | None = None
    auto: bool = False
    idle: bool = False
    signals: Sequence[int] = ()
    before: Sequence[str] = ()
    journal: JournalOptions | None = None

    @property
    def first_image(self) -> Callable[[Job], object] | None:
        """Takes the image that a journal begins at, where that is not the file ``output``."""
        series = self.series
        return None if series is None else lambda job: series.take(job.checkpoint)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a job is to call: ``on_checkpoint_here`` and ``before_call`` of `Job.start`."""

    here: Callable[[Job], object] | None
    before: BeforeCall


def attend(start: Callable[[Hooks], Job], plan: Plan) -> int:
    """Start a job, look after it until it ends, and give its exit code.

    Args:
        start: makes the job with the hooks that it is given.

    Raises:
        CheckpointError: it could not be started, trapped (`GuestTrap`), or its worker died.
    """
    try:
        return _Attendant(plan).attend(start)
    finally:
        if plan.copier is not None:
            from .levels import finish

            finish(plan.copier)


class _Attendant:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        """When each is due, its number, what is to be done; a heap."""
        self._numbers = itertools.count()
        self._waiting: list[Callable[[], None]] = []
        self._wish: Callable[[], None] | None = None
        """The one of them that is a checkpoint in whose place a newer one may be taken."""
        self._dropped = 0
        """Checkpoints in whose place newer ones were taken."""
        self._queued = 0.0
        """Seconds that the others waited for their turn."""
        self._due = 0.0
        self._busy = False
        self._signals: list[int] = []
        self._failure: CheckpointError | None = None
        self._moves: list[Move] = []
        self._hops = 0
        """How many of the plan's moves are made; others may have been asked for by other terminals."""
        self._images = 0
        self._since = time.monotonic()
        self._job: Job | None = None
        self._often = None if plan.pace is None else Often(plan.pace, plan.auto, self._events.put)
        self._answering: set[int] = set()
        """Signals whose image is not there yet."""
        self._started_or_not = threading.Event()

    def attend(self, start: Callable[[Hooks], Job]) -> int:
        heard = [
            number for number in {*_ENDING, signal.SIGUSR1, *self._plan.signals}
            # nohup, or the background of a script
            if number in self._plan.signals or signal.getsignal(number) is not signal.SIG_IGN
        ]
        with hearing(heard, lambda number: self._events.put(("signal", number))):
            if asked():  # and what was raised then was lost
                raise KeyboardInterrupt
            return self._attend(start)

    def _attend(self, start: Callable[[Hooks], Job]) -> int:
        hooks = Hooks(self._here if self._plan.here else None, dict.fromkeys(self._plan.before, self._here))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])  # one that came too early is heard now
        name = self._plan.name
        with ExitStack() as served:
            if name is not None:
                served.enter_context(serve(name, self._request))
            # A job that takes long to start is started in a thread: signals are heard meanwhile.
            try:
                with working(f"starting {self._plan.what}", alone=False):
                    job = self._job = self._started(lambda: start(hooks))
            finally:
                self._started_or_not.set()
            with job:
                if job.replay is not None and job.replay.calls:
                    say(f"going on from the journal: {count(job.replay.calls, 'call')} answered, "
                        f"{amount(job.replay.suppressed)} of output not written again")
                self._look_after(job)
                if self._signals:
                    kill_all()  # also the target of a move that another terminal asked for
                served.close()  # whoever has asked is answered while the job is there
                return self._result(job)

    def _started(self, start: Callable[[], Job]) -> Job:
        def run() -> None:
            try:
                self._events.put(("started", start()))
            except BaseException as problem:
                self._events.put(("failed", problem))

        threading.Thread(target=run, name="start", daemon=True).start()
        later: list[tuple[str, Any]] = []
        while True:
            kind, what = self._events.get()
            if kind == "started":
                for event in later:
                    self._events.put(event)
                job: Job = what
                return job
            if kind == "failed":
                raise what
            if what in _ENDING and what not in self._plan.signals:
                kill_all()
                raise click.exceptions.Exit(128 + what)
            later.append((kind, what))

    def _look_after(self, job: Job) -> None:
        plan = self._plan
        job.on_end(lambda: self._events.put(("end", None)))
        if plan.after is not None:
            self._in(plan.after, lambda: self._checkpoint(plan.stop))
        if plan.every is not None:
            self._due = time.monotonic()
            self._in_time()
        if self._often is not None:
            self._often.begin()
            if plan.auto:
                self._paced()
            if plan.idle:
                self._often.watch(job)
        if plan.at:
            threading.Thread(target=self._await_frozen, args=(job,), name="frozen", daemon=True).start()
        self._next_hop(0)
        while not job.ended:
            self._take(job, self._next_event())
        while self._busy:  # a move or checkpoint that the end overtook: hear how it ended
            self._take(job, self._events.get())

    def _next_event(self) -> tuple[str, Any]:
        while True:
            timeout = None if not self._timers else self._timers[0][0] - time.monotonic()
            if timeout is not None and timeout <= 0:
                return "timer", heapq.heappop(self._timers)[2]
            try:
                return self._events.get(timeout=timeout)
            except queue.Empty:
                continue

    def _take(self, job: Job, event: tuple[str, Any]) -> None:
        kind, what = event
        if kind == "timer":
            what()
        elif kind == "signal":
            self._signal(job, what)
        elif kind == "frozen":
            self._checkpoint(self._plan.stop)
        elif kind == "here":
            self._checkpoint(self._plan.stop, told=what)
        elif kind == "idle":
            before, told = self._images, what
            self._checkpoint(self._plan.stop, lambda: told.set_result(self._images > before), paced=True)
        elif kind == "unwatched":
            self._failed(what)
        elif kind == "cost":
            assert self._often is not None
            self._often.charge(*what)
        elif kind == "done":
            self._busy = False
            steps: list[Callable[[], None]] = what
            for step in steps:
                step()
            if self._signals:
                job.kill()
            elif self._waiting:
                following = self._waiting.pop(0)
                if following is self._wish:
                    self._wish = None
                following()

    def _signal(self, job: Job, number: int) -> None:
        if number in self._plan.signals and not (number in _ENDING and number in self._answering):
            if self._plan.stop or number in _ENDING:
                if number not in self._answering:
                    self._answering.add(number)
                    self._checkpoint(self._plan.stop, lambda: self._answering.discard(number))
            else:
                self._checkpoint(stop=False, newest=True)
            return
        if number == signal.SIGUSR1:
            self._checkpoint(stop=False, newest=True)
            return
        self._signals.append(number)
        if self._busy and len(self._signals) == 1:
            say("ending when the checkpoint under way is whole; once more: at once")
        else:
            job.kill()

    # Doing things

    def _in(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), act))

    def _in_time(self) -> None:
        """Set the clock for the next periodic checkpoint, whether or not the last one has been written by then."""
        every, now = self._plan.every, time.monotonic()
        assert every is not None
        self._due = max(self._due + every, now)  # not a burst of them after this process was stopped
        self._in(self._due - now, self._periodic)

    def _periodic(self) -> None:
        self._in_time()
        self._checkpoint(self._plan.stop, newest=True)

    def _paced(self) -> None:
        """Take an image if one is due; others may have been taken meanwhile."""
        assert self._often is not None
        left = self._often.wait()
        if left > 0:
            self._in(left, self._paced)
        else:
            self._checkpoint(self._plan.stop, self._paced, paced=True)

    def _await_frozen(self, job: Job) -> None:
        job.frozen.wait()
        if not job.ended:
            self._events.put(("frozen", None))

    def _here(self, job: Job) -> None:
        """The program asks for a checkpoint, in a thread of the job's; it is told how it went."""
        told: Future[None] = Future()
        self._events.put(("here", told))
        told.result()

    def _checkpoint(
        self, stop: bool, afterwards: Callable[[], None] | None = None, told: Future[None] | None = None, *,
        paced: bool = False, newest: bool = False,
    ) -> None:
        """Take an image, when it is its turn. ``afterwards`` is called also if that failed. ``paced``: the next one
        comes in time also then, though nobody knows what this one cost. The ``newest`` takes the place of one that
        still waits: where images are wanted faster than they can be written, there is never more than one in memory."""
        since = time.monotonic()
        if paced and self._often is not None:
            afterwards = self._often.after(afterwards)

        def do() -> Callable[[], None]:
            self._queued += time.monotonic() - since
            try:
                where, taken = self._image(stop)
            except BaseException as problem:
                if told is not None:
                    told.set_exception(problem)
                raise
            if told is not None:
                told.set_result(None)

            def done() -> None:
                self._images += 1
                self._succeeded(
                    f"checkpoint {where}: {amount(taken.size)}, {count(taken.frames, 'frame')}, stopped "
                    f"{duration(taken.stopped)}"
                )

            return done

        self._aside(do, afterwards, first=told is not None, newest=newest)

    def _image(self, stop: bool) -> tuple[str, Checkpoint]:
        """Take an image, and say where it is."""
        plan, series = self._plan, self._plan.series
        take = self._charged(
            partial(self._running().checkpoint, stop=stop, carry_module=plan.carry_module, patience=_PATIENCE)
        )
        if series is None:
            return plan.output, take(plan.output)
        entry, taken = series.take_last(take) if stop else series.take(take)
        self._running().cut_journal(taken)
        return f"{entry.number} of {entry.job} in {series.store.path}", taken

    def _charged(self, take: Callable[..., Checkpoint]) -> Callable[..., Checkpoint]:
        return take if self._often is None else self._often.timed(take)

    def _next_hop(self, number: int) -> None:
        if number < len(self._plan.hops):
            self._in(self._plan.hops[number].after, lambda: self._move(number))

    def _move(self, number: int) -> None:
        hop = self._plan.hops[number]

        def do() -> Callable[[], None]:
            move = self._running().migrate(hop.runtime, patience=_PATIENCE)

            def done() -> None:
                self._moves.append(move)
                self._hops = number + 1
                self._succeeded(moved(move))
                self._next_hop(number + 1)

            return done

        self._aside(do)

    def _aside(
        self, do: Callable[[], Callable[[], None]], afterwards: Callable[[], None] | None = None, *,
        first: bool = False, newest: bool = False,
    ) -> None:
        """Run one thing in a thread, or keep it for when the present one is done: as the ``first`` thing, or as the
        last, which is forgotten if there are too many, or in the place of the ``newest`` before. What it gives is
        called here, and ``afterwards`` also if it failed."""
        if self._busy:
            before = self._waiting[:8]
            later = lambda: self._aside(do, afterwards)  # noqa: E731
            if newest:
                if self._wish is not None:
                    self._dropped += 1
                    before = [waiting for waiting in before if waiting is not self._wish]
                self._wish = later
            self._waiting = [later, *before] if first else [*before, later]
            return
        self._busy = True

        def run() -> None:
            then: Callable[[], None]
            try:
                then = do()
            except JobEnded:
                then = lambda: None  # noqa: E731  # what was left undone is said at the end
            except CheckpointError as problem:
                failed = problem
                then = lambda: self._failed(failed)  # noqa: E731
            except BaseException as problem:
                broken = CheckpointError(f"internal error: {type(problem).__name__}: {problem}")
                then = lambda: self._failed(broken)  # noqa: E731
            self._events.put(("done", [then] if afterwards is None else [then, afterwards]))

        threading.Thread(target=run, name="aside", daemon=True).start()

    def _succeeded(self, text: str) -> None:
        self._failure = None
        say(text)

    def _failed(self, error: CheckpointError) -> None:
        if self._signals:
            return  # because of the end that was asked for
        self._failure = error
        report(error)

    # Other terminals

    def _request(self, do: str, fields: Mapping[str, Any]) -> dict[str, object]:
        if do == "list":
            return self._listing()
        if do == "checkpoint":
            taken = self._charged(self._running().checkpoint)(
                fields["path"], stop=fields["stop"], carry_module=fields["carry"], patience=_PATIENCE
            )
            return {"size": taken.size, "frames": taken.frames, "stopped": taken.stopped, "sha256": taken.sha256.hex()}
        if do == "migrate":
            move = self._running().migrate(fields["runtime"], patience=_PATIENCE)
            self._moves.append(move)
            return _as_json(move)
        raise UsageError(f"the job's version of wasmckpt cannot {do!r}")

    def _listing(self) -> dict[str, object]:
        """What `ps` shows: ``pid`` is this process, which takes signals, ``seconds`` since the start."""
        job = self._job
        worker, runtime, state = (None, None, "starting") if job is None else (job.pid, job.runtime, job.status())
        return {"pid": os.getpid(), "worker": worker, "runtime": runtime, "state": state,
                "seconds": time.monotonic() - self._since, "what": self._plan.what}

    def _running(self) -> Job:
        self._started_or_not.wait()
        if self._job is None:
            raise JobEnded("the program could not be started")
        return self._job

    # The end

    def _result(self, job: Job) -> int:
        if self._signals:
            code = 128 + self._signals[0]
            self._say_dropped()
            self._print(Ended("killed", code))
            return code
        try:
            end = job.wait()
        except GuestTrap as trap:
            self._name_function(trap)
            raise
        self._say_dropped()
        if self._often is not None:
            self._often.say_cost()
        self._print(end)
        self._say_undone(end)
        code = end.exit_code & 0xFF
        if not code and self._failure is not None:
            return self._failure.exit_code
        return code

    def _print(self, end: Ended) -> None:
        shown = [show_value(value) for value in end.results]
        if self._plan.json:
            print_last_line({
                "how": end.how, "exit_code": end.exit_code,
                "results": [{"type": s.type, "value": s.text, "bits": s.bits} for s in shown],
                "checkpoints": self._images, "moves": [_as_json(move) for move in self._moves],
                "checkpoint_times": self._times(), **_continuations(self._job),
                **({} if self._often is None else self._often.overhead()),
            })
        elif self._plan.print_results:
            sys.stdout.writelines(s.text + "\n" for s in shown)

    def _times(self) -> dict[str, float]:
        """What became of the time of checkpoints, in seconds, and how many were dropped."""
        job = self._job
        assert job is not None
        times = job.statistics.times
        return {
            "dropped": self._dropped, "queued": self._queued + times.queued, "stopped": times.stopped,
            "copying": times.copying, "packing": times.packing, "writing": times.writing,
        }

    def _say_dropped(self) -> None:
        if self._dropped:
            spent = self._times()
            say(f"{count(self._dropped, 'checkpoint')} dropped for newer ones: they are wanted faster than they can be "
                f"written (packing {duration(spent['packing'])}, writing {duration(spent['writing'])} in all)")

    def _name_function(self, trap: GuestTrap) -> None:
        func = trap.fields.get("function")
        if isinstance(func, int) and self._plan.module is not None:
            name = function_names(decode(self._plan.module)).get(func)
            trap.fields["function"] = func if name is None else f"{func} ({name})"

    def _say_undone(self, end: Ended) -> None:
        plan = self._plan
        if end.how == "stopped" or self._failure is not None:
            return
        if (plan.after is not None or plan.at) and not self._images:
            say("the program ended before a checkpoint was taken")
        if self._hops < len(plan.hops):
            say(f"the program ended before the move to {plan.hops[self._hops].runtime}")


def moved(move: Move) -> str:
    """A move in one line."""
    return (f"moved {move.source} -> {move.target}: stopped {duration(move.stopped)}, image {amount(move.size)}, "
            f"{count(move.frames, 'frame')}")


def _continuations(job: Job | None) -> dict[str, dict[str, str]]:
    """Where those of the last resume were."""
    found = None if job is None else job.continuations
    return {} if found is None else {"continuations": {"module": found.module, "why": found.why}}


def _as_json(move: Move) -> dict[str, object]:
    from dataclasses import asdict  # slow to load, and few programs move

    return asdict(move)
