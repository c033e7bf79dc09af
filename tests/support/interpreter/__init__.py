"""The reference interpreter: an independent oracle for frames and values, and a source of images at any instruction.

Pure Python and plain: one entry an instruction, an explicit stack of frames, values as bits. It shares with the package
only the decoder of sections, the table of opcodes and the types of images. Bits are unsigned ints; see `store.Cell`
for references.

>>> from wasmtime import wat2wasm
>>> machine = Machine(bytes(wat2wasm('(module (func (export "f") (param i32) (result i32) local.get 0))')))
>>> machine.invoke("f", 7)
(7,)
"""

from __future__ import annotations

from .floats import NanPolicy
from .machine import START, Frame, Machine, RepeatCall
from .store import Caller, Extern, Global, HostFunction, Import, Instance, Memory, Table, Tag, WasmFunction
from .traps import LinkError, trap

__all__ = [
    "START", "Caller", "Extern", "Frame", "Global", "HostFunction", "Import", "Instance", "LinkError", "Machine",
    "Memory", "NanPolicy", "RepeatCall", "Table", "Tag", "WasmFunction", "trap",
]
