"""Faults by name, for tests of what is left behind: ``WASMCKPT_FAULT=store.indexed:kill``, or ``:ENOSPC``, ``:EIO`` ...

A step that must leave everything whole, whatever happens at it, calls `point` with its name. ``store.renamed:kill:3``
is about the third time. Steps that a program takes many thousand times a second call `hot_point`, which looks at the
environment once.
"""

from __future__ import annotations

import errno
import os
import signal
import time

__all__ = ["hot_point", "point", "slow"]

_passed: dict[str, int] = {}


def point(name: str) -> None:
    """Go on, unless the environment names this point: then this process is killed, or OSError raised."""
    wanted = os.environ.get("WASMCKPT_FAULT")
    if wanted is None or wanted.partition(":")[0] != name:
        return
    what, _, number = wanted.partition(":")[2].partition(":")
    _passed[name] = _passed.get(name, 0) + 1
    if number and _passed[name] != int(number):
        return
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    reason = getattr(errno, what)
    raise OSError(reason, os.strerror(reason))


def slow(name: str) -> None:
    """A step of a disk or network that may be slow: takes longer where ``WASMCKPT_SLOW=name:seconds`` says so."""
    wanted = os.environ.get("WASMCKPT_SLOW")
    if wanted is not None and wanted.partition(":")[0] == name:
        time.sleep(float(wanted.partition(":")[2]))


def _nothing(name: str) -> None:
    """No fault is wanted in this process."""


hot_point = point if "WASMCKPT_FAULT" in os.environ else _nothing
