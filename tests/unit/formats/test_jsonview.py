"""The readable form: exact bits, dead locals, and nothing that JSON cannot hold."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from hypothesis import given

from wasmckpt.formats import Frame, Image, Point, StopKind, encode, read_header, to_json
from wasmckpt.wasm.values import F32, I64

from .strategies import images
from .vectors import IMAGES


@given(images())
def test_is_json(image: Image) -> None:
    """Every image, and the header of every image, can be shown."""
    shown = json.loads(json.dumps(to_json(image, digests=True), allow_nan=False))
    short = json.loads(json.dumps(to_json(read_header(io.BytesIO(encode(image)))), allow_nan=False))
    for memory in shown["memories"]:
        for field in ("data", "zero", "sha256"):
            del memory[field]
    assert shown == short


def test_dead_locals() -> None:
    """With the functions' counts of locals the dead ones are named, without them they are left out."""
    point = Point(4, 9, StopKind.SAFEPOINT, ((1, F32), (3, I64)))
    image = replace(IMAGES["empty"], frames=(Frame.make(point, [0x7FA00000, 5]),))
    f32, i64 = {"type": "f32", "bits": "0x7fa00000"}, {"type": "i64", "bits": "0x0000000000000005"}
    assert to_json(image)["frames"] == [
        {"func": 4, "offset": 9, "kind": "safepoint", "locals": {"1": f32, "3": i64}, "operands": []}]
    assert to_json(image, local_counts={4: 5})["frames"] == [
        {"func": 4, "offset": 9, "kind": "safepoint", "operands": [],
         "locals": {"0": "dead", "1": f32, "2": "dead", "3": i64, "4": "dead"}}]


def test_what_json_lacks() -> None:
    """Bytes, keys that are no text, keys that look like ours, and infinities are marked."""
    host = {"b": b"\xff", "m": {1: [b""]}, "$hex": "x", "f": float("inf")}
    assert to_json(replace(IMAGES["empty"], host={"x": host}))["host"] == {"x": {"$map": [
        ["b", {"$hex": "ff"}], ["f", {"$float": "inf"}], ["m", {"$map": [[1, [{"$hex": ""}]]]}], ["$hex", "x"]]}}
