"""A machine that is busy is no fault."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _busy_workers_are_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has to wait for a core answers late, all the same."""
    monkeypatch.setattr("wasmckpt.snapshot.job._SILENCE", 30.0)
