"""To one neighbour: promises are asked for over and over, and newer images and output are brought.

Two threads, since a large image is not to keep the promises waiting. An image goes as the difference to the one that
the neighbour has, if it is known here what that is, and what its program had written goes first: so whatever breaks
off, the neighbour has all that belongs to the image that it has.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from ..api import Promise, Promises
from ..errors import CheckpointError, Conflict, ImageError, NotFound, UsageError
from ..faults import point
from ..formats import Image, ParentRef, save
from ..formats.sealing import current
from ..store import Entry
from .logs import STREAMS, Stream
from .peer import hand, tell
from .records import Record
from .replicas import Kept, now
from .start import produced_by

if TYPE_CHECKING:
    from .neighbours import Neighbours

__all__ = ["NEIGHBOURS", "Link"]

NEIGHBOURS: Final = "/v1/neighbours"
_LONGEST_CHAIN: Final = 16
"""Images, each a difference to the one before, that the neighbour's newest may rest on."""
_PIECE: Final = 1 << 19
"""Bytes of output in one request."""
_LOOK: Final = 1.0
"""Seconds between two looks for a newer image."""
_PAUSE: Final = 3.0
"""Seconds after which an image that was refused is brought again."""
_AT_ONCE: Final = 1000
"""Jobs in one request."""
_LAST: Final = 5.0
"""Seconds that images get when the agent stops."""


class Link:
    """To the neighbour at ``url``, which is asked every ``every`` seconds."""

    def __init__(self, neighbours: Neighbours, url: str, every: float) -> None:
        self._all, self._url, self._every = neighbours, url, every
        self._over, self._last = threading.Event(), threading.Event()
        self._sent: dict[str, tuple[int, dict[str, int]]] = {}
        """Of each job: which of its runs, and how much of its output is there."""
        self._strangers: set[str] = set()
        """Jobs that it does not know."""
        self._not_before: dict[str, float] = {}
        """When an image that it has refused is brought again."""
        self._threads = [threading.Thread(target=run, name=f"{name} {url}", daemon=True)
                         for name, run in (("promises", self._ask), ("replicas", self._bring))]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Images that are not there yet get some seconds. Idempotent."""
        self._last.set()
        self._threads[1].join(_LAST)
        self._over.set()

    def _jobs(self) -> list[tuple[Record, Kept]]:
        return [(record, kept) for record, kept in self._all.owned() if self._url in kept.voters]

    # Promises

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                self._renew()
            except Exception as problem:
                self._all.agent.jobs.internal_error(problem)
            self._over.wait(self._every)

    def _renew(self) -> None:
        by_id: dict[str, list[Kept]] = {}
        for kept in self._all.agent.replicas.owned():
            if self._url in kept.voters:
                by_id.setdefault(kept.voters[self._url], []).append(kept)
        for voter, jobs in by_id.items():
            for begin in range(0, len(jobs), _AT_ONCE):
                self._renew_some(voter, jobs[begin:begin + _AT_ONCE])

    def _renew_some(self, voter: str, jobs: list[Kept]) -> None:
        asked = now()
        try:
            answer = Promises.model_validate(tell(self._all.peer(self._url), f"{NEIGHBOURS}/leases", {
                "site": self._all.url, "voter": voter, "terms": {kept.job: kept.owned for kept in jobs},
            }, self._all.duration / 3))
        except (CheckpointError, ValueError) as reason:
            problem = reason if isinstance(reason, CheckpointError) else CheckpointError("nonsense was answered")
            for kept in jobs:
                self._all.failed(kept.job, self._url, problem, silent=True)
            return
        for kept in jobs:
            promise = answer.promises.get(kept.job)
            self._all.heard(kept, self._url, promise, asked)
            if promise is None:
                self._strangers.add(kept.job)

    def _entrust(self, record: Record, kept: Kept) -> None:
        """Also its module, which may be large: so it is not asked for promises meanwhile."""
        peer, given = self._all.peer(self._url), self._all.entrusted(
            record, kept.owned, kept.voters, kept.duration)
        path, document = f"{NEIGHBOURS}/{record.id}", given.model_dump(mode="json")
        try:
            try:
                tell(peer, path, document)
            except NotFound:  # its module
                hand(peer, "/v1/modules", self._all.agent.jobs.around.modules.read(record.module))
                tell(peer, path, document)
        except CheckpointError as problem:
            self._all.failed(record.id, self._url, problem)

    def _tell_the_end(self) -> None:
        """Of jobs that have ended, or were deleted."""
        for kept in self._all.agent.replicas.closing():
            if self._url not in kept.voters or self._all.has_heard_the_end(kept.job, self._url):
                continue
            try:
                tell(self._all.peer(self._url), f"{NEIGHBOURS}/{kept.job}/over",
                     {"site": self._all.url, "term": kept.owned}, self._all.duration / 3)
            except (NotFound, Conflict):
                pass  # it has forgotten, or another one owns the job
            except CheckpointError:
                return  # nor will it answer for the next one
            self._all.ended(kept.job, self._url)

    # Images

    def _bring(self) -> None:
        while not self._over.is_set():
            last = self._last.wait(_LOOK)
            try:
                for record, kept in self._jobs():
                    if record.id in self._strangers:
                        self._strangers.discard(record.id)
                        self._entrust(record, kept)
                    if now() >= self._not_before.get(record.id, 0.0):
                        self._bring_one(record, kept)
                self._tell_the_end()
            except CheckpointError:
                pass  # of this agent's own database: the next look
            except Exception as problem:
                self._all.agent.jobs.internal_error(problem)
            if last:
                return

    def _bring_one(self, record: Record, kept: Kept) -> None:
        agent = self._all.agent
        entry = agent.store.newest(record.id)
        promise = self._all.seen(record.id, self._url).promise
        if entry is None or promise is None:
            return
        if entry.number > kept.ballot.newest[1]:
            agent.replicas.took(record.id, kept.owned, entry.number)
        elif (promise.version is not None and promise.number is not None
                and (promise.version, promise.number) >= kept.ballot.newest):
            return
        try:
            image = self._image(kept, entry, promise)
            self._output(record, kept.owned, promise, produced_by(image.host))
            self._hand_image(record, kept.owned, entry, image)
        except CheckpointError as problem:
            self._sent.pop(record.id, None)  # it may have lost what it had
            self._not_before[record.id] = now() + _PAUSE
            self._all.failed(record.id, self._url, problem)

    def _image(self, kept: Kept, entry: Entry, promise: Promise) -> Image:
        """As the difference to what the neighbour has, or whole."""
        store = self._all.agent.store
        if (promise.number and promise.number < entry.number and promise.position + 1 < _LONGEST_CHAIN
                and not current().seals and promise.version == kept.owned):
            parent = ParentRef(bytes.fromhex(promise.sha256), promise.position + 1)
            with contextlib.suppress(UsageError, ImageError):  # the image that it would be a difference to is gone
                image = store.difference(kept.job, entry.number, promise.number, parent)
                if image is not None:
                    return image
        return store.load(kept.job, entry.number)

    def _output(self, record: Record, term: int, promise: Promise, produced: dict[Stream, int]) -> None:
        """What the program had written when the image was taken. In another run it may have written other things."""
        logs = self._all.agent.jobs.around.logs(record.id)
        run, sent = self._sent.get(record.id, (-1, {}))
        if run != record.runs:
            sent = {}
        there = {"stdout": promise.stdout, "stderr": promise.stderr}
        for stream in STREAMS:
            end = produced.get(stream, 0)
            begin = record.begins[stream]
            at = max(begin, min(sent.get(stream, begin), there[stream] if stream in sent else begin))
            while at < end:
                piece = logs.read(stream, begin, at, min(_PIECE, end - at))
                if not piece.data:
                    break
                query = urlencode({"site": self._all.url, "term": term, "stream": stream,
                                   "begin": begin, "offset": piece.offset})
                hand(self._all.peer(self._url), f"{NEIGHBOURS}/{record.id}/output?{query}", piece.data)
                at = piece.offset + len(piece.data)
            sent = {**sent, stream: at}
        self._sent[record.id] = record.runs, sent

    def _hand_image(self, record: Record, term: int, entry: Entry, image: Image) -> None:
        agent = self._all.agent
        path: Path = agent.config.state / "incoming" / os.urandom(12).hex()
        try:
            save(image, path)
            point("neighbours.image-leaves")
            with path.open("rb") as file:
                query = urlencode({"site": self._all.url, "term": term, "number": entry.number,
                                   "stdout_from": record.stdout_from, "stderr_from": record.stderr_from})
                answer = hand(self._all.peer(self._url), f"{NEIGHBOURS}/{record.id}/image?{query}", file)
        finally:
            path.unlink(missing_ok=True)
        self._all.well(record.id, self._url, Promise.model_validate(answer))
