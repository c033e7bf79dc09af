"""Chains of images: put together they are what was there, and a wrong link is refused and named."""

from __future__ import annotations

import io
import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.errors import ImageError, StorageError
from wasmckpt.formats import (
    Image,
    Limits,
    MemoryState,
    ParentRef,
    apply,
    decode,
    difference,
    encode,
    load_chain,
    read_chain,
    save,
)
from wasmckpt.formats.chain import Parents, file_name
from wasmckpt.formats.codec import read_linked

from .vectors import IMAGES

EMPTY = replace(IMAGES["empty"], memories=(MemoryState(0, 1),))


class Folder(dict[bytes, bytes]):
    """Images by digest, and how often each was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[bytes] = []

    def add(self, image: Image) -> bytes:
        data = encode(image)
        sha256 = read_linked(io.BytesIO(data))[1]
        self[sha256] = data
        return sha256

    def parents(self) -> Parents:
        def opened(sha256: bytes) -> closing[BinaryIO]:
            self.read.append(sha256)
            return closing(io.BytesIO(self[sha256]))

        return opened

    def whole(self, sha256: bytes, limits: Limits | None = None) -> Image:
        return read_chain(io.BytesIO(self[sha256]), self.parents(), sha256=sha256, limits=limits or Limits())


PAGES = st.lists(st.tuples(st.integers(0, 63), st.sampled_from([0, 0, 1, 2, 255])), max_size=20)


@given(st.lists(st.tuples(PAGES, st.sampled_from([0, 0, 1])), min_size=1, max_size=8), st.integers(0, 2**32))
def test_a_chain_is_what_the_memory_was_at_each_link(history: list[tuple[list[tuple[int, int]], int]], seed: int
                                                     ) -> None:
    """Writes, zeroing, growth; each link names more than was written, which is allowed; each image is read once."""
    draw = random.Random(seed)
    fresh = bytes([7]) * 4096 + bytes(65536 - 4096)
    memory, folder, was = bytearray(fresh), Folder(), fresh
    parent: ParentRef | None = None
    links: list[tuple[bytes, bytes]] = []
    for writes, grown in history:
        memory += bytes(grown << 16)
        for page, value in writes:
            if page * 4096 < len(memory):
                memory[page * 4096 + draw.randrange(4096)] = value
                if not value:
                    memory[page * 4096:(page + 1) * 4096] = bytes(4096)
        state = difference(0, memory, was)
        sha256 = folder.add(replace(EMPTY, memories=(state,), parent=parent, globals=()))
        links.append((sha256, bytes(memory)))
        parent, was = ParentRef(sha256, len(links)), bytes(memory)
    for place, (sha256, want) in enumerate(links):
        folder.read.clear()
        whole = folder.whole(sha256)
        assert whole.parent is None
        assert apply(decode(encode(whole)).memories[0], fresh) == want
        assert folder.read == [sha for sha, _ in reversed(links[:place])]


def _chain() -> tuple[Folder, Image, Image]:
    folder = Folder()
    first = replace(EMPTY, memories=(MemoryState(0, 2, ((1, b"a" * 8192),), ((5, 2),)),))
    second = replace(first, parent=ParentRef(folder.add(first), 1), memories=(MemoryState(0, 3, ((2, b"b" * 4096),)),))
    return folder, first, second


def test_three_states_of_a_page() -> None:
    folder, first, second = _chain()
    second = replace(second, memories=(MemoryState(0, 3, ((2, b"b" * 4096), (40, b"c" * 4096)), ((1, 1),)),))
    (memory,) = folder.whole(folder.add(second)).memories
    assert memory == MemoryState(0, 3, ((2, b"b" * 4096), (40, b"c" * 4096)), ((1, 1), (5, 2)))
    assert folder.whole(folder.add(first)) == first


def test_a_module_comes_from_whichever_link_carries_it() -> None:
    folder = Folder()
    first = replace(IMAGES["module"], memories=(MemoryState(0, 1),))
    assert first.module.content
    second = replace(first, module=replace(first.module, content=None), parent=ParentRef(folder.add(first), 1))
    assert folder.whole(folder.add(second)).module.content == first.module.content


def _wrong(name: str) -> tuple[Folder, bytes]:
    folder, first, second = _chain()
    named = second.parent
    assert named is not None
    if name == "another image":
        folder[named.sha256] = encode(replace(first, dropped_data=(1,)))
    elif name == "position":
        second = replace(second, parent=replace(named, position=2))
    elif name == "program":
        second = replace(second, module=replace(second.module, size=9))
    elif name == "shrunk":
        second = replace(second, memories=(MemoryState(0, 1),))
    elif name == "memories":
        second = replace(second, memories=(MemoryState(1, 3),))
    elif name == "cycle":  # as far as one can be built: names, not digests, that lead back
        sha256 = folder.add(second)
        folder[named.sha256] = folder[sha256]
        return folder, sha256
    elif name == "damaged":
        folder[named.sha256] = folder[named.sha256][:-3]
    return folder, folder.add(second)


@pytest.mark.parametrize(("name", "says"), [
    ("another image", "another one than it names"), ("position", "another place"), ("program", "another program"),
    ("shrunk", "larger memories"), ("memories", "larger memories"), ("cycle", "another one than it names"),
    ("damaged", "cut short"),
])
def test_a_wrong_parent_is_refused(name: str, says: str) -> None:
    folder, sha256 = _wrong(name)
    with pytest.raises(ImageError, match=says):
        folder.whole(sha256)
    folder, sha256 = _wrong("nothing")  # the twin
    assert folder.whole(sha256).memories[0].pages == 3


@pytest.mark.parametrize(("limits", "name"), [(Limits(chain=0), "chain"), (Limits(memory=2 * 4096), "memory")])
def test_limits_of_a_chain(limits: Limits, name: str) -> None:
    folder, _, second = _chain()
    sha256 = folder.add(replace(second, memories=(MemoryState(0, 3, ((20, b"c" * 4096),)),)))
    with pytest.raises(ImageError) as caught:
        folder.whole(sha256, limits)
    assert caught.value.fields["limit"] == name
    assert folder.whole(sha256, Limits(chain=1, memory=3 * 4096)).memories[0].pages == 3


def test_files_lie_beside_each_other(tmp_path: Path) -> None:
    folder, first, second = _chain()
    path = tmp_path / "newest.wckpt"
    save(second, path)
    with pytest.raises(ImageError, match="not there") as caught:
        load_chain(path)
    assert second.parent is not None
    assert caught.value.fields["parent"] == second.parent.sha256.hex()
    save(first, tmp_path / file_name(second.parent.sha256))
    assert load_chain(path) == folder.whole(folder.add(second))
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link"
    link.symlink_to(path)
    assert load_chain(link) == load_chain(path)
    with pytest.raises(StorageError):
        load_chain(tmp_path / "missing")
    with path.open("rb") as file, pytest.raises(ImageError, match="not at hand"):
        read_chain(file, None)
