"""Stored compiled forms: our own digest in front, since runtimes accept a flipped byte in machine code."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from typing import BinaryIO

from wasmckpt.runtimes.base import CompiledFormError

__all__ = ["digest_of", "pack", "rejected", "unpack"]

_MAGIC = b"wckpt-native-1\n\0"
_DIGEST = 32


def pack(tag: str, wasm_sha256: bytes, source: bytes, code: bytes) -> bytes:
    """Layout: magic (16), SHA-256 of all that follows (32), then tag, module digest, interface module and code, each
    with its length in front (u64, little-endian). ``tag`` names runtime, version and machine."""
    body = b"".join(struct.pack("<Q", len(part)) + part for part in (tag.encode(), wasm_sha256, source, code))
    return _MAGIC + hashlib.sha256(body).digest() + body


def unpack(blob: bytes, tag: str) -> tuple[bytes, bytes, bytes]:
    """(module digest, interface module, code). Raises `CompiledFormError`."""
    head = len(_MAGIC)
    if blob[:head] != _MAGIC:
        raise rejected("not a stored compiled form")
    body = blob[head + _DIGEST:]
    if hashlib.sha256(body).digest() != blob[head:head + _DIGEST]:
        raise rejected("the digest differs: it is damaged")
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        (size,) = struct.unpack_from("<Q", body, at)
        parts.append(body[at + 8:at + 8 + size])
        at += 8 + size
    if len(parts) != 4 or parts[0] != tag.encode():
        raise rejected(f"made by {parts[0].decode(errors='replace') if parts else '?'}, this is {tag}")
    return parts[1], parts[2], parts[3]


def digest_of(file: BinaryIO) -> bytes:
    """SHA-256 of a file's contents, which are mapped, not copied."""
    size = os.fstat(file.fileno()).st_size
    if not size:
        return hashlib.sha256().digest()
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as content:
        return hashlib.sha256(content).digest()


def rejected(why: str) -> CompiledFormError:
    return CompiledFormError(f"a compiled form cannot be used: {why}", hint="compile the module again")
