"""Commands run in this process (quick, for what they print and give), or as processes (signals, terminals, pipes)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from wasmckpt.cli import main as command_line

from .programs import wat


class Done(NamedTuple):
    """A command's exit code and what it wrote."""

    code: int
    out: str
    err: str


PATIENCE = 120.0
"""Seconds that something may take on a machine that is busy with other things."""

Cli = Callable[..., Done]
Module = Callable[..., Path]
Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """``cli("run", "x.wasm")`` runs a command here, in an empty folder, without standard input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def run(*arguments: object) -> Done:
        capfd.readouterr()
        code = command_line.main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Done(code, out, err)

    return run


@pytest.fixture
def module(tmp_path: Path) -> Module:
    """``module(text)`` writes a module; gives its path."""

    def write(text: str, name: str = "program.wasm") -> Path:
        path = tmp_path / name
        path.write_bytes(wat(text))
        return path

    return write


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """``spawn("run", "x.wasm")`` starts a command as a process in an empty folder; it is gone after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        process = subprocess.Popen(  # type: ignore[call-overload]
            [sys.executable, "-m", "wasmckpt.cli", *map(str, arguments)], cwd=tmp_path,
            **{**streams, "env": environment, **options},
        )
        started.append(process)
        return process  # type: ignore[no-any-return]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def wait_for(condition: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
    """Until the condition holds; fails if it never does."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def first_steps(process: subprocess.Popen[bytes]) -> None:
    """Wait until a command that runs a program has SIGUSR1 blocked, which is the first thing that it does. Who looks
    too late finds it caught."""
    status = Path(f"/proc/{process.pid}/status")
    bit = 1 << (signal.SIGUSR1 - 1)

    def taken() -> bool:
        text = status.read_text()
        blocked, caught = (int(text.partition(name)[2].split()[0], 16) for name in ("SigBlk:", "SigCgt:"))
        # That signal alone: before `exec` a child has all of them blocked.
        return blocked == bit or bool(caught & bit)

    wait_for(taken, "the first steps")


def worker_of(process: subprocess.Popen[bytes]) -> int:
    """Process id of a command's worker, once there is one that runs its guest (it has several threads) and the command
    catches signals."""
    found: list[int] = []
    status = Path(f"/proc/{process.pid}/status")

    def catches() -> bool:
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (signal.SIGUSR1 - 1) & 1)

    def look() -> bool:
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in (task / "children").read_text().split():
                    if len(list(Path(f"/proc/{child}/task").iterdir())) > 1:
                        found.append(int(child))
        return bool(found)

    wait_for(catches, "signals to be caught")
    wait_for(look, "a worker")
    return found[0]


def alive(pid: int) -> bool:
    """Whether a process runs (one that is dead and not reaped does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ends_by(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Send a signal; the exit code."""
    process.send_signal(number)
    return process.wait(PATIENCE)
