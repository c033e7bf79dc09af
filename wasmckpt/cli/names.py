"""Names of functions: from the name section, else from what is imported and exported."""

from __future__ import annotations

from ..errors import InvalidModule
from ..wasm.leb128 import read_u32
from ..wasm.module import ExternKind, Module

__all__ = ["function_names"]


def function_names(module: Module) -> dict[int, str]:
    """Function index -> name, for those that have one. A damaged name section counts as none: names decide nothing."""
    names: dict[int, str] = {}
    for index, item in enumerate(module.imported(ExternKind.FUNC)):
        names[index] = f"{item.module}.{item.name}"
    for export in reversed(module.exports):
        if export.kind == ExternKind.FUNC:
            names[export.index] = export.name
    for section in module.customs:
        if section.name == "name":
            try:
                names |= _from_section(module.data[section.start : section.end])
            except (IndexError, InvalidModule):
                pass
    return names


def _from_section(data: bytes) -> dict[int, str]:
    at = 0
    while at < len(data):
        kind = data[at]
        size, at = read_u32(data, at + 1)
        if kind == 1:
            return _name_map(data[at : at + size])
        at += size
    return {}


def _name_map(data: bytes) -> dict[int, str]:
    count, at = read_u32(data, 0)
    names = {}
    for _ in range(count):
        index, at = read_u32(data, at)
        length, at = read_u32(data, at)
        if at + length > len(data):
            raise IndexError
        text = data[at : at + length].decode(errors="replace")
        names[index] = "".join(c if c.isprintable() else "�" for c in text)
        at += length
    return names
