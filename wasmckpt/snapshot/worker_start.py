"""The first steps of a worker's process: what it needs is imported while the runtime's library is being loaded, and the
runtime made ready before anybody asks."""

from __future__ import annotations

import contextlib
import gc

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Entry point: the number of the inherited socket, the parent's process id, and a runtime's name or nothing."""
    gc.disable()  # everything that is made now stays
    from .. import runtimes

    runtimes.load_library_early(arguments[2])
    from ..errors import CheckpointError
    from .worker import main as serve

    if arguments[2]:
        with contextlib.suppress(CheckpointError):  # whoever asks for it will be told
            runtimes.load(arguments[2])
    gc.freeze()
    gc.enable()
    return serve(int(arguments[0]), int(arguments[1]))
