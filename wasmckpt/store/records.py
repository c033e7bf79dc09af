"""What a bucket holds of a checkpoint beside its images: one small object of JSON, read with suspicion."""

from __future__ import annotations

import json
import math
import os
import re
from typing import Any, Final

from ..errors import StorageError
from ..lazydata import dataclass
from .index import Entry

__all__ = ["ImageObject", "ModuleObject", "Record", "folder_of", "pack_record", "parse_record", "record_key"]

VERSION: Final = 1
_SHA: Final = re.compile(r"[0-9a-f]{64}")
_KEY: Final = re.compile(r"(?:images|modules)/[0-9a-f]{64}\.[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class ImageObject:
    """An image in a bucket: its digest, its key, size and digest of the object (another one if the image is sealed),
    and what an `Entry` says of an image."""

    sha256: bytes
    key: str
    size: int
    object_sha256: bytes
    frames: int
    runtime: str


@dataclass(frozen=True, slots=True)
class ModuleObject:
    """A module in a bucket; its digest is in the `Entry`."""

    key: str
    size: int


@dataclass(frozen=True, slots=True)
class Record:
    """A checkpoint: what is told of it; its image and all that this rests on, one upon the other; its module; and
    ``token``, random, by which a writer knows its own record again."""

    entry: Entry
    images: tuple[ImageObject, ...]
    module: ModuleObject | None
    token: str

    @property
    def keys(self) -> frozenset[str]:
        """The objects that it needs."""
        return frozenset([image.key for image in self.images] + ([] if self.module is None else [self.module.key]))


def folder_of(job: str) -> str:
    """The folder of a program's records: its name, with what keys cannot have or systems understand otherwise as
    ``=`` and hexadecimal digits; of a very long one its digest."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "".join(f"={b:02x}" for b in c.encode())
                   for c in job)
    if len(name) > 200:
        import hashlib

        name = "=" + hashlib.sha256(job.encode()).hexdigest()
    return f"checkpoints/{name}"


def record_key(job: str, number: int) -> str:
    """Of a record. The key of the newest checkpoint is the last one."""
    return f"{folder_of(job)}/{number:012}.json"


def pack_record(record: Record) -> bytes:
    """As bytes."""
    entry = record.entry
    return json.dumps({
        "version": VERSION, "job": entry.job, "number": entry.number, "taken": entry.taken, "token": record.token,
        "module": {"sha256": entry.module.hex(), **({} if record.module is None else {
            "key": record.module.key, "size": record.module.size,
        })},
        "images": [{
            "sha256": image.sha256.hex(), "key": image.key, "size": image.size, "frames": image.frames,
            "runtime": image.runtime, "object_sha256": image.object_sha256.hex(),
        } for image in record.images],
    }, indent=1).encode()


def parse_record(data: bytes, where: str) -> Record:
    """Raises `StorageError`: it is none, or of a newer version."""
    try:
        plain = json.loads(data)
        if _int(plain["version"]) > VERSION:
            raise StorageError(f"a checkpoint in the store is of version {plain['version']}, newer than {VERSION}",
                               path=where, hint="use a newer wasmckpt")
        images = tuple([ImageObject(
            _sha(row["sha256"]), _key(row["key"]), _int(row["size"]), _sha(row["object_sha256"]), _int(row["frames"]),
            _text(row["runtime"]),
        ) for row in plain["images"]])
        newest = images[0]
        module = plain["module"]
        taken = float(plain["taken"])
        if not math.isfinite(taken):
            raise ValueError
        entry = Entry(
            _text(plain["job"]), _int(plain["number"], 1), taken, newest.sha256, newest.size, len(images) - 1,
            images[1].sha256 if len(images) > 1 else None, _sha(module["sha256"]), newest.frames, newest.runtime,
        )
        kept = ModuleObject(_key(module["key"]), _int(module["size"])) if "key" in module else None
        return Record(entry, images, kept, _text(plain["token"]))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as reason:
        raise StorageError("a checkpoint's record in the store is damaged", path=where) from reason


def new_token() -> str:
    """For a record or a key that nobody else has."""
    return os.urandom(8).hex()


def _int(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 63:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _sha(value: Any) -> bytes:
    if not _SHA.fullmatch(_text(value)):
        raise ValueError
    return bytes.fromhex(value)


def _key(value: Any) -> str:
    if not _KEY.fullmatch(_text(value)):
        raise ValueError
    return _text(value)
