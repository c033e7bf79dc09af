"""Frames over a stream: what the other side said before it closed is heard, however it was closed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from wasmckpt.agent.peer import Peer, dial
from wasmckpt.errors import CheckpointError, NotSupported
from wasmckpt.migrate.wire import Lost, Wire

WHY = NotSupported("too large", need="1 byte")
MUCH = bytes(1 << 20)


def _told_in_vain(wire: Wire) -> CheckpointError | None:
    """Send until it fails; gives the other side's last word."""
    def tell() -> None:
        for _ in range(1000):
            wire.send("pages", MUCH)

    with pytest.raises(Lost, match="is gone"):
        tell()
    return wire.last_word()


def test_a_reason_and_then_nothing() -> None:
    """It is found behind what was said before it, and is none if there is none."""
    for reason, before in ((WHY, 0), (WHY, 3), (None, 0), (None, 3)):
        left, right = socket.socketpair()
        with Wire(left) as wire:
            with Wire(right) as other:
                for _ in range(before):
                    other.send("taken")
                if reason is not None:
                    other.fail(reason)
            told = _told_in_vain(wire)
        assert (type(told), str(told)) == ((NotSupported, str(WHY)) if reason else (type(None), "None"))


def test_nothing_is_read_ahead_of_its_time() -> None:
    """As long as the other side takes what it is sent there is no last word; what it said is still to be received."""
    left, right = socket.socketpair()
    with Wire(left) as wire, Wire(right) as other:
        other.send("taken")
        assert wire.last_word() is None
        assert wire.receive("taken").kind == "taken"
        other.fail(WHY)
        assert wire.last_word() is None
        with pytest.raises(NotSupported, match="too large"):
            wire.receive("taken")


@contextmanager
def _agent_that_refuses() -> Iterator[str]:
    """Answers the first request with a reason, and closes the connection while it is being sent more: its address."""
    left, right = socket.socketpair()
    with closing(left), Wire(right) as said:
        said.fail(WHY)
        frame = left.recv(1 << 16)
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with closing(connection):
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            connection.recv(1, socket.MSG_PEEK)  # it is talking; nobody reads that, so it is closed with a reset
            connection.sendall(b"%x\r\n%b\r\n" % (len(frame), frame))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        thread.join(30)
        server.close()


def test_an_agent_that_closes_with_a_reset() -> None:
    for _ in range(20):
        with _agent_that_refuses() as url, Wire(dial(Peer(url), "/")) as wire:
            assert isinstance(_told_in_vain(wire), NotSupported)
