"""An image as JSON: for ``inspect --json``, and for the twins beside the test vectors.

Bit patterns are hexadecimal strings with the leading zeros of their width, since a JSON number keeps neither 64 bits
nor a NaN. In the host's state bytes are ``{"$hex": "..."}`` and maps with keys other than text are
``{"$map": [[key, value], ...]}``, and what JSON has no number for is ``{"$float": "nan"}``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from wasmckpt.formats.codec import Header
from wasmckpt.formats.features import VERSION
from wasmckpt.formats.image import PAGE_SIZE, Frame, Image, MemoryState
from wasmckpt.formats.packed import pack
from wasmckpt.wasm.values import TYPE_NAMES, WIDTH, Value

__all__ = ["to_json", "value_to_json"]


def to_json(image: Image | Header, *, local_counts: Mapping[int, int] | None = None,
            digests: bool = False) -> dict[str, object]:
    """The image as data for `json.dumps`.

    Args:
        image: an image, or the header of one: then memories are given by size and number of pages only.
        local_counts: for each function index how many locals, parameters included, the function has; with it, locals
            without a value are shown as ``"dead"``, without it they are left out.
        digests: whether the SHA-256 of each run of pages is shown, so that two images can be compared.

    Raises:
        ImageError: a frame's bytes are not as many as its types take (an image built by hand).
    """
    if isinstance(image, Header):
        header, image = image, image.image
        memories: list[object] = [
            {"index": m.index, "pages": m.pages, "data_pages": m.counts.data, "zero_pages": m.counts.zero}
            for m in header.memories]
        inside = "module" in header.optional
    else:
        memories = [_memory(memory, digests) for memory in image.memories]
        inside = image.module.content is not None
    entry, producer, parent = image.entry, image.producer, image.parent
    return {
        "version": VERSION,
        "module": {"sha256": image.module.sha256.hex(), "size": image.module.size, "inside": inside},
        "producer": {"tool": producer.tool, "runtime": producer.runtime,
                     "runtime_version": producer.runtime_version, "machine": producer.machine},
        "entry": {"steps": list(entry.steps), "current": entry.current,
                  "arguments": [value_to_json(value) for value in entry.arguments]},
        "frames": [_frame(frame, local_counts) for frame in image.frames],
        "globals": [{"index": g.index, **value_to_json(Value(g.type, g.bits))} for g in image.globals],
        "tables": [{"index": table.index, "size": table.size, "changed": [list(slot) for slot in table.changed]}
                   for table in image.tables],
        "memories": memories,
        "dropped_data": list(image.dropped_data),
        "dropped_elem": list(image.dropped_elem),
        "canonical_nans": image.canonical_nans,
        "host": _plain(image.host),
        "parent": None if parent is None else {"sha256": parent.sha256.hex(), "position": parent.position},
    }


def value_to_json(value: Value) -> dict[str, str]:
    """A value as its type's name and its bits."""
    return {"type": TYPE_NAMES[value.type], "bits": f"0x{value.bits:0{2 * WIDTH[value.type]}x}"}


def _frame(frame: Frame, local_counts: Mapping[int, int] | None) -> dict[str, object]:
    point = frame.point
    live = {index: value_to_json(value) for index, value in frame.locals().items()}
    count = None if local_counts is None else local_counts.get(point.func)
    locals_ = {str(i): live[i] for i in live} if count is None else {str(i): live.get(i, "dead") for i in range(count)}
    return {
        "func": point.func, "offset": point.offset, "kind": point.kind.name.lower(), "locals": locals_,
        "operands": [value_to_json(value) for value in frame.operands()],
    }


def _memory(memory: MemoryState, digests: bool) -> dict[str, object]:
    data = [[first, len(raw) // PAGE_SIZE] for first, raw in memory.data]
    shown: dict[str, object] = {
        "index": memory.index, "pages": memory.pages, "data_pages": sum([count for _, count in data]),
        "zero_pages": sum([count for _, count in memory.zero]), "data": data,
        "zero": [list(run) for run in memory.zero],
    }
    if digests:
        shown["sha256"] = [hashlib.sha256(raw).hexdigest() for _, raw in memory.data]
    return shown


def _plain(value: object) -> object:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$hex": bytes(value).hex()}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _plain(item) for key, item in value.items()}
        pairs = sorted([(pack(key), key, item) for key, item in value.items()], key=lambda pair: pair[0])
        return {"$map": [[_plain(key), _plain(item)] for _, key, item in pairs]}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value
