"""A module around one function body, with one of everything that an instruction can name."""

from __future__ import annotations

from collections.abc import Sequence

from wasmckpt.wasm.encode import name, section, vector
from wasmckpt.wasm.leb128 import uleb
from wasmckpt.wasm.values import EXNREF, EXTERNREF, F32, F64, FUNCREF, I32, I64, V128

__all__ = ["LOCALS", "function", "module"]

LOCALS: dict[int, int] = {I32: 0, I64: 1, F32: 2, F64: 3, V128: 4, FUNCREF: 5, EXTERNREF: 6, EXNREF: 7}
"""Type code to index of a local of that type."""


def function(body: bytes) -> bytes:
    """A code entry: the locals of `LOCALS`, then the body, whose ``end`` is added."""
    declared = vector([b"\1" + bytes([kind]) for kind in LOCALS])
    content = declared + body + b"\x0b"
    return uleb(len(content)) + content


def module(bodies: Sequence[bytes]) -> bytes:
    """Functions of type [] -> []; two memories, a table and a passive segment of each kind, a tag, a mutable global."""
    return b"\0asm\1\0\0\0" + b"".join([
        section(1, vector([b"\x60\0\0"])),
        section(3, vector([b"\0"] * len(bodies))),
        section(4, vector([b"\x70\0\4", b"\x6f\0\4"])),
        section(5, vector([b"\0\1", b"\1\1\2"])),
        section(13, vector([b"\0\0"])),
        section(6, vector([b"\x7f\1\x41\0\x0b"])),
        section(7, vector([name("f") + b"\0\0"])),
        section(9, vector([b"\1\0\1\0"])),  # passive, function 0
        section(12, b"\1"),
        section(10, vector([function(body) for body in bodies])),
        section(11, vector([b"\1\3abc"])),  # passive
    ])
