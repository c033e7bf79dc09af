"""What a worker gives up before it sees a module: so that whoever takes it over through a bug in a runtime has little.

Five walls, each of which stands without the others; what this kernel does not have is left out, and `walls` says so:

- *no new privileges*, always: nothing that it starts gets more rights;
- *another user*, where the agent is root and names one: files and processes of others are not its own;
- *no capabilities*: also as root it can do nothing that only root may;
- *Landlock*: of all files it can read what Python and the runtime consist of, and change the program's own folders;
  it opens no connection, and sends no signal to anybody outside;
- *seccomp*: it starts no program, opens no socket, and does not change the system.

Images it hands over as files in memory, and whoever started it puts them where they belong. What it is given
(the program's folders, its log) is open, or opened here, before the walls go up. Compiled forms of modules it may load,
but not write: one who has taken over a worker must not choose the machine code that another one runs. They are made by
a worker that compiles and runs nothing (``writes_cache``).

It is done by the main thread while it is the only one, before any message that holds something of a program: rights
are the thread's that gives them up, and those that it makes afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..cachefolder import cache_folder
from ..errors import NotSupported, UsageError
from ..lazydata import dataclass
from . import landlock, seccomp

__all__ = ["Sandbox", "walls"]

_PDEATHSIG, _SET_DUMPABLE, _CAPBSET_DROP, _CAP_AMBIENT, _AMBIENT_CLEAR = 1, 4, 24, 47, 4
_CAPABILITIES: Final = 0x2008_0522
_MOST_CAPABILITIES: Final = 64
_SYSTEM: Final = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime", "/proc",
    "/sys/kernel/mm", "/sys/devices/system/cpu", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random",
)
"""What the C library, Python and the runtimes read."""
_KEYS: Final = ("WASMCKPT_ENCRYPT_WITH", "WASMCKPT_DECRYPT_WITH", "WASMCKPT_SIGN_WITH", "WASMCKPT_REQUIRE_SIGNED_BY")
"""Environment variables that name files of keys, of programs whose images are sealed."""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What a worker's process keeps.

    Attributes:
        user, group: numbers that it runs as, None: the parent's. Only root can give others.
        writes_cache: it may add to the folder of rewritten and compiled modules. For one that runs no program.
        required: where a wall cannot be put up the program is not run; else it is run within the others.

    Raises:
        UsageError: a user without a group, or root.
    """

    user: int | None = None
    group: int | None = None
    writes_cache: bool = False
    required: bool = False

    def __post_init__(self) -> None:
        if (self.user is None) != (self.group is None) or self.user == 0 or self.group == 0:
            raise UsageError("another user needs a group as well, and neither is root", user=self.user,
                             group=self.group)

    def to_plain(self) -> list[Any]:
        """Plain data for the wire."""
        return [self.user, self.group, self.writes_cache, self.required]

    def enter(self, folders: Sequence[tuple[str | int, bool]], also: Sequence[str] = ()) -> dict[str, object]:
        """Put the walls up around this process; gives those that stand.

        Args:
            folders: what the program may have of the file system (paths, descriptors), and whether it may change it.
            also: what may be read.

        Raises:
            NotSupported: the process has threads, or a wall that is required cannot be put up. OSError.
        """
        if not _alone():
            raise NotSupported("the worker has threads already, which would stay outside its sandbox", need="sandbox")
        cache = cache_folder()
        if self.writes_cache:
            with contextlib.suppress(OSError):
                (cache / "tmp").mkdir(mode=0o700, parents=True, exist_ok=True)
            os.environ["TMPDIR"] = str(cache / "tmp")  # for compilers that work with files
        here = str(Path(__file__).resolve().parents[2])
        parent = os.getppid()
        own = os.open(f"/proc/{os.getpid()}", os.O_PATH | os.O_CLOEXEC)  # stays open: else the kernel may forget it
        read: list[str | int] = [
            *_SYSTEM, sys.prefix, sys.base_prefix, here, *filter(None, sys.path), *also, str(cache),
            *(os.environ[name] for name in _KEYS if name in os.environ),
            *(place for place, writable in folders if not writable),
        ]
        change: list[str | int] = [0, 1, 2, own, "/dev/null", *(place for place, writable in folders if writable)]
        if self.writes_cache:
            change.append(str(cache))
        stands: dict[str, object] = {"no_new_privileges": True, "user": os.geteuid(), "capabilities": "as the parent",
                                     "landlock": 0, "seccomp": False}
        libc = ctypes.CDLL(None)
        for number in range(_MOST_CAPABILITIES):
            libc.prctl(_CAPBSET_DROP, number, 0, 0, 0)  # needs a capability itself: what there is, first
        if self.user is not None and self.user != os.geteuid():
            assert self.group is not None
            os.setgroups([])
            os.setresgid(self.group, self.group, self.group)
            os.setresuid(self.user, self.user, self.user)
            # Both were undone by the change. Its own files in /proc would belong to root.
            libc.prctl(_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            stands["user"] = self.user
        _drop_capabilities()
        stands["capabilities"] = "none"
        if version := landlock.interface():
            landlock.restrict(read, change)
            stands["landlock"] = version
        elif self.required:
            raise NotSupported("this kernel has no Landlock", need="sandbox")
        if seccomp.supported():
            seccomp.install()
            stands["seccomp"] = True
        elif self.required:
            raise NotSupported("there is no filter of system calls on this machine", need="sandbox")
        return stands


def walls() -> Mapping[str, str]:
    """What this machine has of all that; each answer begins with "yes" or "no"."""
    version = landlock.interface()
    return {
        "landlock": f"yes, version {version}" if version else "no (Linux 5.13, with landlock among the active modules)",
        "seccomp": "yes" if seccomp.supported() else "no (Linux with CONFIG_SECCOMP_FILTER on x86-64 or arm64)",
        "other users": "yes" if os.geteuid() == 0 else "no (only root can give its workers to another user)",
    }


def _alone() -> bool:
    for _ in range(200):
        if len(os.listdir("/proc/self/task")) == 1:
            return True
        time.sleep(0.005)  # one that has loaded a library is about to end
    return False


def _drop_capabilities() -> None:
    """All, for good. A process that has none is not harmed."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_CAP_AMBIENT, _AMBIENT_CLEAR, 0, 0, 0)
    head = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
    present, nothing = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    if not libc.capget(head, present) and not any(present):
        return  # whoever has none may not be allowed to ask
    if libc.capset(head, nothing):
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")
