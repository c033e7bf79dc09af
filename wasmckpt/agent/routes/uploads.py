"""Bodies that are not kept in memory."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request

from ..modules import Upload
from ..reply import aside

__all__ = ["OCTETS", "binary_answer", "binary_body", "receive"]

OCTETS: Final = "application/octet-stream"
_PIECE: Final = 1 << 20


async def receive(request: Request, upload: Upload) -> None:
    """Take a request's body to a file, in pieces, in another thread. Raises as `Upload.write`."""
    waiting = bytearray()
    async for piece in request.stream():
        waiting += piece
        if len(waiting) >= _PIECE:
            await aside(upload.write, bytes(waiting))
            waiting.clear()
    await aside(upload.write, bytes(waiting))


def binary_body(media_type: str, what: str) -> dict[str, Any]:
    """For OpenAPI: the request is bytes."""
    return {"requestBody": {"required": True, "description": what, "content": {
        media_type: {"schema": {"type": "string", "format": "binary"}}}}}


def binary_answer(media_type: str, what: str) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: the answer is bytes."""
    return {200: {"description": what, "content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}}
