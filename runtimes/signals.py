"""Libraries that take signals which are not theirs.

Compiled code of WasmEdge takes those of faults while it runs, and then sets them to the system's default, not to what
was there: another runtime of the same process would die of its next trap. Its compiler, LLVM, takes at its first use in
a process all signals that end one, those that Python or we handle or ignore among them. WAMR takes SIGUSR1.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable, Iterable
from typing import Final

__all__ = ["ALL", "with_signals_kept"]

FAULTS: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE)
ALL: Final = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_SIZE: Final = 256
"""Bytes, more than a ``struct sigaction`` has."""
_sigaction = ctypes.CDLL(None).sigaction


def with_signals_kept(action: Callable[[], int], signals: Iterable[int] = FAULTS) -> int:
    """What ``action`` gives; afterwards the handlers of ``signals`` are those of before."""
    kept = [(number, ctypes.create_string_buffer(_SIZE)) for number in signals]
    for number, handler in kept:
        _sigaction(number, None, handler)
    try:
        return action()
    finally:
        for number, handler in kept:
            _sigaction(number, handler, None)
