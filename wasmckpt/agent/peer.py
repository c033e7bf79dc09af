"""Another agent, asked by this one: a request with its answer, and a connection on which both talk at once.

That is one HTTP request whose body and answer are both as long as they get, so it goes through the other agent's own
address, TLS and tokens. A thread carries its bytes between the network and one end of a socket pair; who talks has the
other end, a plain stream.
"""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterable
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

import h11

from ..api import raised_by
from ..errors import CheckpointError, RetryLater, UsageError
from ..lazydata import dataclass
from ..version import __version__

__all__ = ["Peer", "dial", "hand", "tell"]

_OCTETS: Final = "application/octet-stream"
_CONNECTING: Final = 10.0
_ANSWERING: Final = 30.0
_PIECE: Final = 1 << 17
_MOST_WAITING: Final = 1 << 20
_MOST_ANSWER: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Peer:
    """Where it is. ``token``: kept out of messages; ``ca``, ``certificate``, ``key``: files, for TLS."""

    url: str
    token: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def __repr__(self) -> str:
        return f"Peer({self.url!r})"


def dial(peer: Peer, path: str) -> socket.socket:
    """A stream to what answers at that path. Raises what the other agent refuses it with, and `RetryLater`."""
    sock, http = _asked(peer, path, None, _ANSWERING, _OCTETS)
    try:
        _accepted(sock, http, peer)
    except BaseException:
        sock.close()
        raise
    ours, theirs = socket.socketpair()
    threading.Thread(target=_carry, args=(theirs, sock, http), name="peer", daemon=True).start()
    return ours


def tell(peer: Peer, path: str, document: dict[str, Any], timeout: float = _ANSWERING) -> Any:
    """Post a document; gives the one that is answered. Raises as `dial`."""
    data = json.dumps(document).encode()
    return _answered(peer, path, [data], len(data), timeout, "application/json")


def hand(peer: Peer, path: str, body: bytes | BinaryIO) -> Any:
    """Post bytes, or what is in a file; gives the document that is answered. Raises as `dial`."""
    if isinstance(body, bytes):
        return _answered(peer, path, [body] if body else [], len(body), _ANSWERING, _OCTETS)
    pieces = iter(lambda: body.read(_PIECE), b"")
    return _answered(peer, path, pieces, os.fstat(body.fileno()).st_size, _ANSWERING, _OCTETS)


def _answered(peer: Peer, path: str, pieces: Iterable[bytes], length: int, timeout: float, kind: str) -> Any:
    sock, http = _asked(peer, path, length, timeout, kind)
    try:
        try:
            for piece in pieces:
                sock.sendall(http.send(h11.Data(data=piece)) or b"")
            http.send(h11.EndOfMessage())
        except (OSError, h11.ProtocolError):
            pass  # it may have said why
        _accepted(sock, http, peer)
        return json.loads(_body(sock, http, peer))
    except ValueError:
        raise CheckpointError("the other agent's answer makes no sense", url=peer.url) from None
    finally:
        sock.close()


def _asked(
    peer: Peer, path: str, length: int | None, timeout: float, kind: str,
) -> tuple[socket.socket, h11.Connection]:
    """A connection on which a request was begun, whose body is so long; None: nobody knows how long."""
    parts = urlsplit(peer.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError("an agent's address begins with http:// or https://", url=peer.url)
    headers = [("Host", parts.netloc), ("User-Agent", f"wasmckpt/{__version__}"), ("Content-Type", kind),
               ("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))]
    if peer.token is not None:
        headers.append(("Authorization", f"Bearer {peer.token}"))
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 << 10)
    try:
        sock: socket.socket = socket.create_connection(
            (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)), timeout=min(timeout, _CONNECTING))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if parts.scheme == "https":
                context = ssl.create_default_context(cafile=peer.ca)
                if peer.certificate is not None:
                    context.load_cert_chain(peer.certificate, peer.key)
                sock = context.wrap_socket(sock, server_hostname=parts.hostname)
            sock.settimeout(timeout)
            sock.sendall(http.send(h11.Request(method="POST", target=path, headers=headers)) or b"")
        except BaseException:
            sock.close()
            raise
    except (OSError, h11.ProtocolError) as reason:
        raise _unreachable(peer, reason) from reason
    return sock, http


def _accepted(sock: socket.socket, http: h11.Connection, peer: Peer) -> None:
    event = _next(sock, http, peer)
    while isinstance(event, h11.InformationalResponse):
        event = _next(sock, http, peer)
    if not isinstance(event, h11.Response):
        raise _unreachable(peer, "it closed the connection")
    if not 200 <= event.status_code < 300:
        body = _body(sock, http, peer)
        try:
            raise raised_by(event.status_code, json.loads(body))
        except ValueError:
            raise raised_by(event.status_code, None) from None


def _body(sock: socket.socket, http: h11.Connection, peer: Peer) -> bytes:
    found = bytearray()
    while isinstance(event := _next(sock, http, peer), h11.Data):
        found += event.data
        if len(found) > _MOST_ANSWER:
            raise CheckpointError("the other agent's answer makes no sense", url=peer.url)
    return bytes(found)


def _next(sock: socket.socket, http: h11.Connection, peer: Peer) -> Any:
    try:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(sock.recv(_PIECE))
    except (OSError, h11.ProtocolError) as reason:
        raise _unreachable(peer, reason) from reason
    return event


def _unreachable(peer: Peer, reason: object) -> RetryLater:
    return RetryLater(f"the other agent cannot be reached: {reason or type(reason).__name__}", url=peer.url,
                      hint="does it run there?")


def _carry(inner: socket.socket, sock: socket.socket, http: h11.Connection) -> None:
    """Bytes in both directions, until one side ends. What the other agent said before it closed the connection is
    brought, also if it takes nothing any more."""
    inner.setblocking(False)
    sock.setblocking(False)
    out, back = bytearray(), bytearray()
    try:
        open_ = True
        while True:
            # What came is taken before anything is waited for: TLS may hold some that the socket does not show.
            ended = _take(sock, http, back) if len(back) < _MOST_WAITING else False
            if back:
                back = back[_some(inner, back):]
            if out:
                try:
                    out = out[_some(sock, out):]
                except OSError:
                    out, open_ = bytearray(), False
            if ended and not back:
                return
            read = [sock] if len(back) < _MOST_WAITING and not ended else []
            if open_ and len(out) < _MOST_WAITING:
                read.append(inner)
            can, _, _ = select.select(read, [*([sock] if out else []), *([inner] if back else [])], [], 60.0)
            if inner in can:
                data = inner.recv(_PIECE)
                if data:
                    out += http.send(h11.Data(data=data)) or b""
                else:
                    open_ = False
                    out += http.send(h11.EndOfMessage()) or b""
    except (OSError, h11.ProtocolError, ValueError):
        pass  # each side finds its stream closed
    finally:
        inner.close()
        sock.close()


def _take(sock: socket.socket, http: h11.Connection, back: bytearray) -> bool:
    """What the network has; True: it has ended."""
    try:
        while True:
            http.receive_data(data := sock.recv(_PIECE))
            while (event := http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data):
                    back += event.data
                else:
                    return True
            if not data or len(back) >= _MOST_WAITING:
                return not data
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    except OSError:
        return True  # what came before is there


def _some(sock: socket.socket, data: bytearray) -> int:
    try:
        return sock.send(memoryview(data)[:_PIECE])
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return 0
