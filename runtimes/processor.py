"""What machine code is made for: a compiled form that was kept is of no use on another kind of processor."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

__all__ = ["processor"]


def processor() -> str:
    """The machine, and the features of this processor as the kernel lists them."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return f"{os.uname().machine} {hashlib.sha256(line.encode()).hexdigest()[:16]}"
    return f"{os.uname().machine} ?"
