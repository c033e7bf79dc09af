"""Where everything lies that can be made again: installed runtimes, rewritten modules, code made by runtimes."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """``$WASMCKPT_CACHE``, or ``wasmckpt`` below the user's cache folder."""
    if own := os.environ.get("WASMCKPT_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wasmckpt"
