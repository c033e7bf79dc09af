"""A signal handler of a few instructions: call ``_Fork``; the copy asks to die with its parent, and the parent stands
still until it is told to go on, if that is wanted.

With ``_Fork`` itself as the handler, a worker that is killed before it has seen the copy leaves it behind (1 kill in 15
at random moments of back-to-back snapshots), running the guest for ever. Nothing but the copy itself can ask the kernel
for the signal of its parent's death, and it runs no code of ours but this. On other machines than x86-64, and where no
memory may be made executable, the handler is ``_Fork``: the gap remains (there a subreaper above the worker has to kill
what comes to it), and a program cannot be held.

A thread that stands still wherever it happened to be may have a lock that the rest of the process needs (of malloc, or
somebody waits to hand it the GIL). So it is held on a lease: it goes on by itself when `Stub.lease` has run out, and
whoever took it for held finds that in `Stub.left`. The lease becomes endless when all is done that could hang. That is
so only where it stood in the guest's code. In the C library it may have been woken to take a lock, the one around the
GIL say, without having done so: then nobody else who waits for that is ever woken, and the process stands still some
time later (once in five thousand moves on a busy machine). So the handler writes down where the thread was as well.

The handler also writes down when it began and when ``_Fork`` had returned in the parent: that is how long the program
stood still, which nobody else can tell. (Whoever sent the signal sees the copy later: it has to get a processor first.)
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import struct
from typing import Final

__all__ = ["TICK", "Stub", "make_stub"]

TICK: Final = 0.05
"""Seconds of one unit of a lease."""
_ENDLESS: Final = 0x7FFF_FFFF
_FUTEX, _FUTEX_WAKE = 202, 1
_HOLD, _LEASE, _LEFT, _INTERVAL, _BEGAN, _ENDED, _AT = 0, 4, 8, 16, 32, 48, 64
"""Offsets in the handler's data: words, three ``timespec``, and an address."""
_NOT_GUEST: Final = ("libc.", "libc-", "libpthread", "libpython", "python", "ld-", "ld.", "[vdso]")
"""Beginnings of the names of files in whose code a thread may have to do with locks of the whole process."""


class Stub:
    """The handler: its ``address``, and how its parent side is held."""

    def __init__(self, fork: int, parent: int) -> None:
        self.address = fork
        self._data: mmap.mmap | None = None
        self._ticket = 0
        """What a thread that is held waits for to change. With a mere flag, one that is let go, and wanted again
        before it has woken up, would stay where it was, with the next signal waiting behind it. The handler reads it
        before it forks: its parent may get a processor only when the copy has been read, and what is wanted then is
        not meant for it."""
        if os.uname().machine != "x86_64":
            return
        data = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        _keep(data)
        self._word = ctypes.c_uint32.from_buffer(data)
        data[_INTERVAL:_INTERVAL + 16] = struct.pack("<qq", 0, int(TICK * 1e9))
        clock = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0
        address = _map(_x86_64(fork, parent, ctypes.addressof(self._word), clock))
        if address:
            self.address, self._data = address, data

    @property
    def can_hold(self) -> bool:
        """Whether the parent can be made to stand still."""
        return self._data is not None

    def hold(self, seconds: float) -> None:
        """The next thread that is forked stands still until `let_go`, but no longer than ``seconds``."""
        self._write(_LEFT, 0)
        self._write(_LEASE, max(2, int(seconds / TICK)))
        self._ticket = self._ticket % _ENDLESS + 1
        self._write(_HOLD, self._ticket)

    def begin(self) -> None:
        """Forget when the last fork was."""
        if self._data is not None:
            self._data[_BEGAN:_ENDED + 16] = bytes(_ENDED + 16 - _BEGAN)

    @property
    def has_begun(self) -> bool:
        """Whether the handler has run since `begin`, as far as is known."""
        return self._data is None or any(self._data[_BEGAN:_BEGAN + 16])

    @property
    def was_in_guest(self) -> bool:
        """Whether the thread that was forked last was neither in the interpreter nor in the C library."""
        if self._data is None:
            return False
        (at,) = struct.unpack_from("<Q", self._data, _AT)
        return not any(start <= at < end for start, end in _shared_code())

    @property
    def milliseconds(self) -> float | None:
        """How long the parent's side of the last fork took, from the handler's first instruction on. None: it is not
        over, or the handler does not tell."""
        if self._data is None:
            return None
        began, began_ns, ended, ended_ns = struct.unpack_from("<4q", self._data, _BEGAN)
        return (ended - began) * 1e3 + (ended_ns - began_ns) / 1e6 if ended else None

    def prolong(self, seconds: float | None = None) -> bool:
        """A new lease, from now on (None: until `let_go`). False: the old one had run out, or was about to."""
        before = self._read(_LEASE)
        self._write(_LEASE, _ENDLESS if seconds is None else max(2, int(seconds / TICK)))
        return 1 < before <= _ENDLESS and not self._read(_LEFT)

    def let_go(self) -> None:
        """It goes on. Idempotent."""
        if self._data is not None:
            self._write(_HOLD, 0)
            ctypes.CDLL(None).syscall(_FUTEX, ctypes.byref(self._word), _FUTEX_WAKE, 1, None, None, 0)

    def _read(self, at: int) -> int:
        assert self._data is not None
        return int.from_bytes(self._data[at:at + 4], "little")

    def _write(self, at: int, value: int) -> None:
        assert self._data is not None
        ctypes.c_uint32.from_buffer(self._data, at).value = value  # one store


@functools.cache
def _shared_code() -> tuple[tuple[int, int], ...]:
    """Where the interpreter and the C library are mapped; they stay there, in forked workers too."""
    found = []
    program = os.readlink("/proc/self/exe")
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split(None, 5)
            path = fields[5].strip() if len(fields) > 5 else ""
            if "x" in fields[1] and (path == program or os.path.basename(path).startswith(_NOT_GUEST)):
                start, _, end = fields[0].partition("-")
                found.append((int(start, 16), int(end, 16)))
    return tuple(found)


_made: dict[tuple[int, int], Stub] = {}
"""Handlers live as long as the process."""


def make_stub(fork: int) -> Stub:
    """The handler that calls ``fork`` (an address)."""
    key = fork, os.getpid()
    if key not in _made:
        _made[key] = Stub(fork, os.getpid())
    return _made[key]


def _x86_64(fork: int, parent: int, data: int, clock: int) -> bytes:
    def tell(at: int) -> bytes:
        return (
            b"\xbf\x01\x00\x00\x00"  # mov edi, CLOCK_MONOTONIC
            b"\x48\xbe" + struct.pack("<Q", data + at) +  # mov rsi, data + at
            b"\x48\xb8" + struct.pack("<Q", clock) + b"\xff\xd0"  # mov rax, clock_gettime; call rax
        )

    in_copy = (
        b"\xbf\x01\x00\x00\x00"  # mov edi, PR_SET_PDEATHSIG
        b"\xbe\x09\x00\x00\x00"  # mov esi, SIGKILL
        b"\x31\xd2\x4d\x31\xd2\x4d\x31\xc0"  # xor edx, edx; xor r10, r10; xor r8, r8
        b"\xb8\x9d\x00\x00\x00\x0f\x05"  # mov eax, prctl; syscall
        b"\xb8\x6e\x00\x00\x00\x0f\x05"  # mov eax, getppid; syscall
        b"\x3d" + struct.pack("<i", parent) +  # cmp eax, parent
        b"\x74\x09"  # je end: it still lives
        b"\x31\xff\xb8\xe7\x00\x00\x00\x0f\x05"  # xor edi, edi; mov eax, exit_group; syscall
    )
    head = (
        b"\x89\xda\x85\xd2"  # mov edx, ebx; test edx, edx
        b"\x74\x20"  # je end
        b"\x39\x17"  # again: cmp [rdi + HOLD], edx
        b"\x75\x1c"  # jne end: let go, and perhaps wanted again since
        b"\xf0\xff\x4f\x04"  # lock dec dword [rdi + LEASE]
        b"\x78\x0f"  # js over
        b"\x31\xf6"  # xor esi, esi: FUTEX_WAIT
        b"\x4c\x8d\x57\x10"  # lea r10, [rdi + INTERVAL]
        b"\xb8\xca\x00\x00\x00\x0f\x05"  # mov eax, futex; syscall
        b"\xeb\xe7"  # jmp again
        b"\xc7\x47\x08\x01\x00\x00\x00"  # over: mov dword [rdi + LEFT], 1
    )
    in_parent = tell(_ENDED) + b"\x48\xbf" + struct.pack("<Q", data) + head  # mov rdi, data
    leave_copy = b"\xeb" + bytes([len(in_parent)])  # jmp end
    skip = len(in_copy) + len(leave_copy)
    return (
        b"\x53"  # push rbx: the stack is aligned again
        b"\x48\xbb" + struct.pack("<Q", data) +  # mov rbx, data
        b"\x48\x8b\x82\xa8\x00\x00\x00"  # mov rax, [rdx + 168]: of the ucontext_t, where it was
        b"\x48\x89\x43" + bytes([_AT]) +  # mov [rbx + AT], rax
        b"\x8b\x1b" +  # mov ebx, [rbx + HOLD]
        tell(_BEGAN) +
        b"\x48\xb8" + struct.pack("<Q", fork) + b"\xff\xd0"  # mov rax, fork; call rax
        b"\x85\xc0"  # test eax, eax
        b"\x78" + bytes([2 + skip + len(in_parent)]) +  # js end: it failed
        b"\x75" + bytes([skip]) + in_copy + leave_copy + in_parent +  # jne in_parent
        b"\x5b\xc3"  # end: pop rbx; ret
    )


def _map(code: bytes) -> int:
    """Put code into memory of its own, executable and not writable; its address, or 0 if that is refused."""
    try:
        area = mmap.mmap(-1, mmap.PAGESIZE)
    except OSError:
        return 0
    area.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        return 0
    _keep(area)
    return address


def _keep(area: mmap.mmap) -> None:
    """Never unmap it: a thread may stand in the handler while the interpreter ends and takes back what modules hold."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(area))
