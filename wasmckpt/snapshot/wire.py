"""Messages between a job and its worker: length-prefixed msgpack over a socket pair, descriptors beside them.

A message is a map of plain data. What may be large (images) does not travel in it, but as the descriptor of an
anonymous file, so that neither side copies gigabytes through a socket. Errors cross as class, text, hint and fields,
and come out as the same class. Texts may be names of files, which need not be UTF-8.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from .. import errors
from ..errors import CheckpointError

__all__ = [
    "Channel", "Closed", "error_from_plain", "error_to_plain", "image_settings", "memory_file", "use_image_settings",
]

_HEAD: Final = struct.Struct("<I")
_LONGEST: Final = 1 << 30
"""Bytes of one message: a module travels inside."""
_MOST_DESCRIPTORS: Final = 4
_IMAGES: Final = tuple(f"WASMCKPT_{name}" for name in (
    "ENCRYPT_WITH", "DECRYPT_WITH", "SIGN_WITH", "REQUIRE_SIGNED_BY", "ZSTD_LEVEL", "ZSTD_THREADS",
))
"""Environment variables of `wasmckpt.formats.sealing` and `wasmckpt.formats.compression`."""
_NO_THREAD: Final = "can't start new thread"
"""What Python says when the kernel gives a process no more of them: mostly for its limit of memory, which their stacks
take from."""


@functools.cache
def _classes() -> dict[str, type[CheckpointError]]:
    from .. import runtimes  # not needed to start a worker, and every start waits for what is loaded before it

    found: dict[str, type[CheckpointError]] = {name: getattr(errors, name) for name in errors.__all__}
    for cls in (runtimes.CompiledFormError, runtimes.MemoryFault, runtimes.MissingImport):
        found[cls.__name__] = cls
    return found


class Closed(Exception):
    """The other side is gone."""


class Channel:
    """One end of a socket pair. Several threads may send, one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
        """Send a message. Raises `Closed`, `CheckpointError` (too long)."""
        body = msgpack.packb(message, use_bin_type=True, default=str, unicode_errors="surrogatepass")
        if len(body) > _LONGEST:
            raise CheckpointError("a message to the worker is too long", length=len(body))
        with self._sending:
            try:
                # Descriptors belong to the first byte sent with them, which is the head's.
                if descriptors:
                    socket.send_fds(self._socket, [_HEAD.pack(len(body))], list(descriptors))
                    self._socket.sendall(body)
                else:
                    self._socket.sendall(_HEAD.pack(len(body)) + body)
            except OSError:
                raise Closed from None

    def receive(self) -> tuple[dict[str, Any], list[int]]:
        """Wait for a message; gives it and the descriptors that came with it, which are the caller's.

        Raises `Closed`, and TimeoutError if the socket has a time-out.
        """
        try:
            head, descriptors, _, _ = socket.recv_fds(self._socket, _HEAD.size, _MOST_DESCRIPTORS)
            if not head:
                raise Closed
            head += self._exactly(_HEAD.size - len(head))
            (length,) = _HEAD.unpack(head)
            body = self._exactly(length)
        except TimeoutError:
            raise
        except OSError:
            raise Closed from None
        message: dict[str, Any] = msgpack.unpackb(
            body, raw=False, strict_map_key=False, unicode_errors="surrogatepass"
        )
        return message, list(descriptors)

    def _exactly(self, length: int) -> bytes:
        data = bytearray(length)
        view = memoryview(data)
        done = 0
        while done < length:
            count = self._socket.recv_into(view[done:])
            if not count:
                raise Closed
            done += count
        return bytes(data)

    def shut(self) -> None:
        """End the conversation: `receive` raises `Closed` on both sides. The descriptor stays until `close`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was faster

    def close(self) -> None:
        """Give the descriptor back; no thread may be in `receive` any more."""
        with self._sending:
            self.shut()
            self._socket.close()


def memory_file(name: str) -> int:
    """An anonymous file in memory, for what is handed over by descriptor. The caller closes it."""
    return os.memfd_create(name, os.MFD_CLOEXEC)


def image_settings() -> dict[str, str]:
    """How this process writes and reads images, for a worker that may have been started before that was known."""
    return {name: os.environ[name] for name in _IMAGES if name in os.environ}


def use_image_settings(given: Mapping[str, str]) -> None:
    """Write and read images as the process does whose `image_settings` these are."""
    for name in _IMAGES:
        os.environ.pop(name, None)
    os.environ.update(given)


def error_to_plain(error: BaseException) -> dict[str, object]:
    """An error as plain data. One that is not ours, which is a bug, keeps its traceback for the debug mode."""
    if isinstance(error, CheckpointError):
        name = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _classes())
        return {"class": name, "what": error.what, "hint": error.hint, "fields": error.fields}
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return {"class": "RetryLater", "what": "the worker has no room for another thread now",
                "hint": "more memory for the program, or fewer programs at a time", "fields": {}}
    try:
        import traceback  # rarely needed, and it takes a while to load

        trace = "".join(traceback.format_exception(error))
    except (ImportError, MemoryError):  # a process at the end of its means still has to answer
        trace = ""
    return {
        "class": "CheckpointError", "what": f"internal error in the worker: {type(error).__name__}: {error}",
        "hint": "set WASMCKPT_DEBUG=1 for details and report it", "fields": {},
        "trace": trace,
    }


def error_from_plain(data: Mapping[str, Any]) -> CheckpointError:
    """The error that `error_to_plain` described."""
    cls = _classes().get(data["class"], CheckpointError)
    error = cls(data["what"], hint=data["hint"])
    error.fields = dict(data["fields"])
    if "trace" in data:
        error.add_note(data["trace"])
    return error
