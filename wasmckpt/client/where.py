"""Where an agent is, and with what token it is asked."""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Any

from ..errors import NotAuthenticated, RetryLater, StorageError, UsageError
from ..lazydata import dataclass
from ..version import __version__

__all__ = ["Where", "local"]


@dataclass(frozen=True, slots=True)
class Where:
    """An agent's address.

    Attributes:
        url: ``https://HOST:PORT``; ``http`` on loopback.
        token: kept out of messages. ca: certificates that its own is checked by; None: the system's.
        certificate, key: our own, where the agent asks for one.
        timeout: seconds that it may be silent.
    """

    url: str
    token: str | None = None
    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    timeout: float = 60.0

    def __repr__(self) -> str:
        return f"Where({self.url!r})"

    def settings(self) -> dict[str, Any]:
        """For httpx. Raises `UsageError`."""
        if not self.url.startswith(("http://", "https://")):
            raise UsageError("an agent's address begins with http:// or https://", url=self.url)
        headers = {"User-Agent": f"wasmckpt/{__version__}"}
        if self.token is not None:
            if not self.token.isascii() or not self.token.isprintable():
                raise NotAuthenticated("that is no token")
            headers["Authorization"] = f"Bearer {self.token}"
        verify: ssl.SSLContext | bool = True
        try:
            if self.ca is not None or self.certificate is not None:
                verify = ssl.create_default_context(cafile=None if self.ca is None else os.fspath(self.ca))
                if self.certificate is not None:
                    verify.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as reason:
            raise UsageError(f"the certificates cannot be used: {reason}") from None
        return {"base_url": self.url.rstrip("/"), "headers": headers, "timeout": self.timeout, "verify": verify,
                "trust_env": False}


def local(state: str | os.PathLike[str] | None = None, timeout: float = 60.0) -> Where:
    """The agent that runs on this machine with that folder (None: the usual one), with its owner's token.

    Raises:
        RetryLater: none runs. StorageError: its folder is not ours to read.
    """
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(base) / "wasmckpt" / "agent" if state is None else Path(state)
    try:
        url = str(json.loads((folder / "agent.json").read_text())["url"])
        return Where(url, (folder / "token").read_text().strip(), timeout=timeout)
    except FileNotFoundError:
        raise RetryLater("no agent runs here", path=str(folder), hint="wasmckpt agent starts one") from None
    except (OSError, ValueError, KeyError) as reason:
        raise StorageError(f"the agent's folder cannot be read: {reason}", path=str(folder)) from reason
