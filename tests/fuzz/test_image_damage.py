"""Images that were damaged on the way: each flip, cut or growth of any byte is an `ImageError`, and nothing else."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.errors import ImageError
from wasmckpt.formats import GlobalState, MemoryState, ParentRef, TableState, decode, encode, read_header
from wasmckpt.wasm.values import I64

from ..support.tiers import by_tier
from ..unit.formats.strategies import images
from ..unit.formats.vectors import IMAGES, MODULE

RICH: Final = encode(replace(
    IMAGES["frames"],
    module=replace(IMAGES["frames"].module, content=MODULE),
    globals=(GlobalState(2, I64, 2**63),),
    tables=(TableState(0, 5, ((1, 7), (2, None))),),
    memories=(MemoryState(0, 2, ((1, b"page" * 1024), (7, b"more" * 2048)), ((9, 3),)),),
    dropped_data=(1,),
    host={"wasi": {"fds": [0, 1, 2], "args": [b"a"]}},
    parent=ParentRef(bytes(range(32)), 2),
))
"""A small image with something in every part."""

MASKS: Final = by_tier(check=(0xFF,), test=(0x01, 0x80, 0xFF), soak=tuple(range(1, 256)))


def refused(data: bytes) -> ImageError:
    """Both readers stay within `ImageError`, and the one that reads all of the image refuses it, saying where."""
    try:
        read_header(io.BytesIO(data))
    except ImageError:
        pass
    with pytest.raises(ImageError) as caught:
        decode(data)
    assert isinstance(caught.value.fields["offset"], int)
    assert caught.value.what
    return caught.value


@pytest.mark.parametrize("mask", MASKS)
def test_flip(mask: int) -> None:
    """No byte can change unseen."""
    for at in range(len(RICH)):
        refused(RICH[:at] + bytes([RICH[at] ^ mask]) + RICH[at + 1:])


def test_cut() -> None:
    """No prefix is an image, the empty one included."""
    for length in range(len(RICH)):
        assert "cut short" in refused(RICH[:length]).what


def test_a_missing_byte() -> None:
    """No byte can be left out."""
    for at in range(len(RICH)):
        refused(RICH[:at] + RICH[at + 1:])


@pytest.mark.parametrize("extra", [b"\0", b"\xff", b"\xc4"])
def test_grown(extra: bytes) -> None:
    """Nothing can be put in anywhere, or follow the end."""
    for at in range(len(RICH) + 1):
        refused(RICH[:at] + extra + RICH[at:])
    refused(RICH + RICH)


def test_two_images_spliced() -> None:
    """A head of one image and a tail of another are no image."""
    other = encode(IMAGES["memory"])
    for at in range(9, min(len(RICH), len(other))):
        spliced = RICH[:at] + other[at:]
        if spliced != other:  # up to where they begin to differ
            refused(spliced)


@given(images(), st.data())
def test_damage_of_any_image(image: object, data: st.DataObject) -> None:
    """What holds for the one image holds for generated ones."""
    good = encode(image)  # type: ignore[arg-type]
    at = data.draw(st.integers(0, len(good) - 1))
    piece = data.draw(st.binary(max_size=4))
    length = data.draw(st.integers(0, 4))
    bad = good[:at] + piece + good[at + length:]
    if bad != good:
        refused(bad)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    """Bytes that were never an image."""
    refused(data)
