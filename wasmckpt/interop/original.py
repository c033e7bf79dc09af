"""The module that an image is of, when nothing but the two is at hand."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ImageError, NotSupported, UsageError
from ..formats import Image
from ..formats.check import check
from ..wasm.decode import decode
from ..wasm.module import ExternKind, GlobalType, Module
from ..wasm.validate import Code, validate_module

__all__ = ["checked_module"]


def checked_module(image: Image, raw: bytes | None) -> tuple[Module, Mapping[int, Code]]:
    """The original module of an image that rests on no other, and its validated bodies that have frames.

    Args:
        raw: the module; None: the image carries it.

    Raises:
        ImageError, InvalidModule, UsageError: as `export`. NotSupported: it imports a constant, which an image does not
            hold (mutable globals it does).
    """
    content = image.module.content if raw is None else raw
    if content is None:
        raise UsageError("the image does not carry its module", hint="give the original module")
    if image.parent is not None:
        raise ImageError("the image is a difference to another one", parent=image.parent.sha256.hex())
    module = decode(content)
    validate_module(module)
    codes = check(image, module)
    for item in module.imported(ExternKind.GLOBAL):
        if isinstance(item.type, GlobalType) and not item.type.mutable:
            raise NotSupported(f"the module imports the constant {item.module}.{item.name}, which is not in the image",
                               need="imported constant")
    return module, codes
