"""What a snapshot gives, and why one cannot be had by fork."""

from __future__ import annotations

from typing import Literal

from ..errors import NotSupported
from ..formats import Image
from ..lazydata import dataclass

__all__ = ["ForkRefused", "Snapshot"]


class ForkRefused(NotSupported):
    """No snapshot by fork here (the system refuses to fork or to look at the copy): take one in place."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An image of a program that goes on.

    Attributes:
        way: how it was taken: the guest's thread was forked by a "signal", at the "entry" of a host function, in a
            "wait" of one; or the program was frozen and resumed "in place".
        stop_ms: how long the source stood still, in milliseconds: the fork, or until it was let go. (On other machines
            than x86-64 a "signal" counts from sending it until the copy was seen, which is more.)
        tries: attempts it took.
        child_ms, spill_ms, copy_ms, image_ms: milliseconds from the request until the copy was seen; until it had
            spilled; until all that is needed was read from it and it was killed; until the image was there.
    """

    image: Image
    way: Literal["signal", "entry", "wait", "in-place"]
    stop_ms: float
    tries: int = 1
    child_ms: float = 0.0
    spill_ms: float = 0.0
    copy_ms: float = 0.0
    image_ms: float = 0.0
