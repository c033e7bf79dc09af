"""A running program, seen from the process that looks after it.

A `Job` is one program in a worker process of its own. It can be checkpointed while it runs, stopped with an image,
moved to another runtime, waited for and killed; moving changes the worker and leaves the job the same. Whatever
happens to a worker ends as an error here and never takes this process down.

A move: the target is started first and makes the module ready, so that all refusals come while nothing is lost. Then
the source is frozen and keeps its image; the target rebuilds all frames and stands before the next instruction;
then, and only then, it is told to go on, and the source ends. Until that moment any failure of the target lets the
source go on; after it the source never does.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from ..errors import (
    CheckpointError,
    HostFunctionError,
    JobEnded,
    NotSupported,
    RetryLater,
    StorageError,
    UsageError,
    WorkerDied,
)
from ..formats.files import save_copy
from ..formats.sealing import refuse_journal
from ..host import HostFunctions, JournalOptions, WasiConfig
from ..lazydata import dataclass, field, field_names, replace
from ..runtimes import DEFAULT_STACK_BYTES, loader
from ..wasm.values import Value
from .assignment import Assignment
from .callbacks import Callbacks
from .confine import ResourceLimits
from .launch import OWN
from .sandbox import Sandbox
from .turn import Superseded, Turn
from .wire import error_from_plain, image_settings, memory_file
from .worker_process import Answer, WorkerProcess

if TYPE_CHECKING:
    from ..formats import ParentRef
    from ..planning import Pace

__all__ = [
    "DEFAULT_TIMEOUT", "BeforeCall", "Checkpoint", "Continuations", "Ended", "Job", "Move", "Replay", "Statistics",
    "Times", "check",
]

IDLE_AFTER = 0.01
"""Seconds that a wait has lasted when the program is said to be idle."""
DEFAULT_TIMEOUT = 30.0
"""Seconds that a program gets to reach a safepoint."""
_SILENCE = 2.0
"""Seconds after which a worker that says nothing is said to be silent."""
_TRIAL = 2.0
"""Seconds that a copy of the program gets to show its frames before a move."""
_REBUILDING = 300.0
"""Seconds that the target of a move gets to rebuild the frames, before the source goes on."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended without an error.

    Attributes:
        how: "done" (the function returned ``results``), "exited" (by ``proc_exit`` with ``exit_code``), "stopped" (a
            checkpoint took its place), "killed" (by `Job.kill`).
    """

    how: Literal["done", "exited", "stopped", "killed"]
    exit_code: int = 0
    results: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """Where the time of a checkpoint went, or of several, in seconds.

    Attributes:
        queued: it waited for others to be over. stopped: the program stood still.
        copying: a forked copy of it lived beside it, to be read; each page that it wrote meanwhile was copied.
        packing: compressing, hashing. writing: to the file, with syncing it; both while the program ran.
    """

    queued: float = 0.0
    stopped: float = 0.0
    copying: float = 0.0
    packing: float = 0.0
    writing: float = 0.0

    def __add__(self, other: Times) -> Times:
        return Times(*[getattr(self, name) + getattr(other, name) for name in field_names(self)])


@dataclass(slots=True)
class Statistics:
    """What became of a job's checkpoints: ``taken``; ``failed``; ``dropped``, because newer ones took their place while
    they waited. ``times`` of those that were taken."""

    taken: int = 0
    failed: int = 0
    dropped: int = 0
    times: Times = field(default_factory=Times)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def got(self, times: Times) -> None:
        """One was taken."""
        with self._lock:
            self.taken += 1
            self.times += times

    def missed(self, *, dropped: bool) -> None:
        """One was not."""
        with self._lock:
            self.dropped += dropped
            self.failed += not dropped


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An image that was taken.

    Attributes:
        path: the file it is in; None: it is in ``data``. sha256: of the image. size: in bytes. frames: how many.
        stopped: seconds that the program stood still (until its end, if it was stopped).
        way: "signal", "entry", "wait" (a forked copy was frozen), "in-place" (the program was), "stop", or "start" (it
            had not begun).
        parent: the image that this one is the difference to; None: it is whole.
        times: where the time went.
        slowed: seconds that the program lost beside its stop (the module `cost` says how that is known).
        work: processor seconds of making and writing the image beside the program.
        calls: that the program had made to its host, if it has a journal.
    """

    path: str | None
    sha256: bytes
    size: int
    frames: int
    stopped: float
    way: str
    data: bytes | None = field(default=None, repr=False)
    parent: ParentRef | None = None
    times: Times = field(default_factory=lambda: Times())
    slowed: float = 0.0
    work: float = 0.0
    calls: int | None = None

    @property
    def cost(self) -> float:
        """Seconds that the program lost by it."""
        return self.stopped + self.slowed


@dataclass(frozen=True, slots=True)
class Replay:
    """What was answered from a journal: ``calls`` of the program to its host, and bytes of output that it had written
    before, which were not written again (``suppressed``)."""

    calls: int
    suppressed: int


@dataclass(frozen=True, slots=True)
class Move:
    """A move that was made: ``stopped`` seconds between the last instruction there and the first here, ``size`` of the
    image in bytes, number of ``frames``; ``prepared``: seconds of making the target ready, while the program ran."""

    source: str
    target: str
    stopped: float
    size: int
    frames: int
    prepared: float


@dataclass(frozen=True, slots=True)
class Continuations:
    """How a resume got the code that goes on from the frames.

    Attributes:
        module: "side": in a module of its own, beside the one that is compiled already; "whole": compiled together with
            all of the program's module.
        why: why they could not be in a module of their own, where the runtime can have one; else empty.
    """

    module: Literal["side", "whole"]
    why: str


BeforeCall = Mapping[str, Callable[["Job"], object]]
"""Import of the module -> takes a checkpoint before a call of it."""


class _Seat:
    """Which worker a message comes from: only the job's present one counts."""


class Job:
    """One program in a worker of its own. Made by `start` and `restore`; use as a context manager, which kills what
    still runs. Safe to use from several threads."""

    def __init__(
        self, assignment: Assignment, runtime: str, on_checkpoint_here: Callable[[Job], object] | None = None,
        before_call: BeforeCall | None = None, end_at: float | None = None,
    ) -> None:
        self.runtime = runtime
        """Name of the runtime that it runs on now."""
        self.frozen = threading.Event()
        """Set when a program started with ``freeze_at`` has reached that safepoint and waits for a checkpoint."""
        self.walls: Mapping[str, Any] = {}
        """Those of the sandbox that its newest worker entered (`Sandbox.enter`)."""
        self.replay: Replay | None = None
        """What was answered from the journal; None: there is none, or it was not the image's."""
        self.continuations: Continuations | None = None
        """Where those of the last resume are, here or by a move; None: there were no frames to go on from."""
        self._callbacks = Callbacks(
            assignment.functions, None if on_checkpoint_here is None else lambda: on_checkpoint_here(self),
            [partial(take, self) for take in (before_call or {}).values()], present=lambda: self._worker,
        )
        named = any(isinstance(function.call, str) for function in assignment.functions.values())
        self._assignment = replace(
            assignment, checkpoint_here=on_checkpoint_here is not None, before_calls=tuple(before_call or ()),
            search=tuple(map(os.path.abspath, sys.path)) if named else (),
        )
        self._end: Future[Ended] = Future()
        self._turn = Turn()
        """Of the one checkpoint or move that is under way."""
        self.statistics = Statistics()
        """Of its checkpoints so far."""
        self._seating = threading.Lock()
        self._killed = False
        self._safe = False
        """Whether a move holds the image, so that the worker that was left is not needed any more."""
        self._until = end_at
        """See `end_at`."""
        self._starting = threading.Lock()
        """Held while a worker is started: it takes the streams along."""
        self._streams: tuple[int, int, int] | None = _own_streams(assignment.config)
        """Of the program, for as long as it lives: whoever has started it may close the ones it gave."""
        self._seat = _Seat()
        try:
            self._seat, self._worker = self._seated(runtime)
        except BaseException:
            self._close_streams()
            raise

    # Making one

    @classmethod
    def start(
        cls, module: bytes, runtime: str = "wasmtime", *, config: WasiConfig | None = None, invoke: str | None = None,
        arguments: tuple[Value, ...] = (), stack_bytes: int = DEFAULT_STACK_BYTES, freeze_at: int = 0,
        host_functions: HostFunctions | None = None, on_checkpoint_here: Callable[[Job], object] | None = None,
        before_call: BeforeCall | None = None, huge_pages: bool = False, discard_dead_stack: bool = False,
        journal: JournalOptions | None = None, first_image: Callable[[Job], object] | None = None,
        canonical_nans: bool = False, limits: ResourceLimits | None = None, sandbox: Sandbox | None = None,
        end_at: float | None = None,
    ) -> Job:
        """Run a module from its beginning; returns when it runs.

        Args:
            config: what the guest gets; its standard streams may be any descriptors of this process, and be closed here
                as soon as this returns.
            invoke: an export to call with ``arguments``; None: ``_start``.
            stack_bytes: of the guest. freeze_at: freeze at the n-th safepoint passed, see `frozen`.
            host_functions: (module, name) of an import -> the `UserFunction` that answers it.
            on_checkpoint_here: called with the job when the guest asks for a checkpoint (``wasmckpt.h``); it takes one,
                or raises a `CheckpointError`, which the guest is told. None: the guest's asking is for nothing.
            before_call: import, ``name`` or ``module.name`` -> called with the job when the guest calls it, before
                anything of that is done; it takes a checkpoint, which then holds the call as not begun. If it raises a
                `CheckpointError` the call is made all the same.
            huge_pages: ask the kernel for huge pages for the guest's memories: shorter stops where they are large and
                images whole, for up to 2 MiB of memory wherever the guest touches its own.
            discard_dead_stack: images leave out what lies below the stack pointer, which reads as zero when they go
                on. Only for modules of which it can be proved what that is (`wasmckpt.wasm.shadow_stack`); for others
                `NotSupported` says why not.
            journal: keep one of all calls to the host, so that nothing is lost or doubled when all of this is killed.
                It follows images; the first one is taken before the program runs.
            first_image: takes it, by `checkpoint`. None: it goes to the journal's own ``image``, if that has one.
            canonical_nans: NaNs that the guest's arithmetic makes are the same on all processors (see
                `wasmckpt.instrument.nans`); images say so, and what goes on from them does so too.
            limits: of each of its workers' processes, from before they see the module on.
            sandbox: which each of them enters before that. Its images come through this process then.
            end_at: as of the method, from before it runs.

        Raises:
            StorageError: the journal or its first image cannot be written.
            InvalidModule, NotSupported, RuntimeMissing, HostStateError, UsageError: before anything has run.
            GuestTrap: segments do not fit. WorkerDied: the runtime crashed on it.
        """
        if journal is not None:
            refuse_journal()
        job = cls(
            Assignment(
                module, config or WasiConfig(), invoke, arguments, stack_bytes, freeze_at,
                functions=host_functions or {}, huge_pages=huge_pages, discard_dead_stack=discard_dead_stack,
                journal=journal, canonical_nans=canonical_nans, limits=limits, sandbox=sandbox,
            ), runtime, on_checkpoint_here, before_call, end_at,
        )
        with job._or_nothing():
            job._worker.call("start", {**job._assignment.to_plain(), "hold": journal is not None})
            if journal is not None:
                if first_image is not None:
                    first_image(job)
                elif journal.image is not None:
                    job.checkpoint(journal.image)
                job._worker.call("commit")
        return job

    @classmethod
    def restore(
        cls, image: str | os.PathLike[str] | bytes, runtime: str = "wasmtime", *, module: bytes | None = None,
        config: WasiConfig | None = None, accept_changed: bool = False, stack_bytes: int = DEFAULT_STACK_BYTES,
        freeze_at: int = 0, host_functions: HostFunctions | None = None,
        on_checkpoint_here: Callable[[Job], object] | None = None, before_call: BeforeCall | None = None,
        huge_pages: bool = False, discard_dead_stack: bool = False,
        journal: JournalOptions | Literal["auto"] | None = "auto", journal_maybe: bool = False,
        checked: bool = False, limits: ResourceLimits | None = None, sandbox: Sandbox | None = None,
        end_at: float | None = None,
    ) -> Job:
        """Go on from an image (a file's path, or its bytes); returns when the program runs.

        Args:
            module: the original module; None: the image carries it.
            config: what the guest is granted here. Arguments and environment come from the image.
            accept_changed: go on even if files are not what they were.
            checked: who has signed the image was asked by whoever gives it, as `Store.reading` does.
            host_functions, on_checkpoint_here, before_call, huge_pages, discard_dead_stack, limits, sandbox, end_at:
                as of `start`; an image holds none of that. A call with which the image begins has had its checkpoint.
            journal: what the program did after the image is in there: it does it again, answered from the journal, and
                then goes on from where it was, with the same journal (see `replay`). "auto": the one beside the image's
                file, if there is one and it is the image's. A journal that is not there yet is begun. None: none.
            journal_maybe: use ``journal`` only if it is the image's; then `replay` is not None.

        Raises:
            ImageError: damaged, of another module, without its module, or a difference to an image that is not beside
                it. StorageError: it cannot be read.
            HostStateError: a file or folder is missing or changed; or it cannot be known whether the last call in a
                journal was made (`JournalOptions.in_doubt`). RetryLater: the journal's program still runs.
            Else as `start`.
        """
        if journal == "auto":
            journal, journal_maybe = None, True
            if not isinstance(image, bytes) and os.path.exists((beside := JournalOptions.beside(image)).path):
                journal = beside
        if journal is not None:
            refuse_journal()
        descriptor = _open_image(image)
        try:
            job = cls(
                Assignment(
                    module, config or WasiConfig(), None, (), stack_bytes, freeze_at, accept_changed,
                    host_functions or {}, huge_pages=huge_pages, discard_dead_stack=discard_dead_stack,
                    journal=journal, journal_maybe=journal_maybe, limits=limits, sandbox=sandbox,
                ), runtime, on_checkpoint_here, before_call, end_at,
            )
            with job._or_nothing():
                path = None if isinstance(image, bytes) or sandbox else os.fsencode(os.path.abspath(image))
                job._restore_into(job._worker, descriptor, path=path, hold=False, checked=checked)
        finally:
            os.close(descriptor)
        return job

    def _restore_into(
        self, worker: WorkerProcess, descriptor: int, *, hold: bool, path: bytes | None = None,
        timeout: float | None = None, checked: bool = False,
    ) -> None:
        answer = worker.call(
            "restore", {**self._assignment.to_plain(), "hold": hold, "path": path, "checked": checked},
            descriptors=[descriptor],
            timeout=timeout,
        )
        if self._assignment.module is None:
            self._assignment = replace(self._assignment, module=answer["module"])
        where = answer["continuations"]
        self.continuations = None if where is None else Continuations(*where)
        if not hold:
            if answer["journal"] is None:
                self._assignment = replace(self._assignment, journal=None)
            else:
                self.replay = Replay(*answer["journal"])

    def _seated(self, runtime: str) -> tuple[_Seat, WorkerProcess]:
        """A new worker with a runtime loaded."""
        seat = _Seat()
        with self._starting:
            if self._streams is None:
                raise JobEnded("the program has already ended")
            worker = WorkerProcess(
                self._streams, on_event=lambda event: self._event(seat, event),
                on_death=lambda status: self._death(seat), loader=loader(runtime), runtime=runtime,
            )
        try:
            worker.call("load", {"runtime": runtime, "images": image_settings()})
            if (confinement := self._assignment.confinement()) is not None:
                self.walls = worker.call("confine", confinement)
            if self._until is not None:
                worker.call("deadline", {"until": self._until})
        except BaseException:
            worker.kill()
            raise
        return seat, worker

    @contextlib.contextmanager
    def _or_nothing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    # What the worker tells

    def _event(self, seat: _Seat, event: Mapping[str, Any]) -> None:
        if seat is not self._seat:
            return
        if event["event"] == "frozen":
            self.frozen.set()
            return
        if event["event"] == "call":
            self._callbacks.begin(self._worker, event)
            return
        self._worker.retire()
        if "error" in event:
            error = error_from_plain(event["error"])
            if isinstance(error, HostFunctionError):
                error.__cause__ = self._callbacks.raised
            self._finish(error)
        else:
            results = tuple(Value(type_, int.from_bytes(bits, "little")) for type_, bits in event.get("results", ()))
            self._finish(Ended(event["how"], event.get("exit_code", 0), results))

    def _death(self, seat: _Seat) -> None:
        with self._seating:  # while a move is being decided it is not known whose death counts
            counts = seat is self._seat and not self._safe
        if counts:
            self._finish(Ended("killed") if self._killed else self._worker.gone)

    def _finish(self, end: Ended | BaseException | None) -> None:
        if self._end.done():
            return
        self._callbacks.give_up()
        if isinstance(end, Ended):
            self._end.set_result(end)
        else:
            self._end.set_exception(end or WorkerDied("the worker ended without a result"))
        self.frozen.set()
        self._close_streams()

    def _close_streams(self) -> None:
        with self._starting:
            streams, self._streams = self._streams, None
        for stream in streams or ():
            if stream not in OWN:
                os.close(stream)

    # Using it

    @property
    def pid(self) -> int:
        """Process id of its worker now."""
        return self._worker.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended; then `wait` gives or raises at once."""
        return self._end.done()

    def on_end(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the program has ended, from some thread; at once if it has."""
        self._end.add_done_callback(lambda _: call())

    def wait(self, timeout: float | None = None) -> Ended:
        """Wait for the end.

        Raises:
            GuestTrap: it trapped. WorkerDied: its worker did not live that long.
            RetryLater: it still runs after ``timeout`` seconds.
        """
        try:
            return self._end.result(timeout)
        except NotYet:
            raise RetryLater(f"the program still runs after {timeout:g} s") from None

    def status(self) -> str:
        """"running", "frozen", "resuming", "ended", or "silent": its worker does not answer (was stopped, say)."""
        if self._end.done():
            return "ended"
        try:
            return str(self._worker.call("status", timeout=_SILENCE)["state"])
        except RetryLater:
            return "silent"
        except (JobEnded, WorkerDied):
            return "ended"

    def checkpoint(
        self, path: str | os.PathLike[str] | None = None, *, stop: bool = False, timeout: float = DEFAULT_TIMEOUT,
        patience: float = 0.0, carry_module: bool = False, track: bool = False, parent: ParentRef | None = None,
        since: bytes | None = None, newest: bool = False,
    ) -> Checkpoint:
        """Take an image.

        Args:
            path: the file to write, replaced whole or not at all; None: keep it in memory, as `Checkpoint.data`.
            stop: end the program with it; if the image cannot be written, the program goes on.
            timeout: seconds that the program gets to reach a safepoint.
            patience: seconds to wait for another checkpoint or move to be over.
            newest: while it waits, a newer one may take its place: then this raises `Superseded`. So where images are
                asked for faster than they can be written, one wish waits at most, and no image: the newest is taken
                when the one before has been written, of that moment.
            carry_module: put the module inside, so that the image alone is enough to go on. A difference has none.
            track: find out what is written from now on, so that later images may be differences to this one.
            parent: with ``track``, make this one the difference to that one, which this job made with ``track``, if it
                is known what was written since: of the last two it is, as long as the job has not moved.
            since: SHA-256 of the image as the job made it, where the parent is another one of the same state.

        Raises:
            JobEnded: there is nothing to freeze. RetryLater: another checkpoint is under way, or no safepoint was
                reached. StorageError: the file cannot be written. WorkerDied.
        """
        began = time.monotonic()
        try:
            with self._turn.taken(patience, newest=newest):
                taken = self._checkpoint(
                    path, stop, timeout, carry_module, track, parent, since, queued=time.monotonic() - began
                )
        except BaseException as problem:
            self.statistics.missed(dropped=isinstance(problem, Superseded))
            raise
        self.statistics.got(taken.times)
        return taken

    def _checkpoint(
        self, path: str | os.PathLike[str] | None, stop: bool, timeout: float, carry_module: bool, track: bool,
        parent: ParentRef | None, since: bytes | None, *, queued: float,
    ) -> Checkpoint:
        target = None if path is None else os.fspath(path)
        worker = self._present()
        through_here = target is not None and self._assignment.sandbox is not None
        request = {
            "path": None if target is None or through_here else os.fsencode(os.path.abspath(target)), "stop": stop,
            "timeout": timeout, "carry": carry_module, "track": track, "sealed": through_here,
            "parent": None if parent is None else [parent.sha256, parent.position],
            "since": since or (None if parent is None else parent.sha256),
        }
        if target is not None and through_here:
            answer, descriptor = self._hand_through(worker, request, target), None
        else:
            asked = worker.ask("checkpoint", request)
            # The only image of a program that has ended with it is worth any wait.
            answer, descriptor = asked.result() if stop and target is None else worker.wait(asked)
        journal, where = self._assignment.journal, answer["journal"]
        image = None if journal is None or journal.image is None else os.path.abspath(journal.image)
        if where is not None and target is not None and image == os.path.abspath(target) and not stop:
            worker.call("cut", {"calls": where["calls"], "image": answer["sha256"]})
        data = None
        if descriptor is not None:
            with open(descriptor, "rb") as file:
                file.seek(0)
                data = file.read()
        return Checkpoint(
            target, answer["sha256"], answer["size"], answer["frames"], answer["stopped_ns"] / 1e9,
            answer["way"], data, None if answer["whole"] else parent, Times(
                queued, answer["stopped_ns"] / 1e9, answer.get("copying", 0.0), answer["packing"], answer["writing"],
            ),
            answer.get("slowed_ns", 0) / 1e9, answer.get("work_ns", 0) / 1e9,
            None if where is None else where["calls"],
        )

    def _hand_through(self, worker: WorkerProcess, request: Mapping[str, Any], target: str) -> Mapping[str, Any]:
        """Have a worker that may write no files take an image, and write it: a program that is to end with it is held
        until it is safe. Raises as `checkpoint`."""
        folder = os.path.dirname(os.path.abspath(target))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise StorageError("the image cannot be written: there is no such folder, or it is not writable",
                               path=folder)
        stop = request["stop"]
        answer, descriptor = worker.wait(worker.ask("hold" if stop else "checkpoint", request))
        assert descriptor is not None
        try:
            began = time.monotonic_ns()
            save_copy(descriptor, target)
            answer["writing"] += (time.monotonic_ns() - began) / 1e9
            answer["size"] = os.fstat(descriptor).st_size
        except BaseException:
            if stop:
                worker.call("release")
            raise
        finally:
            os.close(descriptor)
        if stop:
            worker.call("finish")
            answer |= {"stopped_ns": time.monotonic_ns() - answer["since_ns"], "way": "stop"}
        return answer

    def end_at(self, until: float, *, wait: bool = True) -> None:
        """Let the kernel end the program's worker at that time of ``CLOCK_BOOTTIME``, whatever happens to this process,
        unless this is called again before. ``wait``: until it is so. Raises as `Job.checkpoint`, and `NotSupported`."""
        self._until = max(until, 0.0)
        asked = self._present().ask("deadline", {"until": self._until})
        if wait:
            try:
                asked.result(_SILENCE)
            except NotYet:
                raise RetryLater("the worker does not answer", request="deadline") from None

    def cut_journal(self, taken: Checkpoint) -> None:
        """An image that this job took is where it belongs (in a store, say): let the journal begin there. Checkpoints
        into the journal's own ``image`` do that by themselves. Nothing happens without a journal."""
        if taken.calls is not None and not self._end.done():
            with contextlib.suppress(JobEnded, WorkerDied):
                self._worker.call("cut", {"calls": taken.calls, "image": taken.sha256})

    def idle(
        self, unlike: bytes | None = None, *, settle: float = IDLE_AFTER, timeout: float | None = None,
    ) -> bytes:
        """Wait until the program waits itself, in a WASI call, for at least ``settle`` seconds: for input, for room for
        output, or for a time. A checkpoint then costs it nothing.

        Args:
            unlike: a state that this gave before: wait for another one, one in which more has changed than clocks.
            timeout: seconds; None: however long it takes.

        Returns:
            A digest of the state.

        Raises:
            JobEnded: it has ended, or left its worker. RetryLater: it was not seen waiting within ``timeout`` seconds.
        """
        answer = self._present().call("idle", {"settle": settle, "unlike": unlike, "timeout": timeout})
        return bytes(answer["state"])

    def checkpoints(
        self, pace: Pace | float, path: str | os.PathLike[str] | None = None, *,
        on_error: Callable[[CheckpointError], object] | None = None, **options: Any,
    ) -> Iterator[Checkpoint]:
        """Take images again and again, and give each, until the program ends; nothing is taken while nobody asks for
        the next one.

        Args:
            pace: when: `wasmckpt.Pace` keeps what they cost under a bound; a number: so many seconds after each.
            path, options: as of `checkpoint`.
            on_error: called with what an image failed by, and the next one is tried; None: that is raised.

        Raises:
            As `checkpoint`, but not `JobEnded`. How the program ended is for `wait` to say.
        """
        from .schedule import Schedule  # not for programs without it

        schedule = Schedule(pace)
        while not self._ends_within(schedule.wait()):
            schedule.begin()
            try:
                taken = self.checkpoint(path, **{"patience": DEFAULT_TIMEOUT, **options})
            except JobEnded:
                return
            except CheckpointError as problem:
                if on_error is None:
                    raise
                schedule.took(None)
                on_error(problem)
                continue
            schedule.took(taken)
            yield taken

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._end.exception(seconds)
        except NotYet:
            return False
        return True

    def _present(self) -> WorkerProcess:
        if self._end.done():
            raise JobEnded("the program has already ended")
        return self._worker

    def migrate(self, runtime: str, *, timeout: float = DEFAULT_TIMEOUT, patience: float = 0.0) -> Move:
        """Move the running program to another runtime (or to a fresh worker of the same).

        Raises:
            RuntimeMissing, NotSupported, InvalidModule: the target cannot take it; it has not been stopped at all.
            JobEnded: it ended before. RetryLater: no safepoint was reached, or it is being moved already.
            CheckpointError: the target failed while it rebuilt the frames; the program goes on where it was.
            WorkerDied: a worker died.
        """
        with self._turn.taken(patience):
            return self._move(runtime, timeout)

    def _move(self, runtime: str, timeout: float) -> Move:
        source, origin = self._present(), self.runtime
        since = time.monotonic()
        seat, target = self._seated(runtime)
        try:
            target.call("prepare", self._assignment.to_plain())
            self._try_depth(source, target)
            prepared = time.monotonic() - since
            held = source.ask("hold", {"timeout": timeout})
            try:
                answer, descriptor = source.wait(held)
            except RetryLater:
                held.add_done_callback(lambda late: _let_go(source, late))
                raise
            assert descriptor is not None
            self._safe = True
            try:
                self._restore_into(target, descriptor, hold=True, timeout=_REBUILDING)
                committed = self._hand_over(seat, target, runtime)
            except BaseException:
                self._safe = False
                target.kill()  # it may have the journal
                if source.gone is not None:
                    self._finish(Ended("killed") if self._killed else source.gone)
                else:
                    source.call("release")
                raise
            finally:
                self._safe = False
                os.close(descriptor)
        except BaseException:
            target.kill()
            raise
        # The target was told to go on: whatever becomes of it, the source may only end.
        try:
            resumed = target.wait(committed)[0]["resumed_ns"]
        finally:
            self._callbacks.give_up(source)
            source.kill()
        return Move(origin, runtime, (resumed - answer["since_ns"]) / 1e9, answer["size"], answer["frames"], prepared)

    def _try_depth(self, source: WorkerProcess, target: WorkerProcess) -> None:
        """Ask the target whether it can hold frames as deep as they are now, before the source is stopped.

        Where no copy can be made the question is left to the restore: then the target refuses while the source is held,
        and the source goes on.
        """
        if self._assignment.freeze_at:
            return
        try:
            _, descriptor = source.wait(source.ask("trial", {"timeout": _TRIAL}))
        except (NotSupported, RetryLater):
            return
        assert descriptor is not None
        try:
            target.call("fits", self._assignment.to_plain(), descriptors=[descriptor])
        finally:
            os.close(descriptor)

    def _hand_over(
        self, seat: _Seat, target: WorkerProcess, runtime: str
    ) -> Future[Answer]:
        """Tell the target to go on. If this raises, it was not told."""
        with self._seating:
            if self._killed:
                raise JobEnded("the program was ended while it was being moved")
            before = self._seat, self._worker, self.runtime
            self._seat, self._worker, self.runtime = seat, target, runtime  # what it tells from now on counts
            self._safe = False
            try:
                return target.ask("commit")
            except BaseException:
                self._seat, self._worker, self.runtime = before
                self._safe = True
                raise

    def kill(self) -> None:
        """End the program at once; nothing is left of it. Idempotent."""
        with self._seating:
            self._killed = True
            worker = self._worker
        worker.kill()

    def close(self) -> None:
        """`kill`, and wait until nothing of it is left. Idempotent."""
        self.kill()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.close()


def check(
    module: bytes, runtime: str, *, stack_bytes: int = DEFAULT_STACK_BYTES, host_functions: HostFunctions | None = None,
    canonical_nans: bool = False, limits: ResourceLimits | None = None, sandbox: Sandbox | None = None,
) -> None:
    """Whether a runtime can run a module so that it can be frozen: in a worker, since a runtime may crash on it. What
    it was rewritten and compiled to is kept for those that are to run it.

    Raises:
        InvalidModule, NotSupported, RuntimeMissing: why not. WorkerDied: the runtime crashed.
    """
    worker = WorkerProcess(
        (0, 1, 2), on_event=lambda event: None, on_death=lambda status: None, loader=loader(runtime),
        runtime=runtime,
    )
    try:
        worker.call("load", {"runtime": runtime, "images": image_settings()})
        task = Assignment(module, WasiConfig(), stack_bytes=stack_bytes, functions=host_functions or {},
                          canonical_nans=canonical_nans, limits=limits, sandbox=sandbox)
        if (confinement := task.confinement()) is not None:
            worker.call("confine", confinement)
        worker.call("prepare", task.to_plain())
    finally:
        worker.kill()


def _let_go(source: WorkerProcess, held: Future[Answer]) -> None:
    """A source that was held when nobody waited for it any more goes on."""
    with contextlib.suppress(CheckpointError):
        if held.exception() is None:
            source.ask("release")


def _own_streams(config: WasiConfig) -> tuple[int, int, int]:
    """Duplicates of the program's standard streams; our own stay what they are. Raises `UsageError`."""
    streams: list[int] = []
    for stream in (config.stdin, config.stdout, config.stderr):
        try:
            streams.append(stream if stream in OWN else os.dup(stream))
        except OSError as problem:
            for made in streams:
                if made not in OWN:
                    os.close(made)
            raise UsageError(f"a standard stream cannot be given: {problem.strerror}", descriptor=stream) from None
    return streams[0], streams[1], streams[2]


def _open_image(image: str | os.PathLike[str] | bytes) -> int:
    if isinstance(image, bytes):
        descriptor = memory_file("wasmckpt-image")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(image)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor
    try:
        descriptor = os.open(image, os.O_RDONLY | os.O_CLOEXEC)
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return descriptor
        with open(descriptor, "rb") as pipe:  # can be read once, and not from several places
            return _open_image(pipe.read())
    except (OSError, ValueError) as reason:
        what = reason.strerror if isinstance(reason, OSError) else reason
        raise StorageError(f"the image cannot be read: {what}", path=os.fspath(image)) from reason
