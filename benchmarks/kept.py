"""What the cache folder keeps, told apart for measuring: a resume at a place where none was before, and a later one."""

from __future__ import annotations

from pathlib import Path

from wasmckpt.instrument.cache import default_folder as rewritten
from wasmckpt.snapshot.kept import default_folder as compiled

__all__ = ["Kept"]


class Kept:
    """What is there now. Others may be using the folder: nothing else of theirs should be new meanwhile."""

    def __init__(self) -> None:
        self._there = _files()

    def forget_later(self) -> None:
        """Delete what has come since."""
        for path in _files() - self._there:
            path.unlink(missing_ok=True)


def _files() -> set[Path]:
    return {path for folder in (rewritten(), compiled()) for path in folder.rglob("*") if path.is_file()}
