"""The user's callables, run in the user's process: each call of a guest in a thread, never the one that reads messages.

A call belongs to the worker that made it. When the program has left that worker the call is given up: the function is
not stopped, since Python cannot, but it can see so (`Call.abandoned`) and nobody takes its result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import CheckpointError, JobEnded, WorkerDied
from ..host import Call, HostFunctions, UserFunction, invoke
from ..lazydata import dataclass
from . import standby
from .assignment import BEFORE
from .wire import error_to_plain
from .worker_process import WorkerProcess

__all__ = ["Callbacks"]


@dataclass(slots=True, kw_only=True, eq=False)
class _RemoteCall(Call):
    """A call that a guest waits for in a worker."""

    number: int
    worker: WorkerProcess
    given_up: bool = False

    @property
    def abandoned(self) -> bool:
        return self.given_up or self.worker.gone is not None

    def _read(self, address: int, length: int) -> bytes:
        answer = self.worker.call("peek", {"number": self.number, "address": address, "length": length})
        return bytes(answer["data"])

    def _call_export(self, export: str, arguments: Sequence[int], writes: list[tuple[int, bytes]]) -> tuple[int, ...]:
        answer = self.worker.call(
            "errand", {"number": self.number, "export": export, "arguments": list(arguments), "writes": writes}
        )
        self.size = answer["size"]
        return tuple(answer["results"])


class Callbacks:
    """Of one job.

    Args:
        functions: what the user gave. checkpoint_here: takes a checkpoint that the guest asked for.
        before_calls: take one before a call, by its number. present: the worker that the program is in now.

    Attributes:
        raised: what a function raised last.
    """

    def __init__(
        self, functions: HostFunctions, checkpoint_here: Callable[[], object] | None,
        before_calls: Sequence[Callable[[], object]] = (), *, present: Callable[[], WorkerProcess],
    ) -> None:
        self._functions = functions
        self._checkpoint_here = checkpoint_here
        self._before_calls, self._present = before_calls, present
        self._before_one = threading.Lock()
        """Held while there is a checkpoint before a call."""
        self._answered_in: WorkerProcess | None = None
        """The worker into which the program has moved meanwhile: it asks once more, for the same call."""
        self._our_own = UserFunction("-> i32", self._checkpoint)
        self._our_before = UserFunction("i32 -> i32", self._before)
        self._calls: set[_RemoteCall] = set()
        self.raised: BaseException | None = None

    def begin(self, worker: WorkerProcess, event: Mapping[str, Any]) -> None:
        """Run what the guest in ``worker`` has called; does not wait."""
        module, name = event["name"]
        call = _RemoteCall((module, name), event["size"], number=event["number"], worker=worker)
        self._calls.add(call)
        standby.run(lambda: self._run(call, event["arguments"]))

    def _run(self, call: _RemoteCall, arguments: Sequence[int]) -> None:
        answer: dict[str, object] = {"number": call.number, "results": [], "writes": [], "error": None}
        try:
            ours = self._our_before if call.name == BEFORE else self._our_own
            function = self._functions.get(call.name, ours)
            assert not isinstance(function.call, str)
            answer["results"] = invoke(function.call, function.types[1], call, arguments)
            answer["writes"] = call.writes
        except BaseException as problem:
            if not call.abandoned:
                self.raised = problem.__cause__
            answer["error"] = error_to_plain(problem)
        self._calls.discard(call)
        if not call.abandoned:
            try:
                call.worker.ask("returned", answer)
            except (JobEnded, WorkerDied):
                pass  # nobody waits for it any more

    def _checkpoint(self, _: Call) -> int:
        assert self._checkpoint_here is not None
        return _taken(self._checkpoint_here)

    def _before(self, call: Call, number: int) -> int:
        assert isinstance(call, _RemoteCall)
        with self._before_one:
            answered, self._answered_in = self._answered_in, None
            if answered is call.worker:
                return 1
            good = _taken(self._before_calls[number])
            present = self._present()
            if present is not call.worker:
                self._answered_in = present
            return good

    def give_up(self, worker: WorkerProcess | None = None) -> None:
        """The program has left ``worker`` (None: it has ended)."""
        for call in list(self._calls):
            if worker is None or call.worker is worker:
                call.given_up = True


def _taken(take: Callable[[], object]) -> int:
    """1 if a checkpoint was taken; 0 if it could not be, which is no reason to end the guest."""
    try:
        take()
    except CheckpointError:
        return 0
    return 1
