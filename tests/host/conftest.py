"""``way``: how images of a program that goes on are taken."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["fork", "in-place"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Forced in every worker that is started from here on."""
    monkeypatch.setenv("WASMCKPT_SNAPSHOT", request.param)
    name: str = request.param
    return name
