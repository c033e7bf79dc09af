"""What lies between the two sides of a move: wires that are slow, and such as are cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

__all__ = ["Between", "cut_after", "slowly"]

Between = Callable[[socket.socket, socket.socket], tuple[socket.socket, socket.socket]]


def _carried(right: socket.socket, carry: Callable[[bytes, socket.socket], bool]) -> socket.socket:
    """A new end in the place of ``right``; ``carry`` brings some bytes on, or says that this was all."""
    inner, end = socket.socketpair()
    left = [2]

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 12)) and carry(data, sink):
                pass
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        left[0] -= 1
        if not left[0]:
            source.close()
            sink.close()

    for pair in ((right, inner), (inner, right)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
    return end


def slowly(rate: float) -> Between:
    """So many bytes a second."""

    def carry(data: bytes, sink: socket.socket) -> bool:
        time.sleep(len(data) / rate)
        sink.sendall(data)
        return True

    def between(left: socket.socket, right: socket.socket) -> tuple[socket.socket, socket.socket]:
        for one in (left, right):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        return left, _carried(right, carry)

    return between


def cut_after(number: int) -> Between:
    """It breaks after so many bytes, in both directions together."""
    rest = [number]

    def carry(data: bytes, sink: socket.socket) -> bool:
        rest[0] -= len(data)
        if rest[0] > 0:
            sink.sendall(data)
        return rest[0] > 0

    return lambda left, right: (left, _carried(right, carry))
