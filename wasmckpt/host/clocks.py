"""The guest's clocks: real time passes through, monotonic and processor time go on where they were.

Machines count monotonic time from different origins, so a restored guest would see time jump, possibly backwards.
Each clock is therefore the host's plus an offset, chosen at restore such that the guest reads at least what it read
before. Whether the time spent frozen counts is the user's choice (default: it does not, so a sleep goes on with what
remained and a time-out does not fire only because its program lay on a disk).

A guest has one thread, so its thread's processor time is its process's. The host's thread clock would not do: it tells
the time of whoever asks, and images are asked for by other threads than the guest's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

from ..lazydata import dataclass
from .abi import CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME, CLOCK_REALTIME, CLOCK_THREAD_CPUTIME, Errno, WasiError

__all__ = ["GuestClocks", "HostClocks"]


@dataclass(frozen=True)
class HostClocks:
    """Where time comes from, each in nanoseconds; tests put other origins here."""

    realtime: Callable[[], int] = time.time_ns
    monotonic: Callable[[], int] = time.monotonic_ns
    process_cpu: Callable[[], int] = time.process_time_ns


_HOST_NAMES: Final[dict[int, Literal["time", "monotonic", "process_time"]]] = {
    CLOCK_REALTIME: "time", CLOCK_MONOTONIC: "monotonic", CLOCK_PROCESS_CPUTIME: "process_time",
    CLOCK_THREAD_CPUTIME: "process_time",
}
_RESOLUTIONS = {
    clock: max(1, round(time.get_clock_info(name).resolution * 1e9))
    for clock, name in _HOST_NAMES.items()
}
_NAMES = {CLOCK_MONOTONIC: "monotonic", CLOCK_PROCESS_CPUTIME: "process_cpu", CLOCK_THREAD_CPUTIME: "thread_cpu"}


class GuestClocks:
    """Clocks as the guest reads them, in nanoseconds."""

    def __init__(self, host: HostClocks | None = None) -> None:
        self.host = host or HostClocks()
        self._host_monotonic = self.host.monotonic
        self._offsets = {CLOCK_MONOTONIC: 0, CLOCK_PROCESS_CPUTIME: 0, CLOCK_THREAD_CPUTIME: 0}
        self._offset = 0

    def monotonic(self) -> int:
        """The guest's monotonic clock."""
        return self._host_monotonic() + self._offset

    def realtime(self) -> int:
        """Time since 1970; 0 if the host's clock stands before that."""
        return max(0, self.host.realtime())

    def read(self, clock: int) -> int:
        """The clock numbered ``clock``. Raises `WasiError` (``EINVAL``) for an unknown one."""
        if clock == CLOCK_MONOTONIC:
            return self._host_monotonic() + self._offset
        if clock == CLOCK_REALTIME:
            return self.realtime()
        if clock in (CLOCK_PROCESS_CPUTIME, CLOCK_THREAD_CPUTIME):
            return self.host.process_cpu() + self._offsets[clock]
        raise WasiError(Errno.INVAL)

    def resolution(self, clock: int) -> int:
        """Resolution in nanoseconds, at least 1. Raises `WasiError` (``EINVAL``) for an unknown clock."""
        if clock not in _RESOLUTIONS:
            raise WasiError(Errno.INVAL)
        return _RESOLUTIONS[clock]

    def state(self) -> dict[str, int]:
        """Readings of all clocks, as plain data. Never lets go of the GIL."""
        readings = {name: self.read(clock) for clock, name in _NAMES.items()}
        readings["realtime"] = self.realtime()
        return readings

    def readings(self) -> list[int]:
        """Monotonic clock, real time, and processor time of process and thread."""
        used = self.host.process_cpu()
        return [
            self._host_monotonic() + self._offset, self.realtime(), used + self._offsets[CLOCK_PROCESS_CPUTIME],
            used + self._offsets[CLOCK_THREAD_CPUTIME],
        ]

    def resume(self, readings: Mapping[str, int], *, suspended_time_counts: bool) -> None:
        """Go on from the readings of `state`, taken anywhere, at any time.

        Args:
            suspended_time_counts: add the real time that passed since (none if the real-time clocks disagree).
        """
        passed = max(0, self.realtime() - readings["realtime"]) if suspended_time_counts else 0
        for clock, name in _NAMES.items():
            then = readings[name] + (passed if clock == CLOCK_MONOTONIC else 0)
            self._offsets[clock] += then - self.read(clock)
        self._offset = self._offsets[CLOCK_MONOTONIC]
