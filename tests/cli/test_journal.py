"""``run --journal`` and what ``restore`` makes of it, as processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from .conftest import Cli, Module, Spawn, wait_for
from .programs import talk, talk_output
from .test_json import check, last_line

OUTPUT = talk_output(20, 20).decode()


def killed(command: subprocess.Popen[bytes], out: Path, size: int) -> None:
    """Kill it when it has written so much; its worker dies with it."""
    wait_for(lambda: out.exists() and out.stat().st_size >= size, "output")
    os.kill(command.pid, signal.SIGKILL)
    command.wait()


@pytest.mark.slow
@pytest.mark.parametrize("store", [False, True])
def test_killed_and_restored(cli: Cli, module: Module, spawn: Spawn, tmp_path: Path, store: bool) -> None:
    """The whole command, with an image each 30 ms: what came out before and after is what comes out of one run."""
    path = module(talk(3000, 400_000))
    place = ["--store", "s", "--name", "j"] if store else ["-o", "i.wckpt"]
    again = ["j", "--store", "s"] if store else ["i.wckpt", "--module", path]
    parts = []
    for life, command in enumerate((["run", "--journal", *place, path], ["restore", *again, "--runtime", "wasm3"])):
        out = tmp_path / f"out{life}"
        with open(out, "wb") as stdout:
            killed(spawn(*command, "--checkpoint-every", "30ms", stdout=stdout), out, 300)
        parts.append(out)
    done = cli("restore", *again)
    assert done.code == 0, done.err
    assert "going on from the journal" in done.err
    assert "not written again" in done.err
    assert b"".join(part.read_bytes() for part in parts).decode() + done.out == talk_output(3000, 400_000).decode()
    ended = cli("restore", *again)  # of a program that has ended: it ends again, and says nothing
    assert (ended.code, ended.out) == (0, "")


def test_views_of_a_journal(cli: Cli, module: Module) -> None:
    path = module(talk(20, 20))
    assert cli("run", "--journal", "-o", "i.wckpt", path).out == OUTPUT
    found = check("journal", cli("inspect", "i.wckpt.journal", "--json").out)
    assert found["output"] == len(OUTPUT)
    assert (found["lives"], found["calls_before"], found["in_doubt"]) == (1, 0, False)
    assert "not written again" in cli("inspect", "i.wckpt.journal").out
    assert "good" in cli("verify", "i.wckpt.journal").out
    check("verify", cli("verify", "i.wckpt.journal", "--json").out)
    Path("i.wckpt.journal").write_bytes(Path("i.wckpt.journal").read_bytes()[:-3])
    assert "torn" in cli("inspect", "i.wckpt.journal").out


@pytest.mark.slow
def test_without_and_with_one_anew(cli: Cli, module: Module) -> None:
    """``--no-journal`` repeats; an image that never had a journal does not take one that lies there; ``restore
    --journal`` begins one."""
    path = module(talk(20, 20))
    assert cli("run", "--journal", "-o", "i.wckpt", path).code == 0
    done = cli("restore", "--no-journal", "i.wckpt", "--module", path)
    assert (done.code, done.out) == (0, OUTPUT)
    assert cli("run", "--checkpoint-at", 100, "--stop", "-o", "i.wckpt", path).code == 0
    done = cli("restore", "i.wckpt", "--module", path)
    assert done.code == 0
    assert "not the journal of this image" in done.err
    done = cli("restore", "--journal", "i.wckpt", "--module", path)
    assert done.code == 65
    assert "taken without one" in done.err
    Path("i.wckpt.journal").unlink()
    rest = cli("restore", "--journal", "i.wckpt", "--module", path).out
    again = cli("restore", "i.wckpt", "--module", path)
    assert (again.code, again.out) == (0, "")
    assert f"{len(rest)} bytes of output not written again" in again.err


@pytest.mark.parametrize(("options", "says"), [
    (["restore", "--journal", "--no-journal", "i", "--module"], "contradict"),
    (["run", "--journal", "--checkpoint-at", "3"], "--checkpoint-at"),
])
def test_what_makes_no_sense(cli: Cli, module: Module, options: list[str], says: str) -> None:
    Path("i").write_bytes(b"")
    done = cli(*options, module(talk(1, 1)))
    assert done.code == 64
    assert says in done.err


@pytest.mark.slow
def test_json_of_a_restored_one(cli: Cli, module: Module) -> None:
    path = module(talk(5, 5))
    cli("run", "--journal", "-o", "i.wckpt", path)
    ended = check("run", last_line(cli("restore", "i.wckpt", "--module", path, "--json").out))
    assert (ended["how"], ended["exit_code"]) == ("done", 0)
