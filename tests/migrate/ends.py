"""Both sides of a move in one process, with a socket pair between them, without an agent."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wasmckpt.errors import CheckpointError, NotSupported
from wasmckpt.formats import Image, ParentRef, load_chain, save
from wasmckpt.formats.chain import file_name
from wasmckpt.host import WasiConfig
from wasmckpt.lazydata import replace
from wasmckpt.migrate import Moved, Offer, Options, Progress, Wire, receive, send
from wasmckpt.migrate.handover import FRESH, Role, Standing
from wasmckpt.snapshot.job import Job
from wasmckpt.snapshot.moving import Arrival

__all__ = ["Here", "Input", "There", "move"]


class Input:
    """Standard input in which nothing ever is, until it ends: a program that waits for that does not end before a test
    is done with it, however slow the machine is."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()

    def end(self) -> None:
        if self._write >= 0:
            os.close(self._write)
        self._write = -1

    def close(self) -> None:
        self.end()
        os.close(self.read)


class Here:
    """The source: a job whose output goes to a file."""

    def __init__(self, folder: Path, stdin: Input, standing: Standing | None = None) -> None:
        self.folder, self.stdin, self._standing = folder, stdin, standing or Standing(Role.OWNER)
        self.written: list[Standing] = []

    def standing(self) -> Standing:
        return self._standing

    def persist(self, standing: Standing) -> None:
        self._standing = standing
        self.written.append(standing)

    def output(self, stream: str, offset: int) -> bytes:
        try:
            with open(self.folder / stream, "rb") as file:
                file.seek(offset)
                return file.read(1 << 16)
        except FileNotFoundError:
            return b""

    def begins(self, stream: str) -> int:
        return 0


class There:
    """The target: keeps images as files, one the difference to the other."""

    def __init__(
        self, folder: Path, stdin: Input, *, module: bytes | None = None, standing: Standing = FRESH,
        base: Image | None = None,
    ) -> None:
        self.stdin = stdin
        self.folder, self._module, self._standing, self._base = folder, module, standing, base
        self.job: Job | None = None
        self.offer: Offer | None = None
        self.dropped = 0
        self.newest: Path | None = None
        self._parent: ParentRef | None = None
        self.refuses: CheckpointError | None = None
        self.most = 1 << 40

    def standing(self) -> Standing:
        return self._standing

    def accept(self, offer: Offer) -> None:
        self.offer = offer
        if self.refuses is not None:
            raise self.refuses

    def module(self, sha256: bytes) -> bytes | None:
        return self._module

    def add_module(self, content: bytes) -> None:
        self._module = content

    def base(self) -> Image | None:
        return self._base

    def begin(self, module: bytes) -> Arrival:
        assert self.offer is not None
        out = os.open(self.folder / "stdout", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            return Arrival.begin(module, self.offer.runtime, config=WasiConfig(stdin=self.stdin.read, stdout=out))
        finally:
            os.close(out)

    def room(self, memory: int) -> None:
        if memory > self.most:
            raise NotSupported("too large", need=f"{memory} bytes")

    def offset(self, stream: str) -> int:
        path = self.folder / stream
        return path.stat().st_size if path.exists() else 0

    def output(self, stream: str, offset: int, data: bytes) -> None:
        with open(self.folder / stream, "ab") as file:
            assert file.tell() == offset
            file.write(data)

    def keep(self, image: Image, last: bool) -> None:
        parent = None if image.parent is None else self._parent
        path = self.folder / f"{time.monotonic_ns()}.wckpt"
        digest = save(replace(image, parent=parent), path)
        self.newest = path.rename(self.folder / file_name(digest))
        self._parent = ParentRef(digest, 1 if parent is None else parent.position + 1)

    def persist(self, standing: Standing) -> None:
        self._standing = standing

    def runs(self, job: Job) -> None:
        self.job = job

    def drop(self) -> None:
        self.dropped += 1

    def image(self) -> Image:
        """The one that it would go on from after a crash."""
        assert self.newest is not None
        return load_chain(self.newest)


def move(
    job: Job, here: Here, there: There, *, module: bytes, runtime: str, options: Options | None = None,
    told: Callable[[Progress], object] = lambda progress: None, cancelled: threading.Event | None = None,
    silence: float = 120.0, between: Callable[[socket.socket, socket.socket], tuple[socket.socket, socket.socket]] =
    lambda left, right: (left, right), **more: Any,
) -> tuple[Moved, bool]:
    """Move a job; gives what both sides say. ``between``: puts something between the two sockets."""
    left, right = between(*socket.socketpair())
    answer: list[bool | BaseException] = []

    def serve() -> None:
        with Wire(right, silence) as wire:
            try:
                answer.append(receive(wire, there))
            except BaseException as problem:
                answer.append(problem)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with Wire(left, silence) as wire:
            moved = send(job, wire, here, module=module, runtime=runtime, about={}, options=options, told=told,
                         cancelled=cancelled, streams=("stdout",), **more)
    finally:
        thread.join(120)
        assert not thread.is_alive()
    said = answer[0]
    if isinstance(said, BaseException):
        raise said
    return moved, said
