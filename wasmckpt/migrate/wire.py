"""Frames over a stream of bytes, in both directions at once.

::

    frame = length of the fields (u32, little-endian)  length of the body (u32)  fields (msgpack map)  body
    fields have "is", the frame's kind; the body is bytes whose meaning the kind says

A stream is a connected socket, or what behaves like one: agents put one end of a socket pair here and carry its bytes
through their HTTP connection. Every wait has a limit, and what comes in is checked before anything is made of it. An
error of one side goes to the other as a frame, and is raised there as the same class.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from ..errors import CheckpointError, RetryLater
from ..lazydata import dataclass
from ..snapshot.wire import error_from_plain, error_to_plain

__all__ = ["HEAD", "PROTOCOL", "Frame", "Lost", "Wire"]

PROTOCOL: Final = 1
"""Version of all this; another one is refused."""
MOST_FIELDS: Final = 16 << 20
MOST_BODY: Final = 64 << 20
_LAST_WORD: Final = 2.0
"""Seconds to find what the other side said before it closed: it has been sent, but may be on its way."""
HEAD: Final = struct.Struct("<II")
_BUFFER: Final = 1 << 18


class Lost(RetryLater):
    """The other side is gone, or says nothing any more."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What came."""

    kind: str
    fields: dict[str, Any]
    body: bytes

    def number(self, name: str, most: int = 1 << 62) -> int:
        """A field that is a number. Raises `CheckpointError`."""
        found = self.fields.get(name)
        if not isinstance(found, int) or not 0 <= found <= most:
            raise nonsense(self.kind, name)
        return found

    def text(self, name: str) -> str:
        """A field that is a text. Raises `CheckpointError`."""
        found = self.fields.get(name)
        if not isinstance(found, str):
            raise nonsense(self.kind, name)
        return found


class Wire:
    """One end of a stream. Several threads may send, one receives. A context manager, which closes it.

    Args:
        silence: seconds that the other side may say nothing when it owes something, or take nothing.
    """

    def __init__(self, stream: socket.socket, silence: float = 30.0) -> None:
        self._stream, self.silence = stream, silence
        stream.settimeout(silence)
        try:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            pass  # no TCP
        self._sending = threading.Lock()
        self._closed_on_us = False
        self.sent = 0
        """Bytes."""
        self.received = 0

    def send(self, kind: str, body: bytes | memoryview = b"", **fields: object) -> None:
        """Send a frame. Raises `Lost`."""
        head = msgpack.packb({"is": kind, **fields}, use_bin_type=True, default=str)
        with self._sending:
            try:
                if len(body) < _BUFFER:
                    self._stream.sendall(HEAD.pack(len(head), len(body)) + head + bytes(body))
                else:
                    self._stream.sendall(HEAD.pack(len(head), len(body)) + head)
                    self._stream.sendall(body)
            except OSError as reason:
                self._closed_on_us = not isinstance(reason, TimeoutError)
                raise _lost(reason) from None
        self.sent += HEAD.size + len(head) + len(body)

    def fail(self, problem: CheckpointError) -> None:
        """Tell the other side of an error, if it still hears."""
        try:
            self.send("error", error=error_to_plain(problem))
        except Lost:
            pass

    def receive(self, *kinds: str, within: float | None = None) -> Frame:
        """The next frame, which is one of these kinds.

        Args:
            within: seconds; None: ``silence``.

        Raises:
            Lost: none came. CheckpointError: the one that the other side raised, or: it makes no sense.
        """
        frame = self._next(time.monotonic() + (self.silence if within is None else within))
        if frame.kind == "error":
            raise _told(frame)
        if frame.kind not in kinds:
            raise nonsense("frame", f"{frame.kind!r} instead of {' or '.join(kinds)}")
        return frame

    def last_word(self) -> CheckpointError | None:
        """The error for which the other side closed the stream while it was being told something; None: it did not, or
        said none. For the thread that receives."""
        limit = time.monotonic() + _LAST_WORD
        try:
            while self._closed_on_us:
                if (frame := self._next(limit)).kind == "error":
                    return _told(frame)
        except CheckpointError:
            pass
        return None

    def _next(self, limit: float) -> Frame:
        fields_length, body_length = HEAD.unpack(self._exactly(HEAD.size, limit))
        if fields_length > MOST_FIELDS or body_length > MOST_BODY:
            raise nonsense("frame", "length")
        limit = max(limit, time.monotonic() + self.silence)  # it has begun
        try:
            fields = msgpack.unpackb(self._exactly(fields_length, limit), raw=False, strict_map_key=False)
            kind = fields.pop("is")
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as reason:
            raise nonsense("frame", type(reason).__name__) from None
        return Frame(kind, fields, self._exactly(body_length, limit))

    def _exactly(self, length: int, limit: float) -> bytes:
        data = bytearray(length)
        view, done = memoryview(data), 0
        try:
            while done < length:
                left = limit - time.monotonic()
                if left <= 0:
                    raise TimeoutError("nothing came")
                self._stream.settimeout(left)
                count = self._stream.recv_into(view[done:])
                if not count:
                    raise ConnectionResetError("it has closed the connection")
                done += count
        except OSError as reason:
            raise _lost(reason) from None
        finally:
            view.release()
        self.received += length
        return bytes(data)

    def close(self) -> None:
        """Both sides find the stream closed. Idempotent."""
        try:
            self._stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._stream.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _told(frame: Frame) -> CheckpointError:
    """The error that the other side told of."""
    try:
        return error_from_plain(frame.fields["error"])
    except (KeyError, TypeError, ValueError):
        return nonsense("frame", "error")


def _lost(reason: OSError) -> Lost:
    what = "says nothing any more" if isinstance(reason, TimeoutError) else f"is gone ({reason.strerror or reason})"
    return Lost(f"the other side of the move {what}", hint="the program stays where it is; try again")


def nonsense(what: str, where: object) -> CheckpointError:
    """The error for what no honest side of this version sends."""
    return CheckpointError("the other side of the move makes no sense", field=f"{what}: {where}",
                           hint="is it of another version?")


def runs_of(value: object, most_pages: int) -> tuple[tuple[int, int], ...]:
    """Runs of pages from the wire: first, count, first, count ... Raises `CheckpointError`."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or len(value) % 2 or not all(
            isinstance(one, int) and one >= 0 for one in value):
        raise nonsense("pages", "runs")
    runs = tuple(zip(value[::2], value[1::2], strict=True))
    if any(not count or first + count > most_pages for first, count in runs):
        raise nonsense("pages", "runs")
    return runs
