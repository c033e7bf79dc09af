"""A filter of system calls for a process that computes: what would reach out of it is refused with EPERM.

A list of what is forbidden, not of what is allowed: five runtimes, Python and the C library make some two hundred kinds
of calls, others in each version, and one that a program needs once a month would fail once a month. Forbidden is what
starts other programs, speaks to anybody over a network, changes the system, its mounts, names and clocks or this
process's own rights, and what has been the way out of sandboxes (io_uring, bpf, keys, namespaces). What is left of the
file system is for `landlock` to say.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

__all__ = ["FORBIDDEN", "install", "supported"]

FORBIDDEN: Final[dict[str, tuple[int, int]]] = {
    "execve": (59, 221), "execveat": (322, 281),
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "swapon": (167, 224), "swapoff": (168, 225),
    "quotactl": (179, 60), "mknodat": (259, 33), "acct": (163, 89),
    "setns": (308, 268), "unshare": (272, 97),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142),
    "bpf": (321, 280), "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "pidfd_getfd": (438, 438),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "sethostname": (170, 161), "setdomainname": (171, 162), "syslog": (103, 116), "personality": (135, 92),
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159), "setfsuid": (122, 151),
    "setfsgid": (123, 152), "capset": (126, 91),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}
"""Name -> its number on x86-64 and on arm64."""
_ONLY_X86: Final = {"iopl": 172, "ioperm": 173, "mknod": 133, "modify_ldt": 154}
_CLONE3: Final = 435
"""Its flags are in memory, where a filter cannot look; told that there is none, the C library uses ``clone``."""
_CLONE: Final = (56, 220)
_NAMESPACES: Final = 0x7E02_0000
"""``CLONE_NEW...``, all of them."""
_IOCTL: Final = (16, 29)
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""``TIOCSTI``, ``TIOCLINUX``: to type into the terminal that an agent was started from."""
_ARCHITECTURES: Final = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}

_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF_0000, 0x8000_0000
_REFUSE, _ABSENT = 0x0005_0000 | errno.EPERM, 0x0005_0000 | errno.ENOSYS
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in ``struct seccomp_data``; of arguments the low halves, on machines that begin with these."""
_X32: Final = 0x4000_0000
_SET_FILTER, _ACTION_AVAILABLE, _ALL_THREADS = 1, 2, 1
_SECCOMP: Final = (317, 277)


def supported() -> bool:
    """Whether this machine and kernel have it."""
    found = _ARCHITECTURES.get(os.uname().machine)
    if found is None:
        return False
    action = ctypes.c_uint32(_REFUSE & 0xFFFF_0000)
    return not ctypes.CDLL(None).syscall(_SECCOMP[found[0]], _ACTION_AVAILABLE, 0, ctypes.byref(action))


def install() -> None:
    """For all threads of this process and all that it makes, for good. Raises OSError."""
    which, architecture = _ARCHITECTURES[os.uname().machine]
    program = _program(which, architecture)
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    given = Program(len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SECCOMP[which], _SET_FILTER, _ALL_THREADS, ctypes.byref(given)):
        raise OSError(ctypes.get_errno() or errno.EACCES, "no filter of system calls can be installed")


def _program(which: int, architecture: int) -> bytes:
    """The filter as the kernel takes it: (operation, jump if true, if false, operand)."""
    numbers = sorted({pair[which] for pair in FORBIDDEN.values()} | (set() if which else set(_ONLY_X86.values())))
    body: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER),
    ]
    if not which:
        body += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE)]
    body += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ABSENT)]
    for done, number in enumerate(numbers):  # to the refusal, which follows the last of them
        body.append((_EQUAL, len(numbers) - done, 0, number))
    body += [(0x05, 0, 0, 1), (_RETURN, 0, 0, _REFUSE)]  # jump over it
    body += [(_EQUAL, 0, 4, _CLONE[which]), (_LOAD, 0, 0, _FIRST), (_BITS, 0, 1, _NAMESPACES),
             (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    body += [(_EQUAL, 0, 4, _IOCTL[which]), (_LOAD, 0, 0, _SECOND), (_EQUAL, 1, 0, _TERMINAL_INPUT[0]),
             (_EQUAL, 0, 1, _TERMINAL_INPUT[1]), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("<HBBI", *one) for one in body)
