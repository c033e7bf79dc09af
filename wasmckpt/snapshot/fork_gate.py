"""Where the guest's thread stands, in a host function, while its program is held: on a lease, as in the handler of
`fork_stub`, so that whatever became of the one who holds it, the program goes on."""

from __future__ import annotations

import threading

__all__ = ["Gate"]


class Gate:
    """For one wait."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._lock = threading.Lock()
        self._kept = self._passed = False

    def wait(self, lease: float) -> None:
        """Stand here until the gate is opened, or for ``lease`` seconds if it is not kept until then."""
        if self._opened.wait(lease):
            return
        with self._lock:
            self._passed = not self._kept
        if not self._passed:
            self._opened.wait()

    def keep(self) -> bool:
        """No lease any more; False: it has run out."""
        with self._lock:
            self._kept = not self._passed
            return self._kept

    def open(self) -> None:
        """Let the thread go on. Idempotent."""
        self._opened.set()
