"""The other side, one process for all of these tests, and gone when others run, which count their children; and a cache
of rewritten modules that both sides have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wasmckpt.instrument import cache

from ..support.arm64 import Arm64, environment
from ..support.tiers import missing
from ..support.toolchain import Unavailable
from .far import Far


@pytest.fixture(scope="session")
def arm64() -> Arm64:
    """The userland; skips, or fails where ``arm64`` is required."""
    try:
        return environment()
    except Unavailable as problem:
        missing(problem.need, problem.reason)


@pytest.fixture(scope="package")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of the caches of both sides. A module that was rewritten here need not be rewritten under emulation."""
    folder = tmp_path_factory.mktemp("arm64-cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "default_folder", lambda: folder / "rewritten")
        yield folder


@pytest.fixture(scope="package")
def far(arm64: Arm64, shared_cache: Path) -> Iterator[Far]:
    """Calls go to the other side."""
    there = Far(arm64, str(shared_cache))
    yield there
    there.close()
