"""SPEC.md says what the code does, where a word of it could rot unseen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import wasmckpt.formats
from wasmckpt.formats import StopKind
from wasmckpt.formats.blocks import MAX_RUNS, ORDER
from wasmckpt.formats.features import MAGIC, REQUIRED_KNOWN, VERSION
from wasmckpt.wasm.values import TYPE_NAMES, WIDTH

from .vectors import FOLDER, IMAGES, header_of

PAGE = (Path(wasmckpt.formats.__path__[0]) / "SPEC.md").read_text()


def test_contract() -> None:
    """Magic, version, features and numbers are those of the code; the package's own page shows the same magic."""
    magic = MAGIC.hex(" ").upper()
    assert f"`{magic}`" in PAGE
    assert magic in str(wasmckpt.formats.__doc__)
    assert f"| version | `{VERSION}`" in PAGE
    for feature in REQUIRED_KNOWN:
        assert f"`{feature}` (required" in PAGE
    assert f"1 to {MAX_RUNS}\nruns" in PAGE


def test_blocks_in_order() -> None:
    """The table of blocks names all kinds, in their order."""
    section = PAGE[PAGE.index("| kind | content"):PAGE.index("**Point**")]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == ORDER


def test_types() -> None:
    """The table of types has the codes and widths of the code."""
    lines = [line for line in PAGE.splitlines() if line.startswith(("| type |", "| code |", "| width"))]
    rows = [re.findall(r"\w+", line) for line in lines]
    names, codes, widths = (row[1:] for row in rows)
    assert [(name, int(code, 16), int(width)) for name, code, width in zip(names, codes, widths, strict=True)] == [
        (TYPE_NAMES[type_], type_, width) for type_, width in sorted(WIDTH.items(), reverse=True)]


@pytest.mark.parametrize("field", sorted(header_of(IMAGES["parent"])))
def test_header_fields(field: str) -> None:
    """Every field of the header is in its table."""
    section = PAGE[PAGE.index("## 3."):PAGE.index("**Entry.**")]
    assert any(f"`{field}`" in line.split("|")[1] for line in section.splitlines() if line.startswith("|"))


def test_kinds_of_stops() -> None:
    """Each kind of stop has its number and name."""
    for kind in StopKind:
        assert f"{kind.value} `{kind.name.lower()}`" in PAGE
        assert f"\n| {kind.value} {kind.name.lower()} |" in PAGE


def test_the_annotated_vector() -> None:
    """The bytes shown are those of the file, at their offsets."""
    data = (FOLDER / "empty.wck").read_bytes()
    rows = re.findall(r"^\| (0x[0-9a-f]+) \| `([0-9A-F ]+?)(?: \.\.\. \((\d+)\))?` \|", PAGE, re.MULTILINE)
    end = 0
    for at, shown, length in rows:
        raw = bytes.fromhex(shown)
        assert int(at, 16) == end
        assert data[end:end + len(raw)] == raw
        end += int(length) if length else len(raw)
    assert end == len(data)
