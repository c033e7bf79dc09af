"""Sealed images that a release wrote, in tests/corpus/sealed: they must open for ever. ``python -m
tests.unit.formats.sealed_vectors`` adds what is missing."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Final

from wasmckpt.formats import Image, encode
from wasmckpt.formats.sealed import Sealer
from wasmckpt.formats.sealing import Sealing

from .vectors import IMAGES

__all__ = ["FOLDER", "KEY", "PUBLIC", "SEALED", "SIGNING", "image", "private"]

FOLDER: Final = Path(__file__).parents[2] / "corpus" / "sealed"
KEY: Final = FOLDER / "encryption.key"
SIGNING: Final = FOLDER / "signing.key"
PUBLIC: Final = FOLDER / "signing.key.pub"
SEALED: Final = {  # name -> encrypted, signed, bytes of a segment
    "encrypted": (True, False, 4096), "signed": (False, True, 4096), "both": (True, True, 4096),
    "one_segment": (True, True, 1 << 20),
}


def image() -> Image:
    """What is in all of them: 13 KiB."""
    return IMAGES["memory"]


def private(path: Path, folder: Path) -> str:
    """A copy of a key that only its owner can read: git keeps no modes."""
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    copy.chmod(0o600)
    return str(copy)


def main() -> None:
    for name, (encrypted, signed, segment) in SEALED.items():
        path = FOLDER / f"{name}.wck"
        if path.exists():
            continue
        file = io.BytesIO()
        sealer = Sealer(
            file, Sealing(str(KEY) if encrypted else "", (), str(SIGNING) if signed else ""), segment=segment
        )
        sealer.write(encode(image()))
        sealer.finish()
        path.write_bytes(file.getvalue())


if __name__ == "__main__":
    for key in (KEY, SIGNING):
        os.chmod(key, 0o600)
    main()
