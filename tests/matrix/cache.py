"""A cache of rewritten modules for these tests alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wasmckpt.instrument import cache
from wasmckpt.snapshot import kept

__all__ = ["own_cache"]


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Thousands of made modules, some by rewriters with a bug planted, must not get into the user's cache."""
    folder = tmp_path_factory.mktemp("rewritten")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "default_folder", lambda: folder)
        patch.setattr(kept, "default_folder", lambda: folder / "compiled")
        yield
