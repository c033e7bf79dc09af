"""The parent's handle of one worker process: started, asked, and cleared away whatever happens to it.

Workers are started by one thread that lives as long as this process: Linux kills a worker with the THREAD that
started it (``PR_SET_PDEATHSIG``), and callers' threads come and go. That thread also keeps the terminal's signals
blocked, so that a worker is deaf to them from its first instruction on.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import signal
import site
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from pathlib import Path
from typing import Any, Final

from ..errors import JobEnded, RetryLater, WorkerDied
from .wire import Channel, Closed, error_from_plain

__all__ = ["WorkerProcess", "kill_all", "prespawn"]

_Started = tuple["subprocess.Popen[bytes]", socket.socket]
_DEAF_TO: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_GRACE: Final = 5.0
"""Seconds that a worker gets to end after its socket did."""


_OWN: Final = (0, 1, 2)
_live: set[WorkerProcess] = set()
_prespawned: Future[_Started] | None = None


def prespawn() -> None:
    """Start a worker now, for the program that will have this process's own standard streams: it gets ready while
    this process finds out what it is to run."""
    global _prespawned
    if _prespawned is None:
        _prespawned = _start(_OWN)


def _take_prespawned() -> _Started | None:
    global _prespawned
    future, _prespawned = _prespawned, None
    return None if future is None else future.result()


def kill_all() -> None:
    """End all workers of this process, also those that are just being started, and wait until they are reaped."""
    for worker in list(_live):
        worker.kill()
    try:
        started = _take_prespawned()
    except WorkerDied:
        return
    if started is not None:
        process, ours = started
        process.kill()
        process.wait()
        ours.close()


class WorkerProcess:
    """A worker of its own for one program.

    Args:
        streams: descriptors that become the worker's standard input, output and error.
        on_event: called with each event, by the reading thread. on_death: called once, when the process is reaped,
            with its exit status (negative: the signal).

    Raises:
        WorkerDied: no process could be started.
    """

    def __init__(
        self, streams: tuple[int, int, int], *, on_event: Callable[[Mapping[str, Any]], None],
        on_death: Callable[[int], None],
    ) -> None:
        self._on_event, self._on_death = on_event, on_death
        self._pending: dict[int, Future[tuple[dict[str, Any], int | None]]] = {}
        self._lock = threading.Lock()
        self._next = 0
        self.gone: WorkerDied | None = None
        """How it ended; None while it lives."""
        self._killed = False
        self._retired = False
        started = _take_prespawned() if streams == _OWN else None
        self._process, ours = started or _start(streams).result()
        self._channel = Channel(ours)
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name=f"worker {self.pid}", daemon=True)
        _live.add(self)
        self._reader.start()

    def ask(
        self, do: str, fields: Mapping[str, object] | None = None, *, descriptors: Sequence[int] = (),
    ) -> Future[tuple[dict[str, Any], int | None]]:
        """Send a request. The future gives the answer and the descriptor that came with it (the caller's, to close),
        or raises the worker's error, or `WorkerDied`."""
        future: Future[tuple[dict[str, Any], int | None]] = Future()
        with self._lock:
            if self._retired:
                raise JobEnded("the program has already ended")
            if self.gone is not None:
                raise self.gone
            self._next += 1
            number = self._next
            self._pending[number] = future
        try:
            self._channel.send({**(fields or {}), "do": do, "id": number}, descriptors)
        except Closed:
            pass  # the reader finds out how it ended and tells all who wait
        except BaseException:
            with self._lock:
                self._pending.pop(number, None)
            raise
        return future

    def call(
        self, do: str, fields: Mapping[str, object] | None = None, *, descriptors: Sequence[int] = (),
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Ask and wait; the descriptor of an answer is closed.

        Raises the worker's error, `WorkerDied`, or `RetryLater` if there is no answer within ``timeout`` seconds.
        """
        try:
            answer, descriptor = self.ask(do, fields, descriptors=descriptors).result(timeout)
        except NoAnswer:
            raise RetryLater(f"the worker did not answer within {timeout:g} s", pid=self.pid, request=do) from None
        if descriptor is not None:
            os.close(descriptor)
        return answer

    def retire(self) -> None:
        """The program has ended: let the worker end as soon as no answer is awaited. Called by ``on_event``."""
        with self._lock:
            self._retired = True

    def kill(self) -> None:
        """End the process at once and wait until it is reaped. Idempotent."""
        self._killed = True
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        self._join()

    def close(self) -> None:
        """Let an idle worker end, and wait until it is reaped. Idempotent."""
        self._killed = True
        self._channel.shut()
        self._join()

    def _join(self) -> None:
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def _read(self) -> None:
        while not (self._retired and not self._pending):
            try:
                message, descriptors = self._channel.receive()
            except Closed:
                break
            except Exception as problem:  # nonsense on the wire: the worker's memory is damaged
                self.gone = WorkerDied(f"the worker does not make sense any more: {problem}", pid=self.pid)
                self._process.kill()
                break
            if "event" in message:
                self._on_event(message)
                continue
            with self._lock:
                future = self._pending.pop(message["id"], None)
            descriptor = descriptors[0] if descriptors else None
            if future is None:
                if descriptor is not None:
                    os.close(descriptor)
            elif "error" in message:
                future.set_exception(error_from_plain(message["error"]))
            else:
                future.set_result((message["ok"], descriptor))
        self._reap()

    def _reap(self) -> None:
        self._channel.shut()
        try:
            status = self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._channel.close()
        with self._lock:
            if self.gone is None:
                self.gone = died(status, self.pid, killed=self._killed)
            waiting, self._pending = self._pending, {}
        _live.discard(self)
        for future in waiting.values():
            future.set_exception(self.gone)
        self._on_death(status)


def died(status: int, pid: int, *, killed: bool = False) -> WorkerDied:
    """The error for a worker that is gone."""
    if killed:
        return WorkerDied("the worker was ended", pid=pid)
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        hint = "the system may be short of memory" if name == "SIGKILL" else "the runtime crashed; try another one"
        return WorkerDied(f"the worker was killed by {name}", hint=f"{hint}, or restart from an image", pid=pid,
                          signal=name)
    return WorkerDied("the worker ended without a result", hint="restart from an image", pid=pid, status=status)


def _start(streams: tuple[int, int, int]) -> Future[_Started]:
    """Start a worker; gives the process and this side's end of its socket, or raises `WorkerDied`."""
    future: Future[_Started] = Future()
    _spawner().orders.put((streams, future))
    return future


class _Spawner:
    """Starts workers, one after the other, from a thread that never ends."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[tuple[tuple[int, int, int], Future[_Started]]] = queue.SimpleQueue()
        self.pid = os.getpid()
        threading.Thread(target=self._run, name="worker spawner", daemon=True).start()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _DEAF_TO)
        while True:
            streams, future = self.orders.get()
            try:
                ours, theirs = socket.socketpair()
                with theirs:
                    try:
                        future.set_result((_spawn(streams, theirs.fileno()), ours))
                    except BaseException:
                        ours.close()
                        raise
            except BaseException as problem:
                future.set_exception(problem)


def _spawn(streams: tuple[int, int, int], fd: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "wasmckpt.snapshot.worker", str(fd), str(os.getpid())]
    try:
        return subprocess.Popen(
            command, stdin=streams[0], stdout=streams[1], stderr=streams[2], pass_fds=(fd,), env=_environment(),
        )
    except OSError as problem:
        raise WorkerDied(f"no worker process can be started: {problem.strerror or problem}") from problem


@functools.cache
def _library() -> str:
    """The folder to find this package in, unless every Python of this installation finds it by itself."""
    root = str(Path(__file__).resolve().parents[2])
    places = [*site.getsitepackages(), site.getusersitepackages()]
    return "" if root in places else root


def _environment() -> dict[str, str]:
    """The worker's own environment, which is not the guest's."""
    environment = dict(os.environ)
    if library := _library():
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = library + (os.pathsep + before if before else "")
    return environment


_the_spawner: _Spawner | None = None
_the_lock = threading.Lock()


def _spawner() -> _Spawner:
    global _the_spawner
    with _the_lock:
        if _the_spawner is None or _the_spawner.pid != os.getpid():  # a fork of this process has no threads
            _the_spawner = _Spawner()
        return _the_spawner
