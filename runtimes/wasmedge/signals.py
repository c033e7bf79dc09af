"""Compiled code of WasmEdge takes the signals of faults while it runs, and then sets them to the system's default, not
to what was there: another runtime of the same process would die of its next trap.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from typing import Final

__all__ = ["with_signals_kept"]

_FAULTS: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)
_SIZE: Final = 256
"""Bytes, more than a ``struct sigaction`` has."""
_sigaction = ctypes.CDLL(None).sigaction


def with_signals_kept(action: Callable[[], int]) -> int:
    """What ``action`` gives; afterwards the handlers of faults are those of before."""
    kept = [(number, ctypes.create_string_buffer(_SIZE)) for number in _FAULTS]
    for number, handler in kept:
        _sigaction(number, None, handler)
    try:
        return action()
    finally:
        for number, handler in kept:
            _sigaction(number, handler, None)
