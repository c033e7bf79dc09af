"""Which pages of a guest's memory were written since the last look.

Aim: an image every few seconds must not read, compare and compress what did not change. The kernel knows what was
written; how it tells depends on its version and build, so there are three backends behind one interface:

    uffd        userfaultfd write-protection, asynchronous, and the PAGEMAP_SCAN ioctl (Linux 6.7): look and re-protect
                in one step, exact to 4 KiB, may run beside the guest
    soft-dirty  bit 55 of /proc/self/pagemap, cleared by /proc/self/clear_refs: two steps, for the whole process, so the
                guest must stand still; may tell more than was written (huge pages), misses pages that are thrown away
                with MADV_DONTNEED
    compare     a kept copy: works everywhere, costs a read of all memory, and as much memory again

`choose` takes the first that passes a self-test, which really writes: there are kernels that accept a request for
soft-dirty bits and never set one, so neither versions nor error codes tell.

Never a write is missed; more than was written may be told. Hence the rules, each found the hard way and each a test:
a range that is new, moved or grown counts as written; the memory's place is asked for again after each look, and if it
has changed meanwhile everything counts as written; PAGEMAP_SCAN always asks whether the range is still registered
(without that it reports nothing for one that is not); it may end early and is called again from where it ended.

    runs     sets of pages as runs       kernel   the system calls       tracker   the interface
    uffd, soft_dirty, compare            the backends                    select    self-test and choice
"""

from .compare import Compare
from .runs import Runs, count, merge, within
from .select import BACKENDS, Verdict, choose, probe
from .soft_dirty import SoftDirty
from .tracker import Extent, Tracker, TrackingLost
from .uffd import Uffd

__all__ = [
    "BACKENDS", "Compare", "Extent", "Runs", "SoftDirty", "Tracker", "TrackingLost", "Uffd", "Verdict", "choose",
    "count", "merge", "probe", "within",
]
