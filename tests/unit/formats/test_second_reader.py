"""A second reader, written from SPEC.md alone (its section numbers are in the comments), agrees on the test vectors.

It imports nothing of the package, and is as trusting as a reader in a hurry: what it cannot find out from the page is
a hole in the page.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
import zstandard

FOLDER = Path(__file__).parents[2] / "corpus" / "v1"
KINDS = ["safepoint", "call", "repeat"]
TYPES = {0x7F: ("i32", 4), 0x7E: ("i64", 8), 0x7D: ("f32", 4), 0x7C: ("f64", 8), 0x7B: ("v128", 16),
         0x70: ("funcref", 4), 0x6F: ("externref", 4), 0x69: ("exnref", 16)}


def shown_value(type_: int, bits: bytes) -> dict[str, str]:
    name, width = TYPES[type_]
    assert len(bits) == width
    return {"type": name, "bits": "0x" + bits[::-1].hex()}


def shown_plain(value: Any) -> Any:
    """The twins' way to show what JSON lacks."""
    if isinstance(value, bytes):
        return {"$hex": value.hex()}
    if isinstance(value, list):
        return [shown_plain(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) and key[:1] != "$" for key in value):
            return {key: shown_plain(item) for key, item in value.items()}
        return {"$map": [[shown_plain(key), shown_plain(item)] for key, item in value.items()]}
    assert not isinstance(value, float) or math.isfinite(value)
    return value


def runs_of(pages: dict[int, bytes]) -> list[list[int]]:
    """Page numbers as [first, count]."""
    runs: list[list[int]] = []
    for page in sorted(pages):
        if runs and sum(runs[-1]) == page:
            runs[-1][1] += 1
        else:
            runs.append([page, 1])
    return runs


def read(data: bytes) -> dict[str, Any]:
    # 1: magic, digest, version, features
    assert data[:8] == bytes.fromhex("89 57 43 4B 50 54 0D 0A")
    assert data[-34:-32] == b"\xc4\x20"
    assert hashlib.sha256(data[:-34]).digest() == data[-32:]
    values = msgpack.Unpacker(strict_map_key=False)
    values.feed(data[8:-34])
    assert values.unpack() == 1
    header = values.unpack()
    assert set(header["required"]) <= {"parent", "references", "exceptions", "canonical-nans"}

    # 4: blocks into streams; runs keep their place
    streams: dict[str, bytes] = {}
    pages: dict[str, dict[int, dict[int, bytes]]] = {"zero": {}, "pages": {}}
    for kind, encoding, size, where, payload in values:
        if kind not in ("host", "points", "frames", "tables", "module", "zero", "pages"):
            continue
        raw = payload if encoding == 0 else zstandard.ZstdDecompressor().decompress(payload)
        assert encoding in (0, 1)
        assert len(raw) == size <= 2**20
        if kind not in pages:
            streams[kind] = streams.get(kind, b"") + raw
            continue
        at = 0
        for first, count in zip(where[1::2], where[2::2], strict=True):
            for page in range(first, first + count):
                pages[kind].setdefault(where[0], {})[page] = raw[at:at + 4096]
                at += 4096
        assert at == size or kind == "zero"

    # 4: points and frames
    table = msgpack.Unpacker()
    table.feed(streams.get("points", b""))
    points = list(table)
    raw = streams.get("frames", b"")
    count = header["frames"]
    at = 4 * count
    frames = []
    for number in struct.unpack(f"<{count}I", raw[:at]):
        func, offset, kind, live, live_types, stack_types = points[number]
        shown = []
        for type_ in live_types + stack_types:
            shown.append(shown_value(type_, raw[at:at + TYPES[type_][1]]))
            at += TYPES[type_][1]
        frames.append({"func": func, "offset": offset, "kind": KINDS[kind],
                       "locals": {str(index): value for index, value in zip(live, shown, strict=False)},
                       "operands": shown[len(live):]})
    assert at == len(raw)

    # 4: tables
    raw = streams.get("tables", b"")
    tables = []
    at = 0
    for index, size, changed in header["tables"]:
        slots = struct.unpack_from(f"<{changed}I", raw, at)
        functions = struct.unpack_from(f"<{changed}I", raw, at + 4 * changed)
        at += 8 * changed
        tables.append({"index": index, "size": size, "changed": [
            [slot, None if func == 0xFFFFFFFF else func] for slot, func in zip(slots, functions, strict=True)]})
    assert at == len(raw)

    # 3, 4: memories
    memories = []
    for index, size, data_pages, zero_pages in header["memories"]:
        content, zero = pages["pages"].get(index, {}), pages["zero"].get(index, {})
        assert len(content) == data_pages
        assert len(zero) == zero_pages
        memories.append({
            "index": index, "pages": size, "data_pages": data_pages, "zero_pages": zero_pages,
            "data": runs_of(content), "zero": runs_of(zero),
            "sha256": [hashlib.sha256(b"".join(content[page] for page in range(first, first + count))).hexdigest()
                       for first, count in runs_of(content)],
        })

    # 4: the module inside
    inside = "module" in header["optional"]
    assert inside == ("module" in streams)
    if inside:
        assert len(streams["module"]) == header["module"]["size"]
        assert hashlib.sha256(streams["module"]).digest() == header["module"]["sha256"]

    entry, parent = header["entry"], header.get("parent")
    return {
        "version": 1,
        "module": {"sha256": header["module"]["sha256"].hex(), "size": header["module"]["size"], "inside": inside},
        "producer": header["producer"],
        "entry": {**entry, "arguments": [shown_value(*argument) for argument in entry["arguments"]]},
        "frames": frames,
        "globals": [{"index": index, **shown_value(type_, bits)} for index, type_, bits in header["globals"]],
        "tables": tables,
        "memories": memories,
        "dropped_data": header["dropped_data"],
        "dropped_elem": header["dropped_elem"],
        "canonical_nans": "canonical-nans" in header["required"],
        "host": shown_plain(msgpack.unpackb(streams["host"], strict_map_key=False)) if "host" in streams else {},
        "parent": parent and {**parent, "sha256": parent["sha256"].hex()},
    }


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.wck")))
def test_agrees_on_the_vectors(name: str) -> None:
    """SPEC.md says enough to read every vector just as its JSON twin shows it."""
    assert read((FOLDER / f"{name}.wck").read_bytes()) == json.loads((FOLDER / f"{name}.json").read_bytes())
