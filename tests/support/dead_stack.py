"""``dead_stack.c``, built as asked: a program that has a stack in memory, and dead parts of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .samples import KERNEL_FLAGS
from .tiers import missing
from .toolchain import Unavailable, build_c

__all__ = ["EXPORTS", "STACK", "built"]

EXPORTS: Final = ("red_zone", "left_over", "waves")
STACK: Final = 65536
"""Bytes that the linker gives a stack, unless it is told otherwise."""


def built(*flags: str) -> bytes:
    """The module. In a test, what cannot be built here skips the test, or fails it."""
    try:
        path = build_c("dead_stack", [Path(__file__).with_suffix(".c")],
                       [*KERNEL_FLAGS[:-1], *(f"-Wl,--export={name}" for name in EXPORTS), *flags])
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    return path.read_bytes()
