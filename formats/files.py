"""Images as files: an image replaces another whole or not at all, and only its owner can read it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from wasmckpt.errors import ImageError, StorageError
from wasmckpt.formats.codec import Header, read_header, read_image, write_image
from wasmckpt.formats.image import Image
from wasmckpt.formats.limits import DEFAULT_LIMITS, Limits

__all__ = ["load", "load_header", "opened", "save", "sync_folder"]

_MODE = 0o600  # a program's memory holds secrets


def save(image: Image, path: str | os.PathLike[str]) -> bytes:
    """Write the image to ``path`` so that a kill or a power cut at any moment leaves the old file or the new one.

    Returns:
        The SHA-256 of the file.

    Raises:
        StorageError: no space, no permission, not a place for a file ...; what was there before is untouched.
        ImageError: as `write_image`.
    """
    target = Path(_checked(path))
    # short, so that a target with the longest possible name works too
    temporary = target.parent / f".wckpt-{os.urandom(8).hex()}.part"
    try:
        _check_replaceable(target)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        try:
            with open(descriptor, "wb", buffering=1 << 16) as file:
                digest = write_image(image, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(target.parent)
    except OSError as reason:
        raise StorageError(f"the image cannot be written: {reason.strerror or reason}", path=str(target),
                           hint="free space or choose another folder") from reason
    return digest


def _checked(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path)
    if "\0" in name:
        raise StorageError("a file's name cannot hold a zero byte", path=repr(name))
    return name


def _check_replaceable(target: Path) -> None:
    """Refuse to put a file in the place of a folder, a device or a pipe (``/dev/null`` as root)."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(target).st_mode):
            raise StorageError("the image cannot be written: there is something that is not a file", path=str(target),
                               hint="choose another name")


def sync_folder(folder: Path) -> None:
    """Make names that were put into a folder, or taken out of it, last. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load(path: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS) -> Image:
    """Read the image in a file.

    Raises:
        StorageError: the file cannot be read.
        ImageError: as `read_image`, with the ``path``.
    """
    with _reading(path), open(_checked(path), "rb") as file:
        return read_image(file, limits=limits)


def opened(path: str | os.PathLike[str]) -> BinaryIO:
    """An image's file, opened for reading. Raises `StorageError`."""
    with _reading(path):
        return open(_checked(path), "rb")


def load_header(path: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS) -> Header:
    """Read what stands before the module and the pages. Raises as `load`."""
    with _reading(path), open(_checked(path), "rb") as file:
        return read_header(file, limits=limits)


@contextlib.contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as reason:
        raise StorageError(f"the image cannot be read: {reason.strerror or reason}", path=os.fspath(path)) from reason
    except ImageError as reason:
        reason.fields.setdefault("path", os.fspath(path))
        raise
