"""Keys for sealed images: lines of text in files that nobody else can read.

::

    aes256:BASE64           encrypts and decrypts images, 32 random bytes
    ed25519-secret:BASE64   signs images, 32 random bytes
    ed25519:BASE64          tells who signed; may be known to all

Empty lines, and those that begin with ``#``, say nothing. A file may have several keys, so that images of an old one
can still be read: the first of a kind is what is written with, all are tried for reading.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from wasmckpt.errors import NotSupported, StorageError, UsageError
from wasmckpt.formats.files import sync_folder
from wasmckpt.lazydata import dataclass

__all__ = [
    "ENCRYPTION", "PUBLIC", "SIGNING", "Key", "generate", "public_of", "read_keys", "read_public",
    "require_cryptography", "write_keys",
]

ENCRYPTION: Final = "aes256"
SIGNING: Final = "ed25519-secret"
PUBLIC: Final = "ed25519"
_KINDS: Final = (ENCRYPTION, SIGNING, PUBLIC)
_SIZE: Final = 32
_LONGEST: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Key:
    """One key: its kind, and its 32 bytes, which no message and no ``repr`` shows."""

    kind: str
    secret: bytes

    @property
    def id(self) -> bytes:
        """Eight bytes by which an image names the key that it was encrypted with, without telling anything of it."""
        return hashlib.sha256(b"wasmckpt key\0" + self.kind.encode() + b"\0" + self.secret).digest()[:8]

    @property
    def text(self) -> str:
        """The key's line."""
        return f"{self.kind}:{base64.b64encode(self.secret).decode()}"

    def __repr__(self) -> str:
        return f"Key({self.text if self.kind == PUBLIC else f'{self.kind}, id {self.id.hex()}'})"


def require_cryptography() -> Any:
    """The library's module of primitives. Raises `NotSupported` where it is not installed."""
    try:
        from cryptography.hazmat import primitives
    except ImportError as reason:
        raise NotSupported("encryption and signatures need the Python package cryptography",
                           hint="pip install 'wasmckpt[crypto]'") from reason
    return primitives


def generate(kind: str) -> Key:
    """A new key, ``aes256`` or ``ed25519-secret``."""
    return Key(kind, os.urandom(_SIZE))


def public_of(key: Key) -> Key:
    """What tells that ``key`` has signed. Raises `NotSupported`."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Key(PUBLIC, Ed25519PrivateKey.from_private_bytes(key.secret).public_key().public_bytes_raw())


def write_keys(path: str | os.PathLike[str], keys: Iterable[Key], *, public: bool = False) -> None:
    """Write a file that is not there yet, for its owner alone unless ``public``. Raises `StorageError`."""
    content = "".join(f"{key.text}\n" for key in keys).encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644 if public else 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(Path(path).absolute().parent)
    except OSError as reason:
        raise StorageError(f"the key cannot be written: {reason.strerror}", path=os.fspath(path),
                           hint="a key is never written over another file") from reason


def read_keys(path: str | os.PathLike[str], kind: str) -> list[Key]:
    """The keys of one kind in a file.

    Raises:
        UsageError: there is no such file, no such key in it, others than its owner may read a secret one, or it is not
            a file of keys.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(_LONGEST + 1)
    except (OSError, ValueError) as reason:
        what = reason.strerror if isinstance(reason, OSError) else "a file's name cannot hold a zero byte"
        raise UsageError(f"the key cannot be read: {what}", path=repr(name)) from reason
    keys = _parse(content, name)
    if any(key.kind != PUBLIC for key in keys):
        _check_private(status, name)
    found = [key for key in keys if key.kind == kind]
    if not found:
        there = ", ".join(sorted({key.kind for key in keys})) or "none"
        raise UsageError(f"there is no {kind} key in the file", path=name, found=there)
    return found


def read_public(given: str) -> list[Key]:
    """Public keys: ``ed25519:BASE64`` itself, or a file with some. Raises `UsageError` as `read_keys`."""
    if given.startswith(f"{PUBLIC}:"):
        return _parse(given.encode(), "the given key")
    return read_keys(given, PUBLIC)


def _parse(content: bytes, name: str) -> list[Key]:
    keys = []
    if len(content) <= _LONGEST:
        for line in content.splitlines():
            line = line.strip()
            if not line or line.startswith(b"#"):
                continue
            kind, _, value = line.partition(b":")
            try:
                secret = base64.b64decode(value, validate=True)
            except binascii.Error:
                secret = b""
            if kind.decode("ascii", "replace") not in _KINDS or len(secret) != _SIZE:
                raise UsageError("this is not a file of keys", path=name, hint="`wasmckpt key generate` makes one")
            keys.append(Key(kind.decode(), secret))
    if not keys:
        raise UsageError("this is not a file of keys", path=name, hint="`wasmckpt key generate` makes one")
    return keys


def _check_private(status: os.stat_result, name: str) -> None:
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError("others than its owner may use the key's file, so that it is no secret", path=name,
                         mode=f"{stat.S_IMODE(status.st_mode):04o}", hint=f"chmod 600 {name}, or make a new key")
    if status.st_uid not in (os.geteuid(), 0):
        raise UsageError("the key's file is another user's", path=name)
