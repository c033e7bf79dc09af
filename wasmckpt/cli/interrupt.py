"""Ctrl-C before anybody looks after a program.

`KeyboardInterrupt` may be raised anywhere, in the middle of an import for example, and what comes of it there is not
always a `KeyboardInterrupt`: code that is interrupted may raise another error, or lose it. So it is remembered that
somebody has asked for the end: whatever goes wrong after that is that end.
"""

from __future__ import annotations

import signal
from types import FrameType

__all__ = ["asked", "forget", "listen"]

_asked = False


def listen() -> None:
    """From now on, unless SIGINT is caught or ignored already. (Not while modules are imported: Python's own end by the
    signal is quieter.)"""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, _heard)


def asked() -> bool:
    """Whether SIGINT has come since `listen`."""
    return _asked


def forget() -> None:
    """A new command begins."""
    global _asked
    _asked = False


def _heard(number: int, frame: FrameType | None) -> None:
    global _asked
    _asked = True
    raise KeyboardInterrupt
