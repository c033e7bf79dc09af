"""A signal handler of a few instructions: call ``_Fork``, and in the copy ask to die with its parent.

With ``_Fork`` itself as the handler, a worker that is killed before it has seen the copy leaves it behind (1 kill in 15
at random moments of back-to-back snapshots), running the guest for ever. Nothing but the copy itself can ask the kernel
for the signal of its parent's death, and it runs no code of ours but this. On other machines than x86-64, and where no
memory may be made executable, the handler is ``_Fork`` and the gap remains: there a subreaper above the worker has to
kill what comes to it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct

__all__ = ["make_stub"]

_kept: list[mmap.mmap] = []
"""Handlers live as long as the process."""
_made: dict[tuple[int, int], int] = {}


def make_stub(fork: int) -> int:
    """Address of a handler that calls ``fork`` (an address); ``fork`` itself where there can be none."""
    key = fork, os.getpid()
    if key not in _made:
        _made[key] = _map(_x86_64(fork, os.getpid())) or fork if os.uname().machine == "x86_64" else fork
    return _made[key]


def _x86_64(fork: int, parent: int) -> bytes:
    in_copy = (
        b"\xbf\x01\x00\x00\x00"  # mov edi, PR_SET_PDEATHSIG
        b"\xbe\x09\x00\x00\x00"  # mov esi, SIGKILL
        b"\x31\xd2\x4d\x31\xd2\x4d\x31\xc0"  # xor edx, edx; xor r10, r10; xor r8, r8
        b"\xb8\x9d\x00\x00\x00\x0f\x05"  # mov eax, prctl; syscall
        b"\xb8\x6e\x00\x00\x00\x0f\x05"  # mov eax, getppid; syscall
        b"\x3d" + struct.pack("<i", parent) +  # cmp eax, parent
        b"\x74\x09"  # je out: it still lives
        b"\x31\xff\xb8\xe7\x00\x00\x00\x0f\x05"  # xor edi, edi; mov eax, exit_group; syscall
    )
    return (
        b"\x48\x83\xec\x08"  # sub rsp, 8: the stack is aligned again
        b"\x48\xb8" + struct.pack("<Q", fork) + b"\xff\xd0"  # mov rax, fork; call rax
        b"\x85\xc0"  # test eax, eax
        b"\x75" + bytes([len(in_copy)]) + in_copy +  # jne out
        b"\x48\x83\xc4\x08\xc3"  # out: add rsp, 8; ret
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
    _kept.append(area)
    return address
