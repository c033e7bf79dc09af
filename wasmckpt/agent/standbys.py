"""Workers that stand by for jobs of other agents: each has its program compiled, and its memory in place as it was in
the newest image that is kept here, so that after a take-over it goes on at once.

A worker is made as for a job that is on its way here (`wasmckpt.snapshot.moving`), and with each image that comes it is
given the pages that differ from the one before. Where that difference cannot be told, or a worker fails, it is made
anew with the next image. All that is the business of one thread; a take-over waits for what that is doing and takes the
worker with it, if it has the image that is needed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from ..errors import CheckpointError
from ..faults import point
from ..formats import PAGE_SIZE, Image, MemoryState, ParentRef
from ..lazydata import replace
from ..migrate.pages import Mirror
from ..snapshot.job import Job
from ..snapshot.moving import Part
from ..store import Store
from .replicas import Kept
from .start import expect

if TYPE_CHECKING:
    from .service import Agent

__all__ = ["Standby", "Standbys"]

_LOOK: Final = 1.0
"""Seconds between two looks for newer images, if nobody says that there is one."""


class Standby:
    """A worker for one job, which has its image ``number``.

    Args:
        store: that has the image.

    Raises:
        CheckpointError: the program cannot be run here.
    """

    def __init__(self, agent: Agent, kept: Kept, runtime: str, store: Store, number: int) -> None:
        self.job, self.runtime, self.number = kept.job, runtime, number
        module = agent.modules.read(kept.spec.module)
        self._arrival, self.folders = expect(kept.job, kept.spec, runtime, module, agent.jobs.around)
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            self._mirror = Mirror(self._arrival.mirror)
            self._pages: set[tuple[int, int]] = set()
            """Those that are not as in a fresh module: memory and number."""
            image = store.load(kept.job, number)
            self._arrival.stage(_bare(image))
            self._fill(image)
            on_failure.pop_all()

    def follow(self, store: Store, number: int) -> bool:
        """Become what a newer image is. False: another worker is needed for that. Raises `CheckpointError`."""
        if number == self.number:
            return True
        image = store.difference(self.job, number, self.number, ParentRef(bytes(32), 1))
        if image is None:  # most pages differ, or one is as in a fresh module again, which an image does not tell
            image = store.load(self.job, number)
            if not self._pages <= _pages(image):
                return False
        self._arrival.make_room(image)
        self._arrival.learn(_bare(image))
        self._fill(image)
        self.number = number
        return True

    def _fill(self, image: Image) -> None:
        self._pages |= _pages(image)
        parts: list[Part] = []
        for state in image.memories:
            runs = [(first, len(raw) // PAGE_SIZE) for first, raw in state.data]
            for first, raw in state.data:
                self._mirror.put(state.index, first, raw)
            for first, count in state.zero:
                self._mirror.put(state.index, first, bytes(count * PAGE_SIZE))
            parts.append((state.index, state.pages, tuple(sorted([*runs, *state.zero]))))
        self._arrival.fill(parts)

    def go(self, image: Image, until: float) -> Job:
        """The program goes on from the image that it has, until that time at most (infinity: it has none); gives the
        job, with the folders the caller's. Raises `CheckpointError`."""
        if until < float("inf"):
            self._arrival.job.end_at(until)
        self._arrival.arrive(_bare(image), [(state.index, state.pages, ()) for state in image.memories], insist=True)
        point("neighbours.standby-ready")
        job = self._arrival.commit()
        self.folders = []
        return job

    def close(self) -> None:
        """Nothing is left of it, unless it goes on. Idempotent."""
        self._arrival.close()
        folders, self.folders = self.folders, []
        for folder in folders:
            with contextlib.suppress(OSError):
                os.close(folder)


class Standbys:
    """Of one agent, ``most`` at a time."""

    def __init__(self, agent: Agent, most: int) -> None:
        self._agent, self._most = agent, most
        self._found: dict[str, Standby] = {}
        self._lock = threading.Lock()
        """Held while one is made, or follows."""
        self._failed: dict[str, int] = {}
        """Jobs for which none could be made, and the image with which that was tried."""
        self._over, self._news = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="standbys", daemon=True)

    def start(self) -> None:
        """If there are to be any."""
        if self._most:
            self._thread.start()

    def wake(self) -> None:
        """There is a newer image."""
        self._news.set()

    def has(self, job: str) -> bool:
        """Whether one stands by for a job."""
        return job in self._found

    @contextlib.contextmanager
    def taken(self, job: str, number: int) -> Iterator[Standby | None]:
        """The one of a job, if it has that image; whoever takes it has it for good."""
        with self._lock:
            standby = self._found.pop(job, None)
        if standby is not None and standby.number != number:
            standby.close()
            standby = None
        try:
            yield standby
        finally:
            if standby is not None:
                standby.close()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._turn()
            except CheckpointError:  # of the database: the next turn
                pass
            except Exception as problem:
                self._agent.jobs.internal_error(problem)
            self._news.wait(_LOOK)
            self._news.clear()

    def _turn(self) -> None:
        neighbours = self._agent.neighbours
        wanted = [kept for kept in self._agent.replicas.all()
                  if kept.ballot.newest[1] and not neighbours.is_own(kept.job)][:self._most]
        with self._lock:
            for job in self._found.keys() - {kept.job for kept in wanted}:
                self._found.pop(job).close()
                if job not in self._agent.records.ids():
                    self._agent.jobs.around.logs(job).remove()
        for kept in wanted:
            with self._lock:
                if self._over.is_set():
                    return
                self._follow(kept)

    def _follow(self, kept: Kept) -> None:
        agent = self._agent
        try:
            handed = agent.replicas.hand_out(kept)
            if handed is None:
                return
            store, number = handed
            if agent.replicas.is_main(store) or self._failed.get(kept.job) == number:
                return
            standby = self._found.get(kept.job)
            if standby is None or not standby.follow(store, number):
                if standby is not None:
                    self._found.pop(kept.job).close()
                self._found[kept.job] = Standby(agent, kept, agent.neighbours.runtime_for(kept), store, number)
        except CheckpointError as problem:
            if (failed := self._found.pop(kept.job, None)) is not None:
                failed.close()
            self._failed[kept.job] = kept.ballot.newest[1]
            agent.events.say(kept.job, "neighbours", f"no worker stands by for it: {problem}")

    def close(self) -> None:
        """End them all. Idempotent."""
        self._over.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(60.0)
        with self._lock:
            while self._found:
                self._found.popitem()[1].close()


def _pages(image: Image) -> set[tuple[int, int]]:
    runs = [(state.index, first, len(raw) // PAGE_SIZE) for state in image.memories for first, raw in state.data]
    runs += [(state.index, first, count) for state in image.memories for first, count in state.zero]
    return {(memory, page) for memory, first, count in runs for page in range(first, first + count)}


def _bare(image: Image) -> Image:
    """Without its pages."""
    return replace(image, parent=None, memories=tuple(
        MemoryState(state.index, state.pages, ()) for state in image.memories))
