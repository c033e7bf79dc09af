"""README says what happens: its commands are run one after the other and their output compared, its lines of Python are
a doctest."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final

import pytest

from ..support import samples
from ..support.buckets import bucket, bucket_server
from .conftest import PATIENCE
from .programs import COUNT, talk, wat

__all__ = ["bucket", "bucket_server"]

README: Final = Path(__file__).resolve().parents[2] / "README.md"
TEXT: Final = README.read_text()
EXACT: Final = re.compile(r"-?\d\.\d{9}|[0-9a-f]{16}")
"""What the program in the tour prints."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def tour() -> list[tuple[str, list[str]]]:
    """Commands and the lines that follow them."""
    steps: list[tuple[str, list[str]]] = []
    for block in re.findall(r"<!-- tour -->\n```console\n(.*?)```", TEXT, re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], []))
            else:
                steps[-1][1].append(line)
    return steps


def normal(line: str) -> str:
    """A line with that taken out which is another one each time: quantities, places, values."""
    if EXACT.fullmatch(line):
        return line
    if line.startswith("     locals"):
        return "     locals"
    if line.startswith("  frame "):
        return "  frame"
    line = re.sub(r"\([a-z0-9_.]+, module", "(INSTRUCTION, module", line)
    line = re.sub(r"-?\b(0x)?[0-9][0-9a-f.]*\b( (ns|us|ms|s|bytes|KiB|MiB)\b)?", "N", line)
    return re.sub(r" +", " ", line)


def normalised(lines: list[str]) -> list[str]:
    """Lines without what depends on where the program was stopped: more locals, more differences of frames."""
    kept = [normal(line) for line in lines if not line.startswith(" " * 15)]
    return [line for i, line in enumerate(kept) if line != "  frame" or kept[i - 1] != line]


def matches(wanted: list[str], seen: list[str]) -> bool:
    """Whether the lines are those; ``...`` stands for any number of lines."""
    pattern = "".join("(?:.*\n)*" if line == "..." else re.escape(line) + "\n" for line in normalised(wanted))
    return re.fullmatch(pattern, "".join(line + "\n" for line in normalised(seen))) is not None


def test_the_comparison_can_fail() -> None:
    wanted = ["fd 1       stdout, 13 bytes written", "...", "-0.169083134"]
    assert matches(wanted, ["fd 1 stdout, 14 bytes written", "x", "-0.169083134"])
    assert not matches(wanted, ["fd 1 stdout, 14 bytes written", "x", "-0.169083135"])
    assert not matches(wanted, ["fd 2 stderr", "-0.169083134"])
    assert not matches(["a", "b"], ["a"])
    assert len(tour()) == 9
    assert sum(len(lines) for _, lines in tour()) > 30


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """``wasmckpt`` is a command, and jobs have names of their own."""
    command = tmp_path / "bin" / "wasmckpt"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m wasmckpt.cli "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As ``build/samples`` after ``make demo``."""
    folder = tmp_path / "samples"
    folder.mkdir()
    (folder / "nbody.wasm").write_bytes(samples.sample("nbody", "default").path.read_bytes())
    return folder


def test_the_tour(folder: Path, environment: dict[str, str]) -> None:
    if hashlib.sha256((folder / "nbody.wasm").read_bytes()).hexdigest() not in TEXT:
        pytest.skip("the tour shows the module that clang 14 makes, with its functions and frames")
    background: list[subprocess.Popen[bytes]] = []

    def run(command: str) -> list[str]:
        done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=120, check=False)
        assert done.returncode in (0, 1 if " diff " in command else 0), done.stdout
        return done.stdout.splitlines()

    try:
        for command, wanted in tour():
            if command.endswith("&"):
                background.append(subprocess.Popen(["bash", "-c", "exec " + command[:-1]], cwd=folder, env=environment))
                end = time.monotonic() + PATIENCE
                while not any("running" in line for line in run("wasmckpt ps")):
                    assert time.monotonic() < end
                continue
            seen = run(command)
            for _ in range(5):  # a command that stood still for longer than its program ran
                if "wasmckpt: the program ended before a checkpoint was taken" in seen:
                    seen = run(command)
            assert matches(wanted, seen), "\n".join(
                f"{a or '':<100} | {b or ''}" for a, b in zip_longest(normalised(wanted), normalised(seen)))
        for process in background:
            assert process.wait(PATIENCE) == 0
    finally:
        for process in background:
            process.kill()
            process.wait()


def rows() -> list[str]:
    """The commands in the table."""
    return re.findall(r"^\| [^|]+ \| `([^`]+)`", TEXT, re.MULTILINE)


@pytest.fixture
def things(folder: Path, environment: dict[str, str]) -> None:
    """What the names in the table fit: programs, an image, keys."""
    (folder / "app.wasm").write_bytes(wat(talk(2, 10)))
    (folder / "mod.wasm").write_bytes(wat(COUNT.replace('"swap") (param i64 f32) (result f32 i64)',
                                                        '"f") (param i32 i32) (result i32 i32)')))
    (folder / "data").mkdir(exist_ok=True)
    for command in (
        "wasmckpt run -q --checkpoint-at 5 --stop -o j.wckpt app.wasm",
        "rm -f *.key && wasmckpt key generate -o images.key && wasmckpt key generate --signing -o me.key",
    ):
        subprocess.run(command, shell=True, cwd=folder, stdout=subprocess.DEVNULL, env=environment, check=True,
                       timeout=PATIENCE)


@pytest.mark.usefixtures("things")
def test_the_table_of_commands(folder: Path, environment: dict[str, str]) -> None:
    """Each one works as it stands there."""
    commands = [command for command in rows() if "s3://" not in command]
    assert len(commands) == 14
    for command in commands:
        if command.startswith("kill"):
            _signalled(folder, environment, command)
        else:
            _works(command, folder, environment)


@pytest.mark.usefixtures("things")
def test_the_one_with_a_bucket(folder: Path, environment: dict[str, str], bucket: str) -> None:
    (command,) = [command for command in rows() if "s3://" in command]
    environment = {**environment, **{name: value for name, value in os.environ.items() if name.startswith("AWS_")}}
    _works(command.replace("s3://bucket/prefix", bucket), folder, environment)
    _works(f"wasmckpt store ls {bucket}", folder, environment)


def _works(command: str, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=PATIENCE, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    assert "error" not in done.stderr


def _signalled(folder: Path, environment: dict[str, str], command: str) -> None:
    with subprocess.Popen(["wasmckpt", "run", "nbody.wasm", "2000000000"], cwd=folder, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            subprocess.run(["bash", "-c", command.replace("PID", str(process.pid))], check=True)
            assert process.stderr.readline().startswith(b"wasmckpt: checkpoint nbody.wckpt: ")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 143


def test_the_lines_of_python(folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-m", "doctest", "-v", str(README)], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout
    assert "5 tests" in done.stdout
    assert done.stdout.count("36e0157563a5365d") == 2, "both lives printed the result"


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (README.parent / target).exists(), target


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert not (tmp_path / "wasmckpt").exists(), "no socket"
