"""What all documents have in common: they are never changed, and have no fields that nobody knows."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["SHA256", "Document", "Name", "Sha256"]

SHA256: Final = r"^[0-9a-f]{64}$"
Sha256 = Annotated[str, Field(pattern=SHA256, description="SHA-256, in lower-case hexadecimal digits")]
Name = Annotated[str, Field(
    pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$",
    description="1 to 63 of a-z, 0-9, `.`, `_` and `-`; the first and the last a letter or digit",
)]


class Document(BaseModel):
    """One of the interface's documents."""

    model_config = ConfigDict(extra="forbid", frozen=True)
