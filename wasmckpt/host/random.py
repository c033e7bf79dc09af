"""Random bytes: the system's by default, reproducible on request.

Bytes from the system are never recorded: two guests restored from one image must not draw the same numbers. With a
seed the generator's state belongs to the image, so that a moved guest draws exactly what it would have drawn.
"""

from __future__ import annotations

import hashlib
import os

__all__ = ["RandomSource"]


class RandomSource:
    """Source of `random_get`.

    Args:
        seed: None for the system's generator; else the seed of SHAKE-256 over (seed, number of the call).
    """

    def __init__(self, seed: int | None = None) -> None:
        self._key: bytes | None = None
        if seed is not None:
            self._key = hashlib.sha256(b"wasmckpt random seed %d" % seed).digest()
        self._calls = 0

    def take(self, length: int) -> bytes:
        """``length`` bytes."""
        if self._key is None:
            return os.urandom(length)
        generator = hashlib.shake_256(self._key + self._calls.to_bytes(8, "little"))
        self._calls += 1
        return generator.digest(length)

    def state(self) -> dict[str, object] | None:
        """Key and number of calls so far; None when not seeded."""
        return None if self._key is None else {"key": self._key, "calls": self._calls}

    @property
    def drawn(self) -> int | None:
        """Number of calls so far; None when not seeded."""
        return None if self._key is None else self._calls

    def resume(self, key: bytes, calls: int) -> None:
        """Go on from a `state`."""
        self._key, self._calls = key, calls
