"""Sealed images: encrypted, signed, or both. An image's bytes are the same, sealed or not, and so is its digest.

::

    sealed     = magic version params recipients segment* trailer length
    magic      = 89 57 43 4B 53 4C 0D 0A            "WCKSL" between what text transfers destroy
    params     = bin, a packed map                  cipher, size of a segment
    recipients = [[key id, nonce, wrapped key]*]    for each key that opens it
    segment    = so many bytes of the image         encrypted: each with a tag of 16 bytes
    trailer    = [core, signer, signature]          encrypted in the same way, as the last one
    length     = 4 bytes                            of the trailer

*Encryption.* Each file has a random key of its own, so that a counter is a nonce that never comes twice; AES-256-GCM in
the STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizár, "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance", 2015): the nonce of a segment is its number and whether it is the last one, so that segments that
are cut off, moved or doubled do not open. The file's key is wrapped with each master key (AES-256-GCM, random nonce),
bound to ``params``. Other master keys can take its place without anything else being written (`rewrap`).

*Signature.* Ed25519 over ``params`` and ``core``, which has the SHA-256 of the image up to the end of each segment. The
last of these is the image's digest. The trailer is read first: so nothing of an image is looked at before it is known
that who should have signed has signed just these bytes, with one pass over the file and one segment in memory.

Rejected: a signature over the digest alone (two passes, and what is read in the second may have changed since the
first); age's format through a library (its Python one takes and gives whole files in memory); content addresses of the
encrypted file (new keys would break each chain); digests in the clear keyed by a secret (a store could no longer be
checked for what it lacks without the key). So the names of files in a store tell those who can guess an image's every
byte that they have guessed right; what else stays in the clear is in docs/sealed.md.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, BinaryIO, Final

from wasmckpt.errors import ImageError, UsageError
from wasmckpt.formats.keys import (
    ENCRYPTION,
    PUBLIC,
    SIGNING,
    Key,
    public_of,
    read_keys,
    read_public,
    require_cryptography,
)
from wasmckpt.formats.limits import DEFAULT_LIMITS, Budget
from wasmckpt.formats.node import MAX_U64, Node
from wasmckpt.formats.packed import pack, unpack
from wasmckpt.formats.sealing import Sealing
from wasmckpt.formats.stream import BytesSource, FileSource, Writable
from wasmckpt.lazydata import dataclass

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["MAGIC", "Seal", "Sealer", "Unsealed", "check", "policy_refuses", "rewrap"]

MAGIC: Final = b"\x89WCKSL\r\n"
VERSION: Final = 1
SEGMENT: Final = 1 << 20
AES: Final = "aes-256-gcm-stream"
CLEAR: Final = "none"
_SMALLEST: Final = 1 << 12
_TAG: Final = 16
_KEY: Final = 32
_NONCE: Final = 12
_WRAPPING: Final = b"wasmckpt sealed image: file key\0"
_SIGNING: Final = b"wasmckpt sealed image: signature\0"
_RECIPIENTS: Final = 64
_TRAILER: Final = 16 << 20
"""Bytes of a trailer that a reader takes in: enough for images of 500 GiB."""


@dataclass(frozen=True, slots=True)
class Seal:
    """What is known of an opened image.

    Attributes:
        keys: ids of the keys that it is encrypted with, none if it is not.
        signer: the public key that has signed it. Whether that is to be trusted is the reader's policy.
    """

    keys: tuple[bytes, ...] = ()
    signer: Key | None = None


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\1" if last else b"\0")


def _pack_head(params: bytes, recipients: Sequence[Sequence[bytes]]) -> bytes:
    return MAGIC + pack(VERSION) + pack(params) + pack(recipients)


def _wrap(params: bytes, key: bytes, masters: Sequence[Key]) -> list[list[bytes]]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    wrapped = []
    for master in masters:
        nonce = os.urandom(_NONCE)
        wrapped.append([master.id, nonce, AESGCM(master.secret).encrypt(nonce, key, _WRAPPING + params)])
    return wrapped


class Sealer:
    """Takes an image's bytes with ``write``, and puts them sealed into a file; `finish` ends it.

    Raises:
        UsageError: a key cannot be used. NotSupported: the library is not installed.
    """

    def __init__(self, file: Writable, sealing: Sealing, *, segment: int = SEGMENT) -> None:
        require_cryptography()
        self._file, self._segment = file, segment
        self._held = bytearray()
        self._numbers = 0
        self._size = 0
        self._sha = hashlib.sha256()
        self._digests: list[bytes] = []
        self._cipher: AESGCM | None = None
        self._signing = read_keys(sealing.sign_with, SIGNING)[0] if sealing.sign_with else None
        recipients: list[list[bytes]] = []
        self._params = pack({"cipher": AES if sealing.encrypt_with else CLEAR, "segment": segment})
        if sealing.encrypt_with:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            key = os.urandom(_KEY)
            recipients = _wrap(self._params, key, read_keys(sealing.encrypt_with, ENCRYPTION)[:1])
            self._cipher = AESGCM(key)
        self._write(_pack_head(self._params, recipients))

    def _write(self, data: bytes) -> None:
        self._file.write(data)

    def write(self, data: bytes) -> None:
        """The next bytes of the image."""
        self._held += data
        while len(self._held) >= self._segment:
            self._put(bytes(memoryview(self._held)[:self._segment]))
            del self._held[:self._segment]

    def _put(self, data: bytes) -> None:
        self._size += len(data)
        if self._signing is not None:
            self._sha.update(data)
            self._digests.append(self._sha.digest())
        self._write(self._closed(data, last=False))
        self._numbers += 1

    def _closed(self, data: bytes, *, last: bool) -> bytes:
        return data if self._cipher is None else self._cipher.encrypt(_nonce(self._numbers, last), data, None)

    def finish(self) -> None:
        """What ends the file."""
        if self._held:
            self._put(bytes(self._held))
            self._held.clear()
        core = pack({"size": self._size, "digests": b"".join(self._digests)})
        signer = signature = b""
        if self._signing is not None:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

            signer = public_of(self._signing).secret
            signature = Ed25519PrivateKey.from_private_bytes(self._signing.secret).sign(_SIGNING + self._params + core)
        trailer = self._closed(pack([core, signer, signature]), last=True)
        self._write(trailer + len(trailer).to_bytes(4, "little"))


def policy_refuses(sealing: Sealing, signer: Key | None) -> ImageError | None:
    """The error that an image signed by ``signer``, or by nobody, is refused with; None: it is not."""
    if not sealing.require_signed_by:
        return None
    trusted = [key for given in sealing.require_signed_by for key in read_public(given)]
    if signer is None:
        return ImageError("the image is not signed, and images without a signature are refused here",
                          hint="see --require-signed-by and docs/sealed.md")
    if signer not in trusted:
        return ImageError("the image is signed by a key that is not trusted here", signer=signer.text,
                          hint="see --require-signed-by and docs/sealed.md")
    return None


class Unsealed(io.RawIOBase):
    """An image's bytes, read from a sealed file that stands at its beginning and can be sought in.

    Raises:
        ImageError: it is damaged, not signed by whom it should be, or cannot be decrypted with the keys at hand.
        UsageError: a key cannot be used. NotSupported: the library is not installed.
    """

    def __init__(self, file: BinaryIO, sealing: Sealing) -> None:
        require_cryptography()
        self._file = file
        self._head = _Head(file)
        self._cipher: AESGCM | None = None
        if self._head.encrypted:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher = AESGCM(self._head.key(_masters(sealing)))
        start = file.tell()
        end = file.seek(0, os.SEEK_END) - 4
        length = self._length_at(end, start)
        file.seek(end - length)
        body = end - length - start
        whole = self._head.segment + self._tag
        self._segments = -(-body // whole)
        trailer = self._opened(file.read(length), self._segments, last=True)
        size, self._digests, signer = self._read_trailer(trailer)
        if size != body - self._segments * self._tag or size < 0:
            raise ImageError("the sealed image has another length than it says", need=size)
        self.seal = Seal(tuple([row[0] for row in self._head.recipients]), signer)
        refused = policy_refuses(sealing, signer)
        if refused is not None:
            raise refused
        if signer is not None and len(self._digests) != 32 * self._segments:
            raise ImageError("the signature is of another number of segments than the image has")
        file.seek(start)
        self._left = body
        self._number = 0
        self._sha = hashlib.sha256()
        self._data, self._at = b"", 0

    @property
    def _tag(self) -> int:
        return _TAG if self._head.encrypted else 0

    def _length_at(self, end: int, start: int) -> int:
        if end < start:
            raise ImageError("the sealed image is cut short", offset=end + 4)
        self._file.seek(end)
        length = int.from_bytes(self._file.read(4), "little")
        if not self._tag < length <= min(_TRAILER, end - start):
            raise ImageError("the sealed image is cut short, or its end is damaged", offset=end)
        return length

    def _opened(self, data: bytes, number: int, *, last: bool) -> bytes:
        if self._cipher is None:
            return data
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(_nonce(number, last), data, None)
        except InvalidTag:
            raise ImageError("the encrypted image is damaged, or cut short", segment=number) from None

    def _read_trailer(self, data: bytes) -> tuple[int, bytes, Key | None]:
        """Size of the image, its digests, and who has signed them."""
        source = BytesSource(data, "trailer", 0)
        root = Node(unpack(source, Budget(DEFAULT_LIMITS, len(data), 8)), "trailer", 0)
        core, signer, signature = (item.binary() for item in root.row(3))
        if not source.at_end():
            raise source.error("bytes follow the trailer of the sealed image")
        source = BytesSource(core, "core", 0)
        fields = Node(unpack(source, Budget(DEFAULT_LIMITS, len(core), 8)), "core", 0)
        size, digests = fields["size"].uint(MAX_U64), fields["digests"].binary()
        if not signer and not signature and not digests:
            if not self._head.encrypted:
                raise ImageError("the sealed image is neither encrypted nor signed")
            return size, b"", None
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(signer).verify(signature, _SIGNING + self._head.params + core)
        except (InvalidSignature, ValueError):
            raise ImageError("the image's signature is wrong: it was changed after it was signed") from None
        return size, digests, Key(PUBLIC, signer)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """The next bytes; 0 at the end."""
        if self._at == len(self._data):
            if not self._left:
                return 0
            self._next()
        with memoryview(buffer) as view:
            data = self._data[self._at:self._at + len(view)]
            view[:len(data)] = data
        self._at += len(data)
        return len(data)

    def _next(self) -> None:
        wanted = min(self._head.segment + self._tag, self._left)
        data = self._file.read(wanted)
        if len(data) < wanted:
            raise ImageError("the sealed image is cut short", segment=self._number)
        self._left -= wanted
        self._data, self._at = self._opened(data, self._number, last=False), 0
        if self._digests:
            self._sha.update(self._data)
            if self._sha.digest() != self._digests[32 * self._number:32 * self._number + 32]:
                raise ImageError("the image is not what was signed", segment=self._number)
        self._number += 1

    def close(self) -> None:
        self._file.close()
        super().close()


class _Head:
    """What a sealed file begins with."""

    def __init__(self, file: BinaryIO) -> None:
        source = FileSource(file)
        if source.take(len(MAGIC)) != MAGIC:
            raise ImageError("this is not a sealed image", offset=0)
        version = Node(unpack(source, Budget(DEFAULT_LIMITS, 0, 1)), "version", source.offset).uint()
        if version != VERSION:
            raise ImageError(f"the sealed image is of version {version}, and not {VERSION}", offset=len(MAGIC),
                             hint="use a newer wasmckpt" if version > VERSION else "")
        self.params = Node(unpack(source, Budget(DEFAULT_LIMITS, 256, 1)), "params", source.offset).binary()
        fields = Node(unpack(BytesSource(self.params, "params", 0), Budget(DEFAULT_LIMITS, 256, 16)), "params", 0)
        cipher = fields["cipher"].text()
        if cipher not in (AES, CLEAR):
            raise ImageError(f"images are not encrypted by {cipher!r} here", hint="use a newer wasmckpt")
        self.encrypted = cipher == AES
        self.segment = fields["segment"].uint(SEGMENT)
        if self.segment < _SMALLEST:
            raise ImageError("the sealed image has segments that are too small", segment=self.segment)
        budget = Budget(DEFAULT_LIMITS, 128 * _RECIPIENTS, 4 * _RECIPIENTS + 1)
        rows = [row.row(3) for row in Node(unpack(source, budget), "recipients", source.offset).items()]
        self.recipients = [
            (name.binary(8), nonce.binary(_NONCE), wrapped.binary(_KEY + _TAG)) for name, nonce, wrapped in rows
        ]
        if self.encrypted != bool(self.recipients):
            raise ImageError("a sealed image has keys if and only if it is encrypted")

    def key(self, masters: Sequence[Key]) -> bytes:
        """The file's own key."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        known = {master.id: master for master in masters}
        names = ", ".join(name.hex() for name, _, _ in self.recipients)
        for name, nonce, wrapped in self.recipients:
            if name in known:
                try:
                    return AESGCM(known[name].secret).decrypt(nonce, wrapped, _WRAPPING + self.params)
                except InvalidTag:
                    raise ImageError("the encrypted image is damaged", field="recipients") from None
        if not masters:
            raise ImageError("the image is encrypted, and there is no key to read it with", key=names,
                             hint="name its file with --key or WASMCKPT_DECRYPT_WITH")
        raise ImageError("the image is encrypted with another key than those at hand", key=names,
                         found=", ".join(master.id.hex() for master in masters))


def check(sealing: Sealing, *, rereads: bool = False) -> None:
    """Read all keys, so that what is wrong with them is known; ``rereads``: what is written is read here, too.

    Raises:
        UsageError: a key cannot be used, or what is written would be refused. NotSupported.
    """
    require_cryptography()
    _masters(sealing)
    if sealing.sign_with:
        read_keys(sealing.sign_with, SIGNING)
    for given in sealing.require_signed_by:
        read_public(given)
    if rereads:
        signer = public_of(read_keys(sealing.sign_with, SIGNING)[0]) if sealing.sign_with else None
        if policy_refuses(sealing, signer) is not None:
            raise UsageError("images that would be written here are not signed by a key that is trusted here",
                             hint="add --sign-with KEYFILE")


def _masters(sealing: Sealing) -> list[Key]:
    paths = [*([sealing.encrypt_with] if sealing.encrypt_with else []), *sealing.decrypt_with]
    return [key for path in dict.fromkeys(paths) for key in read_keys(path, ENCRYPTION)]


def rewrap(source: BinaryIO, target: Writable, sealing: Sealing) -> None:
    """Copy an encrypted image so that the key that images are now encrypted with opens it, and no other one does.
    Nothing is decrypted but the file's own key; the signature holds.

    Raises:
        ImageError: it is not encrypted, or cannot be opened with the keys at hand. UsageError: a key cannot be used.
    """
    require_cryptography()
    head = _Head(source)
    if not head.encrypted:
        raise ImageError("the image is not encrypted")
    if not sealing.encrypt_with:
        raise UsageError("there is no key to encrypt with", hint="--encrypt-with FILE")
    key = head.key(_masters(sealing))
    target.write(_pack_head(head.params, _wrap(head.params, key, read_keys(sealing.encrypt_with, ENCRYPTION)[:1])))
    while data := source.read(SEGMENT):
        target.write(data)
