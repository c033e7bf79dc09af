"""The checkpoints of one running program in a store: each the difference to the one before, as far as that goes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from ..errors import CheckpointError, RetryLater
from ..formats import ParentRef
from .index import Entry
from .interface import ImageStore
from .retention import Retention

__all__ = ["LONGEST_CHAIN", "Series", "Takes"]

LONGEST_CHAIN: Final = 32
"""Images that one may rest on before it is made whole: a restore reads them all."""

_TIDYING: Final = 1.0
"""Seconds that others may keep a checkpoint from being followed by tidying up."""


class _Taken(Protocol):
    @property
    def sha256(self) -> bytes: ...


T = TypeVar("T", bound=_Taken)
T_co = TypeVar("T_co", bound=_Taken, covariant=True)


class Takes(Protocol, Generic[T_co]):
    """Takes an image of the program, as `wasmckpt.Job.checkpoint` does with these arguments."""

    def __call__(self, path: Path, *, track: bool, parent: ParentRef | None, since: bytes | None) -> T_co: ...


class Series:
    """For one running program, and one checkpoint at a time.

    Args:
        job: the program's name in the store. module: kept there once.
        longest: images that one may rest on; then the newest is made whole, while the program runs.
        rule: what is kept; the rest goes after each checkpoint.
        after: numbers are larger. on_commit: called when one more checkpoint is in the store.
    """

    def __init__(
        self, store: ImageStore, job: str, module: bytes | None = None, *, longest: int = LONGEST_CHAIN,
        rule: Retention | None = None, after: int = 0, on_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.store, self.job = store, job
        self._module, self._longest, self._rule = module, longest, rule
        self._after, self._on_commit = after, on_commit
        self._last: Entry | None = None
        self._since = b""
        """The last image's digest as the program's worker knows it; the store keeps images in another form."""

    def take(self, take: Takes[T]) -> tuple[Entry, T]:
        """Take a checkpoint and add it. Raises what that raises; then the next one holds what this one would have."""
        parent = since = None
        last, newest = self._last, self.store.newest(self.job)
        if last is not None and newest is not None and (newest.number, newest.taken) == (last.number, last.taken):
            parent, since = ParentRef(newest.sha256, newest.position + 1), self._since
        taken: list[T] = []

        def write(path: Path) -> bytes:
            taken.append(take(path, track=True, parent=parent, since=since))
            return taken[0].sha256

        entry = self.store.add(self.job, write, module=self._module, after=self._after)
        self._last, self._since = entry, taken[0].sha256
        self._on_commit()
        if entry.position >= self._longest:
            self.store.compact(self.job, entry.number)
        if self._rule is not None and self.store.prune(self.job, self._rule):
            with contextlib.suppress(RetryLater):  # others use the store: after the next one, then
                self.store.gc(timeout=_TIDYING)
        return entry, taken[0]

    def take_last(self, take: Takes[T]) -> tuple[Entry, T]:
        """Take a checkpoint with which the program ends: its image is safe in a file before it is added.

        Raises what that raises; if the program has ended, the hint says where the image is.
        """
        path = self.store.scratch / f"last-{os.urandom(6).hex()}.wckpt"
        taken = take(path, track=False, parent=None, since=None)
        try:
            entry = self.store.import_image(self.job, path, module=self._module)
        except CheckpointError as problem:
            problem.hint = f"the program has ended, its image is {path}"
            raise
        self._on_commit()
        path.unlink()
        return entry, taken
