"""A program with a journal, killed and restored as often as wanted, its streams held by us; and what must be true."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import threading
import time
from pathlib import Path
from typing import Any, Final

from wasmckpt import Ended, Job, JournalOptions, WasiConfig
from wasmckpt.errors import WorkerDied

from ..support import tiers
from ..support.toolchain import Unavailable, build_c

__all__ = ["INPUT", "Story", "guest"]

INPUT = b"".join(b"line %d of the input\n" % i for i in range(40))
_LAST: Final = 20
"""Bytes of it that come last."""


def guest(name: str = "guest") -> bytes:
    """A C program beside this file."""
    try:
        return build_c(f"journal-{name}", [Path(__file__).with_name(f"{name}.c")], []).read_bytes()
    except Unavailable as reason:
        tiers.missing(reason.need, str(reason))


class Story:
    """One program over all its lives. The last of its input comes when it is to end (`finish`), so that it does not end
    before, however long a test stands still.

    Args:
        folder: empty; holds the image, its journal, and the program's files.
        seed: of the moments of the kills.
        ahead: bytes of output that it can be ahead of whoever reads; 0: as many as go into a pipe.
    """

    def __init__(self, folder: Path, seed: int, *, turns: int = 40, work: int = 2000, image: str = "i.wckpt",
                 ahead: int = 0) -> None:
        self.random = random.Random(seed)
        self.module = guest()
        self.image = folder / image
        self.folder = folder / "d"
        self.folder.mkdir()
        self.turns, self.work = turns, work
        self.out = b""
        self.lives = 0
        self.options: dict[str, Any] = {}
        self.all = threading.Event()
        """The last of the input may come. Until then the program waits for it in one of its turns, behind 1,800 bytes
        of output."""
        self._read, self._write = os.pipe()
        if ahead:
            fcntl.fcntl(self._write, fcntl.F_SETPIPE_SZ, ahead)
        self._stdin, feed = os.pipe()
        self._feeder = threading.Thread(target=self._feed, args=(feed,), daemon=True)
        self._feeder.start()

    def _feed(self, feed: int) -> None:
        left, pieces = INPUT, random.Random(1)
        with contextlib.suppress(OSError):
            while left:
                if len(left) <= _LAST:
                    self.all.wait()
                left = left[os.write(feed, left[: min(pieces.randrange(1, 90), max(_LAST, len(left) - _LAST))]) :]
                time.sleep(0.003)
        os.close(feed)

    @property
    def config(self) -> WasiConfig:
        """What the program gets."""
        return WasiConfig(
            args=["guest", str(self.turns), str(len(INPUT)), str(self.work)], preopens=[(self.folder, "/d")],
            stdin=self._stdin, stdout=self._write,
        )

    def start(self, runtime: str) -> Job:
        """Its first life."""
        self.lives = 1
        return Job.start(self.module, runtime, config=self.config,
                         journal=JournalOptions.beside(self.image, **self.options))

    def restore(self, runtime: str) -> Job:
        """The next one."""
        self.lives += 1
        return Job.restore(self.image, runtime, module=self.module, config=self.config,
                           journal=JournalOptions.beside(self.image, **self.options))

    def read(self, wanted: int, job: Job) -> None:
        """Read output until there are so many bytes in all, or the program has ended."""
        os.set_blocking(self._read, False)
        until = time.monotonic() + 120
        while len(self.out) < wanted and time.monotonic() < until and not job.ended:
            try:
                self.out += os.read(self._read, 65536)
            except BlockingIOError:
                time.sleep(0.0005)

    def drain(self) -> None:
        """What is still in the pipe; nobody writes any more."""
        os.set_blocking(self._read, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.out += os.read(self._read, 65536)

    def kill(self, job: Job) -> None:
        """End the program's worker as ``kill -9`` does."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(job.pid, 9)
        with contextlib.suppress(WorkerDied):
            job.wait()
        job.close()
        self.drain()

    def finish(self, job: Job) -> Ended:
        """To its end, its output read meanwhile."""
        self.all.set()
        os.set_blocking(self._read, False)
        over = threading.Event()
        job.on_end(over.set)
        while not over.is_set():
            with contextlib.suppress(BlockingIOError):
                self.out += os.read(self._read, 65536)
            over.wait(0.002)
        end = job.wait()
        job.close()
        self.drain()
        return end

    def live(self, kills: int, runtimes: tuple[str, ...], *, checkpoints: float = 0.5) -> Ended:
        """Kill it at random moments, each life on the next runtime, sometimes after an image; gives its end."""
        self.all.set()
        job = self.start(runtimes[0])
        whole = self.turns * 45
        for life in range(kills):
            if self.random.random() < 0.8:
                self.read(self.random.randrange(len(self.out), len(self.out) + max(1, whole // kills)), job)
            if self.random.random() < checkpoints and not job.ended:
                with contextlib.suppress(Exception):
                    job.checkpoint(self.image)
            until = time.perf_counter() + self.random.random() * 0.004
            while time.perf_counter() < until:
                pass
            if job.ended:
                break
            self.kill(job)
            job = self.restore(runtimes[(life + 1) % len(runtimes)])
        return self.finish(job)

    def check(self, end: Ended) -> None:
        """All of it happened, once, in order."""
        assert (end.how, end.exit_code) == ("exited", 7)
        assert self.out == (self.folder / "output").read_bytes() == (self.folder / "appended").read_bytes()
        assert [int(n) for n in re.findall(rb"(?m)^(\d+) \d+\.\d{9} [0-9a-f]{8} [0-9a-f]+$", self.out)] == (
            list(range(self.turns)))
        taken, at = b"", 0
        while (found := self.out.find(b"in ", at)) >= 0:
            match = re.compile(rb"in (\d+) ").match(self.out, found)
            if match and (found == 0 or self.out[found - 1 : found] == b"\n"):
                end_ = match.end() + int(match[1])
                taken += self.out[match.end() : end_]
                at = end_
            else:
                at = found + 1
        assert taken == INPUT
        assert self.out.endswith(b"\nend\n")
        assert sorted(path.name for path in self.folder.iterdir()) == ["appended", "output"]

    def close(self) -> None:
        """Give the pipes back."""
        self.all.set()
        for fd in (self._read, self._write, self._stdin):
            os.close(fd)
        self._feeder.join()

