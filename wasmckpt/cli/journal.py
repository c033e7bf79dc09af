"""What a journal holds, for `inspect` and `verify`."""

from __future__ import annotations

import os
from typing import Any

from ..host.journal.file import MAGIC, read_journal
from ..host.journal.items import ATTACH, INTENT, output_in
from .output import amount, count
from .params import begins_with

__all__ = ["describe_journal", "is_journal", "journal_as_json"]


def is_journal(path: str) -> bool:
    """Whether the file begins as a journal does."""
    return begins_with(path, MAGIC)


def journal_as_json(path: str) -> dict[str, Any]:
    """For programs. Raises `StorageError`, `ImageError`: it is damaged."""
    header, frames, end = read_journal(path)
    items = [item for frame in frames for item in frame.items]
    calls = sum(item[0] >= 0 for item in items)
    return {
        "journal": path, "size": os.path.getsize(path), "bytes": end, "module": header.module.hex(),
        "image": None if header.image is None else header.image.hex(), "calls_before": header.base, "calls": calls,
        "frames": len(frames), "lives": sum(item[0] == ATTACH for item in items), "output": output_in(items),
        "in_doubt": bool(items) and items[-1][0] == INTENT,
    }


def describe_journal(path: str) -> list[str]:
    """Lines for people. Raises as `journal_as_json`."""
    found = journal_as_json(path)
    torn = found["size"] - found["bytes"]
    lines = [
        f"journal    {amount(found['bytes'])}, {count(found['calls'], 'call')} in {count(found['frames'], 'frame')}",
        f"module     sha256 {found['module']}",
        f"follows    {'an image' if found['image'] is None else 'the image of sha256 ' + found['image']}, "
        f"{count(found['calls_before'], 'call')} into the program",
        f"output     {amount(found['output'])}, not written again by a restore",
        f"lives      {found['lives']}",
    ]
    if found["in_doubt"]:
        lines.append("end        something was about to be done; a restore finds out whether it was")
    if torn:
        lines.append(f"torn       {amount(torn)} at the end were never committed")
    return lines
