"""What a backend can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from ..errors import CheckpointError
from .runs import Runs

__all__ = ["Extent", "Tracker", "TrackingLost", "everything"]

Extent = Callable[[], tuple[int, int]]
"""Native address of a memory's first byte and its length in bytes, now."""


class TrackingLost(CheckpointError):
    """The backend cannot follow this memory (any more): take another one; nothing is known about what was written."""


class Tracker(ABC):
    """Follows the memories of one program, in the process in which they are. Use as a context manager, or `close`."""

    name: ClassVar[str]
    needs_stop: ClassVar[bool]
    """The guest must stand still while `collect` looks, and until what it told has been copied."""

    def __init__(self, memories: Sequence[Extent]) -> None:
        self.memories = tuple(memories)

    @abstractmethod
    def collect(self) -> list[Runs]:
        """For each memory the 4 KiB pages that may have been written since the last call; all, at the first.

        Where `needs_stop` is false the guest may run: a page that it writes after it was told is told again.

        Raises:
            TrackingLost: the kernel refuses to follow a memory.
        """

    @abstractmethod
    def forget(self) -> None:
        """What was told may be lost: the next `collect` tells everything."""

    @abstractmethod
    def close(self) -> None:
        """End it; the guest runs on. Idempotent."""

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def everything(length: int) -> Runs:
    """All pages of a memory of so many bytes."""
    return ((0, length // 4096),) if length else ()
