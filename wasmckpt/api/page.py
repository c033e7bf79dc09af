"""A part of a long list."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import Field

from .base import Document

__all__ = ["Page"]

T = TypeVar("T")


class Page(Document, Generic[T]):
    """Some items of a list, and how to get the ones after them."""

    items: list[T]
    next: str | None = Field(description="Ask again with this as `cursor`; null: there are no more.")
