"""How long it takes to make an image's bytes, and to put them where they go.

Of the thread that writes: who wants to know calls `metered` around it, and need not be the one that opens the file.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

__all__ = ["Spent", "metered", "now"]

_of_thread = threading.local()


class Spent:
    """Seconds. ``packing``: laying out, compressing, hashing, sealing. ``writing``: handing the bytes to the system,
    and what follows the last of them: syncing, and giving the file its name."""

    def __init__(self) -> None:
        self.packing = self.writing = 0.0
        self._began = time.perf_counter()
        self._handing = 0.0
        self._last = 0.0

    def handed(self, since: float) -> None:
        """Bytes were handed to the system from ``since`` (``time.perf_counter``) until now."""
        self._last = time.perf_counter()
        self._handing += self._last - since

    def close(self) -> None:
        """All is done."""
        ended = time.perf_counter()
        self.writing = self._handing + (ended - self._last if self._last else 0.0)
        self.packing = ended - self._began - self.writing


def now() -> Spent | None:
    """What this thread's writing is counted in."""
    return getattr(_of_thread, "spent", None)


@contextlib.contextmanager
def metered() -> Iterator[Spent]:
    """Count what this thread spends on an image inside; complete at the end."""
    spent = _of_thread.spent = Spent()
    try:
        yield spent
    finally:
        _of_thread.spent = None
        spent.close()
