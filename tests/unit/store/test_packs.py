"""Packs and stored images that are damaged, or were made by somebody who means harm: one clear error each, bounded."""

from __future__ import annotations

import hashlib
import io
import random
import resource
import subprocess
import sys
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from wasmckpt.errors import ImageError, StorageError
from wasmckpt.formats import MemoryState, ParentRef, encode
from wasmckpt.formats.packed import pack as msgpack
from wasmckpt.store.packs import MAGIC, PER_BLOCK, Pack, PackReader, PackWriter
from wasmckpt.store.stored import MAGIC as STORED
from wasmckpt.store.stored import Stored, read_stored, write_stored
from wasmckpt.store.whole import read_whole

from ...support.tiers import by_tier
from .images import EMPTY

PAGE = 4096


def write(path: Path, pages: Sequence[bytes]) -> Pack:
    with PackWriter(path) as writer:
        assert [writer.add(page) for page in pages] == list(range(len(pages)))
        pack = writer.finish()
    assert pack is not None
    assert pack.size == path.stat().st_size
    return pack


def pages_of(seed: int, count: int) -> list[bytes]:
    draw = random.Random(seed)
    return [draw.choice([draw.randbytes(PAGE), bytes([n % 256]) * PAGE]) for n in range(count)]


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 700])
def test_what_goes_in_comes_out(tmp_path: Path, count: int) -> None:
    pages = pages_of(count, count)
    pack = write(tmp_path / "p", pages)
    reader = PackReader(tmp_path / "p", pack.sha256)
    assert (reader.pages, reader.blocks) == (count, -(-count // PER_BLOCK))
    assert [reader.page(n) for n in range(count)] == pages
    reader.close()
    reader.close()
    assert write(tmp_path / "q", pages) == pack
    assert (tmp_path / "q").read_bytes() == (tmp_path / "p").read_bytes()


def test_no_page_no_pack(tmp_path: Path) -> None:
    with PackWriter(tmp_path / "p") as writer:
        assert writer.finish() is None
    assert not (tmp_path / "p").exists()


@pytest.mark.slow
def test_every_byte_counts(tmp_path: Path) -> None:
    """Wherever a bit is wrong, or the file ends: an error, or the right pages."""
    pages = pages_of(1, 3)
    pack = write(tmp_path / "p", pages)
    good = (tmp_path / "p").read_bytes()
    step = by_tier(check=97, test=11, soak=1)
    for bad in [
        *(good[:at] + bytes([good[at] ^ 16]) + good[at + 1:] for at in [*range(0, len(good), step), -1, -40, -5]),
        *(good[:at] for at in [0, 3, 11, *range(0, len(good), 50 * step), len(good) - 1]), good + b"x", b"x" + good,
    ]:
        (tmp_path / "p").write_bytes(bad)
        with pytest.raises(ImageError):
            _all(tmp_path / "p", pack.sha256)
    (tmp_path / "p").write_bytes(good)
    assert _all(tmp_path / "p", pack.sha256) == pages
    with pytest.raises(ImageError, match="another one than its name"):
        _all(tmp_path / "p", bytes(32))
    with pytest.raises(ImageError, match="missing"):
        _all(tmp_path / "none", bytes(32))
    with pytest.raises(StorageError):
        _all(tmp_path, bytes(32))


def _all(path: Path, sha256: bytes) -> list[bytes]:
    reader = PackReader(path, sha256)
    try:
        return [reader.page(n) for n in range(reader.pages)]
    finally:
        reader.close()


def hostile(path: Path, blocks: Sequence[bytes], rows: Sequence[Any], version: int = 1) -> bytes:
    """A pack whose directory says what it likes, and whose name is right."""
    directory = msgpack([version, list(rows)])
    path.write_bytes(MAGIC + b"".join(blocks) + directory + len(directory).to_bytes(4, "little"))
    return hashlib.sha256(directory).digest()


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


SIX = zstandard.ZstdCompressor().compress(bytes(range(256)) * 16 * 6)
BOMB = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 30))
UNSIZED = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(6 * PAGE))


@pytest.mark.parametrize(("block", "row"), [
    pytest.param(SIX, (len(SIX), 6, bytes(32)), id="a digest that is another's"),
    pytest.param(SIX, (len(SIX), 5, sha(SIX)), id="fewer pages than there are"),
    pytest.param(SIX, (len(SIX), 7, sha(SIX)), id="more pages than there are"),
    pytest.param(SIX, (len(SIX), 0, sha(SIX)), id="no page"),
    pytest.param(SIX, (len(SIX), 257, sha(SIX)), id="more pages than blocks hold"),
    pytest.param(SIX, (len(SIX) + 1, 6, sha(SIX)), id="longer than it is"),
    pytest.param(SIX, (len(SIX) - 1, 6, sha(SIX)), id="shorter than it is"),
    pytest.param(SIX, (1 << 32, 6, sha(SIX)), id="longer than any"),
    pytest.param(SIX, (len(SIX), 6, b"short"), id="a digest of five bytes"),
    pytest.param(SIX, (len(SIX), 6), id="no digest"),
    pytest.param(SIX, (-1, 6, sha(SIX)), id="a negative length"),
    pytest.param(BOMB, (len(BOMB), 256, sha(BOMB)), id="a bomb"),
    pytest.param(UNSIZED, (len(UNSIZED), 6, sha(UNSIZED)), id="a frame of unknown size"),
    pytest.param(SIX + b"more", (len(SIX) + 4, 6, sha(SIX + b"more")), id="something behind the frame"),
    pytest.param(b"nonsense", (8, 1, sha(b"nonsense")), id="no frame"),
])
def test_a_block_that_lies(tmp_path: Path, block: bytes, row: tuple[object, ...]) -> None:
    name = hostile(tmp_path / "p", [block], [row])
    with pytest.raises(ImageError):
        _all(tmp_path / "p", name)
    good = hostile(tmp_path / "p", [SIX], [(len(SIX), 6, sha(SIX))])  # its twin
    assert len(_all(tmp_path / "p", good)) == 6


def test_a_short_block_in_the_middle(tmp_path: Path) -> None:
    """Page numbers are counted by whole blocks."""
    row = (len(SIX), 6, sha(SIX))
    with pytest.raises(ImageError, match="other blocks"):
        _all(tmp_path / "p", hostile(tmp_path / "p", [SIX, SIX], [row, row]))
    with pytest.raises(ImageError, match="newer"):
        _all(tmp_path / "p", hostile(tmp_path / "p", [SIX], [row], version=2))
    for rows in ([], [row] * 3, ["x"]):
        with pytest.raises(ImageError):
            _all(tmp_path / "p", hostile(tmp_path / "p", [SIX], rows))


def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    """Under a cap that the bomb would break. The same for the places of a stored image."""
    name = hostile(tmp_path / "p", [BOMB], [(len(BOMB), 256, sha(BOMB))])
    (tmp_path / "s").write_bytes(STORED + msgpack([1, [bytes(32)], 1 << 20, BOMB]) + encode(EMPTY))
    code = """
import sys
from pathlib import Path
from wasmckpt.errors import ImageError
from wasmckpt.store.packs import PackReader
from wasmckpt.store.stored import read_stored
try:
    PackReader(Path(sys.argv[1]), bytes.fromhex(sys.argv[2])).block(0)
except ImageError as problem:
    print(problem)
try:
    read_stored(open(sys.argv[3], "rb"))
except ImageError as problem:
    print(problem)
"""
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))

    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "p"), name.hex(), str(tmp_path / "s")],
                          capture_output=True, text=True, preexec_fn=limit, check=True, timeout=60)
    assert done.stdout.count("another size") == 2


# Stored images


def stored(places: Sequence[tuple[int, int, int, int, int]], *, packs: int = 2, pages: int = 2,
           zero: tuple[tuple[int, int], ...] = ()) -> Stored:
    image = replace(EMPTY, memories=(MemoryState(0, pages, (), zero), MemoryState(2, 1)))
    return Stored(image, tuple(bytes([n]) * 32 for n in range(packs)), tuple(places))


def raw(what: Stored) -> bytes:
    file = io.BytesIO()
    digest = write_stored(what, file)
    assert digest == sha(file.getvalue())
    return file.getvalue()


GOOD = stored([(0, 0, 0, 7, 3), (0, 4, 1, 0, 1), (0, 31, 0, 1000, 1), (2, 0, 0, 0, 16)], zero=((3, 1), (30, 1)))


def test_an_image_and_its_places() -> None:
    data = raw(GOOD)
    assert read_stored(io.BytesIO(data)) == (GOOD, sha(data))
    neutral = encode(replace(EMPTY, memories=(MemoryState(0, 1, ((0, b"x" * PAGE),)),)))
    found, digest = read_stored(io.BytesIO(neutral))
    assert (found.places, found.packs, digest) == ((), (), sha(neutral))
    assert found.image.memories[0].data == ((0, b"x" * PAGE),)


@pytest.mark.parametrize("bad", [
    stored([(0, 0, 2, 0, 1)]), stored([(0, 32, 0, 0, 1)]), stored([(0, 31, 0, 0, 2)]), stored([(0, 3, 0, 0, 0)]),
    stored([(0, 3, 0, 0, 2), (0, 4, 0, 0, 1)]), stored([(0, 4, 0, 0, 1), (0, 3, 0, 0, 1)]), stored([(1, 0, 0, 0, 1)]),
    stored([(2, 0, 0, 0, 1), (0, 0, 0, 0, 1)]), stored([(0, 3, 0, 0, 2)], zero=((4, 1),)),
    stored([(0, 0, 0, 0, (1 << 32) - 1)]), stored([(0, (1 << 32) - 1, 0, 0, 1)]),
    replace(GOOD, packs=(bytes(32), bytes(32))),
    replace(GOOD, image=replace(GOOD.image, memories=(MemoryState(0, 2, ((9, b"x" * PAGE),)), MemoryState(2, 1)))),
], ids=lambda bad: str(bad.places))
def test_places_that_cannot_be(bad: Stored) -> None:
    with pytest.raises(ImageError):
        read_stored(io.BytesIO(raw(bad)))


def test_a_stored_image_in_pieces() -> None:
    """Every byte changed, every length: an error, or another image with another digest, which its name betrays."""
    data = raw(GOOD)
    digest = sha(data)
    for at in range(len(data)):
        bad = bytearray(data)
        bad[at] ^= 0x20
        try:
            assert read_stored(io.BytesIO(bytes(bad)))[1] != digest
        except ImageError:
            pass
        with pytest.raises(ImageError):
            read_stored(io.BytesIO(data[:at]))
    with pytest.raises(ImageError):
        read_stored(io.BytesIO(data + b"x"))


def test_a_head_that_lies() -> None:
    frame = zstandard.ZstdCompressor().compress(array("I", [0, 0, 0, 0, 1]).tobytes())
    tail = encode(GOOD.image)
    assert read_stored(io.BytesIO(STORED + msgpack([1, [bytes(32)], 1, frame]) + tail))[0].places == ((0, 0, 0, 0, 1),)
    heads: list[object] = [[2, [bytes(32)], 1, frame], [1, [bytes(31)], 1, frame], [1, [bytes(32)], 2, frame],
                 [1, [bytes(32)], 0, frame], [1, [bytes(32)], 1 << 40, frame], [1, [bytes(32)], 1, b"x"],
                 [1, [bytes(32)], 1, frame + b"x"], [1, [bytes(32)], 1, "x"], [1, [bytes(32)], 1], {}, [1, 2, 3, 4]]
    for head in heads:
        with pytest.raises(ImageError):
            read_stored(io.BytesIO(STORED + msgpack(head) + tail))


def test_chains_that_cannot_be() -> None:
    """Back to itself, to another program, to a larger memory, to another place: whatever the digests say."""
    a, b = bytes([1]) * 32, bytes([2]) * 32

    def image(position: int, parent: bytes | None, pages: int = 1, module: bytes = bytes(32)) -> Stored:
        return Stored(replace(
            EMPTY, memories=(MemoryState(0, pages),), module=replace(EMPTY.module, sha256=module),
            parent=None if parent is None else ParentRef(parent, position),
        ))

    def read(**images: Stored) -> object:
        named = {a: images["a"], b: images.get("b", images["a"])}
        return read_whole(named.__getitem__, a)

    assert read(a=image(1, b), b=image(0, None))
    for images in (
        {"a": image(1, a)}, {"a": image(2, b), "b": image(2, a)}, {"a": image(1, b), "b": image(1, a)},
        {"a": image(2, b), "b": image(0, None)}, {"a": image(1, b), "b": image(0, None, 2)},
        {"a": image(1, b), "b": image(0, None, 1, bytes([9]) * 32)}, {"a": image(100_001, b)},
    ):
        with pytest.raises(ImageError):
            read(**images)
