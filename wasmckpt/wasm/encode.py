"""`Module` to bytes: sections that are not replaced pass as they are, byte for byte.

What the rewriter adds is appended to a section's vector, so that no index moves and no old entry is encoded anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .leb128 import read_u32, uleb
from .module import FuncType, GlobalType, Limits, Module

__all__ = [
    "Parts", "appended", "custom_name", "encode", "export_entry", "func_type", "global_entry", "limits", "name",
    "section", "vector",
]

_ORDER = (1, 2, 3, 4, 5, 13, 6, 7, 8, 9, 12, 10, 11)


Parts = Sequence[bytes | memoryview]
"""Content in pieces, which are put together only where all of it is written: a module's code is most of it."""


def encode(
    module: Module, replaced: Mapping[int, bytes | Parts | None], keep_custom: frozenset[str] | None = None,
) -> bytes:
    """Write the module with some sections' contents replaced, added, or (None) left out.

    Args:
        module: the decoded module.
        replaced: section id to new content.
        keep_custom: names of the custom sections to keep; None keeps all.
    """
    data = memoryview(module.data)
    out: list[bytes | memoryview] = [data[:8]]

    def add(number: int) -> None:
        content = replaced[number] or b""
        parts = [content] if isinstance(content, bytes) else content
        out.append(bytes([number]) + uleb(sum(map(len, parts))))
        out.extend(parts)

    pending = [number for number in _ORDER if replaced.get(number) is not None]
    for part in module.sections:
        if part.id == 0:
            if keep_custom is None or custom_name(module.data, part.start) in keep_custom:
                out.append(data[part.header : part.end])
            continue
        while pending and _ORDER.index(pending[0]) < _ORDER.index(part.id):
            add(pending.pop(0))
        if part.id not in replaced:
            out.append(data[part.header : part.end])
        elif replaced[part.id] is not None:
            add(part.id)
            del pending[0]
    for number in pending:
        add(number)
    return b"".join(out)


def custom_name(data: bytes, start: int) -> str:
    """Name of the custom section whose content starts at ``start``."""
    length, at = read_u32(data, start)
    return data[at : at + length].decode("utf-8")


def section(number: int, content: bytes) -> bytes:
    """A section with its header."""
    return bytes([number]) + uleb(len(content)) + content


def vector(items: Iterable[bytes]) -> bytes:
    """A vector of encoded items."""
    parts = list(items)
    return uleb(len(parts)) + b"".join(parts)


def appended(module: Module, number: int, items: Iterable[bytes]) -> bytes:
    """Content of vector section ``number`` with items appended; the old entries pass as bytes."""
    parts = list(items)
    for part in module.sections:
        if part.id == number:
            count, at = read_u32(module.data, part.start)
            return uleb(count + len(parts)) + module.data[at : part.end] + b"".join(parts)
    return vector(parts)


def name(text: str) -> bytes:
    """A name: length and UTF-8."""
    raw = text.encode("utf-8")
    return uleb(len(raw)) + raw


def func_type(kind: FuncType) -> bytes:
    """An entry of the type section."""
    return b"\x60" + uleb(len(kind.params)) + bytes(kind.params) + uleb(len(kind.results)) + bytes(kind.results)


def limits(value: Limits) -> bytes:
    """Limits of a memory or table."""
    if value.maximum is None:
        return b"\0" + uleb(value.minimum)
    return b"\1" + uleb(value.minimum) + uleb(value.maximum)


def global_entry(kind: GlobalType, init: bytes) -> bytes:
    """An entry of the global section; ``init`` includes its ``end``."""
    return bytes([kind.type, kind.mutable]) + init


def export_entry(text: str, kind: int, index: int) -> bytes:
    """An entry of the export section."""
    return name(text) + bytes([kind]) + uleb(index)
