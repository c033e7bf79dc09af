"""The process of a nursery (`nursery`): loads a runtime, and forks workers.

They are to be children of the agent, which ``os.fork`` cannot do: so this does what that does, with another system call
in its middle. The C library does not hear of it. Of what it would have done one thing matters, to write down the new
thread's id, and the kernel does that if it is told where (``CLONE_CHILD_SETTID``). Its locks cannot be held by others
where there is one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import signal
import socket
import time
from collections.abc import Callable
from io import BytesIO
from typing import Final

from .. import runtimes
from ..formats import Entry, Image, MemoryState, ModuleRef, Producer, read_image, write_image
from ..host.journal import recorder  # noqa: F401  # workers need it
from ..instrument.cache import cached_instrument
from ..instrument.options import Options
from ..lazydata import finish
from ..wasm.decode import decode
from . import idle  # noqa: F401  # as above
from .launch import WORKERS_END
from .nursery import PID, READY
from .prepare import options_for
from .worker import main as serve

__all__ = ["main"]

_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT, _CHILD_CLEARTID, _CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_GET_TID_ADDRESS: Final = 40
_PDEATHSIG: Final = 1
_ENDLESS: Final = bytes.fromhex(
    "0061736d01000000" "010401600000" "03020100" "0503010001" "07130206" "6d656d6f7279" "0200" "065f7374617274" "0000"
    "0a0901070003400c000b0b")
"""``(module (memory (export "memory") 1) (func (export "_start") (loop (br 0))))``"""


def main(arguments: list[str]) -> int:
    """Entry point: as of `worker_start`."""
    gc.disable()
    number, parent, runtime = int(arguments[0]), int(arguments[1]), arguments[2]
    ctypes.CDLL(None).prctl(_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        return 1
    with socket.socket(fileno=number) as asked, contextlib.suppress(OSError):  # the agent is gone
        os.set_inheritable(number, False)
        clone = _grown(runtime)
        if clone is None:
            return 1
        gc.collect()
        gc.freeze()
        asked.sendall(READY)
        while True:
            order, descriptors, _, _ = socket.recv_fds(asked, 1, 4)
            if not order:
                return 0
            pid = _fork(clone)
            if not pid:
                _become_worker(descriptors, parent)
            for descriptor in descriptors:
                os.close(descriptor)
            asked.sendall(PID.pack(pid))
    return 0


def _grown(runtime: str) -> Callable[[], int] | None:
    """Load it; gives the system call that forks. None: no workers can come from here."""
    try:
        runtimes.load(runtime)
        clone = _clone_call()
    except Exception:  # whoever starts a worker afresh will be told
        return None
    with contextlib.suppress(Exception):  # as above
        _rehearse(runtime)
    return clone if _alone() else None


def _rehearse(runtime: str) -> None:
    """What a worker does with a program, but compile and run it: with one of our own. Whatever is made when it is first
    needed (classes, tables, digests of our own sources) is there then."""
    finish()
    module = decode(_ENDLESS)
    cached_instrument(module, options_for(runtimes.load(runtime), base=Options()))
    file = BytesIO()
    write_image(Image(
        ModuleRef(module.sha256(), len(_ENDLESS)), Producer("", runtime, "", ""), Entry(("_start",), 0),
        memories=(MemoryState(0, 1, data=((0, bytes(4096)),)),),
    ), file)
    file.seek(0)
    read_image(file)


def _alone() -> bool:
    """Whether this process has one thread, once those that were needed to load the runtime have ended."""
    for _ in range(200):
        if len(os.listdir("/proc/self/task")) == 1:
            return True
        time.sleep(0.005)
    return False


def _clone_call() -> Callable[[], int] | None:
    """The system call; it gives what ``fork`` gives, or a negative error number. None: there is none here."""
    number = _CLONE.get(platform.machine())
    libc = ctypes.PyDLL(None, use_errno=True)  # keeps the GIL
    place = ctypes.c_void_p()
    if number is None or libc.prctl(_GET_TID_ADDRESS, ctypes.byref(place), 0, 0, 0) or not place.value:
        return None
    flags = _CLONE_PARENT | _CHILD_CLEARTID | _CHILD_SETTID | int(signal.SIGCHLD)
    # After the stack and the parent's word for the thread id come the child's, and the thread's own memory: in either
    # order, so both are the child's; the second is not looked at without CLONE_SETTLS.
    words = [ctypes.c_long(word) for word in (number, flags, 0, 0, place.value, place.value)]
    syscall = libc.syscall
    syscall.restype = ctypes.c_long

    def clone() -> int:
        found = int(syscall(*words))
        return found if found >= 0 else -ctypes.get_errno()

    return clone


def _fork(clone: Callable[[], int]) -> int:
    api = ctypes.pythonapi
    api.PyOS_BeforeFork()
    pid = clone()
    if pid:
        api.PyOS_AfterFork_Parent()
    else:
        api.PyOS_AfterFork_Child()
    return pid


def _become_worker(descriptors: list[int], parent: int) -> None:
    """Never returns."""
    status = 70
    try:
        free = max(*descriptors, WORKERS_END) + 1
        copies = [os.dup2(descriptor, free + n) for n, descriptor in enumerate(descriptors)]
        for n, descriptor in enumerate(copies):
            os.dup2(descriptor, n)
        gc.enable()
        status = serve(WORKERS_END, parent)  # closes all others
    finally:
        os._exit(status)
