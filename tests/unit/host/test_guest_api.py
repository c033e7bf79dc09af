"""A cooperating guest asks for a checkpoint, learns in which life it goes on, and says what need not be kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.errors import ImageError
from wasmckpt.host import BytesMemory, GuestApi, GuestMemory, PageSet, RepeatCall, Wasi, WasiConfig
from wasmckpt.host.abi import Errno
from wasmckpt.host.guest_api import BY_ADVICE, DOOR

MEMORY = BytesMemory(bytearray(1 << 16))


def call(api: GuestApi, name: str, *arguments: int) -> int:
    result: int = api.functions[name].call(MEMORY, *arguments)
    return result


def test_the_source_goes_on_with_0_and_the_restored_guest_with_1() -> None:
    interrupted = [True, False]

    def ask(memory: GuestMemory) -> bool:
        if interrupted.pop(0):
            raise RepeatCall
        return True

    api = GuestApi(ask)
    with pytest.raises(RepeatCall):
        call(api, "checkpoint_here")
    state = api.state()
    assert state["waiting"]
    assert call(api, "checkpoint_here") == 0
    assert not api.state()["waiting"]
    restored = GuestApi(lambda memory: False, state)
    assert call(restored, "lives") == 1
    assert call(restored, "checkpoint_here") == 1
    assert call(restored, "checkpoint_here") == 0xFFFFFFFF
    again = GuestApi(None, restored.state())
    assert (call(again, "lives"), call(again, "checkpoint_here")) == (2, 0)


def test_pages_that_need_not_be_kept() -> None:
    api = GuestApi(None)
    assert call(api, "discard", 1, 3 * 4096) == 0  # bytes 1 to 12288: pages 1 and 2 are whole
    assert api.state()["discarded"] == [[1, 3]]
    assert call(api, "discard", 4096 * 9 + 1, 4095) == 0
    assert call(api, "keep", 8192, 1) == 0
    assert call(api, "keep", 8192, 0) == 0
    assert api.state()["discarded"] == [[1, 2]]
    assert call(api, "discard", 0, (1 << 16) + 1) == Errno.FAULT
    assert call(api, "keep", 0xFFFFFFFF, 1) == Errno.FAULT


def test_the_way_through_wasi() -> None:
    wasi = Wasi(WasiConfig())
    try:
        api = GuestApi(None)
        door = api.through_the_door(wasi.functions["fd_advise"]).call
        assert [door(MEMORY, DOOR, 0, 8192, which) for which in range(4)] == [0, 0, 0, 0]
        assert door(MEMORY, DOOR, 0, 1 << 40, BY_ADVICE.index("discard")) == Errno.FAULT
        for fd, advice in ((DOOR, 4), (DOOR + 1, 0), (DOOR - 1, 2)):
            assert door(MEMORY, fd, 0, 0, advice) == wasi.functions["fd_advise"].call(MEMORY, fd, 0, 0, advice)
            assert door(MEMORY, fd, 0, 0, advice) == Errno.BADF
    finally:
        wasi.close()


@pytest.mark.parametrize(
    "change",
    [{"waiting": 1}, {"lives": -1}, {"lives": 1 << 31}, {"discarded": 1}, {"discarded": [1]}, {"discarded": [[1]]},
     {"discarded": [[2, 1]]}, {"discarded": [[1, 3], [2, 5]]}, {"discarded": [[0, (1 << 20) + 1]]},
     {"discarded": [[0, True]]}, {"discarded": [[-1, 5]]}],
)
def test_a_damaged_state(change: dict[str, object]) -> None:
    good = GuestApi(None).state()
    GuestApi(None, good)
    with pytest.raises(ImageError, match="guest_api"):
        GuestApi(None, good | change)
    with pytest.raises(ImageError):
        GuestApi(None, 5)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 40))))
def test_a_set_of_pages_is_a_set(changes: list[tuple[bool, int, int]]) -> None:
    pages, model = PageSet(), set[int]()
    for add, first, end in changes:
        pages = pages.with_pages(first, end) if add else pages.without_pages(first, end)
        model = model | set(range(first, end)) if add else model - set(range(first, end))
        assert list(pages) == sorted(model)
        assert [page for page in range(45) if page in pages] == sorted(model)
        assert PageSet.from_plain(pages.to_plain()) == pages
        assert bool(pages) == bool(model)
