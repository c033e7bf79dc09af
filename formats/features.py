"""Magic, version and feature names of the file format.

A new feature that a reader may ignore goes into the optional list and into blocks or fields of its own. One that it
must understand goes into the required list. The version changes only when the stream of blocks itself does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from wasmckpt.errors import ImageError
from wasmckpt.formats.image import Image, Point
from wasmckpt.wasm.values import EXNREF, EXTERNREF, FUNCREF

__all__ = [
    "BY_TYPE", "CANONICAL_NANS", "MAGIC", "MODULE_INSIDE", "PARENT", "REQUIRED_KNOWN", "STORED", "VERSION", "by_type",
    "check_required", "optional_of", "required_of",
]

MAGIC: Final = b"\x89WCKPT\r\n"
"""As with PNG: the first byte is not ASCII, and CR LF shows a transfer that converted line ends."""
VERSION: Final = 1
STORED: Final = b"\x89WCKST\r\n"
"""The magic of what a store keeps of an image, which is no image by itself."""

PARENT: Final = "parent"
"""Required: pages are a difference to the image that the header's field ``parent`` names."""
MODULE_INSIDE: Final = "module"
"""Optional: the module's bytes are in the file."""
CANONICAL_NANS: Final = "canonical-nans"
"""Required: the program goes on with canonical NaNs, as it began."""

BY_TYPE: Final = {"exceptions": frozenset({EXNREF}), "references": frozenset({FUNCREF, EXTERNREF})}
"""Required: a frame, a global or an argument holds a value of one of these types."""

REQUIRED_KNOWN: Final = frozenset({CANONICAL_NANS, PARENT, *BY_TYPE})


def required_of(image: Image, points: Iterable[Point]) -> list[str]:
    """Features that a reader of the image must understand, sorted; ``points`` are those of its frames."""
    own = ([PARENT] if image.parent is not None else []) + ([CANONICAL_NANS] if image.canonical_nans else [])
    return sorted([*own, *by_type(image, points)])


def by_type(image: Image, points: Iterable[Point]) -> set[str]:
    """The features of `BY_TYPE` that the image needs, by the values of its frames, globals and arguments."""
    kinds = {*(state.type for state in image.globals), *(value.type for value in image.entry.arguments)}
    kinds.update(*(point.value_types for point in points))
    return {name for name, types in BY_TYPE.items() if not types.isdisjoint(kinds)}


def optional_of(image: Image) -> list[str]:
    """Features that a reader of the image may ignore, sorted."""
    return [MODULE_INSIDE] if image.module.content is not None else []


def check_required(required: Sequence[str], offset: int) -> None:
    """Raise `ImageError` if the image needs a feature that this version does not have."""
    unknown = sorted(set(required) - REQUIRED_KNOWN)
    if unknown:
        raise ImageError("the image needs a feature that this version does not know", need=", ".join(unknown),
                         offset=offset, hint="use a newer wasmckpt")
