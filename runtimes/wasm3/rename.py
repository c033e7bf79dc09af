"""The module as Wasm3 loads it: short, unique names for what it looks up by name, and a table of the declared size.

Wasm3 0.5.0 finds exports by C strings, in the name section first and under three names a function at most, makes up
names such as ``$func3`` by itself, takes ``*`` as "any module", and stops at 10,000 exports. So the module it loads has
its name section taken out and says ``f12`` for exported function 12, ``g3`` for global 3, and ``i``/``5`` for import 5;
the real names stay on our side.
"""

from __future__ import annotations

from wasmckpt.runtimes.interface import ModuleInterface, sections, unsigned_leb
from wasmckpt.runtimes.wasm3.segments import Segments, table_section

__all__ = ["IMPORT_MODULE", "function_name", "global_name", "import_name", "rename"]

IMPORT_MODULE = b"i"


def function_name(index: int) -> bytes:
    return b"f%d" % index


def global_name(index: int) -> bytes:
    return b"g%d" % index


def import_name(position: int) -> bytes:
    return b"%d" % position


def rename(wasm: bytes, interface: ModuleInterface, segments: Segments) -> bytes:
    """The module with short names, with element segments for Wasm3, without custom sections. Its indices stay the same.
    """
    out = [wasm[:8]]
    elements = table_section(segments)
    for section in sections(wasm):
        if section.id in {0, 9}:
            continue
        if section.id in {10, 11, 12} and elements:
            out.append(_section(9, elements))
            elements = b""
        if section.id == 2:
            out.append(_section(2, _imports(wasm, section.body, section.end)))
        elif section.id == 7:
            out.append(_section(7, _exports(interface)))
        else:
            out.append(wasm[section.start:section.end])
    if elements:
        out.append(_section(9, elements))
    return b"".join(out)


def _imports(wasm: bytes, at: int, end: int) -> bytes:
    count, at = unsigned_leb(wasm, at, end)
    out = [leb(count)]
    for position in range(count):
        for _ in range(2):
            size, at = unsigned_leb(wasm, at, end)
            at += size
        start, at = at, _after_description(wasm, at, end)
        out += [_name(IMPORT_MODULE), _name(import_name(position)), wasm[start:at]]
    return b"".join(out)


def _after_description(wasm: bytes, at: int, end: int) -> int:
    kind, at = wasm[at], at + 1
    if kind == 0:
        return unsigned_leb(wasm, at, end)[1]
    if kind == 3:
        return at + 2
    at += kind == 1  # a table's element type
    flags, at = wasm[at], at + 1
    for _ in range(2 if flags & 1 else 1):
        _, at = unsigned_leb(wasm, at, end)
    return at


def _exports(interface: ModuleInterface) -> bytes:
    functions = sorted({e.index for e in interface.exports if e.kind == "func"})
    globals_ = sorted({e.index for e in interface.exports if e.kind == "global"})
    items = [_name(function_name(i)) + b"\0" + leb(i) for i in functions]
    items += [_name(global_name(i)) + b"\3" + leb(i) for i in globals_]
    return leb(len(items)) + b"".join(items)


def _section(number: int, contents: bytes) -> bytes:
    return bytes([number]) + leb(len(contents)) + contents


def _name(name: bytes) -> bytes:
    return leb(len(name)) + name


def leb(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
