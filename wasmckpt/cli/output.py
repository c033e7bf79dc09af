"""What the commands say: results on standard output, everything else in single lines on standard error."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from ..errors import CheckpointError, GuestTrap

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "amount", "be_quiet", "console", "count", "duration", "print_json", "print_last_line", "report",
    "report_json", "say", "working",
]

_quiet = False
_LONG: Final = 0.5
"""Seconds after which work is shown to be going on: what is over before that would only flicker."""


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


def report_json(error: CheckpointError) -> None:
    """The error that ended a command, for programs: the last line of standard output, as `print_last_line`."""
    fields = {name: value if isinstance(value, int) else str(value) for name, value in error.fields.items()}
    document = {"error": {
        "type": type(error).__name__, "what": error.what, "hint": error.hint, "fields": fields,
        "exit_code": error.exit_code,
    }}
    with contextlib.suppress(OSError):
        os.write(1, b"\n" + json.dumps(document).encode() + b"\n")


@contextlib.contextmanager
def working(what: str, *, alone: bool = True) -> Iterator[None]:
    """Show on a terminal that work is going on, once it has taken long.

    Args:
        alone: nobody else writes to the terminal meanwhile: it is drawn, and nothing is left of it in the end. Else it
            is a note.
    """
    if _quiet or not _is_terminal(2):
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_show_work, args=(what, over, alone), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show_work(what: str, over: threading.Event, alone: bool) -> None:
    if over.wait(_LONG if alone else 2 * _LONG):
        return
    if not alone:
        say(_one_line(what))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TextColumn(escape(_one_line(what))), TimeElapsedColumn(), console=Console(stderr=True),
        transient=True, redirect_stdout=False, redirect_stderr=False,  # all of ours goes straight to a descriptor
    ) as shown:
        shown.add_task("", total=None)
        over.wait()


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


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

    class _Console(Console):
        def on_broken_pipe(self) -> None:  # rich would end the process
            raise BrokenPipeError

    return _Console(highlight=False, soft_wrap=not sys.stdout.isatty(), emoji=False)


def print_json(data: object) -> None:
    """For programs: one document."""
    sys.stdout.write(json.dumps(data, indent=2, sort_keys=False) + "\n")


def count(number: int, what: str) -> str:
    """``1 frame``, ``2 frames``."""
    return f"{number} {what}" + ("s" if number != 1 else "")


def print_last_line(data: object) -> None:
    """For programs, below what the guest wrote: one document in a line of its own, the last one."""
    sys.stdout.write("\n" + json.dumps(data) + "\n")


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
