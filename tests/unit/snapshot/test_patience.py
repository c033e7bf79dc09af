"""Waiting for memory or a thread, and for nothing else."""

from __future__ import annotations

import pytest

from wasmckpt.errors import ImageError, RetryLater
from wasmckpt.snapshot.patience import patiently


def test_it_ends_with_what_was_built() -> None:
    problems: list[Exception] = [RetryLater("now"), MemoryError(), OSError(12, "no memory")]

    def build() -> str:
        if problems:
            raise problems.pop()
        return "built"

    assert patiently(build) == "built"
    assert not problems


def test_what_will_not_change_is_not_waited_for() -> None:
    tried = []

    def build() -> None:
        tried.append(1)
        raise ImageError("damaged")

    with pytest.raises(ImageError):
        patiently(build)
    assert len(tried) == 1


def test_it_does_not_wait_for_ever() -> None:
    tried = []

    def build() -> None:
        tried.append(1)
        raise RetryLater("no thread")

    with pytest.raises(RetryLater):
        patiently(build, 0.5)
    assert len(tried) >= 2
