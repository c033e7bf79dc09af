"""What a release has written loads for ever, and is still written the same."""

from __future__ import annotations

import io
import json

import pytest

from wasmckpt.errors import ImageError
from wasmckpt.formats import decode, encode, read_header, to_json

from . import vectors

NAMES = sorted(path.stem for path in vectors.FOLDER.glob("*.wck"))
REFUSED = sorted(path.stem for path in vectors.REFUSED.glob("*.wck"))


def test_the_folder_holds_all_vectors() -> None:
    """A vector added in code is in the folder, and none got lost."""
    assert set(NAMES) == {*vectors.IMAGES, "future"}
    assert set(REFUSED) == set(vectors.refused())


@pytest.mark.parametrize("name", NAMES)
def test_loads(name: str) -> None:
    """Each vector is the image that it was, and shows as its twin."""
    image = decode((vectors.FOLDER / f"{name}.wck").read_bytes())
    assert image == vectors.IMAGES.get(name, vectors.IMAGES["empty"])
    assert to_json(image, digests=True) == json.loads((vectors.FOLDER / f"{name}.json").read_bytes())


@pytest.mark.parametrize("name", ["dropped", "empty", "ended", "module"])
def test_is_still_written_the_same(name: str) -> None:
    """Where zstd has no say, the same state gives the same bytes in every release."""
    assert encode(vectors.IMAGES[name]) == (vectors.FOLDER / f"{name}.wck").read_bytes()


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name: str) -> None:
    """Each refusal says why and where."""
    data = (vectors.REFUSED / f"{name}.wck").read_bytes()
    reason = json.loads((vectors.REFUSED / f"{name}.json").read_bytes())["reason"]
    with pytest.raises(ImageError, match=reason) as caught:
        decode(data)
    assert isinstance(caught.value.fields["offset"], int)


def test_a_future_image_tells_its_features() -> None:
    """Unknown optional features are named by the header, not lost."""
    assert read_header(io.BytesIO(vectors.from_the_future())).optional == ("signature", "weather")
