"""A page for people: files as they are, which need no token and hold nothing of this agent. What they show they ask for
like any other client, with the token that is typed into them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import APIRouter, Response

from ...errors import NotFound

router = APIRouter(include_in_schema=False)
_FOLDER: Final = Path(__file__).parents[1] / "page"
_TYPES: Final = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
                 ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"),
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
}
FILES: Final = frozenset(path.name for path in _FOLDER.iterdir() if path.suffix in _TYPES)
"""Nothing else is served."""


@router.get("/")
def index() -> Response:
    """The page."""
    return _file("index.html")


@router.get("/page/{name}")
def part(name: str) -> Response:
    """What belongs to it."""
    if name not in FILES:
        raise NotFound("there is no such page", name=name)
    return _file(name)


def _file(name: str) -> Response:
    return Response((_FOLDER / name).read_bytes(), media_type=_TYPES[Path(name).suffix], headers=_HEADERS)
