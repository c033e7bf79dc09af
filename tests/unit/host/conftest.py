"""Guests over temporary folders; every host that a test makes is closed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from wasmckpt.host import Wasi, WasiConfig

from .guests import OurGuest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the guest sees as ``/g``."""
    path = tmp_path / "granted"
    path.mkdir()
    return path


class Maker:
    """Makes guests, and restores them from their own state sent through msgpack."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: list[Wasi] = []

    def config(self, **options: Any) -> WasiConfig:
        defaults: dict[str, Any] = {"args": ["prog"], "preopens": [(self.folder, "/g")]}
        return WasiConfig(**(defaults | options))

    def __call__(self, **options: Any) -> OurGuest:
        return self._keep(Wasi(self.config(**options)))

    def move(self, guest: OurGuest, *, accept_changed: bool = False, **options: Any) -> OurGuest:
        """Freeze, send, restore: as a move does. The source's host is gone before the target's exists."""
        sent = msgpack.packb(guest.wasi.state())
        guest.wasi.close()
        return self.restore(msgpack.unpackb(sent), accept_changed=accept_changed, **options)

    def restore(self, state: dict[str, object], *, accept_changed: bool = False, **options: Any) -> OurGuest:
        return self._keep(Wasi.restore(self.config(**options), state, accept_changed=accept_changed))

    def _keep(self, wasi: Wasi) -> OurGuest:
        self._open.append(wasi)
        return OurGuest(wasi)

    def close(self) -> None:
        for wasi in self._open:
            wasi.close()


@pytest.fixture
def make(folder: Path) -> Iterator[Maker]:
    """Makes guests."""
    maker = Maker(folder)
    yield maker
    maker.close()


@pytest.fixture
def guest(make: Maker) -> OurGuest:
    """A guest with the granted folder as descriptor 3."""
    return make()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe; closed afterwards as far as the test did not."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            pass


@pytest.fixture(autouse=True)
def no_leak(request: pytest.FixtureRequest) -> Iterator[Callable[[], int]]:
    """No test leaves a host descriptor open (wasmtime's host keeps some); also hands out the counter."""

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    yield count
    assert {"pair", "program"} & set(request.fixturenames) or count() <= before, "host descriptors left open"
