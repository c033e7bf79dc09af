"""The last gate before an image runs: it is of this module, and everything in it is possible there."""

from __future__ import annotations

from ..errors import ImageError
from ..formats import Image
from ..wasm.module import Module

__all__ = ["admit"]


def admit(image: Image, module: Module) -> None:
    """Check a decoded image against its module. Raises `ImageError`."""
    if image.module.sha256 != module.sha256():
        raise ImageError("the image is of another module", field="module",
                         hint=f"it wants sha256 {image.module.sha256.hex()}")
