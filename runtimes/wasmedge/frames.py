"""How much native stack compiled functions take, read from the machine code (x86-64).

The "depth-counter" counts what a function declares; its compiled form may take more: spilled temporaries, saved
registers, what was inlined. Both are known once the code is there, so that the stack that may be counted on a thread of
a given size follows, for any module, and nothing is left to a guess.

The output of the compiler is the module with a section "wasmedge", numbers in LEB128::

    version  system (1 byte)  architecture (1 byte)  two addresses
    count, addresses of what enters functions by type      count, addresses of the functions, imported ones 0 if at all
    count, parts: kind (1 byte, 1: code)  address  size  length, bytes
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Final

from wasmckpt.errors import NotSupported
from wasmckpt.lazydata import dataclass
from wasmckpt.runtimes.interface import sections, unsigned_leb
from wasmckpt.wasm.leb128 import read_s32, uleb
from wasmckpt.wasm.module import Module

__all__ = ["Frames", "costs", "frames"]

_SAVED: Final = 64
"""Bytes of a frame that are pushed: six registers and the return address."""
_BETWEEN: Final = 512
"""Bytes for what is not counted between two counted frames: a dispatcher of continuations, alignment."""
_LARGEST: Final = 1 << 24
_TEXT: Final = 1
_SUBTRACT: Final = re.compile(rb"\x48(?:\x81\xec(....)|\x83\xec(.))", re.DOTALL)
"""``sub rsp, imm32`` and ``sub rsp, imm8``; what only looks like one makes a frame larger than it is, no matter."""


@dataclass(frozen=True, slots=True)
class Frames:
    """``ratio``: native bytes for each one that is counted, at most. ``fixed``: native bytes of all functions that are
    not counted, each of which is on the stack once at most."""

    ratio: float
    fixed: int

    def countable(self, native: int) -> int:
        """Bytes that may be counted where the thread has ``native`` bytes for the guest."""
        return int((native - self.fixed) / self.ratio) if self.ratio else native


def costs(module: Module, depth: int) -> dict[int, int]:
    """Function -> what it counts on the global numbered ``depth``, for those that count."""
    start = re.compile(re.escape(b"\x23" + uleb(depth) + b"\x22") + rb"[\x80-\xff]*[\x00-\x7f]\x41", re.DOTALL)
    found: dict[int, int] = {}
    for func in range(module.imported_funcs, len(module.func_types)):
        entry = start.match(module.data, module.body(func).expr)
        if entry:
            found[func - module.imported_funcs] = read_s32(module.data, entry.end())[0]
    return found


def frames(code: bytes, functions: int, counted: Mapping[int, int]) -> Frames:
    """Measures the ``functions`` that a compiled module defines; ``counted``: defined function -> its cost.

    Raises:
        NotSupported: the compiled form is not as this knows it.
    """
    found, parts = _read(code)
    addresses = [address for address in found if address]
    if len(addresses) != functions:
        raise NotSupported("the compiled form has other functions than its module", runtime="wasmedge-aot",
                           need=str(functions), found=str(len(addresses)))
    after = dict(itertools.pairwise([*sorted(set(addresses)), 0]))
    ratio, fixed = 0.0, 0
    for number, address in enumerate(addresses):
        at, text = next(((at, text) for at, text in parts if at <= address < at + len(text)), (0, b""))
        if not text:
            raise NotSupported("the compiled form keeps a function elsewhere", runtime="wasmedge-aot")
        body = text[address - at:(after[address] or at + len(text)) - at]
        taken = _SAVED + max((size for size in map(_size, _SUBTRACT.finditer(body)) if size < _LARGEST), default=0)
        if number in counted:
            ratio = max(ratio, (taken + _BETWEEN) / counted[number])
        else:
            fixed += taken
    return Frames(ratio, fixed)


def _size(found: re.Match[bytes]) -> int:
    wide, narrow = found.groups()
    return int.from_bytes(wide, "little") if wide else narrow[0]


def _read(code: bytes) -> tuple[list[int], list[tuple[int, bytes]]]:
    for section in sections(code):
        if section.id:
            continue
        size, at = unsigned_leb(code, section.body, section.end)
        if code[at:at + size] == b"wasmedge":
            return _parts(code, at + size, section.end)
    raise NotSupported("the compiled form has no machine code", runtime="wasmedge-aot")


def _parts(code: bytes, at: int, end: int) -> tuple[list[int], list[tuple[int, bytes]]]:
    def number() -> int:
        nonlocal at
        value, at = unsigned_leb(code, at, end, 64)
        return value

    number()
    at += 2
    number(), number()
    for _ in range(number()):
        number()
    addresses = [number() for _ in range(number())]
    parts: list[tuple[int, bytes]] = []
    for _ in range(number()):
        kind = code[at]
        at += 1
        address, _, length = number(), number(), number()
        if kind == _TEXT:
            parts.append((address, code[at:at + length]))
        at += length
    return addresses, parts
