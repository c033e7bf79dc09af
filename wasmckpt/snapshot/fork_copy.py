"""One forked copy of the worker, from the moment it is seen to its end. It never outlives the `Copy`."""

from __future__ import annotations

import os
import resource
import signal
import time
from enum import Enum
from types import TracebackType

from . import proc
from .fork_result import ForkRefused

__all__ = ["Copy", "Fate"]

_STUCK_AFTER = 0.001
"""Seconds after which a copy that waits in the kernel and has not spilled is given up."""


class Fate(Enum):
    """What became of a copy."""

    SPILLED = "it spilled all its frames"
    STUCK = "it waits for ever (for the GIL or a lock of a thread that it does not have, or it was parked)"
    STOPPED = "a signal stopped it (a trap, for one) or it died"
    LATE = "it reached no safepoint in time"


class Copy:
    """Takes charge of a child: kills it when closed, and makes the kernel kill it when this thread ends.

    Raises `ForkRefused`: it may not be traced. Then it is dead already.
    """

    def __init__(self, pid: int, *, seized: int | None = None) -> None:
        self.pid = pid
        self._mem = self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(pid)
            refused = proc.seize(pid) if seized is None else seized
            if refused:
                raise OSError(refused, os.strerror(refused))
            hard = resource.prlimit(pid, resource.RLIMIT_CORE)[1]
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))  # a core would hold the program's memory
            self._mem = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as problem:
            self.close()
            raise ForkRefused("the forked copy may not be looked at", reason=str(problem)) from problem
        except BaseException:
            self.close()
            raise

    def read(self, address: int, length: int) -> bytes:
        """Its memory. Raises OSError."""
        data = bytearray(length)
        self.read_into(address, memoryview(data))
        return bytes(data)

    def read_into(self, address: int, target: memoryview) -> None:
        """Fill ``target`` from its memory. Raises OSError."""
        done = 0
        while done < len(target):
            count = os.preadv(self._mem, [target[done:]], address + done)
            if not count:
                raise OSError(f"the forked copy has no memory at {address + done:#x}")
            done += count

    def set_word(self, address: int, value: int) -> None:
        """Store an i32 in its memory; this process keeps its own. Raises OSError."""
        proc.write_word(self.pid, address, value)

    def wait_spilled(self, done: int, timeout: float) -> Fate:
        """Wait until the word at address ``done`` is set, at most ``timeout`` seconds. Raises OSError."""
        began = time.perf_counter()
        while True:
            if self.read(done, 4) != b"\0\0\0\0":
                return Fate.SPILLED
            waited = time.perf_counter() - began
            if waited > _STUCK_AFTER:
                if proc.blocked_in_kernel(self.pid):
                    # It may have spilled between the two looks, and then waits for the GIL as it should.
                    return Fate.STUCK if self.read(done, 4) == b"\0\0\0\0" else Fate.SPILLED
                if self._changed_state():
                    return Fate.STOPPED
            if waited > timeout:
                return Fate.LATE
            proc.wait_a_little(began)

    def _changed_state(self) -> bool:
        flags = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PIDFD, self._pidfd, flags) is not None
        except ChildProcessError:  # somebody else has reaped it
            return True

    def kill(self) -> None:
        """Begin its end: it runs no more, and soon gives its memory back."""
        if self._mem >= 0:
            os.close(self._mem)
            self._mem = -1
        if self._pidfd >= 0:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass  # dead already

    def close(self) -> None:
        """Kill it and wait for its end, which takes milliseconds. Idempotent."""
        self.kill()
        if self._pidfd >= 0:
            try:
                os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
            except ChildProcessError:
                pass  # reaped by whoever waits for any child, or by the kernel where SIGCHLD is ignored
            os.close(self._pidfd)
            self._pidfd = -1
        elif self.pid:
            self.pid = _kill_by_number(self.pid)

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        self.close()


def _kill_by_number(pid: int) -> int:
    """Where there is no pidfd: it is still our child, so its number is its own. Gives 0."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    return 0
