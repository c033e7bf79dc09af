"""One suite, every runtime: the ``engine`` fixture runs each test once a runtime."""

from __future__ import annotations

import os

import pytest

from wasmckpt import runtimes
from wasmckpt.runtimes.base import Engine

_REQUIRED = frozenset(filter(None, os.environ.get("WASMCKPT_REQUIRE", "").split(",")))


@pytest.fixture(params=runtimes.names())
def engine(request: pytest.FixtureRequest) -> Engine:
    name: str = request.param
    if name not in runtimes.available():
        if name in _REQUIRED:
            pytest.fail(f"{name} is required (WASMCKPT_REQUIRE) and not installed")
        pytest.skip(f"{name} is not installed")
    return runtimes.load(name)
