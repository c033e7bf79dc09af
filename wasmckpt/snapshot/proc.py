"""What forked snapshots need of the kernel and of libc, and Python does not offer.

Calls through `held` keep the GIL: between the look at the guest and the moment in which its copy is there, no Python
code of another thread may run. Everything here is Linux with glibc 2.34 or musl 1.2.2 (``_Fork``) or newer.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from typing import Final, NoReturn

from .fork_stub import make_stub

__all__ = [
    "BLOCKING_CALLS", "ForkHandler", "ThreadFiles", "become_copy", "blocked_in_kernel", "can_fork", "errno_address",
    "fork_here", "held", "nap", "seize", "stand_still", "tgkill", "wait_a_little",
    "write_word",
]

held: Final = ctypes.PyDLL(None, use_errno=True)
"""libc, called without letting go of the GIL."""

_PTRACE_SEIZE: Final = 0x4206
_PTRACE_O_EXITKILL: Final = 0x0010_0000
_PR_SET_PDEATHSIG: Final = 1
_SA_SIGINFO, _SA_ONSTACK, _SA_RESTART = 4, 0x0800_0000, 0x1000_0000
_SIG_IGN: Final = 1

# futex, pause, ppoll (pause on arm64), clock_nanosleep: what a copy that will not come any further is blocked in.
BLOCKING_CALLS: Final = (
    frozenset({98, 73, 115}) if os.uname().machine == "aarch64" else frozenset({202, 34, 271, 230})
)

try:
    _fork = held._Fork
    _fork.restype, _fork.argtypes = ctypes.c_int, []
    tgkill = held.tgkill
    """``tgkill(process, thread, signal)`` -> 0, or -1 with errno."""
    tgkill.restype, tgkill.argtypes = ctypes.c_int, [ctypes.c_int, ctypes.c_int, ctypes.c_int]
    _CAN_FORK = sys.platform == "linux"
except AttributeError:  # another libc
    _CAN_FORK = False

held.ptrace.restype = ctypes.c_long
held.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
held.pread.restype = ctypes.c_ssize_t
held.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
held.prctl.restype = ctypes.c_int
held.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
held.process_vm_writev.restype = ctypes.c_ssize_t
held.process_vm_writev.argtypes = [
    ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
held.usleep.argtypes = [ctypes.c_uint]


def can_fork() -> bool:
    """Whether this system has what a snapshot by fork takes."""
    return _CAN_FORK and os.path.exists("/proc/self/task") and hasattr(os, "pidfd_open")


def errno_address() -> int:
    """Native address of the calling thread's ``errno``; 0 where libc does not tell."""
    try:
        ask = held.__errno_location
    except AttributeError:
        return 0
    ask.restype = ctypes.c_void_p
    return int(ask() or 0)


def fork_here() -> tuple[int, int]:
    """Fork this thread without any of the handlers that ``os.fork`` runs: (0 in the copy, pid or -1 here; errno)."""
    ctypes.set_errno(0)
    pid = int(_fork())
    return pid, 0 if pid >= 0 else ctypes.get_errno()


def become_copy(parent: int) -> None:
    """First thing in a copy that forked itself: die with the parent; no collection, whose finalizers have effects."""
    gc.disable()
    held.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it was faster
        os._exit(0)


def stand_still() -> NoReturn:
    """The end of a copy's way: it waits to be killed."""
    while True:
        signal.pause()


def nap(microseconds: int) -> None:
    """Sleep with the GIL held."""
    held.usleep(microseconds)


def seize(pid: int) -> int:
    """Become the tracer of a copy, so that the kernel kills it when this thread ends; gives 0 or the errno.

    Its signals then stop it, instead of doing what they would do here.
    """
    ctypes.set_errno(0)
    failed = held.ptrace(_PTRACE_SEIZE, pid, None, _PTRACE_O_EXITKILL) != 0
    return ctypes.get_errno() if failed else 0


def write_word(pid: int, address: int, value: int) -> None:
    """Store an i32 in the memory of a process that this one may trace: not through ``/proc``, since a sandbox that lets
    that be written to would let root's processes change the system there. Raises OSError."""
    word = ctypes.c_int32(value)
    here, there = (ctypes.c_size_t * 2)(ctypes.addressof(word), 4), (ctypes.c_size_t * 2)(address, 4)
    ctypes.set_errno(0)
    if held.process_vm_writev(pid, here, 1, there, 1, 0) != 4:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def blocked_in_kernel(pid: int) -> bool:
    """Whether a process is blocked in a call that a running guest never makes (it waits for the GIL, or is parked)."""
    try:
        with open(f"/proc/{pid}/syscall", "rb", buffering=0) as file:
            number = file.read(16).split(b" ", 1)[0]
    except OSError:
        return False
    return number.isdigit() and int(number) in BLOCKING_CALLS


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p), ("mask", ctypes.c_ulong * 16), ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class ForkHandler:
    """The signal whose handler is ``_Fork`` (see `fork_stub`).

    Armed only while a snapshot is being taken; disarmed it is ignored, which also takes back one not yet delivered.
    """

    def __init__(self) -> None:
        self.number: Final = int(signal.SIGRTMIN) + 3
        self._sigaction = held.sigaction
        self._sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self.stub: Final = make_stub(ctypes.cast(_fork, ctypes.c_void_p).value or 0)
        self._armed = _Action(
            self.stub.address, (ctypes.c_ulong * 16)(*[(1 << 64) - 1] * 16),
            # The guest's own stack may be nearly used up, and then the source itself would trap; calls are restarted.
            _SA_ONSTACK | _SA_RESTART, None,
        )
        self._ignored = _Action(_SIG_IGN, (ctypes.c_ulong * 16)(), 0, None)

    def arm(self) -> None:
        """From now on the signal forks the thread that gets it."""
        self._sigaction(self.number, ctypes.addressof(self._armed), None)

    def disarm(self) -> None:
        """From now on the signal does nothing; one that is pending is discarded."""
        self._sigaction(self.number, ctypes.addressof(self._ignored), None)


class ThreadFiles:
    """The kernel's view of one thread of this process, read with the GIL held."""

    def __init__(self, thread: int) -> None:
        """Raises OSError: there is no such thread, or the kernel has no ``children`` file."""
        self._size = 8192
        self._buffer = ctypes.create_string_buffer(self._size)
        folder = f"/proc/self/task/{thread}/"
        self._children = os.open(folder + "children", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._status = os.open(folder + "status", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(self._children)
            raise

    def _read(self, fd: int) -> bytes:
        length = held.pread(fd, self._buffer, self._size, 0)
        return self._buffer.raw[:length] if length > 0 else b""

    def children(self) -> frozenset[int]:
        """Processes that this thread has forked and nobody has waited for; empty once the thread has ended."""
        return frozenset(map(int, self._read(self._children).split()))

    def handler_over(self, number: int) -> bool:
        """Whether a signal is neither pending for the thread nor blocked, as all are while the handler runs."""
        bit = 1 << (number - 1)
        for line in self._read(self._status).splitlines():
            if line.startswith((b"SigPnd:", b"SigBlk:")) and int(line.split()[1], 16) & bit:
                return False
        return True

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._children)
        os.close(self._status)


def children_since(since: float) -> frozenset[int]:
    """Children of this process that began to live after ``since`` (``time.perf_counter``; or up to 20 ms before it),
    whichever thread has them: those of a thread that has ended are another one's."""
    began = time.clock_gettime(time.CLOCK_BOOTTIME) - (time.perf_counter() - since)
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", "rb") as file:
                found.update(map(int, file.read().split()))
        except OSError:
            continue  # it has ended meanwhile
    return frozenset(pid for pid in found if _started(pid) >= began - 0.02)


def _started(pid: int) -> float:
    """When a process began to live, in seconds since the machine was started, rounded down to a tick of 10 ms."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def wait_a_little(since: float) -> None:
    """Sleep as is right for something that was awaited ``since`` (``time.perf_counter``): short first, longer later."""
    time.sleep(min(0.002, max(0.00005, (time.perf_counter() - since) / 8)))
