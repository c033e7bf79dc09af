"""Signals as events, none of them late.

A handler in Python runs when the main thread next looks for one. A signal that comes just before that thread begins to
wait is looked at when the wait is over, which may be never: Ctrl-C did nothing (seen once, on a busy machine). What
Python's own handler in C does at once is to write the signal's number to a descriptor, and a thread that reads there
needs nobody's help.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator

__all__ = ["hearing"]


@contextlib.contextmanager
def hearing(signals: Iterable[int], tell: Callable[[int], object]) -> Iterator[None]:
    """``tell`` is called with the number of each of ``signals`` that comes, in another thread. From the main thread."""
    numbers = frozenset(signals)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def listen() -> None:
        while data := os.read(reading, 64):
            for number in data:
                if number in numbers:
                    tell(number)

    listener = threading.Thread(target=listen, name="signals", daemon=True)
    listener.start()
    descriptor_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor_before)
        os.close(writing)
        listener.join()
        os.close(reading)
