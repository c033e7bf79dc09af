"""Starts a worker's process. Imports next to nothing: a command that is to run a program calls this first of all, so
that the worker gets ready while the command finds out what it is to run. That worker is a fork of the command: Python
takes 30 ms to start, of which a resume has 200. Everybody else gets a worker started afresh.

A runtime may need a process that is started through a dynamic loader of its own (`wasmckpt.runtimes.loader`). The
worker that is started first of all is an ordinary one; if it turns out to be of the wrong kind, it is thrown away.
"""

from __future__ import annotations

import _socket
import os
import select
import signal
import sys

from ..errors import WorkerDied

__all__ = ["OWN", "WORKERS_END", "Child", "prespawn", "spawn", "take_prespawned"]

OWN = (0, 1, 2)
"""This process's own standard streams."""
_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals of the terminal, blocked in a worker from its first instruction on: it ignores them as soon as it can."""
WORKERS_END = 3
"""Descriptor of a worker's end of its socket; it closes all that come after."""
_RUN = "import sys; from wasmckpt.snapshot.{} import main; sys.exit(main(sys.argv[1:]))"


class Child:
    """A worker's process until it is reaped, and ``socket``, the descriptor of this side's end of its socket."""

    def __init__(self, pid: int, socket: int, loader: tuple[str, ...] = ()) -> None:
        self.pid, self.socket, self.loader = pid, socket, loader
        self._process = os.pidfd_open(pid)  # stays this process's, even when its number is another one's again
        self.status: int | None = None
        """Exit status once it is reaped; negative: the signal that ended it."""

    def kill(self) -> None:
        """Send SIGKILL, unless it has been reaped."""
        if self.status is None:
            try:
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended by itself

    def wait(self, timeout: float | None = None) -> int | None:
        """Reap it; gives the exit status, or None after ``timeout`` seconds. For one thread at a time."""
        if self.status is None:
            poll = select.poll()
            poll.register(self._process, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                return None
            _, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)
            os.close(self._process)
        return self.status


def spawn(
    streams: tuple[int, int, int], runtime: str = "", loader: tuple[str, ...] = (), *, module: str = "worker_start",
) -> Child:
    """Start a worker with ``streams`` as its standard input, output and error.

    It dies with the THREAD that calls this (``PR_SET_PDEATHSIG``). ``runtime``: one whose library it may load at once.
    ``loader``: the words that come before Python's in its command line, a program's path first. ``module``: of this
    package, whose ``main`` it runs.

    Raises:
        WorkerDied: no process can be started.
    """
    ours, theirs = (end.detach() for end in _socket.socketpair())
    try:
        # Standard streams may stand for one another, so all are copied out of the way first. Descriptors that the
        # worker has no use for end with exec, or are closed by the worker.
        free = max(*streams, theirs, 2) + 1
        moves: list[tuple[int, ...]] = []
        moves += [(os.POSIX_SPAWN_DUP2, end, free + i) for i, end in enumerate([*streams, theirs])]
        moves += [(os.POSIX_SPAWN_DUP2, free + i, i) for i in range(4)]
        moves += [(os.POSIX_SPAWN_CLOSE, free + i) for i in range(4)]
        words = "-P", "-c", _RUN.format(module), str(WORKERS_END), str(os.getpid()), runtime
        command = [*loader, sys.executable, *words]
        pid = os.posix_spawn(command[0], command, _environment(), file_actions=moves, setsigmask=_DEAF_TO)
    except OSError as problem:
        os.close(ours)
        raise WorkerDied(f"no worker process can be started: {problem.strerror or problem}") from problem
    finally:
        os.close(theirs)
    return Child(pid, ours, loader)


def _fork(runtime: str) -> Child:
    """As `spawn` with this process's own streams, for a process that has done next to nothing and has one thread."""
    ours, theirs = _socket.socketpair()
    parent, pid = os.getpid(), os.fork()
    if not pid:
        status = 70
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
            os.dup2(theirs.fileno(), WORKERS_END)
            from .worker_start import main

            status = main([str(WORKERS_END), str(parent), runtime])
        finally:
            os._exit(status)
    theirs.close()
    return Child(pid, ours.detach())


def _environment() -> dict[str, str]:
    """The worker's own environment, which is not the guest's: it finds modules where this process does."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), *given, *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(place for place in places if place))}


_prespawned: Child | None = None


def prespawn(runtime: str = "") -> None:
    """Start an ordinary worker now, from the main thread, for the program that will have this process's own standard
    streams."""
    global _prespawned
    if _prespawned is None:
        try:
            alone = len(os.listdir("/proc/self/task")) == 1
            _prespawned = _fork(runtime) if alone else spawn(OWN, runtime)
        except (OSError, WorkerDied):
            pass  # whoever needs it will try again, and tell


def take_prespawned(loader: tuple[str, ...] = ()) -> Child | None:
    """The worker that `prespawn` started, once; None, and it is ended, if one that was started so is of no use."""
    global _prespawned
    child, _prespawned = _prespawned, None
    if child is not None and child.loader != loader:
        child.kill()
        child.wait()
        os.close(child.socket)
        return None
    return child
