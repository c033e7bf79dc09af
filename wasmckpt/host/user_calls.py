"""Users' functions, in the process where the guest runs: calls go out, wait, are taken up again or given up.

An atomic function that is imported here simply runs, in the guest's thread. All others run elsewhere: a callable in the
user's own process, a repeatable function in a thread beside the guest's. The guest's thread then waits for the answer;
meanwhile it stores nothing, and it serves what the function asks of it (to call an export).

::

    the guest's thread      begin ---> wait ---- answered ------------------------> store the writes, return
                                        |  ^
             interrupted, repeatable    v  |  made again with the same arguments
                                     RepeatCall: the program is frozen here, or a copy of it was

Who is made again finds its call still under way and waits on, so a program that goes on where it was (after a snapshot
by fork or in place, or a move that failed) runs its function once. Only when the program leaves is the call lost, and
made anew elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wasmckpt.errors import CheckpointError, JobEnded, UsageError

from ..lazydata import dataclass, field
from .calls import HostFunction
from .memory import GuestMemory
from .signals import RepeatCall
from .user import Call, HostFunctions, UserFunction, invoke

__all__ = ["UserCalls"]

_Name = tuple[str, str]


@dataclass(slots=True)
class _Errand:
    """An export that the guest's thread is asked to call."""

    export: str
    arguments: Sequence[int]
    results: tuple[int, ...] = ()
    error: BaseException | None = None
    done: bool = False


@dataclass(slots=True)
class _Pending:
    """The call that the guest's thread waits for."""

    number: int
    name: _Name
    arguments: tuple[int, ...]
    memory: GuestMemory
    repeatable: bool
    waiting: bool = True
    """Whether the guest's thread stands in it now; else the memory may be changing, or gone."""
    interrupted: bool = False
    """Whether it is to be made again."""
    answered: bool = False
    results: list[int] = field(default_factory=list)
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    error: BaseException | None = None
    errand: _Errand | None = None


class UserCalls:
    """All of one guest.

    Args:
        functions: what the user gave; a ``call`` of None stands for a callable in the user's process.
        send: gives a call to the user's process, as plain data; the answer comes by `answer`. It must not wait.
        call_export: calls an export of the guest, in the guest's thread.

    Raises:
        UsageError: a named function cannot be imported.

    Attributes:
        functions: name -> host function, called with the guest's memory first.
    """

    def __init__(
        self, functions: HostFunctions, send: Callable[[Mapping[str, object]], None],
        call_export: Callable[[str, Sequence[int]], tuple[int, ...]],
    ) -> None:
        self._send, self._call_export = send, call_export
        self._changed = threading.Condition()
        self._interrupted = False
        self._closed = False
        self._numbers = 0
        self._under_way: dict[int, _Pending] = {}
        """By number. More than one: functions that call exports that call functions; the last one is the innermost."""
        self.functions = {name: self._function(name, given) for name, given in functions.items()}

    def _function(self, name: _Name, given: UserFunction) -> HostFunction:
        params, results = given.types
        repeatable = given.freeze == "repeatable"
        if not isinstance(given.call, str):
            return HostFunction(params, results, lambda memory, *args: _as_result(
                self._make(name, memory, args, repeatable, self._remote)
            ))
        function = given.named()
        if not repeatable:
            return HostFunction(params, results, lambda memory, *args: _as_result(
                self._here(name, function, results, memory, args)
            ))

        def beside(pending: _Pending) -> None:
            # The size is asked for here: the guest's thread may leave, and take its memory along.
            call = _CallBeside(name, pending.memory.size, number=pending.number, calls=self)
            threading.Thread(
                target=self._run_beside, args=(call, function, results, pending.arguments), daemon=True
            ).start()

        return HostFunction(params, results, lambda memory, *args: _as_result(
            self._make(name, memory, args, True, beside)
        ))

    def ask(self, name: _Name, memory: GuestMemory, *arguments: int) -> int:
        """A repeatable call of the user's process that gives one i32, for our own functions."""
        (result,) = self._make(name, memory, arguments, True, self._remote)
        return result

    # The guest's thread

    def _here(
        self, name: _Name, function: Callable[..., Any], results: tuple[int, ...], memory: GuestMemory,
        arguments: tuple[int, ...],
    ) -> list[int]:
        call = _CallHere(name, memory.size, memory=memory, exports=self._call_export)
        given = invoke(function, results, call, arguments)
        if call.leaving is not None:
            raise call.leaving
        _store(memory, call.writes)
        return given

    def _make(
        self, name: _Name, memory: GuestMemory, arguments: tuple[int, ...], repeatable: bool,
        begin: Callable[[_Pending], None],
    ) -> list[int]:
        with self._changed:
            pending = next(reversed(self._under_way.values()), None)
            again = pending is not None and pending.interrupted
            if pending is None or not again:
                if repeatable and self._interrupted:  # not begun yet, so it need not be waited for
                    raise RepeatCall
                self._numbers += 1
                pending = self._under_way[self._numbers] = _Pending(
                    self._numbers, name, arguments, memory, repeatable
                )
            else:
                assert (pending.name, pending.arguments) == (name, arguments), "another call than was interrupted"
                pending.memory, pending.waiting, pending.interrupted = memory, True, False
                self._changed.notify_all()
        if not again:
            begin(pending)
        return self._wait(pending)

    def _wait(self, pending: _Pending) -> list[int]:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: pending.answered or pending.errand or (pending.repeatable and self._interrupted)
                )
                errand = pending.errand
                if pending.answered:
                    self._forget(pending)
                    break
                pending.waiting = False
                if errand is None:
                    pending.interrupted = True
                    raise RepeatCall
            self._run_errand(pending, errand)
        if pending.error is not None:
            raise pending.error
        _store(pending.memory, pending.writes)
        return pending.results

    def _run_errand(self, pending: _Pending, errand: _Errand) -> None:
        try:
            _store(pending.memory, pending.writes)
            errand.results = self._call_export(errand.export, errand.arguments)
        except CheckpointError as problem:
            errand.error = problem
        except BaseException as leaving:  # the guest has left by proc_exit: the function is not come back to
            errand.error = JobEnded("the program has ended")
            with self._changed:
                self._forget(pending)
            raise leaving
        finally:
            with self._changed:
                pending.errand, pending.writes, pending.waiting = None, [], True
                errand.done = True
                self._changed.notify_all()

    def _forget(self, pending: _Pending) -> None:
        del self._under_way[pending.number]
        self._changed.notify_all()

    # Other threads

    def interrupt(self) -> None:
        """Repeatable calls end in `RepeatCall`, and none begins."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def clear_interrupt(self) -> None:
        """Calls may be made and waited for again."""
        with self._changed:
            self._interrupted = False

    def answer(
        self, number: int, results: Sequence[int], writes: Sequence[tuple[int, bytes]],
        error: BaseException | None = None,
    ) -> None:
        """A call has returned, or failed. One that was given up is of no interest any more."""
        with self._changed:
            pending = self._under_way.get(number)
            if pending is not None:
                pending.results, pending.writes, pending.error = list(results), list(writes), error
                pending.answered = True
                self._changed.notify_all()

    def peek(self, number: int, address: int, length: int) -> bytes:
        """Bytes of the guest's memory, for a call; waits while the program is frozen in it.

        Raises:
            JobEnded: it is not under way any more. IndexError: outside.
        """
        with self._changed:
            return self._standing(number).memory.read(address, length)

    def errand(
        self, number: int, export: str, arguments: Sequence[int], writes: Sequence[tuple[int, bytes]]
    ) -> tuple[tuple[int, ...], int]:
        """Let the guest's thread call an export; gives its results and the size of the memory after it.

        Raises:
            JobEnded: the call is not under way any more. UsageError, GuestTrap: see `Call.call_export`.
        """
        with self._changed:
            pending = self._standing(number)
            if pending.repeatable:
                raise _no_export(pending.name)
            pending.writes = list(writes)
            errand = pending.errand = _Errand(export, arguments)
            self._changed.notify_all()
            self._changed.wait_for(lambda: errand.done or self._closed)
            if errand.error is not None:
                raise errand.error
            return errand.results, pending.memory.size

    def _standing(self, number: int) -> _Pending:
        """The call, when the guest's thread stands in it; it does so as long as the lock is held."""
        while (pending := self._under_way.get(number)) is not None:
            if pending.waiting:
                return pending
            self._changed.wait()
        raise JobEnded("the call is not under way any more")

    def close(self) -> None:
        """The program has left or ended: whoever still asks for it is told so."""
        with self._changed:
            self._closed = True
            self._under_way.clear()
            self._changed.notify_all()

    # Where functions run

    def _remote(self, pending: _Pending) -> None:
        self._send({
            "number": pending.number, "name": pending.name, "arguments": pending.arguments, "size": pending.memory.size,
        })

    def _run_beside(
        self, call: _CallBeside, function: Callable[..., Any], results: tuple[int, ...], arguments: tuple[int, ...]
    ) -> None:
        try:
            self.answer(call.number, invoke(function, results, call, arguments), call.writes)
        except BaseException as problem:
            self.answer(call.number, (), (), problem)

    def under_way(self, number: int) -> bool:
        """Whether somebody waits for this call, or will."""
        return number in self._under_way


@dataclass(slots=True, kw_only=True, eq=False)
class _CallHere(Call):
    """A call that runs in the guest's thread."""

    memory: GuestMemory
    exports: Callable[[str, Sequence[int]], tuple[int, ...]]
    leaving: BaseException | None = None

    @property
    def abandoned(self) -> bool:
        return False

    def _read(self, address: int, length: int) -> bytes:
        return self.memory.read(address, length)

    def _call_export(
        self, export: str, arguments: Sequence[int], writes: list[tuple[int, bytes]]
    ) -> tuple[int, ...]:
        _store(self.memory, writes)
        try:
            return self.exports(export, arguments)
        except CheckpointError:
            raise
        except BaseException as leaving:  # proc_exit: it counts even if the function swallows it
            self.leaving = leaving
            raise
        finally:
            self.size = self.memory.size


@dataclass(slots=True, kw_only=True, eq=False)
class _CallBeside(Call):
    """A repeatable call that runs in a thread of this process."""

    number: int
    calls: UserCalls

    @property
    def abandoned(self) -> bool:
        return not self.calls.under_way(self.number)

    def _read(self, address: int, length: int) -> bytes:
        return self.calls.peek(self.number, address, length)

    def _call_export(self, export: str, arguments: Sequence[int], writes: list[tuple[int, bytes]]) -> tuple[int, ...]:
        raise _no_export(self.name)


def _no_export(name: _Name) -> UsageError:
    return UsageError(
        "a repeatable function may not call an export: the guest would have gone on in a call that is made again",
        function=".".join(name), hint='declare it freeze="atomic"',
    )


def _store(memory: GuestMemory, writes: Sequence[tuple[int, bytes]]) -> None:
    for address, data in writes:
        memory.write(address, data)


def _as_result(results: list[int]) -> int | tuple[int, ...] | None:
    return None if not results else results[0] if len(results) == 1 else tuple(results)
