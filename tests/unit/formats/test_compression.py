"""Levels and threads of zstd: they change the size of a file and how long it takes, never what is in it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from wasmckpt.errors import UsageError
from wasmckpt.formats import PAGE_SIZE, MemoryState, decode, encode
from wasmckpt.formats.compression import LEVELS, Compression, Compressor, current
from wasmckpt.lazydata import replace
from wasmckpt.store.packs import PackReader, PackWriter

from .vectors import IMAGES

WORDS = [bytes([65 + n % 26]) * (3 + n % 5) for n in range(97)]
TEXT = b"".join(random.Random(7).choices(WORDS, k=2_000_000))[: 5 << 20]
NOISE = random.Random(8).randbytes(1 << 20)
IMAGE = replace(IMAGES["host"], memories=(MemoryState(0, 128, ((0, TEXT), (1536, NOISE))),))


def use(monkeypatch: pytest.MonkeyPatch, level: object = "", threads: object = "") -> None:
    monkeypatch.setenv("WASMCKPT_ZSTD_LEVEL", str(level))
    monkeypatch.setenv("WASMCKPT_ZSTD_THREADS", str(threads))


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)


@pytest.mark.parametrize("threads", [2, 3, 64])
def test_any_number_of_threads_makes_the_same_bytes(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    alone = encode(IMAGE)
    use(monkeypatch, threads=threads)
    assert encode(IMAGE) == alone


def test_levels_change_the_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for level in (1, 3, 9, 22):
        use(monkeypatch, level, 2)
        raw = encode(IMAGE)
        assert decode(raw) == IMAGE
        sizes.append(len(raw))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current() == Compression(3, 1)
    raw = encode(IMAGE)
    use(monkeypatch, 3, 1)
    assert encode(IMAGE) == raw


def test_empty_blocks() -> None:
    several = Compressor(Compression(threads=2))
    blocks = [b"", b"one" * 100, b""]
    assert several.all(blocks) == [several.one(raw) for raw in blocks]
    assert several.all([]) == []


@pytest.mark.parametrize("variable", ["LEVEL", "THREADS"])
@pytest.mark.parametrize("value", ["0", "65", "-1", "3.5", "fast", " 3", "\u0663", "9" * 5000],
                         ids=["0", "65", "negative", "fraction", "word", "space", "other digits", "long"])
def test_what_they_cannot_be(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(f"WASMCKPT_ZSTD_{variable}", value)
    with pytest.raises(UsageError, match=variable):
        current()
    assert 65 not in LEVELS


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_packs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: int) -> None:
    """The same bytes; pages are found by their numbers, those of the last blocks too."""
    pages = [TEXT[at:at + PAGE_SIZE] for at in range(0, len(TEXT), PAGE_SIZE)]
    made = []
    for number, count in enumerate((1, threads)):
        use(monkeypatch, threads=count)
        with PackWriter(tmp_path / str(number)) as writer:
            assert [writer.add(page) for page in pages] == list(range(len(pages)))
            made.append(writer.finish())
    assert made[0] is not None
    assert made[0] == made[1]
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    reader = PackReader(tmp_path / "1", made[0].sha256)
    assert [reader.page(number) for number in range(len(pages))] == pages
    reader.close()
