"""Journals as bugs would leave them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgpack  # type: ignore[import-untyped]

__all__ = ["without_call"]

_FRAMES = 69632


def without_call(journal: bytes, number: int) -> bytes:
    """The journal without its n-th call, as if that had never been written; lengths and checksums are right."""
    out, at, seen = bytearray(journal[:_FRAMES]), _FRAMES, 0
    lost = 0
    while at < len(journal):
        magic, length, _, before = struct.unpack_from("<4sIIQ", journal, at)
        unpacker = msgpack.Unpacker(strict_map_key=False)
        unpacker.feed(journal[at + 20 : at + 20 + length])
        moment, *items = unpacker
        kept: list[Any] = []
        for item in items:
            seen += item[0] >= 0
            if item[0] >= 0 and seen == number:
                lost = 1
                continue
            kept.append(item)
        payload = b"".join(map(msgpack.packb, [moment, *kept]))
        first = struct.pack("<Q", before - lost * (seen > number))
        out += struct.pack("<4sII", magic, len(payload), zlib.crc32(payload, zlib.crc32(first))) + first + payload
        at += 20 + length
    return bytes(out)
