"""``engine``: each test once a runtime; ``other``: a runtime to resume on, drawn anew at each use."""

from __future__ import annotations

import pytest

from wasmckpt import runtimes
from wasmckpt.runtimes import Engine

from ...support.tiers import missing


@pytest.fixture(params=runtimes.names())
def engine(request: pytest.FixtureRequest) -> Engine:
    name: str = request.param
    if name not in runtimes.available():
        missing(name, f"{name} is not installed")
    return runtimes.load(name)


@pytest.fixture
def engines() -> list[Engine]:
    """All runtimes that are here."""
    return [runtimes.load(name) for name in runtimes.available()]
