"""A worker that gets no more threads says so, and what is worth another try is told from what is not."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from wasmckpt.errors import CheckpointError, RetryLater
from wasmckpt.snapshot.wire import Closed, error_from_plain, error_to_plain
from wasmckpt.snapshot.worker import Worker


class Scripted:
    """A parent that asks once, and hears the answer."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.requests, self.answers = [request], list[Mapping[str, Any]]()

    def receive(self) -> tuple[Mapping[str, Any], list[int]]:
        if not self.requests:
            raise Closed
        return self.requests.pop(), []

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        self.answers.append(message)


def test_no_room_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    parent = Scripted({"do": "idle", "id": 7})
    monkeypatch.setattr(threading.Thread, "start", refuse)
    Worker(parent).serve()  # type: ignore[arg-type]
    (answer,) = parent.answers
    assert answer["id"] == 7
    assert isinstance(error_from_plain(answer["error"]), RetryLater)


def test_other_errors_are_internal_ones() -> None:
    problem = error_from_plain(error_to_plain(RuntimeError("something else")))
    assert type(problem) is CheckpointError
    assert "internal error" in problem.what
