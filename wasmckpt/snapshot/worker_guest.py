"""The worker's one program, from its beginning to its end: a state machine around `Program`.

The guest's thread builds the program, runs it, and when it is held stands still until somebody decides: the program
goes on, or it ends here (because its image is safe on a disk, or another worker has taken over). A program is held with
all its frames, while the image is that of a forked copy; where no copy can be made it is frozen, and goes on in place:
what the image is made of is copied while it stands still, and all else is done when it runs again.
All other threads only ask. A freeze that comes after whoever wanted it has lost patience is undone by the guest's
thread itself, so a request that timed out harms nobody.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from ..dirty import Runs
from ..errors import CheckpointError, ImageError, JobEnded, NotSupported, RetryLater
from ..formats import PAGE_SIZE, Image
from ..host import UserCalls
from ..instrument.cache import cached_stack
from ..instrument.options import Options
from ..lazydata import dataclass
from ..runtimes import Engine, GuestThread
from ..wasm.decode import decode
from ..wasm.module import ExternKind
from .arena import Arena
from .assignment import Assignment
from .changes import Changes, Wanted
from .cost import Meter
from .explain import explaining
from .fork import ForkRefused, ForkSnapshotter, Moment
from .fork_memory import Here, copy_state, room_for
from .guest_host import GuestHost
from .patience import patiently
from .program import Increment, Outcome, Program, Status, entry_for
from .stack import guest_stack

if TYPE_CHECKING:
    from ..host.journal.recorder import Journal, Replayed
    from .incoming import Incoming

__all__ = ["End", "Guest", "Taken"]

_SPARE = 1 << 20
"""Bytes that are made ready beyond what is expected, for what the program writes until it stands still."""
_BUILDING = 512 << 20
"""Bytes of address space that must be free before a program is frozen that may need another instance to go on: a
compiler's threads reserve tens of mebibytes each. Found missing only then, the program would be lost."""


class _State(Enum):
    BUILDING = "building"
    HELD = "held"
    """A restored program stands before its next instruction and waits for `Guest.commit`."""
    RUNNING = "running"
    FROZEN = "frozen"
    """Its frames are in RAM, as an image; it waits for a decision."""
    RESUMING = "resuming"
    """Its frames are being rebuilt, in place."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class End:
    """How the program ended: ``how`` is "done", "exited", "stopped" (its image goes on elsewhere) or "failed"."""

    how: str
    outcome: Outcome | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """An image, how long the program stood still for it, in nanoseconds, how it was taken ("in-place" or one of the
    ways of a fork), and how long a forked copy of the program lived beside it."""

    image: Image
    stopped_ns: int
    way: str
    copying_ns: int = 0


class Guest:
    """One program. ``on_frozen``, ``on_end`` and ``on_call`` (a user's function) are called by its thread; ``digest``
    gives the SHA-256 of the image's file."""

    def __init__(
        self, engine: Engine, assignment: Assignment, image: Image | None, *, hold: bool,
        on_frozen: Callable[[], None], on_end: Callable[[End], None],
        on_call: Callable[[Mapping[str, object]], None], digest: Callable[[], bytes] = bytes,
        incoming: Incoming | None = None,
    ) -> None:
        self.engine = engine
        self._incoming = incoming
        """What it is built from, piece by piece, if it comes while it still runs elsewhere."""
        self.assignment = assignment
        self._image = image
        self._digest = digest
        self._journal: Journal | None = None
        self._on_frozen, self._on_end, self._on_call = on_frozen, on_end, on_call
        self._options = Options(count=bool(assignment.freeze_at), canonical_nans=assignment.canonical_nans)
        self._changed = threading.Condition()
        self._state = _State.BUILDING
        self._patience = False
        """Whether somebody waits for the freeze that is under way."""
        self._goes_on = False
        self._decided = False
        self._frozen_since = 0
        """When the program was asked to freeze, or had frozen by itself, in ns of the monotonic clock."""
        self._committed = threading.Event()
        if not hold:
            self._committed.set()
        self._hold: threading.Event | None = None
        self._wanted_hold = hold
        self._failure: BaseException | None = None
        End("failed")  # now it can be made without memory that there may not be at the end
        self._end: End | None = None
        self._host: GuestHost | None = None
        self._program: Program | None = None
        self._copying = threading.Lock()
        """Held while a forked copy of the program is made and read: its memory must stay."""
        self._forks: ForkSnapshotter | None = None
        self._changes: Changes | None = None
        """What was written since the last images, from the first one that is to be followed by differences on."""
        self._held_since = 0
        """Nanoseconds of the monotonic clock at which a program that keeps its frames was held; 0: it is not."""
        self.wasm = self._module()
        self.stack_bytes = guest_stack(engine, self.wasm, image, assignment.stack_bytes)
        self.result_types: tuple[int, ...] = ()
        self.continuations: tuple[str, str] | None = None
        """Where those of an image's frames are, and why (see `job.Continuations`)."""
        self.thread: GuestThread[None] = GuestThread(
            self._live, stack_bytes=engine.thread_stack_bytes(self.stack_bytes)
        )
        self.meter = Meter(self.thread.native_id)
        """What checkpoints cost the program."""

    # Asked by other threads

    def wait_until_ready(self) -> None:
        """Until the program runs or is held with all its frames rebuilt. Raises what building it raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not _State.BUILDING)
            if self._failure is not None:
                raise self._failure
        if self._hold is not None:
            self._wait_for_frames()

    def _wait_for_frames(self) -> None:
        while True:
            with self._changed:
                if self._state is _State.ENDED:
                    raise (self._end and self._end.error) or CheckpointError("the restored program did not stand still")
                assert self._program is not None
                if self._program.view.word("state") == 1:
                    return
            time.sleep(0.0002)

    def commit(self) -> int:
        """Let a held program go; gives the moment, in nanoseconds of the monotonic clock."""
        with self._changed:
            if self._state is not _State.HELD:
                raise JobEnded("the program is not held", state=self._state.value)
            self._state = _State.RUNNING
        now = time.monotonic_ns()
        if self._hold is not None:
            self._hold.set()
        self._committed.set()
        return now

    def track(self) -> Changes:
        """Find out from now on what is written, so that images may be differences to earlier ones."""
        if self._changes is None:
            self._changes = Changes(os.environ.get("WASMCKPT_DIRTY", "auto"))
        return self._changes

    def written_since(self, sha256: bytes) -> list[Runs]:
        """Pages written since an image that was tracked, by memory, as far as is known; the program runs on."""
        with self._copying:
            return [] if self._changes is None else self._changes.so_far(sha256)

    def written(self, sha256: bytes, image: Image) -> None:
        """The image that was taken last, and tracked, has been written."""
        assert self._host is not None
        if self._changes is not None:
            self._changes.written(sha256, [(a, b - a) for a, b in self._host.left_out(image).ranges])

    def hold(
        self, timeout: float, way: str = "auto", *, changes: Changes | None = None, wanted: Wanted | None = None,
    ) -> Taken:
        """Stop the program; it then waits for `resume` or `end`. ``way`` as in `snapshot`; raises as that does.

        Where the image was taken "in-place", ``stopped_ns`` counts from the request. Call `keep` when the image is
        safe: before, a program that keeps its frames is not held for more than a minute.
        """
        self._await_live(timeout)
        if way != "in-place" and not self.assignment.freeze_at:
            since = time.monotonic_ns()
            try:
                with self._copying:
                    taken = self._forked(timeout, changes).hold(timeout, changes=changes, wanted=wanted)
                stopped = int((taken.image_ms - taken.child_ms + taken.stop_ms) * 1e6)
                self._held_since = max(since, time.monotonic_ns() - stopped)
                return Taken(taken.image, stopped, taken.way)
            except ForkRefused:
                if way == "fork":
                    raise
        self._freeze(timeout)
        try:
            program = self._standing()
            image = program.capture(increment=self._look(program, changes, wanted))
        except BaseException:
            self.resume()
            raise
        return Taken(image, time.monotonic_ns() - self._frozen_since, "in-place")

    def keep(self) -> None:
        """The image of a program that is held is safe: hold it until it is told to go on or to end.

        Raises `RetryLater`: it has gone on.
        """
        if self._held_since and not (self._forks is not None and self._forks.keep()):
            self._held_since = 0
            raise RetryLater("the program could not be held long enough", hint="it goes on; try again")
        if self._journal is not None:
            self._journal.release()

    def _freeze(self, timeout: float) -> None:
        """Stop the program at its next safepoint, by unwinding its frames.

        Raises:
            JobEnded: it has ended, perhaps only now. RetryLater: it is not running yet, or reached no safepoint in
                ``timeout`` seconds; it goes on unharmed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._state is not _State.RESUMING, timeout)
            if self._state is _State.RUNNING:
                if self.assignment.freeze_at:
                    raise NotSupported("a program that counts its safepoints freezes only at the one that was named")
                assert self._program is not None
                self._patience = True
                self._frozen_since = time.monotonic_ns()
                self._program.request_freeze()
                self._changed.wait_for(lambda: self._state not in (_State.RUNNING, _State.RESUMING), timeout)
            if self._state is _State.FROZEN:
                self._patience = True
                return
            if self._state is _State.ENDED:
                raise JobEnded("the program has already ended")
            if self._state in (_State.RUNNING, _State.RESUMING):
                self._patience = False
                raise RetryLater(f"the program reached no safepoint within {timeout:g} s", hint="it goes on; try again")
            raise RetryLater("the program is still being started", hint="try again")

    def _standing(self) -> Program:
        """The program, which is frozen."""
        assert self._program is not None
        return self._program

    def _look(self, program: Program, changes: Changes | None, wanted: Wanted | None) -> Increment | None:
        """What an image of the program, frozen now, has to hold of its memories; None: everything."""
        if changes is None:
            return None
        changes.follow(program)
        changes.look()
        changes.begin()
        return changes.increment(wanted, [program.view.memory_pages(i)[1] for i in range(len(program.module.memories))])

    def _snapshot_in_place(self, timeout: float, changes: Changes | None, wanted: Wanted | None) -> Taken:
        self.engine.require_means()
        room = self._room(changes, wanted)
        try:
            spare = mmap.mmap(-1, _BUILDING, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
        except OSError as problem:
            raise _no_memory(problem) from problem
        try:
            self._freeze(timeout)
            try:
                program = self._standing()
                increment = self._look(program, changes, wanted)
                copied = copy_state(program.view, Here(), increment=increment, prepared=room)
                moment, repeat = Moment.now(program), program.repeat
            except BaseException as problem:
                spare.close()
                self.resume()
                if isinstance(problem, (MemoryError, OSError)):
                    raise _no_memory(problem) from problem
                raise
        finally:
            spare.close()
        try:
            stopped = self.resume()
            image = program.capture(
                copied.read, host_state=moment.complete(program), repeat=repeat, current=moment.current,
                increment=increment,
            )
        finally:
            moment.release()
        return Taken(image, stopped, "in-place")

    def _room(self, changes: Changes | None, wanted: Wanted | None) -> Arena | None:
        """Memory for about what will be copied while the program stands still, made ready before that."""
        program = self._program
        if program is None:
            return None
        try:
            if changes is not None and changes.followed is program and not changes.needs_stop:
                changes.look()  # it may be told again; the more, the less there is to be done later
            pages = None if changes is None else changes.due(wanted)
            size = room_for(program.view) if pages is None else pages * PAGE_SIZE
            room = Arena(size + size // 8 + _SPARE)
            room.prepare()
            return room
        except (CheckpointError, MemoryError, OSError):
            return None  # it ended meanwhile, or has too little: then that is found out later

    def resume(self) -> int:
        """Let a held program go on; gives how long it stood still, in ns. Raises what rebuilding its frames raised."""
        if self._journal is not None:
            self._journal.take_back()
        if self._held_since:
            assert self._forks is not None
            self._forks.let_go()
            stopped, self._held_since = time.monotonic_ns() - self._held_since, 0
            return stopped
        with self._changed:
            self._decide(goes_on=True)
            self._changed.wait_for(lambda: self._state not in (_State.FROZEN, _State.RESUMING))
            if self._state is _State.ENDED and self._end is not None and self._end.how == "failed" and self._failure:
                raise self._failure
            program = self._program
        while program is not None and not program.went_on_ns and program is self._program:
            time.sleep(0.0001)
        now = time.monotonic_ns() if program is None else program.went_on_ns or time.monotonic_ns()
        return now - self._frozen_since

    def end(self) -> None:
        """A held program ends here; so does this process, soon: a thread may stand where it cannot be called back."""
        if self._held_since:
            with self._changed:
                self._state = _State.ENDED
                self._end = End("stopped")
            self._on_end(self._end)
            return
        with self._changed:
            self._decide(goes_on=False)

    def _decide(self, *, goes_on: bool) -> None:
        if self._state is not _State.FROZEN:
            raise JobEnded("the program is not frozen", state=self._state.value)
        self._decided, self._goes_on = True, goes_on
        self._changed.notify_all()

    def snapshot(
        self, timeout: float, way: str = "auto", *, changes: Changes | None = None, wanted: Wanted | None = None,
    ) -> Taken:
        """An image of a program that goes on: of a forked copy, or where that is not possible of the program itself,
        which then goes on in place.

        Args:
            way: "fork" or "in-place" forces one. changes: what `track` gave, if later images are to be differences to
                this one; then call `written`. wanted: what this one is to be a difference to, if enough is known.

        Raises:
            JobEnded, RetryLater: it cannot be stopped (now). ForkRefused: ``way`` is "fork", and that is not possible.
        """
        if self.at_its_beginning:
            assert self._program is not None
            return Taken(self._program.capture_idle(), 0, "start")
        self._await_live(timeout)
        if way != "in-place":
            try:
                with self._copying:
                    return self._snapshot_by_fork(timeout, changes=changes, wanted=wanted)
            except ForkRefused:
                if way == "fork":
                    raise
        return self._snapshot_in_place(timeout, changes, wanted)

    @property
    def at_its_beginning(self) -> bool:
        """Whether the program is held before its first call."""
        return self._state is _State.HELD and self._hold is None

    def _await_live(self, timeout: float) -> None:
        """While a journal is replayed the host's state is already that behind it. Raises `RetryLater`."""
        if self._journal is not None and not self._journal.live.wait(timeout):
            raise RetryLater("the journal is still being replayed", hint="try again when the program is where it was")

    @property
    def replayed(self) -> Replayed | None:
        """What is answered from a journal; None: there is none, or it was not this image's."""
        return None if self._journal is None else self._journal.replayed

    def cut_journal(self, calls: int, image: bytes | None) -> None:
        """An image was written, so many calls into the program: the journal need not go back further."""
        if self._journal is not None:
            self._journal.cut_at(calls, image)

    def trial(self, timeout: float) -> Image:
        """The frames of a program that goes on, without its memories: how deep it is. Raises as `snapshot` by fork."""
        self._await_live(timeout)
        with self._copying:
            return self._snapshot_by_fork(timeout, frames_only=True).image

    def _snapshot_by_fork(
        self, timeout: float, *, frames_only: bool = False, changes: Changes | None = None,
        wanted: Wanted | None = None,
    ) -> Taken:
        taken = self._forked(timeout, changes).snapshot(
            timeout, frames_only=frames_only, changes=changes, wanted=wanted
        )
        return Taken(
            taken.image, int(taken.stop_ms * 1e6), taken.way, int((taken.copy_ms - taken.child_ms) * 1e6)
        )

    def _forked(self, timeout: float, changes: Changes | None) -> ForkSnapshotter:
        """What makes copies of the running program, which ``changes`` watches. Raises `JobEnded`, `ForkRefused`."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not _State.RESUMING, timeout)
            program, state = self._program, self._state
        if state is _State.ENDED or program is None:
            raise JobEnded("the program has already ended")
        if state is _State.FROZEN:
            raise ForkRefused("the program is frozen already")
        program.ask_for_huge_pages()
        if self._forks is None:
            self._forks = ForkSnapshotter(program, self.thread.native_id)
        if changes is not None:
            changes.follow(program)
        return self._forks

    @property
    def calls(self) -> UserCalls:
        """Calls of users' functions that are under way."""
        assert self._host is not None
        return self._host.calls

    def portable(self, image: Image) -> Image:
        """An image of this program as it may leave the process; in place all of it is needed."""
        assert self._host is not None
        return self._host.portable(image)

    @property
    def state(self) -> str:
        """Its state, one word."""
        return _State.FROZEN.value if self._held_since else self._state.value

    @property
    def waits(self) -> int:
        """Waits of the program begun and ended so far; odd while it waits in a WASI call."""
        return 0 if self._host is None else self._host.waits

    @property
    def place(self) -> tuple[int, int]:
        """As long as it is the same, a program that waits has done nothing since."""
        program = self._program
        return (0, 0) if program is None else (id(program), program.host_calls)

    def sleep_until_end(self, seconds: float) -> None:
        """Raises `JobEnded` if the program ends before that, or has ended."""
        with self._changed:
            if self._changed.wait_for(lambda: self._state is _State.ENDED, seconds):
                raise JobEnded("the program has already ended")

    # In the guest's thread

    def _live(self) -> None:
        try:
            self._build()
        except BaseException as problem:
            self._failure = problem
            self._finish(End("failed", error=problem))
            return
        try:
            try:
                self._finish(self._run())
            except BaseException as problem:
                self._finish(End("failed", error=problem))
        except BaseException:  # there may not even be memory to tell it: the parent will see that the worker is gone
            os._exit(70)

    def _module(self) -> bytes:
        given = self.assignment.module
        if given is None and self._image is not None:
            given = self._image.module.content
        if given is None:
            raise ImageError("the image does not carry its module", hint="give it with --module")
        return given

    def _build(self) -> None:
        task, image = self.assignment, self._image
        wasm = self.wasm
        imports = tuple(decode(wasm).imported(ExternKind.FUNC)) if task.before_calls else ()
        if self._incoming is not None:
            with explaining(self.engine):
                self._host, program, image = self._incoming.build(
                    self.engine, wasm, task, self._options, self.stack_bytes, self._on_call, imports)
            self._built(program, image)
            return
        self._journal = self._open_journal(image)
        try:
            self._host = GuestHost(
                task, image, self._on_call, imports=imports, moves=self._wanted_hold, journal=self._journal
            )
        except BaseException:
            if self._journal is not None:
                self._journal.close()
            raise
        if task.discard_dead_stack:
            self._host.stack = cached_stack(decode(wasm))
        if image is None:
            entry = entry_for(decode(wasm), task.invoke, task.arguments)
            with explaining(self.engine):
                program = Program.fresh(
                    self.engine, wasm, self._host.host(), entry, options=self._options, stack_bytes=self.stack_bytes,
                    huge_pages=task.huge_pages,
                )
        else:
            with explaining(self.engine):
                program = self._restored(image)
        if task.freeze_at:
            program.freeze_at(task.freeze_at)
        self._built(program, image)

    def _built(self, program: Program, image: Image | None) -> None:
        assert self._host is not None
        self._host.program = program
        if self._wanted_hold and image is not None and image.frames:
            self._hold = program.hold_after_resume()
        self._image = None
        self.continuations = program.continuations
        last = program.module.export(program.entry.steps[-1])
        if last is not None:
            self.result_types = program.module.signature(last).results
        with self._changed:
            self._program = program
            self._state = _State.HELD if self._wanted_hold else _State.RUNNING
            self._changed.notify_all()

    def _open_journal(self, image: Image | None) -> Journal | None:
        options = self.assignment.journal
        if options is None:
            return None
        from ..host.journal.recorder import Journal  # most programs keep none

        module = decode(self.wasm)
        names = [(item.module, item.name) for item in module.imported(ExternKind.FUNC)]
        if image is None:
            return Journal.begin(options, module.sha256(), names)
        if not os.path.exists(options.path):
            return Journal.begin(options, module.sha256(), names, self._digest())
        journal = Journal.resume(options, module.sha256(), names, image.host, self._digest)
        if journal is None and not self.assignment.journal_maybe:
            raise ImageError("the journal is not this image's, which was taken without one", path=options.path,
                             hint="move it away to begin another")
        return journal

    def _restored(self, image: Image, before: Program | None = None) -> Program:
        assert self._host is not None
        return Program.restored(
            self.engine, self.wasm, self._host.host(), image, options=self._options, stack_bytes=self.stack_bytes,
            huge_pages=self.assignment.huge_pages, before=before,
        )

    def _run(self) -> End:
        if self.assignment.limits is not None:
            self.assignment.limits.step_back()
        if self._hold is None:
            self._committed.wait()  # without frames there is nothing to rebuild: stand before the first call
        while True:
            program = self._program
            assert program is not None
            outcome = program.run()
            if outcome.status is not Status.FROZEN:
                return End("exited" if outcome.status is Status.EXITED else "done", outcome)
            if not self._stand_still():
                return End("stopped")
            self._go_on_in_place(program)

    def _stand_still(self) -> bool:
        """Wait for a decision; True: go on."""
        unasked = False
        with self._changed:
            self._decided = False
            if not self._patience and not self.assignment.freeze_at:
                self._state = _State.RESUMING
                return True
            if not self._patience:
                unasked = True
                self._frozen_since = time.monotonic_ns()
            self._state = _State.FROZEN
            self._changed.notify_all()
        if unasked:
            self._on_frozen()
        with self._changed:
            self._changed.wait_for(lambda: self._decided)
            self._patience = False
            if self._goes_on:
                self._state = _State.RESUMING
            return self._goes_on

    def _go_on_in_place(self, program: Program) -> None:
        """Nothing outside has changed meanwhile, so the host goes on as it is. So does the instance, if it can."""
        program.host.resume_calls()
        if not program.go_on_here():
            program = self._again(program)
        with self._changed:
            self._program = program
            self._state = _State.RUNNING
            self._changed.notify_all()

    def _again(self, program: Program) -> Program:
        """Another instance, in the place of this one."""
        with self._copying:
            self._forget_forks()
            if self._changes is not None:
                if self._changes.followed is program:
                    self._changes.look()  # nobody may have done so since it was frozen
                self._changes.leave()
            try:
                image = program.capture()
                self._program = None
                program.close()  # first: there may not be memory for two
                again = patiently(lambda: self._restored(image, program))
            except BaseException as problem:
                self._failure = problem
                raise
        assert self._host is not None
        self._host.program = again
        if self._changes is not None:
            self._changes.follow(again)
        return again

    def _forget_forks(self) -> None:
        if self._forks is not None:
            self._forks.close()
            self._forks = None

    def _finish(self, end: End) -> None:
        with self._changed:
            self._state = _State.ENDED
            self._end = end
            program, self._program = self._program, None
            self._changed.notify_all()
        with self._copying:
            self._forget_forks()
            if self._changes is not None:
                self._changes.lost()
            if program is not None:
                program.close()
        if self._host is not None:
            self._host.close()
        self._on_end(end)


def _no_memory(reason: BaseException) -> RetryLater:
    return RetryLater("there is no memory for an image", reason=str(reason), hint="it goes on; try again")
