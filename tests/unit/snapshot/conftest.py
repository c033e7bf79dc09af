"""``engine``: each test once a runtime, in check of the usual two; ``engines``: all that are here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from wasmckpt import runtimes
from wasmckpt.runtimes import Engine

from ...support.pairs import BASE
from ...support.tiers import by_tier, missing


@pytest.fixture(params=by_tier(check=BASE, test=runtimes.names(), soak=runtimes.names()))
def engine(request: pytest.FixtureRequest) -> Engine:
    name: str = request.param
    if name not in runtimes.available():
        missing(name, f"{name} is not installed")
    return runtimes.load(name)


@pytest.fixture
def engines() -> list[Engine]:
    """All runtimes that are here."""
    return [runtimes.load(name) for name in runtimes.available()]


@pytest.fixture(autouse=True)
def _busy_workers_are_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has to wait for a core answers late, all the same."""
    monkeypatch.setattr("wasmckpt.snapshot.job._SILENCE", 30.0)


@pytest.fixture(autouse=True)
def no_guest_left() -> Iterator[None]:
    """A program that runs on in this process would take its time from all tests that follow."""
    yield
    until = time.monotonic() + 30
    while left := [thread for thread in threading.enumerate() if thread.name == "guest"]:
        assert time.monotonic() < until, left
        time.sleep(0.01)
