"""Installs a provided runtime: whole or not at all, once at a time, and going on where it was interrupted.

A recipe fills ``NAME-VERSION-MACHINE.part``; that gets its final name when all is there. A lock beside it lets others
wait; the system frees it, however its owner ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from wasmckpt.errors import RuntimeMissing, StorageError
from wasmckpt.runtimes import provided

__all__ = ["install", "uninstall"]


def install(name: str, say: Callable[[str], None] = lambda _: None) -> Path:
    """Installs the runtime, if it is not installed yet. A library of the user's own plays no part here.

    Args:
        name: one of `provided.NAMES`.
        say: gets a line now and then about what is going on.

    Returns:
        The library's path.

    Raises:
        RuntimeMissing: a tool is missing or something cannot be fetched or built; the message says what.
        StorageError: the cache folder cannot be written, or is full.
    """
    recipe = provided.recipe(name)
    folder = provided.folder_of(name)
    with _storage_errors(folder), _locked(folder, say):
        if not folder.is_dir():
            part = folder.with_name(folder.name + ".part")
            part.mkdir(exist_ok=True)
            recipe.install(part, say)
            if not (part / recipe.FILE).is_file():
                raise RuntimeMissing(f"{name} cannot be installed: its recipe made no {recipe.FILE}", runtime=name)
            os.replace(part, folder)
    return folder / str(recipe.FILE)


def uninstall(name: str) -> bool:
    """Removes what `install` made, of other versions too, and what is left of interrupted tries; whether there was any.

    Raises:
        StorageError: it cannot be removed.
    """
    folder = provided.folder_of(name)
    with _storage_errors(folder), _locked(folder, lambda _: None):
        found = sorted(path for path in folder.parent.glob(f"{name}-*") if path.is_dir())
        for path in found:
            part = path.with_name(path.name.removesuffix(".part") + ".part")
            if path != part:
                shutil.rmtree(part, ignore_errors=True)
                os.replace(path, part)  # gone at once for whoever looks
            shutil.rmtree(part, ignore_errors=not part.is_dir())
    return bool(found)


@contextlib.contextmanager
def _locked(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(folder.name + ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is at it: waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _storage_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
        raise StorageError(
            f"nothing can be installed here: {problem.strerror or problem}", path=str(problem.filename or folder),
            hint="free some space, or name another folder in WASMCKPT_CACHE" if full
            else "name a folder of yours in WASMCKPT_CACHE",
        ) from problem
