"""The stream ``tables``: for each table its changed slots, then what is in them, 32 bits each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from wasmckpt.errors import ImageError
from wasmckpt.formats.image import TableState
from wasmckpt.formats.node import MAX_U32

__all__ = ["TableHead", "pack_tables", "unpack_tables"]

_NULL: Final = MAX_U32

TableHead = tuple[int, int, int]
"""What the header says of a table: index, size, number of changed slots."""


def pack_tables(tables: Sequence[TableState]) -> bytes:
    """The stream."""
    parts: list[bytes] = []
    for table in tables:
        count = len(table.changed)
        parts.append(struct.pack(f"<{count}I", *[slot for slot, _ in table.changed]))
        parts.append(struct.pack(f"<{count}I", *[_NULL if func is None else func for _, func in table.changed]))
    return b"".join(parts)


def unpack_tables(data: bytes, start: int, heads: Sequence[TableHead]) -> tuple[TableState, ...]:
    """Read the stream, which begins at ``start`` in the file."""
    if len(data) != 8 * sum([count for _, _, count in heads]):
        raise ImageError("the changed table slots have another length than the header announced", field="tables",
                         offset=start)
    tables: list[TableState] = []
    at = 0
    for index, size, count in heads:
        slots = struct.unpack_from(f"<{count}I", data, at)
        functions = struct.unpack_from(f"<{count}I", data, at + 4 * count)
        at += 8 * count
        changed = tuple([(slot, None if func == _NULL else func) for slot, func in zip(slots, functions, strict=True)])
        tables.append(TableState(index, size, changed))
    return tuple(tables)
