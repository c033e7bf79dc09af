"""Workers that need no start: forked from a process that stands by with a runtime loaded.

Of a resume from hibernation nine tenths are the start of a worker's process: Python, what it imports, the runtime's
library (a timeline is in ``docs/agent.md``). A nursery is a process that has done all that, has one thread, never sees
a module, and does nothing but fork. So a worker is there after two milliseconds, and shares with all others what they
never write to: most of what a process of its own would need.

::

    agent --- spawns ---> nursery of a runtime        a worker is a child of the agent, not of its nursery: clone with
      |                      .                        CLONE_PARENT. So it is killed and reaped like one that was
      +----- parent of ----> worker                   started afresh, and does not mind the end of the nursery.

Whatever goes wrong with a nursery (the runtime keeps threads from its loading on; another type of machine; it was
killed) is no error: workers are started afresh then.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

from .. import runtimes
from ..errors import WorkerDied
from .launch import Child, spawn

__all__ = ["PID", "READY", "Nurseries", "Nursery"]

_GROWN_UP: Final = 60.0
"""Seconds that a nursery gets to load its runtime."""
PID: Final = struct.Struct("<i")
READY: Final = b"r"
"""What it says when it can fork; anything else: it never will."""
_BIRTH: Final = 5.0
"""Seconds that it gets for one fork; then it is given up."""


class Nursery:
    """One of one runtime, which `grow` makes ready. For one thread at a time, which has to live as long as the workers
    that it takes."""

    def __init__(self, runtime: str) -> None:
        self.runtime, self.loader = runtime, runtimes.loader(runtime)
        self._environment = dict(os.environ)
        with open(os.devnull, "r+b", buffering=0) as null:
            streams = null.fileno(), null.fileno(), null.fileno()
            self._child = spawn(streams, runtime, self.loader, module="nursery_process")
        self._socket = socket.socket(fileno=self._child.socket)
        self.usable = False

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def grow(self) -> bool:
        """Wait until it can fork; False: it never will."""
        with contextlib.suppress(OSError):  # it is closed, or does not answer
            self._socket.settimeout(_GROWN_UP)
            usable = self._socket.recv(1) == READY
            self._socket.settimeout(_BIRTH)
            self.usable = usable
        return self.usable

    def take(self, streams: tuple[int, int, int]) -> Child | None:
        """A worker with these standard streams; None: it gives none any more, or this process's environment has
        changed since."""
        if not self.usable or self._environment != dict(os.environ):
            return None
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._socket, [b"w"], [*streams, theirs.fileno()])
            answer = self._socket.recv(PID.size)
            pid = PID.unpack(answer)[0] if len(answer) == PID.size else 0
            if pid <= 0:
                raise OSError(-pid, "no worker")
            return Child(pid, ours.detach(), self.loader)
        except OSError:
            self.usable = False
            return None
        finally:
            ours.close()
            theirs.close()

    def close(self) -> None:
        """End it; workers stay. Idempotent."""
        self.usable = False
        self._child.kill()
        self._child.wait()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # whoever waits for it to grow hears of it
        self._socket.close()


class Nurseries:
    """Of this process: one a runtime, made when it is first asked for, beside all else; until it is ready there is
    none. ``start``: has something done by the thread to which all workers belong.

    Attributes:
        taken: workers that came from one. afresh: that did not, while this was in use.
    """

    def __init__(self, start: Callable[[Callable[[], None]], None]) -> None:
        self._start = start
        self._ready: dict[str, Nursery] = {}
        self._given_up: set[str] = set()
        self._growing: dict[str, Nursery | None] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.taken = self.afresh = 0

    def prepare(self, runtime: str) -> None:
        """Make one, in a while, unless there is one."""
        with self._lock:
            if self._closed or runtime in self._ready or runtime in self._growing or runtime in self._given_up:
                return
            self._growing[runtime] = None
        self._start(lambda: self._plant(runtime))

    def _plant(self, runtime: str) -> None:
        with self._lock:
            if self._closed:
                return
            try:
                nursery = self._growing[runtime] = Nursery(runtime)
            except WorkerDied:
                del self._growing[runtime]
                return
        threading.Thread(target=self._grow, args=(nursery,), name=f"nursery {runtime}", daemon=True).start()

    def _grow(self, nursery: Nursery) -> None:
        usable = nursery.grow()
        with self._lock:
            if self._closed:
                return  # it was closed with all others
            del self._growing[nursery.runtime]
            if usable:
                self._ready[nursery.runtime] = nursery
                return
            self._given_up.add(nursery.runtime)
        nursery.close()

    def take(self, streams: tuple[int, int, int], runtime: str) -> Child | None:
        """A worker; None: start one afresh. For the thread to which all workers belong."""
        with self._lock:
            nursery = self._ready.get(runtime)
        child = None if nursery is None else nursery.take(streams)
        if child is not None:
            self.taken += 1
            return child
        self.afresh += 1
        if nursery is not None:
            with self._lock:
                self._ready.pop(runtime, None)
            nursery.close()
        self.prepare(runtime)
        return None

    def ready(self) -> dict[str, int]:
        """Runtimes that workers stand by for, and the process of each."""
        with self._lock:
            return {name: nursery.pid for name, nursery in self._ready.items()}

    def close(self) -> None:
        """None are kept any more. Idempotent."""
        with self._lock:
            self._closed = True
            known = [*self._ready.values(), *filter(None, self._growing.values())]
            self._ready.clear()
        for nursery in known:
            nursery.close()
