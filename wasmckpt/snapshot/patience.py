"""A program that was stopped in place is its image in memory until it is built again.

What building takes was there before it was stopped; should the system have given it to somebody else meanwhile, to wait
for it is better than to lose the program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import RetryLater

__all__ = ["patiently"]

T = TypeVar("T")
_LONGEST = 60.0
"""Seconds; a program that stands still for longer is for its owner to restore where there is room."""


def patiently(build: Callable[[], T], longest: float = _LONGEST) -> T:
    """What ``build`` gives. It is called again while there is no memory or thread for it, for ``longest`` seconds."""
    until = time.monotonic() + longest
    pause = 0.01
    while True:
        try:
            return build()
        except (RetryLater, MemoryError, OSError):
            if time.monotonic() > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 1.0)
