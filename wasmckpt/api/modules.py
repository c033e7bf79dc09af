"""Programs."""

from __future__ import annotations

from pydantic import Field

from .base import Document

__all__ = ["ModuleInfo"]


class ModuleInfo(Document):
    """A module that was uploaded."""

    sha256: str = Field(examples=["d3d1bc89ecf9662dd509947aab9cbbca049b382bbf62c86f4d20b3204df1df2c"])
    size: int = Field(description="Bytes.", examples=[34304])
    uploaded: float = Field(description="Seconds since 1970.")
    jobs: int = Field(description="That are made of it.")
    imports: list[str] = Field(description="Modules that it imports from.", examples=[["wasi_snapshot_preview1"]])
    avoided: list[str] = Field(description="Runtimes that have crashed on it, each time at the same place: its new "
                                           "jobs begin on others.", examples=[["wasmtime"]])
    exports: list[str] = Field(description="Functions that it exports, at most 100.", examples=[["_start"]])
