"""Signals, terminals, pipes: what a shell and a person do to a running command."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .conftest import PATIENCE, Cli, Module, Spawn, alive, ends_by, wait_for, worker_of
from .programs import CAT, FOREVER, talk


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=lambda v: str(v),
)
def test_an_end_from_outside(spawn: Spawn, module: Module, number: signal.Signals, code: int) -> None:
    """The exit code says which; nothing is printed, the worker is gone with it."""
    process = spawn("run", module(FOREVER))
    worker = worker_of(process)
    assert ends_by(process, number) == code
    assert not Path(f"/proc/{worker}").exists(), "not even a zombie"
    assert process.communicate() == (b"", b"")


def test_nohup(spawn: Spawn, module: Module) -> None:
    """A signal that was ignored before stays ignored."""
    process = spawn("run", module(FOREVER), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    worker = worker_of(process)
    process.send_signal(signal.SIGHUP)
    os.kill(worker, signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    assert ends_by(process, signal.SIGTERM) == 143


def test_a_crashed_worker_is_an_error_with_its_signal(spawn: Spawn, module: Module) -> None:
    process = spawn("run", module(FOREVER))
    worker = worker_of(process)
    while process.poll() is None:
        # A runtime's handler may take the first one for something of its own; a real fault comes again and again.
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGSEGV)
        time.sleep(0.05)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 70
    assert err.startswith(b"wasmckpt: error: the worker was killed by SIGSEGV")
    assert not Path(f"/proc/{worker}").exists()


def test_the_worker_does_not_outlive_the_command(spawn: Spawn, module: Module) -> None:
    process = spawn("run", module(FOREVER))
    worker = worker_of(process)
    process.kill()
    process.wait()
    wait_for(lambda: not alive(worker), "the worker's end")


def test_a_terminal(spawn: Spawn, module: Module) -> None:
    """The program reads the terminal; Ctrl-C reaches the whole group and ends it cleanly."""
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = spawn("run", module(CAT), stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=take_terminal)
    os.close(theirs)
    try:
        os.write(ours, b"hello\n")
        seen = b""
        while seen.count(b"hello") < 2:  # its echo, and the program's copy
            seen += os.read(ours, 1000)
        worker = worker_of(process)
        os.write(ours, b"\x03")
        assert process.wait(PATIENCE) == 130
        assert not Path(f"/proc/{worker}").exists()
    finally:
        os.close(ours)


def test_the_program_gets_epipe(spawn: Spawn, module: Module) -> None:
    """A closed pipe under the program's own output is the program's affair: it sees an error and may go on."""
    reader, writer = os.pipe()
    os.close(reader)
    process = spawn("run", module(talk(3, 1)), stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("arguments", [
    "--help", "instrument program.wasm --explain", "run --json absent.wasm", *(
        pytest.param(arguments, marks=pytest.mark.slow) for arguments in (
            "run --help", "inspect i.wckpt --pages", "inspect i.wckpt --json", "diff i.wckpt i.wckpt --json",
            "verify i.wckpt", "doctor", "version", "ps", "completion bash", "run --json program.wasm",
        )
    ),
])
def test_nobody_reads_what_is_shown(cli: Cli, spawn: Spawn, module: Module, arguments: str) -> None:
    """A closed pipe ends a command in silence, as it ends any other; a program that ran, and an error, have their own
    exit codes."""
    cli("run", "--checkpoint-at", "5", "--stop", "-o", "i.wckpt", module(talk(3, 10)))
    reader, writer = os.pipe()
    os.close(reader)
    process = spawn(*arguments.split(), stdout=writer)
    os.close(writer)
    _, err = process.communicate(timeout=PATIENCE)
    absent = "absent" in arguments
    assert err == (b"wasmckpt: error: the module cannot be read: No such file or directory (path absent.wasm)\n"
                   if absent else b"")
    assert process.returncode == (64 if absent else 141)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_closed_standard_streams(spawn: Spawn, module: Module, closed: tuple[int, ...]) -> None:
    """No file or socket of ours gets their numbers."""
    path = module(talk(3, 1))
    process = spawn("run", path, preexec_fn=lambda: list(map(os.close, closed)))
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert err == b""
    assert (out == b"") == (1 in closed)
