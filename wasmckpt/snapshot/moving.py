"""The two ends of a live move, each in the process that looks after its worker: `Departure` at the source, `Arrival` at
the target. How they come to one another is none of their business (`wasmckpt.migrate`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final

from ..dirty import Runs
from ..errors import JobEnded
from ..formats import Image, ParentRef, write_image
from ..host import WasiConfig
from ..lazydata import dataclass
from ..runtimes import DEFAULT_STACK_BYTES
from .assignment import Assignment
from .confine import ResourceLimits
from .incoming import SPAN, Part
from .job import DEFAULT_TIMEOUT, Continuations, Ended, Job
from .sandbox import Sandbox
from .wire import memory_file

__all__ = ["SPAN", "Arrival", "Departure", "Look", "Part"]

_PATIENCE: Final = 60.0
_BUILDING: Final = 300.0
"""Seconds that making an instance may take."""


@dataclass(frozen=True, slots=True)
class Look:
    """An image of the running program, or of the one that stands still.

    Attributes:
        descriptor: of a file with the image, which is not packed; the caller's to close.
        whole: it is no difference to the one before.
        stopped: seconds that the program stood still for it. since: on the monotonic clock, when a held one stopped.
    """

    descriptor: int
    size: int
    whole: bool
    stopped: float
    since: float = 0.0


class Departure:
    """Images of a job that is to move, each the difference to the one before, and in the end the job standing still.
    A context manager; nobody else stops the job meanwhile.

    Raises:
        RetryLater: others did not let it. JobEnded.
    """

    def __init__(self, job: Job, *, patience: float = _PATIENCE, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.job, self._timeout = job, timeout
        self._parent: ParentRef | None = None
        self._stack = ExitStack()
        self._stack.enter_context(job._turn.taken(patience))
        self.held = False

    def look(self) -> Look:
        """One more image; the program goes on. Raises as `Job.checkpoint`."""
        return self._take("checkpoint", {"path": None, "stop": False})

    def written(self) -> list[Runs]:
        """Pages that were written since the last image, by memory, as far as that is known already: all of them will be
        in the next one. Raises `JobEnded`."""
        if self._parent is None:
            return []
        answer = self.job._present().call("written", {"since": self._parent.sha256})
        return [tuple((first, count) for first, count in runs) for runs in answer["memories"]]

    def hold(self) -> Look:
        """The last one: the program stands still, until `release` or `finish`. Raises as `Job.checkpoint`; then it goes
        on."""
        look = self._take("hold", {})
        self.held = True
        return look

    def _take(self, do: str, more: dict[str, object]) -> Look:
        from .job import _let_go

        parent = self._parent
        worker = self.job._present()
        asked = worker.ask(do, {
            "timeout": self._timeout, "track": True, "packed": False,
            "parent": None if parent is None else [parent.sha256, parent.position],
            "since": None if parent is None else parent.sha256, **more,
        })
        try:
            answer, descriptor = worker.wait(asked)
        except BaseException:
            if do == "hold":
                asked.add_done_callback(lambda late: _let_go(worker, late))
            raise
        assert descriptor is not None
        whole = bool(answer["whole"])
        position = 1 if whole or parent is None else parent.position + 1
        self._parent = ParentRef(answer["sha256"], position)
        return Look(descriptor, answer["size"], whole, answer.get("stopped_ns", 0) / 1e9,
                    answer.get("since_ns", 0) / 1e9)

    def release(self) -> float:
        """The held program goes on as if nothing had been; gives how many seconds it stood still. Idempotent."""
        if not self.held:
            return 0.0
        self.held = False
        try:
            return float(self.job._present().call("release")["stopped_ns"] / 1e9)
        except JobEnded:
            return 0.0

    def finish(self) -> None:
        """The held program has gone on elsewhere: it ends here, "stopped". Idempotent."""
        self.held = False
        self.job._finish(Ended("stopped"))
        self.job.close()

    def close(self) -> None:
        """Let a held program go on, and others take images of it. Idempotent."""
        try:
            if not self.job.ended:
                self.release()
        finally:
            self._stack.close()

    def __enter__(self) -> Departure:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.close()


class Arrival:
    """A job that is on its way here (see `incoming`). Made by `begin`; a context manager, which takes it away unless it
    was told to go on.

    Attributes:
        job: it, which does nothing before `commit`. mirror: descriptor of the file that pages are put into first.
    """

    def __init__(self, job: Job, mirror: int) -> None:
        self.job, self.mirror = job, mirror
        self._gone_on = False

    @classmethod
    def begin(
        cls, module: bytes, runtime: str, *, config: WasiConfig | None = None, accept_changed: bool = False,
        stack_bytes: int = DEFAULT_STACK_BYTES, huge_pages: bool = False, limits: ResourceLimits | None = None,
        sandbox: Sandbox | None = None,
    ) -> Arrival:
        """A worker with its runtime, which waits for the first image. Arguments as of `Job.restore`.

        Raises:
            RuntimeMissing, WorkerDied.
        """
        mirror = memory_file("wasmckpt-mirror")
        try:
            return cls(Job(Assignment(
                module, config or WasiConfig(), None, (), stack_bytes, 0, accept_changed, huge_pages=huge_pages,
                limits=limits, sandbox=sandbox,
            ), runtime), mirror)
        except BaseException:
            os.close(mirror)
            raise

    def stage(self, image: Image) -> None:
        """Make an instance for an image that was taken of it, without its pages. Raises as `Job.restore`."""
        self.make_room(image)
        self._with_image(image, lambda descriptor: self._call(
            "stage", self.job._assignment.to_plain(), descriptors=[descriptor, self.mirror]))

    def make_room(self, image: Image) -> None:
        """The mirror has all of an image's memories: what was not put there is zero."""
        need = max([state.index * SPAN + (state.pages << 16) for state in image.memories], default=0)
        if os.fstat(self.mirror).st_size < need:
            os.truncate(self.mirror, need)

    def learn(self, image: Image) -> bool:
        """Be ready for the frames of a later image too; gives whether it had to be made anew. Raises as `stage`."""
        return bool(self._with_image(image, lambda fd: self._call("learn", descriptors=[fd]))["built"])

    def fill(self, parts: Sequence[Part]) -> None:
        """Pages in the mirror are as they are at the source."""
        self._call("fill", {"memories": parts})

    def arrive(self, image: Image, parts: Sequence[Part], *, insist: bool) -> bool:
        """The last image, and its pages in the mirror: the job stands before its next instruction. False: it cannot go
        on from there at once, and ``insist`` was not given; `learn` makes it possible. Raises as `stage`."""
        answer = self._with_image(image, lambda fd: self._call(
            "arrive", {"memories": parts, "insist": insist}, descriptors=[fd]))
        if answer["arrived"]:
            where = answer["continuations"]
            self.job.continuations = None if where is None else Continuations(*where)
        return bool(answer["arrived"])

    def commit(self) -> Job:
        """It goes on; gives the job, which is the caller's."""
        self._call("commit")
        self._gone_on = True
        return self.job

    def _call(self, do: str, fields: dict[str, object] | None = None, *, descriptors: Sequence[int] = ()
              ) -> dict[str, Any]:
        return self.job._present().call(do, fields, descriptors=descriptors, timeout=_BUILDING)

    @staticmethod
    def _with_image(image: Image, do: Callable[[int], Any]) -> Any:
        descriptor = memory_file("wasmckpt-image")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                write_image(image, file, packed=False)
            return do(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Nothing is left of it, unless it has gone on. Idempotent."""
        mirror, self.mirror = self.mirror, -1
        if mirror >= 0:
            os.close(mirror)
        if not self._gone_on:
            self.job.close()

    def __enter__(self) -> Arrival:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.close()
