"""Who asks, whether they may, and how often: a token in the header ``Authorization``, and a bucket for each token."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Annotated, Any, Final

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from ..errors import NotAuthenticated, NotPermitted, TooManyRequests
from .service import Agent
from .tokens import Known

__all__ = ["Buckets", "Here", "Who", "agent_of"]

_MOST_BUCKETS: Final = 10_000
_bearer = HTTPBearer(auto_error=False, description="A token of `wasmckpt agent token create`.")


class Buckets:
    """A bucket for each key: it holds ``size`` at most and fills with ``rate`` a second; each request takes one out."""

    def __init__(self, rate: float, size: float) -> None:
        self._rate, self._size = rate, size
        self._lock = threading.Lock()
        self._found: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, number: float = 1.0) -> None:
        """Raises `TooManyRequests`: there is not enough in it. ``number`` 0: only look whether there is any."""
        now = time.monotonic()
        with self._lock:
            level, since = self._found.pop(key, (self._size, now))
            level = min(self._size, level + (now - since) * self._rate)
            enough = level >= max(number, 1.0)
            self._found[key] = (level - number if enough else level), now
            while len(self._found) > _MOST_BUCKETS:
                self._found.popitem(last=False)
        if not enough:
            raise TooManyRequests("too many requests", hint="wait a second")


def agent_of(request: Request) -> Agent:
    """The agent that is asked."""
    agent: Agent = request.app.state.agent
    return agent


def who(
    scopes: SecurityScopes, request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Known:
    """Whose request it is. Raises `NotAuthenticated`, `NotPermitted`, `TooManyRequests`."""
    address = request.client.host if request.client else ""
    failures: Buckets = request.app.state.failures
    failures.take(address, 0)
    try:
        if given is None:
            raise NotAuthenticated("a token is needed", hint="Authorization: Bearer TOKEN")
        known = agent_of(request).tokens.known(given.credentials)
    except NotAuthenticated:
        failures.take(address)
        raise
    requests: Buckets = request.app.state.requests
    requests.take(known.id)
    for scope in scopes.scopes:
        if scope not in known.scopes:
            raise NotPermitted(f"the token is not for {scope}", scope=scope, token=known.name)
    return known


Here = Annotated[Agent, Depends(agent_of)]


def Who(*scopes: str) -> Any:  # stands where a class of FastAPI does
    """A dependency: a token that is for all of that."""
    return Security(who, scopes=list(scopes))
