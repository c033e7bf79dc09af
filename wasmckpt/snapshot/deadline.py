"""A time at which this process is ended by the kernel, whatever it is doing then.

For programs that may run only as long as others have promised to run no second copy (`wasmckpt.supervise.lease`): a
process that was stopped, or whose parent hangs, still ends in time. The clock is ``CLOCK_BOOTTIME``, which goes on
while the machine is suspended. (Nothing tells a virtual machine that was halted how long that was.)
"""

from __future__ import annotations

import ctypes
import signal
from typing import Final

from ..errors import NotSupported

__all__ = ["CLOCK", "Deadline"]

CLOCK: Final = 7
"""``CLOCK_BOOTTIME``."""
_SIGEV_SIGNAL: Final = 0
_TIMER_ABSTIME: Final = 1


class _Event(ctypes.Structure):
    _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 48))


class _Setting(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))


class Deadline:
    """None is set at first. A forked copy of the process has none."""

    def __init__(self) -> None:
        self._timer: ctypes.c_void_p | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)

    def set(self, until: float) -> None:
        """The process ends at that time of the clock, in seconds; a time that is over ends it now. Raises
        `NotSupported`."""
        if self._timer is None:
            event, timer = _Event(None, int(signal.SIGKILL), _SIGEV_SIGNAL), ctypes.c_void_p()
            self._do("timer_create", CLOCK, ctypes.byref(event), ctypes.byref(timer))
            self._timer = timer
        at = max(1, int(until * 1e9))  # nothing at all would be no deadline
        setting = _Setting(0, 0, at // 1_000_000_000, at % 1_000_000_000)
        self._do("timer_settime", self._timer, _TIMER_ABSTIME, ctypes.byref(setting), None)

    def _do(self, call: str, *given: object) -> None:
        if not hasattr(self._libc, call) or getattr(self._libc, call)(*given):
            raise NotSupported("the kernel takes no time at which the program is to end", need=call)
