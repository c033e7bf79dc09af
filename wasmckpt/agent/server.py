"""An agent that listens: uvicorn, TLS, signals. SIGTERM and SIGINT stop it gracefully; jobs are frozen and go on
later."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Final

import uvicorn

from ..errors import StorageError, UsageError
from .app import app_of, guarded
from .config import AgentConfig
from .connection import connections
from .service import Agent
from .unit import ready

__all__ = ["SWITCH", "serve"]

_PR_SET_NO_NEW_PRIVS: Final = 38
SWITCH: Final = 0.0005
"""Seconds after which a thread that waits for the GIL gets it. While a program is handed over, what it waits for is a
message of a few bytes, and another thread makes a file of its image: Python's own 5 ms would come several times."""
_IDLE: Final = 30
"""Seconds that a connection may be idle between requests."""


class _Server(uvicorn.Server):
    """Lets followers go as soon as it is told to stop, since it waits for all connections."""

    followers_over: Callable[[], None] = staticmethod(lambda: None)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.followers_over()


def serve(config: AgentConfig, listening: Callable[[str], object] = lambda url: None) -> None:
    """Until a signal ends it. ``listening`` is called with the address when it can be reached.

    Raises:
        UsageError: it cannot listen there, or the certificate is no good. StorageError, Conflict: as `Agent`.
    """
    # For this process and all workers: no program that they start has more rights than they have, and a crash of one
    # leaves no file with what was in its memory.
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _raise_limit_of_files()
    sys.setswitchinterval(SWITCH)
    sock = _listen(config)
    with sock, Agent(config, _url(config, sock)) as agent:
        app = app_of(agent)
        settings: dict[str, Any] = {}
        if config.tls_certificate is not None:
            settings = {"ssl_certfile": str(config.tls_certificate), "ssl_keyfile": str(config.tls_key)}
            if config.tls_clients is not None:
                settings |= {"ssl_ca_certs": str(config.tls_clients), "ssl_cert_reqs": ssl.CERT_REQUIRED}
        server = _Server(uvicorn.Config(
            guarded(app, agent), http=connections(config.head_time), ws="none", loop="asyncio",
            lifespan="on", access_log=False, log_level="warning", server_header=False, proxy_headers=False,
            limit_concurrency=config.most_connections, timeout_keep_alive=_IDLE, timeout_graceful_shutdown=10,
            h11_max_incomplete_event_size=32 << 10, **settings,
        ))
        try:
            server.config.load()
        except (OSError, ssl.SSLError) as reason:
            raise UsageError(f"the certificate cannot be used: {reason}", path=str(config.tls_certificate)) from None
        server.followers_over = app.state.followers.over.set
        # uvicorn has its own handlers while it serves, and raises what it has heard once more when it is done.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *heard: setattr(server, "should_exit", True))
        url = _url(config, sock)
        _announce(config, url)
        listening(url)
        ready()
        try:
            server.run(sockets=[sock])
        finally:
            with suppress(OSError):
                (config.state / "agent.json").unlink()


def _listen(config: AgentConfig) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(1024)
    except OSError as reason:
        raise UsageError(f"the agent cannot listen there: {reason.strerror or reason}", host=config.host,
                         port=config.port, hint="is another agent running? choose another port with --listen") from None
    sock.set_inheritable(False)
    return sock


def _url(config: AgentConfig, sock: socket.socket) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http{'s' if config.tls_certificate is not None else ''}://{host}:{sock.getsockname()[1]}"


def _announce(config: AgentConfig, url: str) -> None:
    """For clients of the same user, which find address and token there."""
    path = config.state / "agent.json"
    temporary = path.with_suffix(".part")
    try:
        temporary.write_text(json.dumps({"url": url, "pid": os.getpid()}) + "\n")
        os.replace(temporary, path)
    except OSError as reason:
        raise StorageError(f"the agent's folder cannot be used: {reason.strerror}", path=str(path)) from reason


def _raise_limit_of_files() -> None:
    """Each live job takes some ten descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY else max(soft, 65536), hard))
