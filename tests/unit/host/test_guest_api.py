"""A cooperating guest asks for a checkpoint and learns in which life it goes on."""

from __future__ import annotations

import pytest

from wasmckpt.host import BytesMemory, GuestApi, RepeatCall
from wasmckpt.wasm.values import I32

MEMORY = BytesMemory(bytearray(16))


def test_the_source_goes_on_with_0_and_the_restored_guest_with_1() -> None:
    asked: list[bool] = []

    def request() -> bool:
        asked.append(True)
        return True

    api = GuestApi(request)
    function = api.functions["checkpoint_here"]
    assert (function.params, function.results) == ((), (I32,))
    for number in range(1, 3):
        with pytest.raises(RepeatCall):
            function.call(MEMORY)
        assert api.waiting()
        assert function.call(MEMORY) == 0
        assert len(asked) == number
    restored = GuestApi(lambda: True, resumed=True)
    assert restored.functions["checkpoint_here"].call(MEMORY) == 1
    with pytest.raises(RepeatCall):
        restored.functions["checkpoint_here"].call(MEMORY)


def test_nobody_wants_a_checkpoint() -> None:
    assert GuestApi(lambda: False).functions["checkpoint_here"].call(MEMORY) == 0
