"""A proxy before a server of HTTP that spoils what a test wants spoiled: answers that are cut, slow, wrong, or none."""

from __future__ import annotations

import contextlib
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["Proxy", "once", "proxy"]

Rule = Callable[[str, str], str]
"""A request's method and path -> what is done: "" nothing, else the name of a method of `_Handler`."""


def once(*wanted: str, what: str, times: int = 1) -> Rule:
    """A rule that does ``what`` to the first requests whose method and path have all the words ``wanted``."""
    left = [times]

    def rule(method: str, path: str) -> str:
        if left[0] and all(word in f"{method} {path}" for word in wanted):
            left[0] -= 1
            return what
        return ""

    return rule


class Proxy:
    """Passes requests on to a server on this machine, as its ``rule`` says."""

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.rule: Rule = lambda method, path: ""
        self.seen: list[tuple[str, str, str]] = []
        """Method, path and what was done, of all requests."""
        self.over = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.port: int = self._server.server_address[1]

    def close(self) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False
    request_queue_size = 128  # more than come at once: who finds no place tries again after a second
    proxy: Proxy


@contextlib.contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """A `Proxy` before ``port``."""
    made = Proxy(port)
    made.start()
    try:
        yield made
    finally:
        made.close()


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            client = self.request.makefile("rb")
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                line = client.readline()
                if not line:
                    return
                head += line
            found = re.search(rb"(?mi)^content-length: *([0-9]+)", head)
            body = client.read(int(found[1]) if found else 0)
            method, path = head.split(b" ", 2)[:2]
            mine = self.server.proxy
            what = mine.rule(method.decode(), path.decode())
            mine.seen.append((method.decode(), path.decode(), what))
            if what in ("unavailable", "hang", "drop", "page"):
                getattr(self, what)()
                return
            answer = self._ask(head, body)
            if what == "lost":
                return
            if not what:
                self.request.sendall(answer)
                return
            start, _, content = answer.partition(b"\r\n\r\n")
            getattr(self, what)(start + b"\r\n\r\n", content)

    def _ask(self, head: bytes, body: bytes) -> bytes:
        head = re.sub(rb"(?mi)^connection:.*\r\n", b"", head)
        first, _, rest = head.partition(b"\r\n")
        with socket.create_connection(("127.0.0.1", self.server.proxy.upstream), 30) as upstream:
            upstream.sendall(first + b"\r\nConnection: close\r\n" + rest + body)
            return b"".join(iter(lambda: upstream.recv(1 << 16), b""))

    # Without asking

    def unavailable(self) -> None:
        self.request.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    def hang(self) -> None:
        self.server.proxy.over.wait(30)

    def drop(self) -> None:
        pass

    def page(self) -> None:
        """What a login page of some network in between answers."""
        text = b"<html>please log in</html>"
        self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\nETag: \"x\"\r\n"
                             b"Last-Modified: Sun, 29 Nov 2026 10:00:00 GMT\r\n"
                             b"Content-Length: %d\r\n\r\n%b" % (len(text), text))

    # With the server's answer

    def cut(self, head: bytes, content: bytes) -> None:
        """The connection breaks in the middle."""
        self.request.sendall(head + content[:len(content) // 2])

    def flip(self, head: bytes, content: bytes) -> None:
        middle = len(content) // 2
        self.request.sendall(head + content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1:])

    def short(self, head: bytes, content: bytes) -> None:
        """Half of it, and as if that were all."""
        content = content[:len(content) // 2]
        head = re.sub(rb"(?mi)^(content-length: *)[0-9]+", rb"\g<1>%d" % len(content), head)
        self.request.sendall(re.sub(rb"(?mi)^(content-range: *bytes 0-)[0-9]+/[0-9]+",
                                    rb"\g<1>%d/%d" % (len(content) - 1, len(content)), head) + content)

    def endless(self, head: bytes, content: bytes) -> None:
        """More than was asked for, and no end."""
        head = re.sub(rb"(?mi)^content-length: *[0-9]+", rb"Transfer-Encoding: chunked", head)
        self.request.sendall(head)
        while not self.server.proxy.over.is_set():
            self.request.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")

    def drip(self, head: bytes, content: bytes) -> None:
        """A byte now and then."""
        self.request.sendall(head)
        for byte in content:
            if self.server.proxy.over.is_set():
                return
            self.request.sendall(bytes([byte]))
            time.sleep(0.02)
