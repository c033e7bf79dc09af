"""Ports for servers that a test starts by number."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

__all__ = ["free_port"]

_LOWEST: Final = 10_000
_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """One of this machine's loopback on which nobody listens, below those that the kernel deals out: else another
    process's connection might take it before it is listened on, or while its server is being started again."""
    end = int(_RANGE.read_text().split()[0])
    draw = random.SystemRandom()  # not of the seed: that is the same in all processes of a run
    for _ in range(1000):
        with socket.socket() as probe:
            port = draw.randrange(_LOWEST, end) if end > 2 * _LOWEST else 0
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no port is free")
