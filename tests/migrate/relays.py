"""What lies between the two sides of a move: wires that are slow, such as are cut, and a side that makes no sense."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]

from wasmckpt.migrate.wire import HEAD

__all__ = ["Between", "Frame", "cut_after", "misspoken", "slowly"]

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


Frame = tuple[dict[str, Any], bytes]


def misspoken(side: str, number: int, change: Callable[[Frame], list[Frame]]) -> Between:
    """One frame that the ``side`` ("source" or "target") sends, the ``number``-th one, becomes others."""

    def between(left: socket.socket, right: socket.socket) -> tuple[socket.socket, socket.socket]:
        inner, end = socket.socketpair()
        open_ways = [2]

        def over(*ends: socket.socket) -> None:
            for one in ends:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            open_ways[0] -= 1
            for one in ends if not open_ways[0] else ():
                one.close()

        def exactly(source: socket.socket, count: int) -> bytes:
            data = b""
            while len(data) < count:
                if not (piece := source.recv(count - len(data))):
                    raise OSError("over")
                data += piece
            return data

        def speak(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                for n in itertools.count():
                    lengths = HEAD.unpack(exactly(source, HEAD.size))
                    fields, body = (exactly(source, length) for length in lengths)
                    frames = [(msgpack.unpackb(fields, strict_map_key=False), body)]
                    for head, data in change(frames[0]) if n == number else frames:
                        packed = msgpack.packb(head)
                        sink.sendall(HEAD.pack(len(packed), len(data)) + packed + data)
            over(source, sink)

        def pass_on(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    sink.sendall(data)
            over(source, sink)

        ways = (speak, pass_on) if side == "source" else (pass_on, speak)
        for way, pair in zip(ways, ((right, inner), (inner, right)), strict=True):
            threading.Thread(target=way, args=pair, daemon=True).start()
        return left, end

    return between
