"""What every image must hold, whatever its module: indices in order, values that fit, runs inside their memories.

The same check stands before writing and after reading, so that what can be read can be written again. Whether the
image fits its MODULE is another check, which needs the module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from wasmckpt.errors import ImageError
from wasmckpt.formats.image import PAGE_SIZE, WASM_PAGE_SIZE, Image, MemoryState, ModuleRef, Point, StopKind, TableState
from wasmckpt.formats.node import MAX_U32, MAX_U64
from wasmckpt.wasm.values import TYPE_NAMES, WIDTH

__all__ = ["MAX_PAGES", "check", "check_points"]

MAX_PAGES: Final = 65536
"""Pages of 64 KiB that a 32-bit memory has at most."""

_DIGEST_SIZE: Final = 32


def check(image: Image) -> None:
    """Check all but the bytes of the frames' values.

    Raises:
        ImageError: with the ``field`` that is wrong.
    """
    _check_module(image.module)
    _check_entry(image)
    _check_kinds(image)
    _ascending([state.index for state in image.globals], "globals")
    for state in image.globals:
        _check_value(state.type, state.bits, f"globals[{state.index}]")
    _ascending([table.index for table in image.tables], "tables")
    for table in image.tables:
        _check_table(table)
    _ascending([memory.index for memory in image.memories], "memories")
    for memory in image.memories:
        _check_memory(memory)
    _ascending(image.dropped_data, "dropped_data")
    _ascending(image.dropped_elem, "dropped_elem")
    if not all(isinstance(key, str) for key in image.host):
        raise _wrong("the host's state is a map with text keys", "host")
    if image.parent is not None:
        if len(image.parent.sha256) != _DIGEST_SIZE:
            raise _wrong("a SHA-256 has 32 bytes", "parent.sha256")
        _check_uint(image.parent.position, "parent.position")
        if image.parent.position == 0:
            raise _wrong("an image with a parent is not the first of its chain", "parent.position")


def check_points(points: Sequence[Point]) -> None:
    """Check the distinct points of an image's frames.

    Raises:
        ImageError: with the ``field`` that is wrong.
    """
    for number, point in enumerate(points):
        name = f"points[{number}]"
        _check_uint(point.func, f"{name}.func")
        _check_uint(point.offset, f"{name}.offset")
        _ascending([index for index, _ in point.live], f"{name}.live")
        for type_ in point.value_types:
            _check_type(type_, name)


def _check_module(module: ModuleRef) -> None:
    if len(module.sha256) != _DIGEST_SIZE:
        raise _wrong("a SHA-256 has 32 bytes", "module.sha256")
    _check_uint(module.size, "module.size", MAX_U64)
    if module.content is not None:
        if len(module.content) != module.size:
            raise _wrong("the module carried inside has another size than the image says", "module.size")
        if hashlib.sha256(module.content).digest() != module.sha256:
            raise _wrong("the module carried inside is not the one that the image names", "module.sha256")


def _check_entry(image: Image) -> None:
    entry = image.entry
    _check_uint(entry.current, "entry.current")
    if entry.current > len(entry.steps):
        raise _wrong("the current step is beyond the last", "entry.current")
    if image.frames and entry.current == len(entry.steps):
        raise _wrong("there are frames but nothing was called", "entry.current")
    for number, value in enumerate(entry.arguments):
        _check_value(value.type, value.bits, f"entry.arguments[{number}]")


def _check_kinds(image: Image) -> None:
    if not image.frames:
        return
    if any(frame.point.kind is not StopKind.CALL for frame in image.frames[:-1]):
        raise _wrong("a frame that is not the innermost does not wait for a call", "frames")
    if image.frames[-1].point.kind is StopKind.CALL:
        raise _wrong("the innermost frame waits for a call that has no frame", "frames")


def _check_table(table: TableState) -> None:
    name = f"tables[{table.index}]"
    _check_uint(table.size, f"{name}.size")
    slots = [slot for slot, _ in table.changed]
    _ascending(slots, f"{name}.changed")
    if slots and slots[-1] >= table.size:
        raise _wrong("a changed slot is beyond the table", f"{name}.changed")
    functions = [func for _, func in table.changed if func is not None]
    if functions and not 0 <= min(functions) <= max(functions) < MAX_U32:
        raise _wrong("a function index is out of range", f"{name}.changed")


def _check_memory(memory: MemoryState) -> None:
    name = f"memories[{memory.index}]"
    _check_uint(memory.pages, f"{name}.pages", MAX_PAGES)
    if any(len(raw) % PAGE_SIZE for _, raw in memory.data):
        raise _wrong("a run of pages is not a multiple of 4096 bytes", f"{name}.data")
    runs = [(first, len(raw) // PAGE_SIZE) for first, raw in memory.data]
    runs = sorted(runs + list(memory.zero)) if _rising(runs) and _rising(memory.zero) else []
    if len(runs) != len(memory.data) + len(memory.zero) or not _rising(runs):
        raise _wrong("runs of pages are empty, out of order or overlap", name)
    if runs and (runs[0][0] < 0 or sum(runs[-1]) > memory.pages * (WASM_PAGE_SIZE // PAGE_SIZE)):
        raise _wrong("a run of pages is beyond the memory", name)


def _rising(runs: Sequence[tuple[int, int]]) -> bool:
    """Whether runs are not empty, ascend and do not overlap."""
    return all(count > 0 for _, count in runs) and all(a[0] + a[1] <= b[0] for a, b in pairwise(runs))


def _ascending(numbers: Sequence[int], field: str) -> None:
    if not all(a < b for a, b in pairwise(numbers)) or (numbers and not 0 <= numbers[0] <= numbers[-1] <= MAX_U32):
        raise _wrong("indices are not in ascending order, or out of range", field)


def _check_uint(value: int, field: str, limit: int = MAX_U32) -> None:
    if not 0 <= value <= limit:
        raise _wrong(f"{value} is not from 0 to {limit}", field)


def _check_type(type_: int, field: str) -> None:
    if type_ not in WIDTH:
        raise _wrong(f"values of type {TYPE_NAMES.get(type_, hex(type_))} are not in images of this version", field)


def _check_value(type_: int, bits: int, field: str) -> None:
    _check_type(type_, field)
    _check_uint(bits, field, (1 << 8 * WIDTH[type_]) - 1)


def _wrong(what: str, field: str) -> ImageError:
    return ImageError(what, field=field)
