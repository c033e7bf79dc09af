"""Images as files: an image replaces another whole or not at all, and only its owner can read it."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from wasmckpt.errors import ImageError, StorageError, UsageError
from wasmckpt.formats.codec import Header, read_header, read_image, write_image
from wasmckpt.formats.features import MAGIC, STORED
from wasmckpt.formats.image import Image
from wasmckpt.formats.limits import DEFAULT_LIMITS, Limits
from wasmckpt.formats.sealing import Sealing, current

if TYPE_CHECKING:
    from wasmckpt.formats.sealed import Seal

__all__ = [
    "check_kept", "is_sealed", "load", "load_header", "opened", "rewrap", "save", "save_copy", "seal_of", "sync_folder",
    "unsealed", "write_sealed", "write_whole",
]

T = TypeVar("T")

_MODE = 0o600  # a program's memory holds secrets
_SEALED = b"\x89WCKSL\r\n"  # `sealed.MAGIC`: most images are not, and then that module is not loaded


def save(image: Image, path: str | os.PathLike[str], *, sealing: Sealing | None = None) -> bytes:
    """Write the image to ``path`` so that a kill or a power cut at any moment leaves the old file or the new one.

    Args:
        sealing: whether it is encrypted and signed; None: as the process has it (`wasmckpt.formats.sealing`).

    Returns:
        The SHA-256 of the image, which is that of the file unless that is sealed.

    Raises:
        StorageError: no space, no permission, not a place for a file ...; what was there before is untouched.
        ImageError: as `write_image`. UsageError, NotSupported: it cannot be sealed.
    """
    chosen = current() if sealing is None else sealing
    return _replace(path, lambda file: _write(image, file, chosen))


def write_sealed(image: Image, file: BinaryIO) -> bytes:
    """The image as `save` would put it into a file, for whoever else does that. Raises as that."""
    return _write(image, file, current())


def save_copy(descriptor: int, path: str | os.PathLike[str]) -> None:
    """A file with the contents of an open one, from its beginning, in the way of `save`. Raises `StorageError`."""
    with open(os.dup(descriptor), "rb") as source:
        source.seek(0)
        _replace(path, lambda file: shutil.copyfileobj(source, file, 1 << 20))


def rewrap(path: str | os.PathLike[str], *, sealing: Sealing | None = None) -> None:
    """Change the key of an encrypted image, as `wasmckpt.formats.sealed.rewrap`; the file is replaced as by `save`.

    Raises as that, and `StorageError`.
    """
    from wasmckpt.formats.sealed import rewrap

    chosen = current() if sealing is None else sealing
    with _reading(path), open(_checked(path), "rb") as source:
        _replace(path, lambda file: rewrap(source, file, chosen))


def write_whole(path: str | os.PathLike[str], data: bytes, what: str) -> None:
    """Write something else that holds a program's memory, as `save` writes images; ``what`` it is, for messages.

    Raises:
        StorageError: as `save`.
    """
    _replace(path, lambda file: file.write(data), what)


def _replace(path: str | os.PathLike[str], write: Callable[[BinaryIO], T], what: str = "image") -> T:
    target = Path(_checked(path))
    # short, so that a target with the longest possible name works too
    temporary = target.parent / f".wckpt-{os.urandom(8).hex()}.part"
    try:
        _check_replaceable(target, what)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        try:
            with open(descriptor, "wb", buffering=1 << 16) as file:
                result = write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(target.parent)
    except OSError as reason:
        raise StorageError(f"the {what} cannot be written: {reason.strerror or reason}", path=str(target),
                           hint="free space or choose another folder") from reason
    return result


def is_sealed(path: str | os.PathLike[str]) -> bool:
    """Whether the image in a file is encrypted or signed. Raises `StorageError`."""
    with _reading(path), open(_checked(path), "rb") as file:
        return file.read(len(_SEALED)) == _SEALED


def check_kept(path: str | os.PathLike[str]) -> None:
    """Whether what this process writes is protected as the image in a file is, which it is to replace.

    Raises:
        UsageError: it would not be encrypted, or not be signed, and that image is. Else as `opened`.
    """
    seal, sealing = seal_of(path), current()
    for is_so, would_be, what, option in ((seal.keys, sealing.encrypt_with, "encrypted", "--encrypt-with"),
                                          (seal.signer, sealing.sign_with, "signed", "--sign-with")):
        if is_so and not would_be:
            raise UsageError(f"the image is {what}, and what would replace it would not be", path=os.fspath(path),
                             hint=f"add {option} KEYFILE")


def _write(image: Image, file: BinaryIO, sealing: Sealing) -> bytes:
    if not sealing.seals:
        return write_image(image, file)
    from wasmckpt.formats.sealed import Sealer

    sealer = Sealer(file, sealing)
    digest = write_image(image, sealer)
    sealer.finish()
    return digest


def _checked(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path)
    if "\0" in name:
        raise StorageError("a file's name cannot hold a zero byte", path=repr(name))
    return name


def _check_replaceable(target: Path, what: str) -> None:
    """Refuse to put a file in the place of a folder, a device or a pipe (``/dev/null`` as root)."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(target).st_mode):
            raise StorageError(f"the {what} cannot be written: there is something that is not a file", path=str(target),
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
    with _reading(path), opened(path) as file:
        return read_image(file, limits=limits)


def opened(path: str | os.PathLike[str], *, sealing: Sealing | None = None) -> BinaryIO:
    """An image's file, opened for reading the image; ``sealing`` as of `unsealed`.

    Raises:
        StorageError: it cannot be read. Else as `unsealed`, with the ``path``.
    """
    with _reading(path):
        file = open(_checked(path), "rb")  # noqa: SIM115  # for the caller
        try:
            return unsealed(file, sealing=sealing)
        except BaseException:
            file.close()
            raise


def unsealed(file: io.BufferedReader, *, sealing: Sealing | None = None) -> BinaryIO:
    """The image in a file that stands at its beginning: the file, or if it is sealed what opens it.

    Args:
        sealing: keys to read it with, and who must have signed it; None: as the process has it.

    Raises:
        ImageError: a sealed image is damaged, or there is no key for it; it is not signed by whom it must be.
        UsageError, NotSupported: a key cannot be used.
    """
    start = file.peek(len(MAGIC))[:len(MAGIC)]
    if start not in (MAGIC, STORED, _SEALED):
        return file  # no image, as its reader will say
    sealing = current() if sealing is None else sealing
    if start != _SEALED and not sealing.require_signed_by:
        return file
    from wasmckpt.formats import sealed

    if start != _SEALED:
        refused = sealed.policy_refuses(sealing, None)
        assert refused is not None
        raise refused
    source: BinaryIO = file if file.seekable() else io.BytesIO(file.read())
    return io.BufferedReader(sealed.Unsealed(source, sealing), 1 << 16)


def seal_of(path: str | os.PathLike[str], *, sealing: Sealing | None = None) -> Seal:
    """Whether the image in a file is encrypted, and who has signed it. Raises as `opened`."""
    from wasmckpt.formats.sealed import Seal, Unsealed

    if not os.path.isfile(path):  # a pipe, which was read
        return Seal()
    with opened(path, sealing=sealing) as file:
        raw = getattr(file, "raw", None)
        return raw.seal if isinstance(raw, Unsealed) else Seal()


def load_header(path: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS) -> Header:
    """Read what stands before the module and the pages. Raises as `load`."""
    with _reading(path), opened(path) as file:
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
