"""Fixtures of object storage: a bucket of a real server, or the reason why there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .misbehaving import Proxy, proxy
from .tiers import missing
from .toolchain import Unavailable
from .versitygw import BUCKET, Server, server

__all__ = ["bucket", "bucket_server", "spoiled"]


@pytest.fixture(scope="session")
def bucket_server() -> Server:
    """The server of this run."""
    try:
        return server()
    except Unavailable as reason:
        missing(reason.need, reason.reason)


@pytest.fixture
def bucket(bucket_server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a place that is empty; the environment has what is needed to use it."""
    for name, value in bucket_server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{os.urandom(6).hex()}"


@pytest.fixture
def spoiled(bucket_server: Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What stands before the server from now on, and does as it is told; ``bucket`` is reached through it."""
    with proxy(bucket_server.port) as made:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{made.port}")
        yield made
