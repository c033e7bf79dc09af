"""Ctrl-C ends a command quietly, also where what it interrupts makes another error of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from wasmckpt import Job
from wasmckpt.cli import interrupt
from wasmckpt.cli import main as command
from wasmckpt.errors import UsageError


@pytest.fixture
def as_at_the_start() -> Iterator[None]:
    """SIGINT is not caught yet."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, before)
    interrupt.forget()


@pytest.mark.usefixtures("as_at_the_start")
@pytest.mark.parametrize(("comes", "code"), [(True, 130), (False, 70)])
def test_an_error_that_was_made_of_it(
    comes: bool, code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:
    def run(*_: object, **__: object) -> int:
        interrupt.listen()
        try:
            if comes:
                os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            pass
        raise RuntimeError("a module that is only half there")

    monkeypatch.setattr(command.cli, "main", run)
    assert command.main(["run"]) == code
    assert ("half there" in capfd.readouterr().err) is not comes


@pytest.mark.usefixtures("as_at_the_start")
def test_one_that_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is begun after it."""
    from wasmckpt.cli.attend import Plan, attend

    interrupt.listen()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        attend(lambda hooks: pytest.fail("it was begun"), Plan("absent"))
    interrupt.forget()

    def begun(_: object) -> Job:
        raise UsageError("it was begun")

    with pytest.raises(UsageError, match="begun"):
        attend(begun, Plan("absent"))
