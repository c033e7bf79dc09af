"""Clients that are slow, wrong or hostile: they are answered or cut off, in time, and the others do not notice."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import pytest

from wasmckpt.errors import RetryLater

from .conftest import PATIENCE, Serve, Served

pytestmark = pytest.mark.slow
SETTINGS = """
body_pause = 1.0
head_time = 1.0
most_body = 4096
most_module = 100000
most_connections = 60
"""


@pytest.fixture(scope="module")
def impatient(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Served:
    settings = tmp_path_factory.mktemp("settings") / "agent.toml"
    settings.write_text(SETTINGS)
    return serve("--config", str(settings))


@contextlib.contextmanager
def _connected(served: Served) -> Iterator[socket.socket]:
    where = urlsplit(served.url)
    assert where.hostname is not None
    with socket.create_connection((where.hostname, where.port or 0), timeout=PATIENCE) as sock:
        yield sock


def _rest(sock: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            found += piece
    return found


def _head(served: Served, method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {served.token}", *lines, "", ""]
                       ).encode()


@pytest.fixture(autouse=True)
def _others_do_not_notice(impatient: Served) -> Iterator[None]:
    yield
    with impatient.client() as agent:
        assert _patiently(agent.ready).ready
    assert "Traceback" not in impatient.log()


T = TypeVar("T")


def _patiently(ask: Callable[[], T]) -> T:
    """Again, as long as the agent cuts us off: on a busy machine we are a slow client ourselves now and then."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            answer = ask()
        except (httpx.TransportError, RetryLater):
            assert time.monotonic() < end
        else:
            if not isinstance(answer, httpx.Response) or answer.status_code != 408 or time.monotonic() > end:
                return answer


def test_heads_that_do_not_end(impatient: Served) -> None:
    """Nothing, half a head, one byte after the other: cut off, also on a connection that was used before."""
    for begin in (b"", b"GET /v1/health HT", b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"):
        with contextlib.ExitStack() as opened:
            def used(begin: bytes = begin, opened: contextlib.ExitStack = opened) -> socket.socket:
                sock = opened.enter_context(_connected(impatient))
                sock.sendall(begin)
                if not sock.recv(65536).startswith(b"HTTP/1.1 200"):
                    raise httpx.ReadError("cut off before the head was sent")
                return sock

            is_whole = begin.endswith(b"\r\n\r\n")
            whole = _patiently(used) if is_whole else None
            since = time.monotonic()  # before its time begins: it may be over when we have just connected
            sock = whole or opened.enter_context(_connected(impatient))
            with contextlib.suppress(ConnectionError):
                sock.sendall(b"G" if is_whole else begin)
                for byte in b"ET /v1/health HTTP/1.1\r\n" + b"X: y\r\n" * 1000:
                    sock.sendall(bytes([byte]))
                    time.sleep(0.05)
                    if time.monotonic() - since > PATIENCE:
                        pytest.fail("a slow head is listened to for ever")
            assert time.monotonic() - since >= 0.5


def test_many_slow_ones_at_a_time(impatient: Served) -> None:
    """They take all places for a moment, and lose them."""
    with contextlib.ExitStack() as opened:
        for _ in range(80):
            sock = opened.enter_context(_connected(impatient))
            with contextlib.suppress(ConnectionError):  # its time may be over already
                sock.sendall(b"GET / HT")
        end = time.monotonic() + PATIENCE
        with httpx.Client(base_url=impatient.url, trust_env=False, timeout=5) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if client.get("/v1/health").status_code == 200:
                        break
                assert time.monotonic() < end


def test_bodies_that_do_not_come_on(impatient: Served) -> None:
    for path in ("/v1/modules", "/v1/jobs"):
        with _connected(impatient) as sock:
            head = _head(impatient, "POST", path, "Content-Length: 1000", "Content-Type: application/json")
            sock.sendall(head + b"{")
            answer = _rest(sock)
            assert answer.startswith(b"HTTP/1.1 408"), answer
            assert b"application/problem+json" in answer


@pytest.mark.parametrize(("path", "most"), [("/v1/jobs", 4096), ("/v1/modules", 100_000)])
def test_bodies_that_are_too_long(impatient: Served, path: str, most: int) -> None:
    """Announced: refused before they are sent. Not announced: at the first byte that is too many. Twin: just not."""
    with _connected(impatient) as sock:
        sock.sendall(_head(impatient, "POST", path, f"Content-Length: {10**15}", "Content-Type: application/json"))
        assert _rest(sock).startswith(b"HTTP/1.1 413")
    with _connected(impatient) as sock:
        sock.sendall(_head(impatient, "POST", path, "Transfer-Encoding: chunked", "Content-Type: application/json"))
        with contextlib.suppress(ConnectionError):
            for _ in range(most // 1000 + 2):
                sock.sendall(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        assert _rest(sock).startswith(b"HTTP/1.1 413")
    headers = {"Authorization": f"Bearer {impatient.token}", "Content-Type": "application/json"}
    assert _patiently(lambda: httpx.post(impatient.url + path, content=b" " * most, headers=headers, trust_env=False,
                                         timeout=PATIENCE)).status_code == 422
    _nothing_comes_in(impatient)


def test_clients_that_go(impatient: Served) -> None:
    """In the middle of a body, of an answer, of following: nothing is left of an upload."""
    for lines in (["Content-Length: 50000"], ["Transfer-Encoding: chunked"]):
        with _connected(impatient) as sock:
            sock.sendall(_head(impatient, "POST", "/v1/modules", *lines) + b"400\r\n" + b"\0" * 900)
        with _connected(impatient) as sock:
            sock.sendall(_head(impatient, "POST", "/v1/modules", *lines) + b"400\r\n" + b"\0" * 900)
            sock.shutdown(socket.SHUT_WR)
            _rest(sock)
    with _connected(impatient) as sock:
        sock.sendall(_head(impatient, "GET", "/v1/events?follow=true"))
        with contextlib.suppress(ConnectionError):
            sock.recv(100)
    _nothing_comes_in(impatient)


def _nothing_comes_in(agent: Served) -> None:
    """Wait until nothing is left of any upload."""
    end = time.monotonic() + PATIENCE
    while list((agent.state / "incoming").iterdir()):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("sent", [
    b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 100,
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
])
def test_what_is_no_http(impatient: Served, sent: bytes) -> None:
    with _connected(impatient) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
        answer = _rest(sock)
        assert not answer or answer.split()[1] in (b"400", b"401", b"404", b"505"), answer


def test_deep_and_odd_json(impatient: Served) -> None:
    headers = {"Authorization": f"Bearer {impatient.token}", "Content-Type": "application/json"}
    for body in (b"[" * 4000, b'{"a":' * 700, b'{"module": "\\ud800"}', b'"' + b"\xff" * 10 + b'"', b"1e999", b"NaN",
                 b"null", b'{"module": 1e400}', b'{"args": ["\\u0000"], "module": "' + b"0" * 64 + b'"}',
                 b'{"args": ["\\ud800"], "module": "' + b"0" * 64 + b'"}'):
        answer = _patiently(lambda body=body: httpx.post(  # type: ignore[misc]
            impatient.url + "/v1/jobs", content=body, headers=headers, trust_env=False, timeout=PATIENCE))
        assert answer.status_code in (400, 422), (body[:40], answer.text)
        assert answer.headers["content-type"] == "application/problem+json"
