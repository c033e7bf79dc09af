"""Images of jobs."""

from __future__ import annotations

from pydantic import Field

from .base import Document

__all__ = ["CheckpointInfo", "MemoryMap", "Restore"]


class CheckpointInfo(Document):
    """An image in the agent's store."""

    job: str = Field(description="Name of the job.", examples=["j1"])
    number: int = Field(description="Ascending from 1.", examples=[3])
    taken: float = Field(description="Seconds since 1970.")
    size: int = Field(description="Bytes that it brought to the store; equal pages are kept once.")
    position: int = Field(description="Images that it is a difference to, one upon the other.")
    frames: int
    runtime: str = Field(description="On which it was taken.", examples=["wasmtime"])
    sha256: str = Field(description="Of its file in the store.")
    module: str = Field(description="SHA-256 of the program.")


class MemoryMap(Document):
    """A memory of a program, as an image has it: a row of cells, each for so many bytes."""

    index: int = Field(description="Of the memory in the module.")
    size: int = Field(description="Of the memory, in bytes.")
    changed: int = Field(description="Bytes that differ from the module's own.")
    cleared: int = Field(description="Bytes that were made zero, and are not in the module.")
    cell: int = Field(description="Bytes that a cell stands for.")
    cells: str = Field(description="A character each: `.` as the module made it, `#` changed, `0` made zero, `+` in "
                       "part.", examples=["##....#+"])


class Restore(Document):
    """Where a job is to go on from."""

    checkpoint: int | None = Field(None, ge=1, lt=1 << 62, examples=[3],
                                   description="Number of the image; absent: the newest.")
    runtime: str | None = Field(None, max_length=64, description="On which; absent: the one it was on.",
                                examples=["wasm3"])
