"""Who may do what: tokens, of which only a digest is kept.

A token is ``wck_ID_SECRET``. The secret has 256 random bits, so its digest cannot be guessed from, and needs no slow
hash; it is compared in constant time. The first start of an agent makes one for its owner, in a file that only they can
read.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from ..errors import Conflict, NotAuthenticated, NotFound, UsageError
from ..lazydata import dataclass
from .database import Database

__all__ = ["FIRST", "SCOPES", "Known", "Tokens"]

SCOPES: Final[Mapping[str, str]] = {
    "jobs:read": "look at jobs, their output, images and events",
    "jobs:write": "make jobs, change and end them; upload images",
    "modules:read": "list and download modules",
    "modules:write": "upload and delete modules",
    "node:read": "look at the node and its metrics",
    "node:admin": "drain the node",
}
"""What a token may be for."""
FIRST: Final = "token"
"""Name of the first token, and of the file below the agent's folder that has it."""
_TOKEN: Final = re.compile(r"wck_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Known:
    """Who asks. ``expires``: seconds since 1970; None: never."""

    id: str
    name: str
    scopes: frozenset[str]
    created: float
    expires: float | None


class Tokens:
    """All of one agent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def make_first(self, folder: Path) -> None:
        """Make the owner's, unless there is one already. Its file is there before it counts."""
        path = folder / FIRST
        if self._database.value("SELECT count(*) FROM token"):
            return
        id_, secret, token = _draw()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w") as file:
            os.fchmod(descriptor, 0o600)
            file.write(token + "\n")
            file.flush()
            os.fsync(descriptor)
        self._insert(id_, FIRST, secret, SCOPES, None)

    def create(self, name: str, scopes: Collection[str], seconds: float | None = None) -> str:
        """A new one, which is nowhere to be seen again. ``seconds``: how long it is valid.

        Raises:
            UsageError: no such scope, or no name. Conflict: another one has that name.
        """
        unknown = sorted(set(scopes) - set(SCOPES))
        if unknown or not scopes:
            raise UsageError(f"there is no scope {unknown[0]!r}" if unknown else "a token is for something",
                             hint="scopes: " + ", ".join(SCOPES))
        if not _NAME.fullmatch(name):
            raise UsageError("a token's name has letters, digits, dots and dashes", name=repr(name))
        id_, secret, token = _draw()
        self._insert(id_, name, secret, scopes, None if seconds is None else time.time() + seconds)
        return token

    def _insert(self, id_: str, name: str, secret: str, scopes: Collection[str], expires: float | None) -> None:
        with self._database.transaction() as db:
            if db.execute("SELECT 1 FROM token WHERE name = ?", (name,)).fetchone():
                raise Conflict("another token has that name", name=name)
            db.execute("INSERT INTO token VALUES (?, ?, ?, ?, ?, ?)",
                       (id_, name, _hash(secret), " ".join(sorted(scopes)), time.time(), expires))

    def list(self) -> list[Known]:
        """All, by name."""
        return [Known(row["id"], row["name"], frozenset(row["scopes"].split()), row["created"], row["expires"])
                for row in self._database.rows("SELECT * FROM token ORDER BY name")]

    def revoke(self, name: str) -> None:
        """It is of no use any more. Raises `NotFound`."""
        with self._database.transaction() as db:
            if not db.execute("DELETE FROM token WHERE name = ?", (name,)).rowcount:
                raise NotFound("there is no such token", name=name)

    def known(self, token: str) -> Known:
        """Who has it. Raises `NotAuthenticated`, without saying what is wrong with it."""
        found = _TOKEN.fullmatch(token)
        row = None if found is None else self._database.row("SELECT * FROM token WHERE id = ?", (found[1],))
        right = hmac.compare_digest(_hash(found[2] if found else ""), row["hash"] if row is not None else _hash("-"))
        if row is None or not right or (row["expires"] is not None and row["expires"] < time.time()):
            raise NotAuthenticated("the token is not valid", hint="Authorization: Bearer TOKEN")
        return Known(row["id"], row["name"], frozenset(row["scopes"].split()), row["created"], row["expires"])


def _draw() -> tuple[str, str, str]:
    id_, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return id_, secret, f"wck_{id_}_{secret}"


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
