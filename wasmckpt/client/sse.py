"""Server-sent events, line by line."""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from ..errors import CheckpointError

__all__ = ["Lines", "Output", "Sent", "output_of"]


class Sent(NamedTuple):
    """An event."""

    id: str
    kind: str
    data: Any


class Output(NamedTuple):
    """What a job wrote, from ``offset`` on."""

    offset: int
    data: bytes


class Lines:
    """Makes events of lines."""

    def __init__(self) -> None:
        self._id, self._kind, self._data = "", "message", list[str]()

    def take(self, line: str) -> Sent | None:
        """The next line; gives the event that it ends. Raises `CheckpointError`: it is none of an agent."""
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "id":
                self._id = value
            elif name == "event":
                self._kind = value
            elif name == "data":
                self._data.append(value)
            return None
        kind, data, self._kind, self._data = self._kind, self._data, "message", []
        if not data:
            return None
        try:
            return Sent(self._id, kind, json.loads("\n".join(data)))
        except ValueError as reason:
            raise CheckpointError("the agent's events make no sense", hint="is it of another version?") from reason


def output_of(event: Sent) -> Output:
    """An event ``output`` of a log."""
    try:
        data = event.data
        piece = data["text"].encode() if "text" in data else base64.b64decode(data["base64"])
        return Output(int(data["offset"]), piece)
    except (KeyError, TypeError, ValueError, AttributeError) as reason:
        raise CheckpointError("the agent's events make no sense", hint="is it of another version?") from reason
