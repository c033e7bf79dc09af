"""Limits that a worker puts on itself before it touches a module: it runs native code that is fed with what others
wrote."""

from __future__ import annotations

import contextlib
import os
import resource
import threading

from ..errors import UsageError
from ..lazydata import dataclass

__all__ = ["ResourceLimits"]

_GRACE = 5
"""Seconds of processor time between the signal that says what happened and the one that cannot be caught."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What a worker's process may use; None: as much as its parent.

    Attributes:
        memory: bytes that it can write to: the guest's memory, compiled code, and some 75 MiB of its own. A guest that
            reaches it is told by its ``memory.grow``.
        cpu_seconds: of processor time; then it is killed by SIGXCPU.
        open_files: descriptors.
        nice: how much the program's own thread steps back behind others (0 to 19), once it runs: what starts, freezes
            and lists programs is not kept waiting by those that compute. It stays as it is where it is above that.

    Whatever they are, the worker leaves no core dump.

    Raises:
        UsageError: a limit is not positive.
    """

    memory: int | None = None
    cpu_seconds: int | None = None
    open_files: int | None = None
    nice: int = 0

    def __post_init__(self) -> None:
        for name in ("memory", "cpu_seconds", "open_files"):
            if (given := getattr(self, name)) is not None and given <= 0:
                raise UsageError(f"a worker's limit of {name.replace('_', ' ')} is positive", given=given)
        if not 0 <= self.nice <= 19:
            raise UsageError("a worker's niceness is 0 to 19", given=self.nice)

    def to_plain(self) -> list[int | None]:
        """Plain data for the wire."""
        return [self.memory, self.cpu_seconds, self.open_files, self.nice]

    def step_back(self) -> None:
        """This thread, for good."""
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < self.nice:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, self.nice)

    def apply(self) -> None:
        """To this process, for good; a limit that it has already is never raised."""
        for which, soft, hard in (
            (resource.RLIMIT_CORE, 0, 0), (resource.RLIMIT_DATA, self.memory, self.memory),
            (resource.RLIMIT_CPU, self.cpu_seconds, (self.cpu_seconds or 0) + _GRACE),
            (resource.RLIMIT_NOFILE, self.open_files, self.open_files),
        ):
            if soft is None or hard is None:
                continue
            present = resource.getrlimit(which)[1]
            if present != resource.RLIM_INFINITY:
                soft, hard = min(soft, present), min(hard, present)
            resource.setrlimit(which, (soft, hard))
