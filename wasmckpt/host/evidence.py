"""What was seen of a file, and whether it is still the same one: files are the world outside an image.

Size, times and inode cost nothing but say little on another machine, where a copied file has its own inode and often
its own times. So a digest is taken too: of the whole file up to `WHOLE` bytes, above that of samples spread over it,
for a snapshot must not read gigabytes while a program stands still.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping

__all__ = ["WHOLE", "difference", "look_at"]

WHOLE = 4 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 4096


def look_at(fd: int) -> dict[str, object]:
    """What there is to see of the regular file ``fd``: plain data. Raises OSError."""
    info = os.fstat(fd)
    seen: dict[str, object] = {
        "size": info.st_size, "modified": info.st_mtime_ns, "changed": info.st_ctime_ns, "device": info.st_dev,
        "inode": info.st_ino,
    }
    digest = _digest(fd, info.st_size)
    if digest is not None:
        seen["digest"] = digest
    return seen


def difference(fd: int, seen: Mapping[str, object]) -> str:
    """How ``fd`` differs from what was seen, in words; empty if it is the same. Raises OSError."""
    info = os.fstat(fd)
    size = seen["size"]
    assert isinstance(size, int)
    if info.st_size < size:
        return f"truncated: {info.st_size} bytes, {size} when frozen"
    if info.st_size > size:
        return f"changed: {info.st_size} bytes, {size} when frozen"
    untouched = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns) == (
        seen["device"], seen["inode"], seen["modified"], seen["changed"],
    )
    if untouched:
        return ""
    digest = seen.get("digest")
    same_time = info.st_mtime_ns == seen["modified"]
    if digest is None:
        return "" if same_time else "changed: other modification time, contents unreadable when frozen"
    if _digest(fd, size) != digest:
        return "changed: other contents of the same size"
    if size > WHOLE and not same_time:
        # Samples alone prove nothing.
        return "changed: other modification time, too large to compare as a whole"
    return ""


def _digest(fd: int, size: int) -> bytes | None:
    """SHA-256 of the file, or of samples of it; None if it may not be read."""
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    readable, opened = fd, -1
    try:
        try:
            os.pread(fd, 1, 0)
        except OSError:
            # Opened for writing only: look through a second opening, if the system allows it.
            readable = opened = os.open(f"/dev/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        if size <= WHOLE:
            digest.update(os.pread(readable, size, 0))
        else:
            for number in range(_SAMPLES):
                digest.update(os.pread(readable, _SAMPLE_BYTES, (size - _SAMPLE_BYTES) * number // (_SAMPLES - 1)))
        return digest.digest()
    except OSError:
        return None
    finally:
        if opened >= 0:
            os.close(opened)
