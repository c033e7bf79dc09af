"""One thread kept ready for short errands.

Resuming in place is what remains when the system refuses to fork; it then refuses a new thread too. So the thread that
rebuilding the frames takes (records are handed out while the guest's thread is inside) is there before it is needed.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

__all__ = ["prepare", "run"]


class _Standby:
    def __init__(self) -> None:
        self.process = os.getpid()
        self._errands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = threading.Lock()
        threading.Thread(target=self._work, name="standby", daemon=True).start()

    def _work(self) -> None:
        while True:
            errand = self._errands.get()
            try:
                errand()
            finally:
                self._idle.release()

    def take(self, errand: Callable[[], None]) -> bool:
        if not self._idle.acquire(blocking=False):
            return False
        self._errands.put(errand)
        return True


_lock = threading.Lock()
_standby: _Standby | None = None


def prepare() -> None:
    """Make the thread, unless it is there. Raises RuntimeError where the system gives none."""
    global _standby
    with _lock:
        if _standby is None or _standby.process != os.getpid():  # it did not come along into a forked process
            _standby = _Standby()


def run(errand: Callable[[], None]) -> None:
    """Do ``errand``, which must not raise, in the thread that is kept ready, or in a new one while that is busy.

    Raises RuntimeError where the system gives none.
    """
    prepare()
    assert _standby is not None
    if not _standby.take(errand):
        threading.Thread(target=errand, name="errand", daemon=True).start()
