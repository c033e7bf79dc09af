"""What a program that has taken over a worker would try: done inside the worker, as a host function of the user's.

None of the attempts does any harm where it is let.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
from collections.abc import Callable
from typing import Final

__all__ = ["ATTEMPTS", "OUTSIDE", "attempt", "attempt_in_a_copy"]

OUTSIDE: Final = "WASMCKPT_TEST_OUTSIDE"
"""Environment variable: a folder that is not the program's."""
_NEWUTS: Final = 0x0400_0000


def _call(name: str, *given: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*given) < 0:
        raise OSError(ctypes.get_errno(), name)


def _system_call(number: int, *given: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *given) < 0:
        raise OSError(ctypes.get_errno(), str(number))


def _outside() -> str:
    return os.environ[OUTSIDE]


def _read() -> None:
    with open(os.path.join(_outside(), "secret")) as file:
        assert file.read() == "secret"


def _write() -> None:
    with open(os.path.join(_outside(), f"written-{os.getpid()}"), "w"):
        pass


def _delete() -> None:
    path = os.path.join(_outside(), "to-be-deleted")
    os.unlink(path)
    with open(path, "w"):
        pass


def _connect() -> None:
    with socket.socket() as one, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        one.connect(other.getsockname())


def _local_socket() -> None:
    socket.socket(socket.AF_UNIX).close()


def _execute() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    assert os.waitpid(pid, 0)[1] == 0


def _parents_memory() -> None:
    os.close(os.open(f"/proc/{_parent()}/mem", os.O_RDONLY))


def _parents_environment() -> None:
    with open(f"/proc/{_parent()}/environ", "rb") as file:
        file.read()


def _parents_files() -> None:
    os.readlink(f"/proc/{_parent()}/fd/0")


def _signal_parent() -> None:
    os.kill(_parent(), signal.SIGCONT)


def _parent() -> int:
    """The process that owns the program: a copy of the worker is further away from it."""
    return int(os.environ.get("WASMCKPT_TEST_OWNER") or os.getppid())


def _namespace() -> None:
    _call("unshare", _NEWUTS)


def _root_again() -> None:
    os.setresuid(0, 0, 0)


def _change_root() -> None:
    os.chroot("/")


def _system_setting() -> None:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_RDWR))


def _ring() -> None:
    _system_call(425, 1, ctypes.create_string_buffer(120))


def _cache() -> None:
    from wasmckpt.cachefolder import cache_folder

    path = cache_folder() / f"test-{os.getpid()}"
    path.write_bytes(b"")
    path.unlink()


def _host_name() -> None:
    name = socket.gethostname().encode()
    _call("sethostname", name, len(name))


ATTEMPTS: Final[tuple[Callable[[], None], ...]] = (
    _read, _write, _delete, _connect, _local_socket, _execute, _parents_memory, _parents_environment, _parents_files,
    _signal_parent, _namespace, _root_again, _change_root, _system_setting, _ring, _cache, _host_name,
)


def attempt(context: object, wanted: int) -> int:
    """Of the attempts whose bits are set in ``wanted`` those that were not refused, in the worker itself."""
    return sum(1 << number for number in range(len(ATTEMPTS)) if wanted >> number & 1 and not _refused(number))


def attempt_in_a_copy(context: object, wanted: int) -> int:
    """The same in processes that the worker has forked."""
    let = 0
    for number in range(len(ATTEMPTS)):
        if wanted >> number & 1:
            pid = os.fork()
            if not pid:
                os._exit(_refused(number))
            let |= (not os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) << number
    return let


def _refused(number: int) -> bool:
    try:
        ATTEMPTS[number]()
    except OSError as problem:
        return problem.errno in (errno.EPERM, errno.EACCES)
    return False
