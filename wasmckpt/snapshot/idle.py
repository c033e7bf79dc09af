"""Finding the moments in which a program waits: in a WASI call, for input, room for output, or a time.

Then a checkpoint costs it nothing. The guest's thread counts where its waits begin and end, which costs it nothing
either; somebody else looks at the count now and then. A wait counts when it has lasted a little: programs that nap all
the time are not interrupted in each nap.

Whether the state is another than at an earlier look is told by a digest of it, without what a wait itself changes: the
clocks and the deadlines of sleeps. A look takes an image and throws it away, so looks are rare: none where the guest
has made no further call since the last one, and after one that found nothing new a pause that makes them as cheap as
checkpoints are meant to be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Final

from ..errors import RetryLater
from ..formats import Image, StopKind, write_image
from ..lazydata import replace

if TYPE_CHECKING:
    from .worker_guest import Guest, Taken

__all__ = ["state_digest", "wait_until_idle"]

_SHARE: Final = 0.035
"""Of the time for looks that find nothing new."""
_SHORTEST: Final = 0.001


class _Nowhere:
    """A file whose contents nobody wants."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        return len(data)


def state_digest(image: Image) -> bytes:
    """SHA-256 of a program's state, without clocks and deadlines: equal if it has only waited."""
    host = {name: value for name, value in image.host.items() if name not in ("clocks", "sleep")}
    return write_image(replace(image, host=host), _Nowhere())


def wait_until_idle(
    guest: Guest, busy: Lock, look: Callable[[], Taken], *, settle: float, unlike: bytes | None, timeout: float | None,
) -> bytes:
    """Wait until the program waits, and its state is another than ``unlike``; gives its state's digest.

    Args:
        busy: held by whatever else stops the program. look: gives an image of it, which goes on. settle: seconds that a
            wait must have lasted.

    Raises:
        JobEnded: it ended. RetryLater: it did not wait within ``timeout`` seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    seen: tuple[int, int] | None = None
    pause = max(settle, _SHORTEST)
    waits = -1
    while True:
        guest.sleep_until_end(pause)
        pause = max(settle, _SHORTEST)
        if deadline is not None and time.monotonic() > deadline:
            raise RetryLater(f"the program was not seen waiting within {timeout:g} s", hint="try again")
        before, waits = waits, guest.waits
        if waits != before or not waits & 1 or guest.place == seen:
            continue
        with _held(busy) as free:
            if not free:
                continue
            began, seen = time.monotonic(), guest.place
            image = _waiting(look)
            if image is None:
                seen = None
            elif (found := state_digest(image)) != unlike:
                return found
            pause = max(pause, (time.monotonic() - began) / _SHARE)


def _waiting(look: Callable[[], Taken]) -> Image | None:
    """An image of the program in its wait; None: that was over before."""
    try:
        taken = look()
    except RetryLater:
        return None
    repeats = any(frame.point.kind is StopKind.REPEAT for frame in taken.image.frames)
    return taken.image if repeats and taken.way in ("wait", "in-place") else None


@contextmanager
def _held(lock: Lock) -> Iterator[bool]:
    free = lock.acquire(blocking=False)
    try:
        yield free
    finally:
        if free:
            lock.release()
