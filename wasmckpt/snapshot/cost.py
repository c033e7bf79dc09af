"""What a checkpoint costs the program beside its stop: measured in the worker, from the kernel's own accounts.

Counted, since each of these is time that the program does not get:

- **copies of pages**: while a forked copy lives, and where writes are tracked, the first write to a page costs a fault
  and mostly a copy. The faults of the guest's thread since the last checkpoint, without those for memory that was new
  (what the process has grown by), at `_PAGE` each. They come after the checkpoint, so one is charged with those of the
  last interval;
- **waiting**: what the guest's thread used less of a processor than since the last checkpoint, beside its stop: stage
  two runs on the same cores, or holds the GIL when the program calls out. At least what the thread waited for a core
  more than it did before: what others on this machine take is not the checkpoint's fault;
- **the processor time of stage two**, where all of the machine's processors are busy (`crowded`): then it is taken from
  somebody, if not from this program. Where processors are idle it costs nobody anything, and does not count.

Not counted: writing to the disk, which the program does not wait for, and electricity.
"""

from __future__ import annotations

import os
import resource
import time
from typing import Final

from ..lazydata import dataclass

__all__ = ["Meter", "Sample", "Spent", "crowded", "slowdown"]

_PAGE: Final = 1500
"""Nanoseconds of the first write to a page after it was protected or forked: 1.4 us, docs/benchmarks.md ("dirty")."""
_MINOR_FAULTS: Final = 7
"""Field of ``stat`` behind the name, which may hold anything."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The kernel's accounts at one moment: nanoseconds of the clock; of the guest's thread: on a processor, ready but
    without one; its minor faults; the process's pages in memory; processor time of all else in this worker."""

    now: int
    ran: int
    waited: int
    faults: int
    resident: int
    others: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Nanoseconds: ``slowed`` of the program, beside its stop; ``work`` of stage two, on any processor."""

    slowed: int
    work: int


def slowdown(last: Sample | None, before: Sample, after: Sample, stopped: int, *, crowded: bool) -> Spent:
    """What a checkpoint cost, from the accounts after the one before it (None: it is the first), at its beginning and
    at its end."""
    since = last or before
    copies = max(0, after.faults - since.faults - max(0, after.resident - since.resident)) * _PAGE
    waited = after.waited - before.waited
    if last is not None and before.now > last.now:
        part = (after.now - before.now) / (before.now - last.now)
        usual, usually_waited = part * (before.ran - last.ran), part * (before.waited - last.waited)
        missing = usual - (after.ran - before.ran) - stopped
        waited = int(max(waited - usually_waited, missing))
    work = max(0, after.others - before.others)
    return Spent(copies + max(0, waited, work if crowded else 0), work)


def crowded() -> bool:
    """Whether no processor of this machine is idle, by its load of the last minute."""
    return len(os.sched_getaffinity(0)) < 2 or os.getloadavg()[0] >= (os.cpu_count() or 1)


class Meter:
    """For one guest thread, by its id; call `begin` and `end` around each checkpoint."""

    def __init__(self, thread: int) -> None:
        self._thread = f"/proc/self/task/{thread}"
        self._last: Sample | None = None
        self._before: Sample | None = None

    def begin(self) -> None:
        """A checkpoint begins."""
        self._before = self._sample()

    def end(self, stopped: int) -> Spent:
        """It is over; the program stood still for ``stopped`` ns of it. Nothing is known where the kernel keeps no
        accounts."""
        before, last, after = self._before, self._last, self._sample()
        self._before, self._last = None, after
        if before is None or after is None:
            return Spent(0, 0)
        return slowdown(last, before, after, stopped, crowded=crowded())

    def _sample(self) -> Sample | None:
        try:
            with open(self._thread + "/schedstat", "rb", buffering=0) as file:
                ran, waited, _ = map(int, file.read().split())
            with open(self._thread + "/stat", "rb", buffering=0) as file:
                faults = int(file.read().rpartition(b")")[2].split()[_MINOR_FAULTS])
            with open("/proc/self/statm", "rb", buffering=0) as file:
                resident = int(file.read().split()[1])
        except (OSError, ValueError, IndexError):  # the thread has ended, or the kernel keeps no such accounts
            return None
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        others = time.process_time_ns() - ran + int((children.ru_utime + children.ru_stime) * 1e9)
        return Sample(time.monotonic_ns(), ran, waited, faults, resident, others)
