"""Where everything lies that can be made again: installed runtimes, rewritten modules, code made by runtimes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["cache_folder", "keep_newest", "put"]


def cache_folder() -> Path:
    """``$WASMCKPT_CACHE``, or ``wasmckpt`` below the user's cache folder."""
    if own := os.environ.get("WASMCKPT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wasmckpt"


def put(path: Path, content: bytes) -> None:
    """Write a file in a folder that is there, whole or not at all; only the user may read it. Raises OSError.

    Not by `tempfile`: to load it takes as long as a resume's other work on a small module.
    """
    part = path.with_name(f".{path.name[:64]}.{os.urandom(6).hex()}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def keep_newest(files: Iterable[os.DirEntry[str]], most: int) -> None:
    """Delete the files that were used longest ago, until the others have ``most`` bytes at most. Raises OSError."""
    entries = [(file.stat(), file.path) for file in files]
    total = sum(found.st_size for found, _ in entries)
    for found, path in sorted(entries, key=lambda entry: entry[0].st_mtime_ns):
        if total <= most:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= found.st_size
