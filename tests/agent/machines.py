"""Machines of a test: network namespaces with a cable each to a switch, which can be pulled, or cut between two.

Each has an agent, which listens on an address of its own by TLS and knows the others. Their files are seen from here.
Cables may have a rate (tbf); the kernel here knows no way to delay them, so that is done by a relay in front of the
agent (`relay`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from wasmckpt.client import AgentClient, Where

from ..support.tiers import missing
from .test_security import _certificate

__all__ = ["Machine", "Machines", "machines", "writers"]

PATIENCE = 120.0
PORT = 7420
TOP = Path(__file__).resolve().parents[2]


class Machine:
    """The ``n``-th one; its agent is not started yet."""

    def __init__(self, folder: Path, prefix: str, network: str, n: int, delay: float) -> None:
        self.n, self.name, self.address = n, f"{prefix}{n}", f"{network}.{n + 1}"
        self.url = f"https://{self.address}:{PORT}"
        self._delay, self._listens = delay, "127.0.0.1" if delay else self.address
        self.folder = folder / f"machine-{n}"
        self.folder.mkdir()
        self.state = self.folder / "state"
        self.certificate, self.key = _certificate(self.folder, "agent", self.address)
        self.process: subprocess.Popen[bytes] | None = None
        self._relay: subprocess.Popen[bytes] | None = None

    def wire(self) -> None:
        """The relay in front of it, if its wire takes time."""
        if self._delay:
            self._relay = self._run("-m", "tests.agent.relay", self.address, str(PORT), str(self._delay),
                                    cwd=TOP, stdout=subprocess.PIPE)
            assert self._relay.stdout is not None
            assert self._relay.stdout.readline() == b"listens\n"

    def _run(self, *arguments: str, **how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["ip", "netns", "exec", self.name, sys.executable, *arguments],
                                stdin=subprocess.DEVNULL, **how)

    def start(self) -> None:
        """Its agent, until it listens."""
        (self.state / "agent.json").unlink(missing_ok=True)
        with open(self.folder / "log", "ab") as log:
            self.process = self._run(
                "-m", "wasmckpt.cli", "agent", "--state", str(self.state), "--listen", f"{self._listens}:{PORT}",
                "--tls-certificate", str(self.certificate), "--tls-key", str(self.key),
                "--config", str(self.folder / "settings.toml"), stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE
        while not (self.state / "agent.json").exists():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < end, "it does not listen"
            time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.kill()
        if self._relay is not None:
            self._relay.kill()
            self._relay.communicate()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def client(self) -> AgentClient:
        token = (self.state / "token").read_text().strip()
        return AgentClient(Where(self.url, token, ca=self.certificate, timeout=5.0))

    def runs(self, job: str) -> bool:
        """Whether a process of it writes to the job's log: its program's worker, whatever its agent says."""
        assert self.process is not None
        return bool(writers(self.process.pid, self.state / "logs" / job / "stdout"))


def writers(agent: int, log: Path) -> set[int]:
    """Processes below one whose standard output is that file."""
    found: set[int] = set()
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(agent).children(recursive=True):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{child.pid}/fd/1") == str(log):
                    found.add(child.pid)
    return found


class Machines:
    """``number`` of them, with agents that know each other; ``settings`` of each. ``rate``: bytes a second that a cable
    takes each way, 0: as fast as it can; ``delay``: seconds from one to another, 0: none."""

    def __init__(self, folder: Path, number: int, *, rate: float = 0.0, delay: float = 0.0, **settings: object) -> None:
        self._rate = rate
        self._prefix = f"w{os.getpid() % 100_000}m"
        pid = os.getpid()
        self._network = f"10.{100 + pid % 100}.{pid // 100 % 250}"
        self.all = [Machine(folder, self._prefix, self._network, n, delay) for n in range(number)]
        for machine in self.all:
            lines = [f'replicas = "{machine.folder}/replicas"', "requests_per_second = 1000",
                     f'advertise = "{machine.url}"', *(f"{name} = {value}" for name, value in settings.items())]
            for other in self.all:
                if other is not machine:
                    lines += [f'[peers."{other.url}"]', f'token_file = "{other.state}/token"',
                              f'ca = "{other.certificate}"']
            (machine.folder / "settings.toml").write_text("\n".join(lines))

    def __enter__(self) -> Machines:
        hub = self._prefix + "h"
        try:
            if _ip("netns", "add", hub, check=False):
                missing("namespaces", "network namespaces cannot be made here")
            _ip("-n", hub, "link", "add", "switch0", "type", "bridge")
            _ip("-n", hub, "link", "set", "switch0", "up")
            for machine in self.all:
                _ip("netns", "add", machine.name)
                _ip("link", "add", "cable0", "netns", machine.name, "type", "veth",
                    "peer", "name", machine.name, "netns", hub)
                self._plug(machine.name, machine.address, "-n", machine.name)
                if self._rate:
                    for space, device in ((machine.name, "cable0"), (hub, machine.name)):
                        _do("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate",
                            f"{int(self._rate * 8)}bit", "burst", "256kb", "latency", "50ms")
                machine.wire()
            _ip("link", "add", self._prefix + "r", "type", "veth", "peer", "name", self._prefix + "r", "netns", hub)
            self._plug(self._prefix + "r", self._network + ".254", device=self._prefix + "r")
            for machine in self.all:
                machine.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _plug(self, port: str, address: str, *where: str, device: str = "cable0") -> None:
        hub = self._prefix + "h"
        _ip("-n", hub, "link", "set", port, "master", "switch0")
        _ip("-n", hub, "link", "set", port, "up")
        _ip(*where, "addr", "add", f"{address}/24", "dev", device)
        _ip(*where, "link", "set", device, "up")
        _ip(*where, "link", "set", "lo", "up")

    def pull(self, n: int, *, out: bool = True) -> None:
        """The cable of one of them, out or in: whatever is sent is lost without a word."""
        _ip("-n", self._prefix + "h", "link", "set", self.all[n].name, "down" if out else "up")

    def cut(self, a: int, b: int, *, out: bool = True) -> None:
        """Between two of them, or mend that; all others reach both."""
        for here, there in ((a, b), (b, a)):
            _ip("-n", self.all[here].name, "route", "add" if out else "del", "blackhole",
                f"{self.all[there].address}/32")

    def __exit__(self, *raised: object) -> None:
        for machine in self.all:
            machine.close()
        for name in (*(machine.name for machine in self.all), self._prefix + "h"):
            _ip("netns", "del", name, check=False)
        _ip("link", "del", self._prefix + "r", check=False)


def _ip(*words: str, check: bool = True) -> int:
    return _do("ip", *words, check=check)


def _do(*words: str, check: bool = True) -> int:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert not check or not done.returncode, f"{' '.join(words)}: {done.stderr}"
    return done.returncode


@contextlib.contextmanager
def machines(
    folder: Path, number: int, *, rate: float = 0.0, delay: float = 0.0, **settings: object,
) -> Iterator[Machines]:
    """As of `Machines`; skips the test where there can be none."""
    if os.geteuid() != 0:
        missing("namespaces", "only root makes network namespaces")
    with Machines(folder, number, rate=rate, delay=delay, **settings) as made:
        yield made
