"""What a job is told to do has numbers that can be true, or it is refused before a worker is started."""

from __future__ import annotations

import pytest

from wasmckpt import Job
from wasmckpt.errors import UsageError
from wasmckpt.host import WasiConfig
from wasmckpt.snapshot.assignment import Assignment

MODULE = b"\0asm\1\0\0\0"


@pytest.mark.parametrize("numbers", [
    {"stack_bytes": 0}, {"stack_bytes": -8}, {"stack_bytes": (1 << 29) + 1}, {"stack_bytes": 1 << 70},
    {"freeze_at": -1}, {"freeze_at": 1 << 63}, {"freeze_at": 1 << 70},
])
def test_numbers_out_of_range_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Job.start(MODULE, "no such runtime", **numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize("numbers", [
    {"stack_bytes": 1}, {"stack_bytes": 1 << 29}, {"freeze_at": 0}, {"freeze_at": (1 << 63) - 1},
])
def test_the_last_numbers_in_range_cross_the_wire(numbers: dict[str, int]) -> None:
    task = Assignment(MODULE, WasiConfig(), **numbers)  # type: ignore[arg-type]
    assert Assignment.from_plain(task.to_plain()).to_plain() == task.to_plain()
