"""Images to be stored: a program's memory that changes a little from one to the next."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from wasmckpt.formats import Entry, Image, ModuleRef, ParentRef, Producer, apply, difference, save
from wasmckpt.store import Series
from wasmckpt.store.interface import ImageStore

__all__ = ["EMPTY", "FRESH", "MODULE", "Program", "Taken", "memory_of"]

MODULE = b"\0asm\1\0\0\0"
EMPTY = Image(
    ModuleRef(bytes.fromhex("93a44bbb96c751218e4c00d479e4c14358122a389acca16205b1e4d0dc5f9476"), len(MODULE)),
    Producer("tests", "none", "0", "none"), Entry(("_start",), 0),
)
FRESH = bytes(4 << 16)


@dataclass(frozen=True)
class Taken:
    sha256: bytes


class Program:
    """Stands for a job that runs: writes at random, and gives images as `Job.checkpoint` does."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = random.Random(seed)
        self.memory = bytearray(self._draw.randbytes(2 << 16) + bytes(2 << 16))
        self._made: dict[bytes, bytes] = {}

    def step(self) -> None:
        for _ in range(3):
            page = self._draw.randrange(64)
            self.memory[page * 4096:(page + 1) * 4096] = self._draw.choice([bytes(4096), self._draw.randbytes(4096)])

    def checkpoint(
        self, path: Path, *, track: bool = False, parent: ParentRef | None = None, since: bytes | None = None,
    ) -> Taken:
        before = None if since is None else self._made.get(since)
        if before is None:
            parent = None
        state = difference(0, self.memory, FRESH if before is None else before)
        sha256 = save(replace(EMPTY, memories=(state,), parent=parent), path)
        self._made[sha256] = bytes(self.memory)
        return Taken(sha256)

    def take(self, series: Series) -> tuple[int, bytes]:
        """A step and a checkpoint; the checkpoint's number, and what the memory held."""
        self.step()
        return series.take(self.checkpoint)[0].number, bytes(self.memory)


def memory_of(store: ImageStore, job: str, number: int | None = None) -> bytes:
    """What a program's memory held."""
    return bytes(apply(store.load(job, number).memories[0], FRESH))
