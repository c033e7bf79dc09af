"""Copies the checkpoints of a running program from its folder to a bucket, beside the program.

A process of its own: the program's command forks and must stay small, and what storage does to it (waiting, retrying,
threads of a library) is none of its business. It is told by a byte on its standard input that there is something new,
and by the end of that that the program is over; so it also learns of a command that was killed, and finishes what is
there.

The newest checkpoint is always the next that is copied: where storage is slower than the program's checkpoints, those
between wait, and are copied when there is nothing newer. What the folder has let go of by then (``--keep``) is
*dropped*, and counted; all that is in the folder stays there whatever becomes of the copy. What fails is tried again a
second later.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from ..errors import CheckpointError
from ..lazydata import dataclass

if TYPE_CHECKING:
    from .store import Store

__all__ = ["Copied", "Copier"]

_PAUSE: Final = 1.0
"""Seconds between two tries of what fails."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of the checkpoints of a run.

    Attributes:
        copied: how many are in the bucket now. dropped: let go of here before their turn came.
        missing: here, and not in the bucket. renumbered: copied under another number, since somebody else has theirs.
        problem: what the last failed attempt said, if anything is missing.
    """

    copied: int = 0
    dropped: int = 0
    missing: int = 0
    renumbered: int = 0
    problem: str = ""


class Copier:
    """The process that copies.

    Args:
        store: the folder's. url: of the bucket's. job: the program's name in both.
        patience: seconds that it goes on when the program is over.
        after: the program's checkpoints have larger numbers, and larger ones than those that are there now.
    """

    def __init__(self, store: Store, url: str, job: str, *, patience: float = 30.0, after: int = 0) -> None:
        self._store, self._job, self._patience = store, job, patience
        self._before = self._here()
        self._first = max([after, *self._before])
        self._said = os.memfd_create("wasmckpt-copied", os.MFD_CLOEXEC)
        """What the process has done, as it stands now: a pipe that nobody reads would be full in the end."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from wasmckpt.store.copier import main; main()", str(store.path.absolute()),
             url, job, str(patience), str(self._said)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[self._said],
            start_new_session=True,  # Ctrl-C is for the program
            env={**os.environ, "PYTHONPATH": os.pathsep.join(place for place in sys.path if place)},
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    def _here(self) -> set[int]:
        return {entry.number for entry in self._store.entries(self._job)}

    def wake(self) -> None:
        """There is a new checkpoint. Never waits, never fails."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it is awake enough, or has died, which `finish` says
            os.write(self._process.stdin.fileno(), b"\n")

    def finish(self) -> Copied:
        """Wait until all is copied, but no longer than its patience; then say what became of it. To be called once."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        died = False
        try:
            died = self._process.wait(self._patience) != 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        data = os.pread(self._said, 1 << 24, 0)
        os.close(self._said)
        said: dict[str, Any] = json.loads(data) if data else {"copied": [], "renumbered": 0, "problem": ""}
        copied, here = set(said["copied"]), self._here()
        mine = self._before | set(range(self._first + 1, max([self._first, *here, *copied]) + 1))
        missing = here - copied
        problem = "the process that copies has died" if died else said["problem"]
        return Copied(len(copied), len(mine - copied - here), len(missing), said["renumbered"],
                      problem if missing or died else "")


class _Work:
    """What is to be done, in the process that copies."""

    def __init__(self, folder: str, url: str, job: str, patience: str, said: str) -> None:
        self._folder, self._url, self._job, self._patience = folder, url, job, float(patience)
        self._until = float("inf")
        self._copied: set[int] = set()
        self._renumbered = 0
        self._problem = ""
        self._over = False
        self._said = int(said)

    def run(self) -> None:
        from .levels import push
        from .remote import RemoteStore
        from .store import Store

        store, remote = Store(self._folder), None
        while time.monotonic() < self._until:
            here = {entry.number: entry for entry in store.entries(self._job)}
            waiting = here.keys() - self._copied
            if not waiting:
                if self._over:
                    return
                self._listen(None)
                continue
            entry = here[max(waiting)]
            try:
                remote = remote or RemoteStore(self._url, create=True)
                there = push(store, remote, entry)
                self._renumbered += there is not None and there.number != entry.number
                self._copied.add(entry.number)
                self._problem = ""
                self._tell()
                self._listen(0)
            except CheckpointError as problem:
                if any(there.number == entry.number for there in store.entries(self._job)):
                    self._problem = str(problem)
                    self._tell()
                    self._wait()

    def _tell(self) -> None:
        data = json.dumps({"copied": sorted(self._copied), "renumbered": self._renumbered, "problem": self._problem})
        os.pwrite(self._said, data.encode() + b" " * 4096, 0)  # over what was longer

    def _listen(self, seconds: float | None) -> None:
        """Hear what is new; None: wait for it."""
        while not self._over and select.select([0], [], [], seconds)[0]:
            self._over = not os.read(0, 4096)
            seconds = 0
        if self._over and self._until == float("inf"):
            self._until = time.monotonic() + self._patience

    def _wait(self) -> None:
        until = time.monotonic() + _PAUSE
        if self._over:
            time.sleep(_PAUSE)
        else:
            self._listen(_PAUSE)
            time.sleep(max(0.0, until - time.monotonic()))


def main() -> None:
    """What the process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Work(*sys.argv[1:6]).run()
