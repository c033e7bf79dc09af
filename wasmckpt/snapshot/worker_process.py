"""The parent's handle of one worker process: started, asked, and cleared away whatever happens to it.

Workers are started by one thread that lives as long as this process: Linux kills a worker with the THREAD that
started it (``PR_SET_PDEATHSIG``), and callers' threads come and go.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import TYPE_CHECKING, Any, Final

from ..errors import CheckpointError, JobEnded, RetryLater, WorkerDied
from .launch import OWN, Child, spawn, take_prespawned
from .wire import Channel, Closed, error_from_plain

if TYPE_CHECKING:
    from .nursery import Nurseries

__all__ = ["StandBy", "WorkerProcess", "kill_all"]

_GRACE: Final = 5.0
"""Seconds that a worker gets to end after its socket did."""

SILENCE: float = 30.0
"""Seconds after which a worker that owes an answer is asked for its status, and then has to give that."""

Answer = tuple[dict[str, Any], int | None]
"""What a worker answers, and the descriptor that comes with it (the caller's, to close)."""

_live: set[WorkerProcess] = set()


def kill_all() -> None:
    """End all workers of this process, also those that are just being started, and wait until they are reaped."""
    for worker in list(_live):
        worker.kill()
    if (child := take_prespawned()) is not None:
        child.kill()
        child.wait()
        os.close(child.socket)


class WorkerProcess:
    """A worker of its own for one program.

    Args:
        streams: descriptors that become the worker's standard input, output and error.
        loader: what it is started through (`runtimes.loader` of the runtime that it is to load).
        runtime: which one that is, for workers that stand by (`stand_by`).
        on_event: called with each event, by the reading thread. on_death: called once, when the process is reaped,
            with its exit status (negative: the signal).

    Raises:
        WorkerDied: no process could be started.
    """

    def __init__(
        self, streams: tuple[int, int, int], *, on_event: Callable[[Mapping[str, Any]], None],
        on_death: Callable[[int], None], loader: tuple[str, ...] = (), runtime: str = "",
    ) -> None:
        self._on_event, self._on_death = on_event, on_death
        self._pending: dict[int, Future[Answer]] = {}
        self._lock = threading.Lock()
        self._next = 0
        self.gone: WorkerDied | None = None
        """How it ended; None while it lives."""
        self._killed = False
        self._retired = False
        prespawned = take_prespawned(loader) if streams == OWN else None
        self._process = prespawned or _start(streams, loader, runtime).result()
        self._channel = Channel(socket.socket(fileno=self._process.socket))
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name=f"worker {self.pid}", daemon=True)
        _live.add(self)
        self._reader.start()

    def ask(
        self, do: str, fields: Mapping[str, object] | None = None, *, descriptors: Sequence[int] = (),
    ) -> Future[Answer]:
        """Send a request. The future gives the answer, or raises the worker's error, or `WorkerDied`."""
        future: Future[Answer] = Future()
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

    def wait(self, asked: Future[Answer]) -> Answer:
        """The answer to a request, however long it takes, as long as the worker answers at all: its main thread is
        always free to. One that hangs is given up on; a late answer is dropped.

        Raises the worker's error, `WorkerDied`, or `RetryLater`.
        """
        while True:
            try:
                return asked.result(SILENCE)
            except NoAnswer:
                pass
            try:
                self.ask("status").result(SILENCE)
            except NoAnswer:
                if not asked.done():
                    _drop(asked)
                    raise RetryLater("the worker gives no sign of life", pid=self.pid) from None
            except CheckpointError:
                pass  # it has ended: whoever still waits is told

    def call(
        self, do: str, fields: Mapping[str, object] | None = None, *, descriptors: Sequence[int] = (),
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Ask and wait; the descriptor of an answer is closed.

        Raises the worker's error, `WorkerDied`, or `RetryLater` if there is no answer within ``timeout`` seconds.
        """
        asked = self.ask(do, fields, descriptors=descriptors)
        try:
            answer, descriptor = self.wait(asked) if timeout is None else asked.result(timeout)
        except NoAnswer:
            _drop(asked)
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
        self._process.kill()
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
        status = self._process.wait(_GRACE)
        if status is None:
            self._process.kill()
            status = self._process.wait()
            assert status is not None
        self._channel.close()
        with self._lock:
            if self.gone is None:
                self.gone = died(status, self.pid, killed=self._killed)
            waiting, self._pending = self._pending, {}
        _live.discard(self)
        for future in waiting.values():
            future.set_exception(self.gone)
        self._on_death(status)


def _drop(asked: Future[Answer]) -> None:
    """Nobody waits for this answer any more."""

    def close(late: Future[Answer]) -> None:
        if late.exception() is None and (descriptor := late.result()[1]) is not None:
            os.close(descriptor)

    asked.add_done_callback(close)


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


class StandBy:
    """As long as one of these is open workers are forked from processes that stand by (`nursery`): of each runtime one,
    made when it is first asked for. For who starts many, over and over."""

    def __init__(self) -> None:
        self._spawner: _Spawner | None = _spawner()
        self._spawner.open()

    def prepare(self, runtime: str) -> None:
        """Make one for a runtime now, beside all else."""
        if self._spawner is not None and self._spawner.nurseries is not None:
            self._spawner.nurseries.prepare(runtime)

    def ready(self) -> dict[str, int]:
        """Runtimes that a process stands by for, and its number."""
        return {} if self._spawner is None or self._spawner.nurseries is None else self._spawner.nurseries.ready()

    def counts(self) -> tuple[int, int]:
        """Workers that came from a process that stood by, and those that did not, since the first of these was open."""
        nurseries = None if self._spawner is None else self._spawner.nurseries
        return (0, 0) if nurseries is None else (nurseries.taken, nurseries.afresh)

    def close(self) -> None:
        """The last one ends what stood by; workers stay. Idempotent."""
        spawner, self._spawner = self._spawner, None
        if spawner is not None:
            spawner.close()


def _start(streams: tuple[int, int, int], loader: tuple[str, ...], runtime: str) -> Future[Child]:
    """Start a worker; the future raises `WorkerDied` if it cannot be started."""
    future: Future[Child] = Future()
    spawner = _spawner()

    def start() -> None:
        try:
            nurseries = spawner.nurseries
            child = nurseries.take(streams, runtime) if nurseries is not None and runtime else None
            future.set_result(child or spawn(streams, loader=loader))
        except BaseException as problem:
            future.set_exception(problem)

    spawner.orders.put(start)
    return future


class _Spawner:
    """Starts workers, one after the other, from a thread that never ends."""

    def __init__(self) -> None:
        self.orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.pid = os.getpid()
        self.nurseries: Nurseries | None = None
        self._users = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="worker spawner", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.orders.get()()

    def open(self) -> None:
        """One more wants workers that stand by."""
        from .nursery import Nurseries  # for few

        with self._lock:
            self._users += 1
            if self.nurseries is None:
                self.nurseries = Nurseries(self.orders.put)

    def close(self) -> None:
        """One less."""
        with self._lock:
            self._users -= 1
            nurseries = None if self._users else self.nurseries
            if nurseries is not None:
                self.nurseries = None
        if nurseries is not None:
            nurseries.close()


_the_spawner: _Spawner | None = None
_the_lock = threading.Lock()


def _spawner() -> _Spawner:
    global _the_spawner
    with _the_lock:
        if _the_spawner is None or _the_spawner.pid != os.getpid():  # a fork of this process has no threads
            _the_spawner = _Spawner()
        return _the_spawner
