"""The file of an image in a store, by itself: its pages are in the store's packs, and whoever has only the file's name
finds them there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import ImageError, StorageError
from ..formats import Image, load, load_chain
from ..formats.files import opened
from .store import Store
from .stored import MAGIC

__all__ = ["as_file", "load_image"]


def load_image(path: str | os.PathLike[str], *, whole: bool = True) -> Image:
    """The image in any file, in a store or not; ``whole``: with the pages of those that it rests on.

    Raises:
        StorageError, ImageError: as `load_chain` and `Store.load`; its store is not there.
    """
    if not _is_stored(path):
        return load_chain(path) if whole else load(path)
    store, sha256 = _store_of(path)
    return store.image(sha256, whole=whole)


@contextlib.contextmanager
def as_file(path: str | os.PathLike[str]) -> Iterator[str]:
    """A file with the same image that any reader of images takes; it is there as long as this lasts. Raises as
    `load_image`."""
    if not _is_stored(path):
        yield os.fspath(path)
        return
    store, sha256 = _store_of(path)
    with store.image_file(sha256) as file:
        yield str(file)


def _is_stored(path: str | os.PathLike[str]) -> bool:
    with opened(path) as file:
        try:
            return file.read(len(MAGIC)) == MAGIC
        except OSError as reason:
            raise StorageError(f"the image cannot be read: {reason.strerror}", path=os.fspath(path)) from reason


def _store_of(path: str | os.PathLike[str]) -> tuple[Store, bytes]:
    real = Path(os.path.realpath(path))
    try:
        sha256 = bytes.fromhex(real.stem)
        return Store(real.parent.parent), sha256
    except (ValueError, StorageError):
        raise ImageError("this is the file of an image in a store, and not in its store", path=os.fspath(path),
                         hint="its pages are in the store: wasmckpt store export") from None
