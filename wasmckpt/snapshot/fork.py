"""Snapshots whose source goes on: a forked copy of the worker unwinds, the worker itself never does.

Unwinding destroys frames. So the guest's thread is forked; the copy, which has no other thread, is told to freeze,
spills its frames into memory of its own and can do nothing more; this process reads its memory and kills it. Memory is
shared copy-on-write, so the source stands still for the fork alone (a millisecond with 64 MiB, ten with a gigabyte).

No host function may ever run in a copy: its effects would happen twice. Two ways of forking see to that::

    controller                                       guest's thread
    want := true; let go of the GIL for 0.2 ms  -->  entry of a host function: want? then mark the host's state, fork;
                                                     the COPY raises its flag and returns zeros, the source goes on
    nobody forked: want := false
    in a host function? then wait, or interrupt -->  a waiting call has done nothing yet: as at the entry, then wait on
    else mark the host's state and, with no gap, -->  handler of the signal is ``_Fork``
    signal; GIL held until the copy is seen
    raise the flag in the COPY's memory

After a call the module tests the flag, so a copy that forked itself in a host function unwinds from there and the image
says that the call is to be repeated. A copy that was forked by the signal can be in guest code only, or waiting for the
GIL, which a thread holds that the copy does not have: it can run no Python. One that owns the GIL stops at the first
statement after the guest's call (`Program._enter`) or at the entry of a host function (here), by comparing process ids.

The signal alone starves with a guest that calls out every few microseconds (0 of 982 tries came out), the entry alone
with one that never does. A copy that will never spill (it waits for the GIL or for a lock of a thread it does not have,
or a trap stopped it) is found within a millisecond, killed, and another is made; between two tries the guest runs on
for longer each time, or the next one would find it at the same place.

The marker is the module's last store: the call's return in the copy is not waited for. The copy also holds pipes,
sockets and locks of the worker, and each page that the source writes while it lives is copied: so it is killed before
anything is compared or decoded. If this process dies, the kernel kills the copy: it asks for the signal of its parent's
death as the first thing it does, and it is traced with EXITKILL as soon as it is seen.

A program that is to move is *held*: the same, but the source stands still from the fork on, with all its frames, until
it is let go or its process ends. In a host function it waits there; in guest code it waits in the signal's handler, on
a lease (see `fork_stub`), since what it was doing there is not known.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal

from ..errors import CheckpointError, JobEnded, RetryLater
from ..lazydata import dataclass
from . import proc
from .changes import Changes, Wanted, own_pages
from .fork_copy import Copy, Fate
from .fork_gate import Gate
from .fork_memory import Copied, copy_state
from .fork_result import ForkRefused, Snapshot
from .program import Increment, Phase, Program

__all__ = ["ForkRefused", "ForkSnapshotter", "Moment", "Snapshot"]

_TRIES = 8
"""Copies that are made for one snapshot before it is given up."""
_FIRST_PATIENCE = 0.0002
"""Seconds that the guest gets at first to come to a host function's entry by itself."""
_LONGEST_PATIENCE = 0.025
_SPIN = 0.0001
_KEEP_GIL = 0.002
"""Seconds after the signal in which the GIL is kept. The guest's thread handles it before any other instruction, so
that keeping the GIL longer would only make others wait."""
_NO_COPY = 5.0
"""Seconds after which a signal that was not handled is taken back."""
_LONGEST_SPILL = 10.0
_SWITCH_WHILE_FORKING = 0.05
"""Seconds after which a thread that waits for the GIL asks its holder to give it up, while a copy is being made. A copy
that is born with that request open hands the GIL to nobody and waits for ever: 5 ms, Python's own choice, are less than
the fork of 64 MiB takes."""
_LEASE = 2.0
"""Seconds that a program is held at most until its copy has spilled."""
_LEASE_FOR_IMAGE = 60.0
"""The same until its image is safe, which is when `ForkSnapshotter.keep` is called."""
_SWITCH_WHILE_READING = 0.0005
"""The same while an image is made: the guest's thread waits no longer than this for the GIL."""

_one_at_a_time = threading.Lock()
"""One copy of this process at a time, whatever asks for it."""


@dataclass(slots=True)
class Moment:
    """The host's state and the entry's step at the moment of an image; what takes longer is done by `complete`."""

    mark: Any
    state: Mapping[str, object] | None
    current: int

    @classmethod
    def now(cls, program: Program) -> Moment:
        host = program.host
        if host.mark is None:
            return cls(None, dict(host.state()), program.current)
        return cls(host.mark(), None, program.current)

    def complete(self, program: Program) -> Mapping[str, object]:
        return program.host.state(self.mark) if self.state is None else self.state

    def release(self) -> None:
        release = getattr(self.mark, "release", None)
        if release is not None:
            release()


@dataclass(slots=True)
class _Made:
    """A copy that was made, or ``pid`` -1 and the reason."""

    pid: int
    reason: int
    way: Literal["signal", "entry", "wait"]
    moment: Moment
    stop_ms: float
    """How long the source stood still, unless it does so until it is let go."""
    seized: int | None = None
    gate: Gate | None = None
    """What the guest's thread waits for in a host function, if it is held there."""


class ForkSnapshotter:
    """Takes images of a program whose guest thread goes on.

    Args:
        program: prepared without counting of safepoints.
        guest_thread_id: native id of the thread that runs it, which must have the stack it needs.

    Raises:
        ForkRefused: this system cannot, or the program counts safepoints. JobEnded: there is no such thread.
    """

    def __init__(self, program: Program, guest_thread_id: int) -> None:
        if not proc.can_fork():
            raise ForkRefused("this system has no way to fork one thread", need="Linux and a libc with _Fork")
        if program.out.options.count:
            raise ForkRefused("a program that counts its safepoints does not look at the flag")
        self._program = program
        self._thread = guest_thread_id
        self._process = os.getpid()
        try:
            self._files = proc.ThreadFiles(guest_thread_id)
        except OSError as problem:
            if not os.path.exists(f"/proc/self/task/{guest_thread_id}"):
                raise JobEnded("the program's thread has ended") from None
            raise ForkRefused("the kernel does not tell a thread's children", reason=str(problem)) from problem
        self._handler = proc.ForkHandler()
        if not self._files.handler_over(self._handler.number):
            if program.phase is Phase.ENDED:  # a thread that ends blocks all signals
                raise JobEnded("the program's thread has ended")
            raise ForkRefused("the guest's thread blocks the signal that forks it", signal=self._handler.number)
        self._want = False
        self._claimed = False
        self._made: _Made | None = None
        self._holding = False
        """Whether the source is to stand still from the next fork on, until `let_go`."""
        self._standing = False
        """The same, perhaps only until it has been looked at."""
        self._changes: Changes | None = None
        self._wanted: Wanted | None = None
        self._held: _Made | None = None
        self._dying: Copy | None = None
        """The copy of the program that is held, which was killed; waited for when that is over."""
        self._woken = threading.Lock()  # released by the guest's thread when it has forked
        self._woken.acquire()
        program.on_repeat = self._at_repeat

    def close(self) -> None:
        """Take the hooks out of the program. Not while a snapshot is being taken or the program is held."""
        self._program.before_host = self._program.on_repeat = None
        self._bury_dying()
        self._files.close()

    def hold(
        self, timeout: float = 10.0, *, changes: Changes | None = None, wanted: Wanted | None = None,
    ) -> Snapshot:
        """An image of the program, which stands still from that very moment on, until `let_go`. It goes on by itself
        after a minute, unless `keep` was called before. As `snapshot` else."""
        if not self._handler.stub.can_hold:
            raise ForkRefused("there is no handler that stands still", machine=os.uname().machine)
        self._holding = True
        try:
            return self.snapshot(timeout, changes=changes, wanted=wanted)
        finally:
            self._holding = False

    def keep(self) -> bool:
        """Hold the program for as long as it takes; False: it has gone on already."""
        held = self._held
        return held is not None and (held.gate.keep() if held.gate is not None else self._handler.stub.prolong())

    def let_go(self) -> None:
        """A program that is held goes on. Idempotent."""
        held, self._held = self._held, None
        if held is not None:
            self._open(held)
        self._bury_dying()

    def _bury_dying(self) -> None:
        dying, self._dying = self._dying, None
        if dying is not None:
            dying.close()

    def _open(self, made: _Made) -> None:
        """Let the program go on after a fork after which it was to stand still."""
        if made.gate is not None:
            made.gate.open()
        elif made.way == "signal":
            self._handler.stub.let_go()

    def snapshot(
        self, timeout: float = 10.0, *, frames_only: bool = False, changes: Changes | None = None,
        wanted: Wanted | None = None,
    ) -> Snapshot:
        """An image of the program as it is now; the program goes on.

        From any thread but the guest's; requests at the same time are served one after the other.

        Args:
            timeout: seconds.
            frames_only: leave the memories out: to see how deep the program is, not to resume it.
            changes: what was written to this program's memories; told of the image that is being made.
            wanted: the image is to be the difference to this one, if enough is known.

        Raises:
            JobEnded: the program ended meanwhile.
            RetryLater: it reached no place in time where it can be copied, is not running yet, or is being frozen.
            ForkRefused: it cannot be forked; take a snapshot in place.
        """
        began = time.perf_counter()
        if not _one_at_a_time.acquire(timeout=timeout):
            raise RetryLater("another snapshot is being taken", hint="try again")
        interval = sys.getswitchinterval()
        self._changes, self._wanted = changes, wanted
        self._standing = self._holding
        if changes is not None and changes.needs_stop:
            if not self._handler.stub.can_hold:
                _one_at_a_time.release()
                raise ForkRefused("there is no handler that stands still", machine=os.uname().machine)
            self._standing = True
        try:
            return self._snapshot(began, began + timeout, frames_only)
        finally:
            sys.setswitchinterval(interval)
            _one_at_a_time.release()

    def _snapshot(self, began: float, deadline: float, frames_only: bool) -> Snapshot:
        tries = busy = 0
        by_entry = True
        fate = ""
        while True:
            self._wait_running(deadline)
            left = max(0.0, deadline - time.perf_counter())
            pause = min(_FIRST_PATIENCE * 4 ** min(tries + busy, 8), _LONGEST_PATIENCE, left)
            sys.setswitchinterval(_SWITCH_WHILE_FORKING)
            if self._changes is not None and not self._changes.needs_stop:
                self._changes.look()
            made = self._make_copy(pause if by_entry else 0.0, interrupt=busy > 1)
            if made is None:
                busy += 1
            else:
                tries += 1
                try:
                    if made.pid < 0:
                        # 0: the program, which goes on, has made a call since that has set it.
                        reason = errno.errorcode.get(made.reason, str(made.reason) if made.reason else "unknown")
                        raise ForkRefused("the system refuses to fork", reason=reason)
                    try:
                        got = self._use(made, began, deadline, tries, frames_only)
                    except ForkRefused:
                        self._wait_running(deadline)  # with the guest's thread its copy dies
                        raise
                    if isinstance(got, Snapshot):
                        if self._holding:
                            self._held = made
                        return got
                finally:
                    made.moment.release()
                    if self._held is not made:
                        self._open(made)
                fate = got
                if made.way != "signal" and got == _NOT_REPEATABLE:
                    by_entry = False
                    time.sleep(pause)
            if time.perf_counter() > deadline:
                raise RetryLater("the program reached no place where it can be copied", hint="it goes on; try again")
            if tries >= _TRIES:
                raise ForkRefused(f"none of {tries} copies spilled its frames", reason=fate)

    def _wait_running(self, deadline: float) -> None:
        """Raises `JobEnded`, `RetryLater`."""
        program = self._program
        while True:
            phase = program.phase
            if phase is Phase.ENDED:
                raise JobEnded("the program has already ended")
            if phase is Phase.FROZEN or program.view.word("flag"):
                raise RetryLater("the program is being frozen", hint="try again when it goes on")
            if phase is Phase.RUNNING:
                return
            if time.perf_counter() > deadline:
                raise RetryLater(f"the program is {phase.value}", hint="try again")
            time.sleep(0.0002)

    # Making a copy

    def _make_copy(self, patience: float, *, interrupt: bool) -> _Made | None:
        """None: the guest is in a host function, or somewhere between."""
        program = self._program
        self._claimed = False
        self._made = None
        program.before_host = self._at_entry
        woken = False
        try:
            if patience > 0:
                self._want = True
                if interrupt:
                    program.host.interrupt()
                woken = self._woken.acquire(timeout=patience)
                self._want = False
                if self._claimed:  # it has forked, or is about to
                    woken = woken or self._woken.acquire()
                    return self._made
            return self._by_signal()
        except BaseException:
            self._want = False
            if self._claimed:
                woken = woken or self._woken.acquire()
                self._discard()
            raise
        finally:
            program.before_host = None
            if interrupt:
                program.host.resume_calls()

    def _discard(self) -> None:
        made = self._made
        if made is not None:
            self._open(made)
            made.moment.release()
            if made.pid > 0:
                Copy(made.pid).close()

    def _by_signal(self) -> _Made | None:
        program, files, handler = self._program, self._files, self._handler
        calls = program.host_calls  # before the mark is looked at: a call that begins later is noticed
        if program.in_host:
            return None
        before = files.children()
        process, thread, number, tgkill = self._process, self._thread, handler.number, proc.tgkill
        running = Phase.RUNNING
        reason = ctypes.c_int.from_address(program.errno_address) if program.errno_address else ctypes.c_int(0)
        if program.phase is running and reason.value in (errno.EAGAIN, errno.ENOMEM):  # else it may be unmapped
            reason.value = 0
        moment = Moment.now(program)
        pid = seized = 0
        failed = -1
        if self._standing:
            handler.stub.hold(_LEASE)
        handler.stub.begin()
        handler.arm()
        sent = time.perf_counter()
        try:
            # Python gives the GIL away at calls and backward jumps only: between this look and the signal it does not.
            calm = program.host_calls == calls and program.phase is running
            if not program.in_host and calm:  # type: ignore[redundant-expr]  # other threads change it
                failed = tgkill(process, thread, number)
            if failed:
                handler.stub.let_go()
                moment.release()
                return None
            pid = self._await_child(before, sent)
            if pid:
                seized = proc.seize(pid)
            stop_ms = (time.perf_counter() - sent) * 1e3
        except BaseException:
            handler.disarm()
            handler.stub.let_go()
            moment.release()
            for child in files.children() - before:
                Copy(child).close()
            self._bury(sent)
            raise
        finally:
            handler.disarm()
        if not pid:
            late = files.children() - before
            if not late:
                self._bury(sent)
                handler.stub.let_go()
                if program.phase is running:
                    return _Made(-1, reason.value, "signal", moment, stop_ms)
                moment.release()
                return None
            pid, seized = min(late), proc.seize(min(late))
        return _Made(pid, 0, "signal", moment, stop_ms, seized)

    def _bury(self, sent: float) -> None:
        """Copies that nobody saw, since the guest's thread ended right after the fork: then the kernel kills them (it
        is their parent's death) and gives them to another thread. No other children of this process are so young."""
        if self._program.phase is not Phase.RUNNING:
            for child in proc.children_since(sent):
                with contextlib.suppress(ForkRefused):
                    Copy(child, seized=0).close()

    def _await_child(self, before: frozenset[int], sent: float) -> int:
        """The copy's pid, or 0: the handler has run, or cannot, and there is none. Keeps the GIL for the first 2 ms."""
        files, number = self._files, self._handler.number
        over = 0
        looked = 0.001
        while True:
            new = files.children() - before
            if new:
                return min(new)
            waited = time.perf_counter() - sent
            if waited > looked:
                # Between the delivery and the handler both look as if it were over, for as long as the thread gets no
                # processor. Where the handler does not tell: two looks, a millisecond apart.
                begun = self._handler.stub.has_begun or waited > _NO_COPY
                over = over + 1 if begun and files.handler_over(number) else 0
                looked = waited + 0.001
                if over > 1:
                    return min(files.children() - before, default=0)
            if waited > _NO_COPY:
                self._handler.disarm()
                if waited > 2 * _NO_COPY:
                    raise CheckpointError("the guest's thread does not come out of the signal's handler")
            if waited > _KEEP_GIL:
                time.sleep(0.0002)
            elif waited > _SPIN:
                proc.nap(50)

    # In the guest's thread

    def _at_entry(self) -> bool:
        """Hook of a host function's entry."""
        if os.getpid() != self._process:
            proc.stand_still()
        if self._want and self._program.in_host == 1:
            self._want = False
            self._claimed = True
            return self._fork_here("entry")
        return False

    def _at_repeat(self) -> bool:
        """Hook of a waiting call that was interrupted before it did anything."""
        if os.getpid() != self._process:
            proc.stand_still()
        if self._program.view.word("flag"):
            return True  # it is being frozen in place
        if self._want and self._program.in_host == 1:
            self._want = False
            self._claimed = True
            if self._fork_here("wait"):
                return True
        self._program.host.resume_calls()
        return False

    def _fork_here(self, way: Literal["entry", "wait"]) -> bool:
        """Fork this thread; True in the copy, which has raised its flag."""
        gate = Gate() if self._standing else None
        try:
            if threading.get_native_id() != self._thread:
                return False  # its stack ends in code that a copy must not come back to
            began = time.perf_counter()
            moment = Moment.now(self._program)
            pid, reason = proc.fork_here()
            if not pid:
                proc.become_copy(self._process)
                self._program.view.set_word("flag", 1)
                return True
            self._made = _Made(pid, reason, way, moment, (time.perf_counter() - began) * 1e3, gate=gate)
        finally:
            self._woken.release()
        if gate is not None and pid > 0:
            gate.wait(_LEASE_FOR_IMAGE)
        return False

    # Using a copy

    def _use(self, made: _Made, began: float, deadline: float, tries: int, frames_only: bool) -> Snapshot | str:
        """The snapshot, or what became of the copy."""
        program = self._program
        seen = time.perf_counter()
        sys.setswitchinterval(_SWITCH_WHILE_READING)
        with contextlib.ExitStack() as stack:
            copy = stack.enter_context(Copy(made.pid, seized=made.seized))
            if self._holding and made.way == "signal" and not self._handler.stub.was_in_guest:
                return _NO_PLACE_TO_STAND
            if self._changes is not None:
                self._look(self._changes, made, seen)
            got = self._read_out(copy, made, max(0.1, min(_LONGEST_SPILL, deadline - seen)), frames_only)
            copy.kill()
            if isinstance(got, str):
                return got
            copied, spilled, increment = got
            done = time.perf_counter()
            if made.way == "signal" and not self._standing:
                made.stop_ms = min(made.stop_ms, self._handler.stub.milliseconds or made.stop_ms)
            state = made.moment.complete(program)
            try:
                image = program.capture(
                    copied.read, host_state=state, repeat=made.way != "signal", current=made.moment.current,
                    memories=not frames_only, increment=increment,
                )
            except CheckpointError:
                if made.way == "signal":
                    raise
                return _NOT_REPEATABLE
            if self._holding:  # which is no time to wait for its end: fifteen milliseconds with a gigabyte
                stack.pop_all()
                self._dying = copy
        return Snapshot(
            image, made.way, made.stop_ms, tries, (seen - began) * 1e3, (spilled - began) * 1e3, (done - began) * 1e3,
            (time.perf_counter() - began) * 1e3,
        )

    def _look(self, changes: Changes, made: _Made, seen: float) -> None:
        """The copy was ``seen``: what was written until then? See `changes`."""
        if not changes.needs_stop:
            changes.begin()
            changes.look()
            return
        changes.look()
        changes.begin()
        if made.gate is None and not self._handler.stub.prolong(_LEASE):
            changes.lost()  # it went on meanwhile
        if not self._holding:
            self._open(made)
            made.stop_ms += (time.perf_counter() - seen) * 1e3

    def _read_out(
        self, copy: Copy, made: _Made, timeout: float, frames_only: bool
    ) -> tuple[Copied, float, Increment | None] | str:
        """What an image needs, when the copy had spilled and what the image is to hold, or what became of the copy."""
        view = self._program.view
        try:
            if made.way == "signal":
                copy.set_word(view.address("flag"), 1)
            fate = copy.wait_spilled(view.address("done"), timeout)
            if fate is not Fate.SPILLED:
                return str(fate.value)
            spilled = time.perf_counter()
            if self._holding and made.gate is None and not self._handler.stub.prolong(_LEASE_FOR_IMAGE):
                return "the program could not be held"
            increment = None
            if self._changes is not None:
                sizes = [view.memory_pages(i, copy.read) for i in range(len(self._program.module.memories))]
                if made.way == "signal":
                    self._changes.add(own_pages(copy.pid, [(base, pages << 16) for base, pages in sizes]))
                increment = self._changes.increment(self._wanted, [pages for _, pages in sizes])
            return copy_state(view, copy, memories=not frames_only, increment=increment), spilled, increment
        except OSError as problem:  # it died under our hands
            return str(problem)


_NO_PLACE_TO_STAND = "its thread was in the interpreter or the C library, where it may not be held"
_NOT_REPEATABLE = "the host function was not called by a plain call, which alone can be repeated"
