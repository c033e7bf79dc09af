"""A worker is started through what its runtime's library needs, and one of the wrong kind is of no use."""

from __future__ import annotations

import os
import sys

import pytest

from wasmckpt import runtimes
from wasmckpt.snapshot import launch

from ...support.tiers import missing


@pytest.fixture(autouse=True)
def _one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_prespawned", None)


def _end(child: launch.Child) -> None:
    child.kill()
    child.wait()
    os.close(child.socket)


def test_the_worker_that_was_started_first_is_taken_once() -> None:
    launch.prespawn("wasmtime")
    child = launch.take_prespawned()
    assert child is not None
    assert child.status is None
    assert launch.take_prespawned() is None
    _end(child)


def test_one_of_the_wrong_kind_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[launch.Child] = []
    real = launch.spawn

    def spawn(streams: tuple[int, int, int], runtime: str) -> launch.Child:
        started.append(real(streams, runtime))
        return started[-1]

    monkeypatch.setattr(launch, "spawn", spawn)
    monkeypatch.setattr(launch, "_fork", lambda runtime: spawn(launch.OWN, runtime))  # in a process with one thread
    launch.prespawn()
    (child,) = started
    assert launch.take_prespawned(("/some/loader",)) is None
    assert child.status is not None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(child.socket)
    assert launch.take_prespawned() is None


def test_a_worker_runs_on_the_loader_that_it_was_started_through() -> None:
    for name in runtimes.available():
        if words := runtimes.loader(name):
            break
    else:
        missing("wasmedge", "no runtime here brings a C library of its own")
    assert words[-2:] == ("--argv0", sys.executable)
    child = launch.spawn((0, 1, 2), name, words)
    try:
        assert os.path.samefile(f"/proc/{child.pid}/exe", words[0])
    finally:
        _end(child)


def test_a_runtime_of_the_systems_needs_no_loader() -> None:
    assert runtimes.loader("wasmtime") == ()
    assert runtimes.loader("no such runtime") == ()
