"""One thing at a time with a program; of those who wait, some only want the newest to be done."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from ..errors import RetryLater

__all__ = ["Superseded", "Turn"]


class Superseded(RetryLater):
    """A newer request of the same kind took the place of this one while it waited: there is nothing to retry."""


class Turn:
    """Whose turn it is."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.busy = False
        """Whether somebody has it."""
        self._newest: object = None
        """The one request that waits to be the newest."""

    @contextlib.contextmanager
    def taken(self, patience: float, *, newest: bool = False) -> Iterator[None]:
        """Wait at most ``patience`` seconds for the turn, and have it.

        Raises:
            RetryLater: others are not over. Superseded: with ``newest``, another such request came meanwhile.
        """
        me = object()
        deadline = time.monotonic() + max(patience, 0.0)
        with self._changed:
            if newest:
                self._newest = me
                self._changed.notify_all()
            while self.busy:
                if newest and self._newest is not me:
                    raise Superseded("a newer checkpoint is taken in the place of this one")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RetryLater("a checkpoint or move of this program is under way",
                                     hint="try again when it is done")
                self._changed.wait(left)
            if newest and self._newest is not me:
                raise Superseded("a newer checkpoint is taken in the place of this one")
            self.busy = True
        try:
            yield
        finally:
            with self._changed:
                self.busy = False
                self._changed.notify_all()
