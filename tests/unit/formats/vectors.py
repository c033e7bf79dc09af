"""The test vectors of version 1, as images. The files in tests/corpus/v1 are what a release wrote: they are never
written again, only added to (``python -m tests.unit.formats.vectors``), and must load for ever."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

import msgpack  # type: ignore[import-untyped]

from wasmckpt.formats import (
    PAGE_SIZE,
    Entry,
    Frame,
    GlobalState,
    Image,
    MemoryState,
    ModuleRef,
    ParentRef,
    Point,
    Producer,
    StopKind,
    TableState,
    encode,
    to_json,
)
from wasmckpt.formats.features import MAGIC
from wasmckpt.wasm.values import EXTERNREF, F32, F64, FUNCREF, I32, I64, NULL, V128, Value

FOLDER: Final = Path(__file__).parents[2] / "corpus" / "v1"
REFUSED: Final = FOLDER / "refused"

MODULE: Final = b"\0asm\1\0\0\0"
PRODUCER: Final = Producer("wasmckpt 0.1.0", "wasm3", "0.5.0", "aarch64")


def _noise(pages: int) -> bytes:
    return b"".join(hashlib.sha256(n.to_bytes(4, "big")).digest() for n in range(pages * PAGE_SIZE // 32))


def _image(entry: Entry = Entry(("_start",), 0), **rest: object) -> Image:  # noqa: B008  # frozen
    return Image(ModuleRef(hashlib.sha256(MODULE).digest(), len(MODULE)), PRODUCER, entry,
                 **rest)  # type: ignore[arg-type]


def _frames() -> tuple[Frame, ...]:
    main = Point(3, 17, StopKind.CALL, ((0, I32), (2, I64)), (F64,))
    walk = Point(7, 40, StopKind.CALL, ((1, I32),))
    read = Point(9, 12, StopKind.REPEAT, (), (I32, I32, I32, I32))
    deep = [Frame.make(walk, [depth]) for depth in range(5, 0, -1)]
    return (Frame.make(main, [1, 2**63, 0x7FF0000000000001]), *deep, Frame.make(read, [0, 1024, 1, 1040]))


def _values() -> tuple[Frame, ...]:
    every = (I32, I64, F32, F64, V128)
    point = Point(0, 5, StopKind.SAFEPOINT, tuple(enumerate(every)), every)
    bits = [0x80000000, 0x8000000000000000, 0x7FA00001, 0xFFF0000000000001, 0xFF << 120]
    return (Frame.make(point, [*bits, 1, 2, 0x80000000, 0x3FF0000000000000, 3]),)


def _references() -> tuple[Frame, ...]:
    point = Point(4, 11, StopKind.SAFEPOINT, ((0, FUNCREF), (1, I64), (2, EXTERNREF)), (EXTERNREF, FUNCREF))
    return (Frame.make(point, [7, 1, 2**31, NULL, NULL]),)


IMAGES: Final[dict[str, Image]] = {
    "empty": _image(),
    "ended": _image(Entry(("(start)", "_initialize", "_start"), 3)),
    "values": _image(
        Entry(("f",), 0, (Value(I32, 0xFFFFFFFF), Value(F32, 0x7FA00000), Value(V128, 1 << 127))),
        frames=_values(),
        globals=(GlobalState(0, I32, 7), GlobalState(1, F64, 0x7FF0000000000001), GlobalState(9, V128, 1))),
    "frames": _image(frames=_frames()),
    "tables": _image(tables=(TableState(0, 10, ((0, None), (3, 1), (9, 0))), TableState(1, 0),
                             TableState(2, 4, ((1, 2**32 - 2),)))),
    "memory": _image(memories=(
        MemoryState(0, 5, ((0, b"a" * PAGE_SIZE), (2, b"b" * PAGE_SIZE + b"c" * 2 * PAGE_SIZE)), ((5, 10), (79, 1))),
        MemoryState(1, 1, ((15, _noise(1)),)),
        MemoryState(2, 0))),
    "long": _image(memories=(MemoryState(0, 17, ((1, bytes(range(1, 256)) * 4112 + bytes(range(16))),)),)),
    "references": _image(
        Entry(("f",), 0, (Value(FUNCREF, 3), Value(EXTERNREF, NULL))), frames=_references(),
        globals=(GlobalState(0, FUNCREF, NULL), GlobalState(1, EXTERNREF, 2**32 - 2)),
        tables=(TableState(0, 2, ((0, None), (1, 9))),)),
    "dropped": _image(dropped_data=(0, 2, 5), dropped_elem=(1,)),
    "module": Image(ModuleRef(hashlib.sha256(MODULE).digest(), len(MODULE), MODULE), PRODUCER, Entry((), 0)),
    "nans": _image(canonical_nans=True, globals=(GlobalState(0, F64, 0x7FF8000000000000),)),
    "parent": _image(parent=ParentRef(hashlib.sha256(b"parent").digest(), 3),
                     memories=(MemoryState(0, 1, (), ((0, 16),)),)),
    "host": _image(host={"wasi": {"args": [b"a\xff", b""], "fds": {0: {"offset": 2**40}, 3: None}},
                         "big": 2**64 - 1, "small": -2**63, "on": True, "t": 0.5, "é": ["x", []]}),
}


def seal(body: bytes) -> bytes:
    """A file with a digest that is right."""
    return body + b"\xc4\x20" + hashlib.sha256(body).digest()


def header_of(image: Image) -> dict[str, object]:
    unpacker = msgpack.Unpacker(strict_map_key=False)
    unpacker.feed(encode(image)[len(MAGIC) + 1:])
    header: dict[str, object] = unpacker.unpack()
    return header


def with_header(**changes: object) -> bytes:
    """The image ``empty`` with fields of its header changed, sealed again."""
    return seal(MAGIC + b"\x01" + msgpack.packb(header_of(IMAGES["empty"]) | changes))


def block(kind: object, raw: bytes, where: object = (), encoding: object = 0, size: object = None) -> bytes:
    """One block, right or wrong."""
    packed: bytes = msgpack.packb([kind, encoding, len(raw) if size is None else size, where, raw])
    return packed


def from_the_future() -> bytes:
    """An image of a later version that an old reader can read: what it does not know is optional."""
    header = header_of(IMAGES["empty"]) | {"optional": ["signature", "weather"], "weather": {"rain": [1, 2.5]}}
    return seal(MAGIC + b"\x01" + msgpack.packb(header) + block("signature", b"\1\2\3", [7]) + block("weather", b"", [],
                                                                                                    99, 5))


def refused() -> dict[str, tuple[bytes, str]]:
    """Files that are refused, and a part of the reason."""
    good = encode(IMAGES["frames"])
    flipped = bytearray(encode(IMAGES["memory"]))
    flipped[-100] ^= 1  # in a page that is stored as it is: only the digest can tell
    return {
        "newer_version": (seal(MAGIC + b"\x02" + good[9:-34]), "version 2"),
        "unknown_required": (with_header(required=["time-travel"]), "time-travel"),
        "damaged": (bytes(flipped), "damaged"),
        "cut": (good[:-20], "cut short"),
        "trailing": (good + b"\0", "bytes follow"),
        "not_an_image": (MODULE, "not an image"),
        "duplicate_key": (seal(MAGIC + b"\x01\x82" + 2 * b"\xa1a\x01"), "twice"),
    }


def main() -> None:
    """Add the vectors that are not there yet."""
    REFUSED.mkdir(parents=True, exist_ok=True)
    files: dict[Path, bytes] = {}
    for name, image in IMAGES.items():
        files[FOLDER / f"{name}.wck"] = encode(image)
        files[FOLDER / f"{name}.json"] = _text(to_json(image, digests=True))
    files[FOLDER / "future.wck"] = from_the_future()
    files[FOLDER / "future.json"] = _text(to_json(IMAGES["empty"], digests=True))
    for name, (data, reason) in refused().items():
        files[REFUSED / f"{name}.wck"] = data
        files[REFUSED / f"{name}.json"] = _text({"reason": reason})
    for path, data in files.items():
        if not path.exists():
            path.write_bytes(data)


def _text(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


if __name__ == "__main__":
    main()
