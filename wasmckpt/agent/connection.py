"""A connection that does not wait for ever: a client has some seconds for the head of a request.

uvicorn counts the time between requests, but not that of the first one, nor that of a head that comes byte by byte; a
few hundred such clients would take all places.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection", "connections"]


class Connection(H11Protocol):
    """Closed when the head of a request is not complete in time."""

    head_time: ClassVar[float] = 10.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._expect(False)
        elif self._deadline is None:  # the next head has begun
            self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:
            self._expect(False)  # from here on uvicorn's own time for idle connections counts

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(False)
        super().connection_lost(exc)

    def _expect(self, head: bool = True) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if head:
            self._deadline = self.loop.call_later(self.head_time, self._too_late)

    def _too_late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


def connections(head_time: float) -> type[Connection]:
    """The class of connections with that time."""
    return type("Connection", (Connection,), {"head_time": head_time})
