"""Sizes of compiled frames are those of the functions that the module defines, however the compiler lists them."""

from __future__ import annotations

from typing import Any

import pytest

from wasmckpt import runtimes
from wasmckpt.errors import NotSupported
from wasmckpt.wasm.encode import name, section
from wasmckpt.wasm.leb128 import uleb

from ...support.tiers import missing

SMALL, LARGE = b"\x48\x83\xec\x20" + b"\x90" * 12, b"\x48\x81\xec\x00\x10\x00\x00" + b"\x90" * 9
"""``sub rsp, 32`` and ``sub rsp, 4096``, and what follows."""


@pytest.fixture
def measure() -> Any:
    """The module `frames`; it is imported with the runtime's library."""
    if "wasmedge-aot" not in runtimes.available():
        missing("wasmedge", "WasmEdge is not installed")
    from wasmckpt.runtimes.wasmedge import frames

    return frames


def compiled(addresses: list[int], text: bytes = SMALL + LARGE, at: int = 0x100) -> bytes:
    numbers = uleb(len(addresses)) + b"".join(map(uleb, addresses))
    part = b"\1" + uleb(at) + uleb(len(text)) + uleb(len(text)) + text
    body = uleb(3) + b"\0\0" + uleb(0) * 2 + uleb(1) + uleb(7) + numbers + uleb(1) + part
    return b"\0asm\1\0\0\0" + section(0, name("wasmedge") + body)


def test_imported_functions_may_be_in_the_list_without_an_address(measure: Any) -> None:
    expected = measure.Frames((4096 + 64 + 512) / 100, 32 + 64)
    for addresses in ([0x100, 0x110], [0, 0, 0, 0x100, 0x110]):
        assert measure.frames(compiled(addresses), 2, {1: 100}) == expected


@pytest.mark.parametrize(("addresses", "functions"), [([0x100, 0x110], 3), ([0, 0x110], 2), ([0x100, 0x110, 0x110], 2)])
def test_another_number_of_functions_is_not_measured(addresses: list[int], functions: int, measure: Any) -> None:
    with pytest.raises(NotSupported, match="other functions"):
        measure.frames(compiled(addresses), functions, {})


def test_a_function_elsewhere_is_not_measured(measure: Any) -> None:
    with pytest.raises(NotSupported, match="elsewhere"):
        measure.frames(compiled([0x100, 0x900]), 2, {})
