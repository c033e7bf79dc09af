"""Types of command-line values: durations, sizes, folders, environment variables, runtimes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from .. import runtimes
from ..errors import CheckpointError, UsageError
from .output import working

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..formats import Image

__all__ = [
    "DIRECTORY", "DURATION", "ENVIRONMENT", "EVERY", "FILE", "FOLDER", "JOB", "JOB_OR_MODULE", "RUNTIME", "SIGNAL",
    "SIZE", "Grant", "Kind", "begins_with", "is_of_a_store", "read_image", "read_module",
]

_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LONGEST: Final = 366 * 86400.0


class Grant(NamedTuple):
    """A folder for the guest: its path here, its name there, and whether it may be changed."""

    host: str
    guest: str
    read_only: bool


class Kind(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """A type of values: ``read`` makes one of a text, or raises ValueError saying what is wrong with it; ``words`` are
    what a shell offers, ``kind`` ("file", "dir") what names of the file system it offers as well."""

    def __init__(
        self, name: str, read: Callable[[str], Any], *, words: Callable[[], Iterable[str]] = tuple, kind: str = "",
    ) -> None:
        self.name = name
        self._read, self._words, self._kind = read, words, kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        # Files first: bash forgets what stands before them.
        files = [CompletionItem(incomplete, type=self._kind)] if self._kind else []
        return files + [CompletionItem(word) for word in self._words() if word.startswith(incomplete)]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default
        try:
            return self._read(value)
        except ValueError as reason:
            return self.fail(str(reason), param, ctx)


def _duration(text: str) -> float:
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h)", text, re.ASCII)
    if not found:
        raise ValueError(f"{text!r} is no duration (300ms, 2s, 1m)")
    seconds = float(found[1]) * _SECONDS[found[2]]
    if seconds > _LONGEST:
        raise ValueError(f"{text!r} is longer than a year")
    return seconds


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]+)([kmg]?)i?b?", text.lower(), re.ASCII)
    if not found:
        raise ValueError(f"{text!r} is no size (512k, 8M)")
    size = int(found[1][:20]) * _BYTES[found[2]]
    if not 1 << 16 <= size <= 1 << 29:
        raise ValueError(f"{text!r} is not between 64k and 512M")
    return size


def _grant(text: str) -> Grant:
    host, separator, guest = text.removesuffix("::ro").partition("::")
    if not host or (separator and not guest):
        raise ValueError(f"{text!r} names no folder")
    return Grant(host, guest or host, text.endswith("::ro"))


def _environment(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name:
        raise ValueError(f"{text!r} has no name")
    if not separator:
        if name not in os.environ:
            raise ValueError(f"{name} is not set here; write {name}=VALUE")
        value = os.environ[name]
    return name, value


def _runtime(text: str) -> str:
    if text not in runtimes.names():
        raise ValueError(f"{text!r} is no runtime that is known here ({', '.join(runtimes.names())})")
    return text


def _jobs() -> list[str]:
    from .registry import names

    try:
        return names()
    except CheckpointError:
        return []


def _signal(text: str) -> int:
    name = text.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise ValueError(f"{text!r} is no signal for that ({', '.join(SIGNALS)})")
    return signal.Signals["SIG" + name]


SIGNALS: Final = ("HUP", "INT", "TERM", "USR1", "USR2")
"""Those that a program's worker does not hear when its whole group gets them."""
DURATION: Final = Kind("DURATION", _duration)
SIGNAL: Final = Kind("SIGNAL", _signal, words=lambda: SIGNALS)
EVERY: Final = Kind("DURATION|auto", lambda text: text if text == "auto" else _duration(text), words=lambda: ["auto"])
SIZE: Final = Kind("SIZE", _size)
DIRECTORY: Final = Kind("DIRECTORY", _grant, kind="dir")
ENVIRONMENT: Final = Kind("NAME[=VALUE]", _environment, words=lambda: (f"{name}=" for name in sorted(os.environ)))
RUNTIME: Final = Kind("RUNTIME", _runtime, words=runtimes.names)
FILE: Final = Kind("FILE", str, kind="file")
FOLDER: Final = Kind("DIR", str, kind="dir")
JOB: Final = Kind("NAME", str, words=_jobs)
JOB_OR_MODULE: Final = Kind("NAME|MODULE", str, words=_jobs, kind="file")


def read_image(path: str, *, whole: bool = True) -> Image:
    """An image, with its pages; ``whole``: also those of the images that it rests on, which lie beside it. Raises
    `StorageError`, `ImageError`."""
    from ..formats import load, load_chain

    with working(f"reading {path}"):
        if is_of_a_store(path):
            from ..store import load_image

            return load_image(path, whole=whole)
        return load_chain(path) if whole else load(path)


def begins_with(path: str, magic: bytes) -> bool:
    """Whether a file begins with these bytes. What cannot be read does not, nor does a pipe, which is read once."""
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic
    except (OSError, ValueError):
        return False  # who reads it will say why


def is_of_a_store(path: str) -> bool:
    """Whether a file is that of an image in a store."""
    from ..formats.features import STORED

    return begins_with(path, STORED)


def read_module(path: str) -> bytes:
    """A module's bytes. Raises `UsageError` if the file cannot be read."""
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as reason:
        what = reason.strerror if isinstance(reason, OSError) else reason
        raise UsageError(f"the module cannot be read: {what}", path=path) from reason
    if not raw.startswith(b"\0asm"):
        from ..formats.features import MAGIC

        if raw.startswith(MAGIC):
            raise UsageError("this is an image, not a module", path=path, hint="wasmckpt restore goes on from images")
    return raw
