"""What happened, in order."""

from __future__ import annotations

from pydantic import Field, JsonValue

from .base import Document

__all__ = ["Event"]


class Event(Document):
    """Something that happened on a node."""

    number: int = Field(description="Ascending.", examples=[17])
    at: float = Field(description="Seconds since 1970.")
    job: str | None = Field(description="Id of the job that it is about; null: the node.")
    kind: str = Field(description="What.", examples=["state", "checkpoint", "restored", "checkpoint-failed"])
    text: str = Field(description="For people, one line.", examples=["running on wasmtime"])
    data: dict[str, JsonValue] = Field(description="For programs; what is in there depends on the kind.")
