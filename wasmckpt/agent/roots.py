"""Folders that may be given to programs: only such as lie below a root that the agent's owner has allowed.

A path is resolved once, symlinks and all, and must then lie below a root, which is resolved as well. What was resolved
is opened step by step from the root, and never through a symlink; and the program's worker gets what was opened, not a
path. So nobody, not even another program that may write there, can put something else in its place between the look and
the use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..errors import HostStateError, NotPermitted

__all__ = ["Roots"]

_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Roots:
    """Below which folders may be given."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [os.path.realpath(root) for root in roots]

    def check(self, path: str) -> None:
        """Raises as `open`; nothing is left open."""
        os.close(self.open(path))

    def open(self, path: str) -> int:
        """A descriptor of a folder (``O_PATH``), the caller's to close.

        Raises:
            NotPermitted: it is below no root. HostStateError: it is not there, or no folder.
        """
        if not os.path.isabs(path):
            raise NotPermitted("a folder for a program is named by its absolute path", path=path)
        real = os.path.realpath(path)
        for root in self._roots:
            if real == root or real.startswith(root.rstrip("/") + "/"):
                return self._walk(root, os.path.relpath(real, root), path)
        raise NotPermitted("the folder is below none of the roots that this agent allows", path=path,
                           hint="the agent's owner allows one by wasmckpt agent --root DIR")

    def _walk(self, root: str, below: str, path: str) -> int:
        try:
            here = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            for name in below.split("/") if below != "." else ():
                try:
                    there = os.open(name, _STEP, dir_fd=here)
                finally:
                    os.close(here)
                here = there
        except OSError as reason:
            raise HostStateError(f"the folder cannot be opened: {reason.strerror}", path=path,
                                 hint="create it on the node, or name another one") from None
        return here
