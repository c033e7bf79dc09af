"""Two machines on one: a target that takes programs behind a wire of a given rate and delay.

Where this process may, the two sides are in network namespaces, joined by a veth pair whose rate tbf limits; else they
share the loopback interface and the relay limits the rate. The delay is the relay's: it hands on each piece so much
later as it came, in both directions.

``python -m benchmarks.live target PORT FOLDER`` is the other side, ``python -m benchmarks.live relay HOST PORT DELAY
RATE`` what is before it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from wasmckpt.agent.server import SWITCH
from wasmckpt.errors import CheckpointError
from wasmckpt.formats import Image, ParentRef, save
from wasmckpt.host import WasiConfig
from wasmckpt.lazydata import replace
from wasmckpt.migrate import Offer, Wire, receive
from wasmckpt.migrate.handover import FRESH, Role, Standing
from wasmckpt.snapshot.job import Job
from wasmckpt.snapshot.moving import Arrival

__all__ = ["Owner", "machines"]

_SPACE = "wasmckpt-bench"
_HERE, _THERE = "10.87.61.1", "10.87.61.2"


class Owner:
    """The source's side of a move without an agent; what is to outlive a power cut is synced to a file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._standing = folder, Standing(Role.OWNER)

    def standing(self) -> Standing:
        return self._standing

    def persist(self, standing: Standing) -> None:
        _written(self._folder / "source", repr(standing))
        self._standing = standing

    def output(self, stream: str, offset: int) -> bytes:
        return b""

    def begins(self, stream: str) -> int:
        return 0


class Keeper:
    """The target's; images are kept in a folder, synced."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._standing = folder, FRESH
        self._module: bytes | None = None
        self._parent: ParentRef | None = None
        self._offer: Offer | None = None
        self.job: Job | None = None

    def standing(self) -> Standing:
        return self._standing

    def accept(self, offer: Offer) -> None:
        self._offer = offer

    def module(self, sha256: bytes) -> bytes | None:
        return self._module

    def add_module(self, content: bytes) -> None:
        self._module = content

    def base(self) -> Image | None:
        return None

    def begin(self, module: bytes) -> Arrival:
        assert self._offer is not None
        return Arrival.begin(module, self._offer.runtime, config=WasiConfig(), huge_pages=False)

    def room(self, memory: int) -> None:
        pass

    def offset(self, stream: str) -> int:
        return 0

    def output(self, stream: str, offset: int, data: bytes) -> None:
        pass

    def keep(self, image: Image, last: bool) -> None:
        parent = None if image.parent is None else self._parent
        digest = save(replace(image, parent=parent), self._folder / f"{time.monotonic_ns()}.wckpt")
        self._parent = ParentRef(digest, 1 if parent is None else parent.position + 1)

    def persist(self, standing: Standing) -> None:
        _written(self._folder / "target", repr(standing))
        self._standing = standing

    def runs(self, job: Job) -> None:
        self.job = job

    def drop(self) -> None:
        pass


def _written(path: Path, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def machines(rate: float, delay: float) -> Iterator[tuple[str, int, str]]:
    """The target's address, and what was used for it. ``rate``: bytes a second; ``delay``: seconds, there and back
    together."""
    with tempfile.TemporaryDirectory() as folder:
        spaces = _spaces(rate)
        inside = ["ip", "netns", "exec", _SPACE] if spaces else []
        host = _THERE if spaces else "127.0.0.1"
        port = 7431
        limit = 0 if spaces else rate
        sides = ["target", str(port + 1), folder], ["relay", host, str(port), str(delay / 2), str(limit)]
        processes = [subprocess.Popen([*inside, sys.executable, "-m", "benchmarks.live", *words],
                                      stdout=subprocess.PIPE) for words in sides]
        try:
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            yield host, port, ("two network namespaces, veth with tbf" if spaces else "loopback, rate by the relay")
        finally:
            for process in processes:
                process.kill()
                process.wait()
            if spaces:
                subprocess.run(["ip", "netns", "del", _SPACE], check=False)


def _spaces(rate: float) -> bool:
    commands = [
        f"ip netns add {_SPACE}", f"ip link add wmb0 type veth peer name wmb1 netns {_SPACE}",
        f"ip addr add {_HERE}/30 dev wmb0", "ip link set wmb0 up",
        f"ip netns exec {_SPACE} ip addr add {_THERE}/30 dev wmb1", f"ip netns exec {_SPACE} ip link set wmb1 up",
        f"ip netns exec {_SPACE} ip link set lo up",
        f"tc qdisc add dev wmb0 root tbf rate {int(rate * 8)}bit burst 256kb latency 50ms",
    ]
    try:
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        subprocess.run(["ip", "netns", "del", _SPACE], check=False, capture_output=True)
        return False
    return True


def relay(source: socket.socket, sink: socket.socket, delay: float, rate: float) -> None:
    """Hand on what comes, so much later."""
    waiting: queue.Queue[tuple[float, bytes]] = queue.Queue(4096)

    def hand_on() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = waiting.get()
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                if (left := due - time.monotonic()) > 0:
                    time.sleep(left)
                sink.sendall(data)

    threading.Thread(target=hand_on, daemon=True).start()
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 17):
            if rate:
                time.sleep(len(data) / rate)
            waiting.put((time.monotonic() + delay, data))
    waiting.put((0.0, b""))


def _relay(host: str, port: int, delay: float, rate: float) -> None:
    """In a process of its own, as a wire takes no time of the two sides'."""
    listening = socket.create_server((host, port))
    print("listening", flush=True)
    while True:
        came, _ = listening.accept()
        there = socket.create_connection(("127.0.0.1", port + 1))
        for one in (came, there):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((came, there, delay, rate), (there, came, delay, 0)):
            threading.Thread(target=relay, args=pair, daemon=True).start()


def _target(port: int, folder: Path) -> None:
    sys.setswitchinterval(SWITCH)
    listening = socket.create_server(("127.0.0.1", port))
    print("listening", flush=True)
    jobs = []
    while True:
        ours, _ = listening.accept()
        keeper = Keeper(folder)
        with Wire(ours) as wire, contextlib.suppress(CheckpointError):
            receive(wire, keeper)
        if keeper.job is not None:
            jobs.append(keeper.job)
            keeper.job.close()
        for path in folder.iterdir():
            path.unlink()


if __name__ == "__main__":
    if sys.argv[1] == "relay":
        _relay(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
    else:
        _target(int(sys.argv[2]), Path(sys.argv[3]))
