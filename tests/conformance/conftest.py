"""One suite, every runtime: the ``engine`` fixture runs each test once a runtime."""

from __future__ import annotations

import pytest

from wasmckpt import runtimes
from wasmckpt.runtimes.base import Engine

from ..support.tiers import missing


@pytest.fixture(params=runtimes.names())
def engine(request: pytest.FixtureRequest) -> Engine:
    name: str = request.param
    if name not in runtimes.available():
        missing(name, "the runtime is not installed")
    return runtimes.load(name)
