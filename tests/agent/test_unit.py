"""The unit for systemd: as that reads it, and the agent's word that it is ready."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from wasmckpt.agent.config import AgentConfig
from wasmckpt.agent.unit import unit

from ..support import tiers
from .conftest import PATIENCE, Serve


def _command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "wasmckpt.cli", "agent", *words], capture_output=True, text=True,
                          timeout=PATIENCE, check=False)


def _systemd(*words: str) -> str:
    if shutil.which("systemd-analyze") is None:
        tiers.missing("systemd", "there is no systemd-analyze")
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_systemd_takes_it(tmp_path: Path) -> None:
    root = tmp_path / "data with $pace & 100 %"
    root.mkdir()
    done = _command("--root", str(root), "--listen", "127.0.0.1:7421", "unit")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "wasmckpt-agent.service"
    path.write_text(done.stdout)
    assert _systemd("verify", "--man=no", str(path)).strip() == ""
    command = re.search(r"^ExecStart=(.*)$", done.stdout, re.MULTILINE)
    assert command is not None
    assert command[1].endswith(f"agent --state %S/wasmckpt/agent --listen 127.0.0.1:7421 --root '{root}'".replace(
        "$", "$$").replace("100 %", "100 %%"))
    assert f"TimeoutStopSec={AgentConfig().stop_time + 30:.0f}" in done.stdout


@pytest.mark.slow
def test_how_far_it_is_closed(tmp_path: Path) -> None:
    """By systemd's own measure, of 0 (closed) to 10: what is left are machine code made at run time, the network, and
    /proc."""
    path = tmp_path / "wasmckpt-agent.service"
    path.write_text(unit([], stop_time=120))
    said = _systemd("security", "--offline=true", "--no-pager", str(path))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= 2.5, said


@pytest.mark.slow
def test_it_says_that_it_is_ready(serve: Serve, tmp_path: Path) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(address))
        heard.settimeout(PATIENCE)
        serve(NOTIFY_SOCKET=str(address))
        assert heard.recv(100) == b"READY=1"


@pytest.mark.slow
def test_its_state_is_systemds(tmp_path: Path) -> None:
    assert _command("--state", str(tmp_path), "unit").returncode == 64
