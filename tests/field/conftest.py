"""Rewritten modules of these tests stay out of the user's cache; the quick tier takes both ends of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..matrix.cache import own_cache

__all__ = ["own_cache"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first and the last case of each test are quick enough for every edit; the others are slow."""
    kinds: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.parent == Path(__file__).parent:
            kinds.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in kinds.values():
        for item in cases[1:-1]:
            item.add_marker(pytest.mark.slow)
