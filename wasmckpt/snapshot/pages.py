"""Memories as differences: which 4 KiB pages differ from the module's own initial memory."""

from __future__ import annotations

from collections.abc import Mapping

from ..formats import PAGE_SIZE, MemoryState
from ..wasm.leb128 import read_s32, read_u32
from ..wasm.module import Module
from .view import Read

__all__ = ["CHUNK", "ZERO_CHUNK", "constant_offset", "diff_memory", "initial_pages"]

CHUNK = 1 << 20
"""Bytes that are read and compared at a time."""
_ZERO_PAGE = bytes(PAGE_SIZE)
ZERO_CHUNK = bytes(CHUNK)
"""A chunk of zeros; who gives this very object as a chunk saves the comparison."""


def constant_offset(module: Module, expr: bytes, imported: Mapping[int, int]) -> int:
    """Value of a constant i32 expression; ``imported``: bits of the imported globals, by index."""
    stack: list[int] = []
    at = 0
    while expr[at] != 0x0B:
        op = expr[at]
        if op == 0x41:
            value, at = read_s32(expr, at + 1)
            stack.append(value)
        elif op == 0x23:
            index, at = read_u32(expr, at + 1)
            own = index - (len(module.globals) - len(module.own_globals))
            value = imported[index] if own < 0 else constant_offset(module, module.own_globals[own].init, imported)
            stack.append(value)
        else:
            b, a = stack.pop(), stack.pop()
            stack.append(a + b if op == 0x6A else a - b if op == 0x6B else a * b)
            at += 1
    return stack[0] & 0xFFFFFFFF


def initial_pages(module: Module, memory: int, imported: Mapping[int, int]) -> dict[int, bytes]:
    """The pages of a memory that active data segments make other than zero: page number -> 4096 bytes."""
    pages: dict[int, bytearray] = {}
    for segment in module.datas:
        if not segment.active or segment.memory != memory:
            continue
        at = constant_offset(module, segment.offset, imported)
        data = segment.data
        while data:
            page, inside = divmod(at, PAGE_SIZE)
            part = data[: PAGE_SIZE - inside]
            if part.count(0) != len(part) or page in pages:
                pages.setdefault(page, bytearray(PAGE_SIZE))[inside : inside + len(part)] = part
            data = data[len(part) :]
            at += len(part)
    return {page: bytes(content) for page, content in pages.items() if content != _ZERO_PAGE}


def diff_memory(index: int, pages64k: int, base: int, read: Read, initial: Mapping[int, bytes]) -> MemoryState:
    """Compare a memory with its initial contents, a mebibyte at a time; zero stretches cost one comparison.

    Args:
        base: native address of the memory, read through ``read``. initial: see `initial_pages`.
    """
    runs: list[tuple[int, list[bytes]]] = []
    zero: list[list[int]] = []
    total = pages64k << 16
    for start in range(0, total, CHUNK):
        chunk = read(base + start, min(CHUNK, total - start))
        first = start // PAGE_SIZE
        count = len(chunk) // PAGE_SIZE
        if chunk == (ZERO_CHUNK if len(chunk) == CHUNK else bytes(len(chunk))):
            gone = [p for p in range(first, first + count) if p in initial]
            for page in gone:
                _extend(zero, page)
            continue
        for n in range(count):
            page = first + n
            content = chunk[n * PAGE_SIZE : (n + 1) * PAGE_SIZE]
            if content == initial.get(page, _ZERO_PAGE):
                continue
            if content == _ZERO_PAGE:
                _extend(zero, page)
            elif runs and runs[-1][0] + len(runs[-1][1]) == page:
                runs[-1][1].append(content)
            else:
                runs.append((page, [content]))
    return MemoryState(
        index, pages64k, tuple((page, b"".join(parts)) for page, parts in runs), tuple((a, n) for a, n in zero)
    )


def _extend(zero: list[list[int]], page: int) -> None:
    if zero and sum(zero[-1]) == page:
        zero[-1][1] += 1
    else:
        zero.append([page, 1])
