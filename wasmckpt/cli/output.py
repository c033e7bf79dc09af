"""What the commands say: results on standard output, everything else in single lines on standard error."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from ..errors import CheckpointError, GuestTrap

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["amount", "be_quiet", "console", "duration", "print_json", "report", "say"]

_quiet = False


def be_quiet(quiet: bool = True) -> None:
    """No notes from now on; errors are still reported."""
    global _quiet
    _quiet = quiet


def say(text: str) -> None:
    """A note on standard error."""
    if not _quiet:
        _line(f"wasmckpt: {text}")


def report(error: CheckpointError) -> None:
    """An error in one line, and its hint in another."""
    if isinstance(error, GuestTrap):
        # Not the offset: it is one of the rewritten module.
        where = f" in function {error.fields['function']}" if "function" in error.fields else ""
        _line(f"wasmckpt: trap: {_one_line(str(error.fields.get('kind', error.what)) + where)}")
        return
    text = str(error).removesuffix(f"; {error.hint}") if error.hint else str(error)
    _line(f"wasmckpt: error: {_one_line(text)}")
    if error.hint:
        _line(f"wasmckpt: hint: {_one_line(error.hint)}")
    if os.environ.get("WASMCKPT_DEBUG"):
        for note in getattr(error, "__notes__", ()):
            _line(note.rstrip())


def _one_line(text: str) -> str:
    """A runtime's message may have many lines, and a file's name anything: neither may forge a line of ours."""
    first = " ".join(text.split())
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in first)


def _line(text: str) -> None:
    """Straight to the descriptor, in one piece: the guest and other threads write there as well."""
    try:
        os.write(2, text.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        pass  # nobody listens


def console() -> Console:
    """For tables; wide enough for what it shows where it is no terminal."""
    from rich.console import Console  # takes 50 ms to load, and most commands print nothing

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty(), emoji=False)


def print_json(data: object) -> None:
    """For programs: one document."""
    sys.stdout.write(json.dumps(data, indent=2, sort_keys=False) + "\n")


def duration(seconds: float) -> str:
    """Three figures and a unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def amount(size: int) -> str:
    """Bytes with a unit."""
    if size < 1024:
        return f"{size} bytes"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024 or unit == "GiB":
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    raise AssertionError
