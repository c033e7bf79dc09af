"""Faults by name, for tests of what is left behind: ``WASMCKPT_FAULT=store.indexed:kill``, or ``:ENOSPC``, ``:EIO`` ...

A step that must leave everything whole, whatever happens at it, calls `point` with its name.
"""

from __future__ import annotations

import errno
import os
import signal
import time

__all__ = ["point", "slow"]


def point(name: str) -> None:
    """Go on, unless the environment names this point: then this process is killed, or OSError raised."""
    wanted = os.environ.get("WASMCKPT_FAULT")
    if wanted is None or wanted.partition(":")[0] != name:
        return
    what = wanted.partition(":")[2]
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    number = getattr(errno, what)
    raise OSError(number, os.strerror(number))


def slow(name: str) -> None:
    """A step of a disk or network that may be slow: takes longer where ``WASMCKPT_SLOW=name:seconds`` says so."""
    wanted = os.environ.get("WASMCKPT_SLOW")
    if wanted is not None and wanted.partition(":")[0] == name:
        time.sleep(float(wanted.partition(":")[2]))
