"""The agent that was named on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ...errors import StorageError
from ...lazydata import dataclass
from ..extras import extra

if TYPE_CHECKING:
    from ...api import Page
    from ...client import AgentClient

__all__ = ["Named", "agent", "as_json", "everything", "plain", "read_token"]

T = TypeVar("T")

as_json = click.option("--json", "as_json", is_flag=True, help="For programs.")


@dataclass(frozen=True, slots=True)
class Named:
    """What `--agent` and the options beside it say. ``url``: "local" for the one that runs here."""

    url: str
    token: str | None
    token_file: str | None
    ca: str | None


def agent(ctx: click.Context) -> AgentClient:
    """A client of it. Raises `UsageError`, `StorageError`, `RetryLater`."""
    with extra("client"):
        from ...client import AgentClient, Where
    named: Named = ctx.find_root().obj
    if named.url == "local":
        return AgentClient.local()
    token = named.token if named.token_file is None else read_token(named.token_file)
    return AgentClient(Where(named.url, token, named.ca))


def read_token(path: str) -> str:
    """What is in a file. Raises `StorageError`."""
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as reason:
        raise StorageError(f"the token cannot be read: {reason}", path=path) from None


def everything(ask: Callable[[str | None], Page[T]]) -> list[T]:
    """All items of a list that comes in pages; ``ask``: gives the page at a cursor."""
    found: list[T] = []
    cursor = None
    while True:
        page = ask(cursor)
        found += page.items
        if (cursor := page.next) is None:
            return found


def plain(document: Any) -> Any:
    """A document of the interface, for JSON."""
    return document.model_dump(mode="json")
