"""What a person sees on a terminal while work goes on: that it does, and nothing of it afterwards."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import threading
import time
from pathlib import Path

import pytest

from wasmckpt.cli import output

from .conftest import PATIENCE, Module, Spawn, first_steps, wait_for
from .programs import FOREVER

HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
"""What makes a terminal's cursor vanish and come back."""


class Terminal:
    """A terminal whose other side is read by a thread."""

    def __init__(self) -> None:
        self.seen = b""
        self._ours, self.theirs = pty.openpty()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: nobody has it open any more
            while data := os.read(self._ours, 4096):
                self.seen += data

    def close(self) -> bytes:
        os.close(self.theirs)
        self._thread.join(PATIENCE)
        os.close(self._ours)
        return self.seen


def big(functions: int) -> str:
    """Takes seconds to rewrite."""
    loop = "(loop $l (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))" * 40
    return f"(module {f'(func (param i32) {loop})' * functions})"


@pytest.mark.slow
def test_long_work_is_shown_and_cleared_away(spawn: Spawn, module: Module) -> None:
    """On a terminal, and only there; standard output has the result alone."""
    path = module(big(500))
    terminal = Terminal()
    process = spawn("instrument", path, "--json", stderr=terminal.theirs, env={**os.environ, "TERM": "xterm"})
    out, _ = process.communicate(timeout=PATIENCE)
    seen = terminal.close()
    assert process.returncode == 0
    assert f"rewriting {path}"[:40].encode() in seen
    assert HIDE in seen
    assert seen.rindex(SHOW) > seen.rindex(HIDE)
    assert seen.rpartition(SHOW)[2].count(b"\n") <= 2, "the note of the end is all that stays"
    assert b"\x1b" not in out

    process = spawn("instrument", path, "--json")
    assert process.communicate(timeout=PATIENCE)[1].count(b"\n") == 1, "no terminal: the note only"

    terminal = Terminal()
    process = spawn("instrument", path, "--json", "-q", stderr=terminal.theirs)
    process.communicate(timeout=PATIENCE)
    assert terminal.close() == b""


@pytest.mark.slow
def test_ctrl_c_while_work_is_shown(spawn: Spawn, module: Module, tmp_path: Path) -> None:
    path = module(big(2000))
    terminal = Terminal()
    process = spawn("instrument", path, "-o", "out.wasm", stderr=terminal.theirs, env={**os.environ, "TERM": "xterm"})
    wait_for(lambda: HIDE in terminal.seen, "something to be drawn")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    seen = terminal.close()
    assert seen.rindex(SHOW) > seen.rindex(HIDE)
    assert b"Traceback" not in seen
    assert os.listdir(tmp_path) == ["program.wasm"]


def test_short_work_does_not_flicker(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(output, "_is_terminal", lambda descriptor: True)
    monkeypatch.setattr(output, "_show_work", lambda what, over, alone: shown.append(over.wait(PATIENCE)))
    with output.working("something"):
        pass
    assert shown == [True], "it was over before anything was drawn"


def test_a_hostile_name_cannot_draw(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(output, "_is_terminal", lambda descriptor: True)
    monkeypatch.setattr(output, "_LONG", 0.0)
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    out = err = ""

    def drawn() -> bool:
        nonlocal out, err
        out, err = map("".join, zip((out, err), capfd.readouterr(), strict=True))
        return "x" in err.partition("reading ")[2].partition("]")[2]

    with output.working("reading \x1b[2J[red]x"):
        wait_for(drawn, "something to be drawn")
    assert out == ""
    assert "reading \\x1b[2J[red]x" in err


@pytest.mark.slow
def test_a_start_that_takes_long_is_one_note(spawn: Spawn, module: Module, tmp_path: Path) -> None:
    """The program writes to the same terminal: nothing is drawn, so nothing can be drawn over its output."""
    path = module(big(1000).removesuffix(")") + '(memory (export "memory") 1) (func (export "_start")))')
    terminal = Terminal()
    nothing_kept = {**os.environ, "WASMCKPT_CACHE": str(tmp_path / "cache")}
    process = spawn("run", path, stdout=terminal.theirs, stderr=terminal.theirs, env=nothing_kept)
    assert process.wait(PATIENCE) == 0
    assert terminal.close() == b"wasmckpt: starting program.wasm\r\n"


@pytest.mark.slow
def test_ctrl_c_at_any_time(spawn: Spawn, module: Module) -> None:
    """Whatever the command is doing, importing included: it ends, quietly."""
    path = module(FOREVER)
    for delay in range(0, 600, 80):
        process = spawn("run", path)
        first_steps(process)
        time.sleep(delay / 1000)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode in (130, -signal.SIGINT), err
        assert (out, err.strip()) == (b"", b""), delay  # an end of line at most, below the ^C
