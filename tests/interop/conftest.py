"""Rewritten modules of these tests stay out of the user's cache."""

from __future__ import annotations

from ..matrix.cache import own_cache

__all__ = ["own_cache"]
