"""Images are taken while a program runs, and it goes on from them elsewhere: with the output of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from wasmckpt.formats import load

from .conftest import PATIENCE, Cli, Module, Spawn, alive, ends_by, first_steps, wait_for, worker_of
from .programs import CAT, COUNT, FOREVER, count_result, talk, talk_output

LINES, TURNS = 6, 180_000_000  # more than two seconds on wasmtime: a command that stands still for one finds it running
PAIRS = [("wasmtime", "wasmtime"), ("wasmtime", "wasm3"), ("wasm3", "wasmtime")]


@pytest.mark.parametrize(("origin", "target"), PAIRS)
def test_stop_and_restore(cli: Cli, module: Module, origin: str, target: str) -> None:
    """One image, carried module, no other file: the two outputs together are the undisturbed one."""
    path = module(talk(20, 20_000))
    first = cli("run", "--runtime", origin, "--checkpoint-at", 100_003, "--stop", "--carry-module", "-o", "i.wckpt",
                path)
    assert first.code == 0
    assert first.err.startswith("wasmckpt: checkpoint i.wckpt: ")
    path.unlink()
    second = cli("restore", "--runtime", target, "i.wckpt")
    assert (second.code, second.err) == (0, "")
    assert (first.out + second.out).encode() == talk_output(20, 20_000)
    assert 0 < first.out.count("\n") < 20


def test_a_restored_program_is_frozen_again(cli: Cli, module: Module) -> None:
    path = module(talk(12, 1000))
    out = cli("run", "--checkpoint-at", 500, "--stop", "-o", "0.wckpt", path).out
    for i in range(6):
        done = cli("restore", "--runtime", ("wasm3", "wasmtime")[i % 2], "--module", path, "--checkpoint-at", 400,
                   "--stop", "-o", f"{i + 1}.wckpt", f"{i}.wckpt")
        assert done.code == 0
        out += done.out
    out += cli("restore", "--module", path, "6.wckpt").out
    assert out.encode() == talk_output(12, 1000)
    assert os.path.getsize("6.wckpt") < os.path.getsize("1.wckpt") + 64, "images do not grow with the number of moves"


def test_results_of_an_invoked_export(cli: Cli, module: Module) -> None:
    path = module(COUNT)
    stopped = cli("run", "--checkpoint-at", 100, "--stop", "-o", "i.wckpt", "--invoke", "run", path, "1000")
    assert (stopped.code, stopped.out) == (0, "")
    done = cli("restore", "--runtime", "wasm3", "--module", path, "i.wckpt")
    assert done == (0, f"{count_result(1000)}\n", "")


@pytest.mark.slow
def test_an_image_every_so_often(cli: Cli, module: Module) -> None:
    """The program does not notice, and each image goes on right."""
    path = module(talk(LINES, TURNS))
    done = cli("run", "--checkpoint-every", "50ms", "-o", "i.wckpt", path)
    assert (done.code, done.out.encode()) == (0, talk_output(LINES, TURNS))
    assert done.err.count("wasmckpt: checkpoint i.wckpt") >= 2
    rest = cli("restore", "--module", path, "i.wckpt")
    assert talk_output(LINES, TURNS).endswith(rest.out.encode())


@pytest.mark.slow
def test_images_that_are_wanted_faster_than_they_can_be_written(
    cli: Cli, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest wins, the others are counted, and the program does not wait for the disk."""
    monkeypatch.setenv("WASMCKPT_SLOW", "image.write:0.4")
    path = module(talk(LINES, TURNS))
    done = cli("run", "--checkpoint-every", "20ms", "-o", "i.wckpt", "--json", path)
    output = talk_output(LINES, TURNS).decode()
    assert done.code == 0
    assert done.out.startswith(output)
    told = json.loads(done.out[len(output):])
    times = told["checkpoint_times"]
    assert told["checkpoints"] == done.err.count("wasmckpt: checkpoint i.wckpt") > 0
    assert times["dropped"] >= told["checkpoints"]
    assert f"{times['dropped']} checkpoints dropped for newer ones" in done.err
    assert times["writing"] / 4 > times["stopped"] > 0
    assert times["queued"] > 0
    rest = cli("restore", "--module", path, "i.wckpt")
    assert talk_output(LINES, TURNS).endswith(rest.out.encode())


def test_ended_before_the_checkpoint(cli: Cli, module: Module) -> None:
    done = cli("run", "--checkpoint-after", "1h", "--stop", "-o", "i.wckpt", module(talk(1, 1)))
    assert done == (0, talk_output(1, 1).decode(), "wasmckpt: the program ended before a checkpoint was taken\n")
    assert not Path("i.wckpt").exists()


@pytest.mark.slow
def test_moves(cli: Cli, module: Module) -> None:
    """There and back while it computes."""
    lines, turns = 6, 400_000_000  # seconds on wasmtime, a minute on Wasm3: it cannot end there
    path = module(talk(lines, turns))
    done = cli("migrate", path, "--from", "wasmtime", "--to", "wasm3", "--after", "100ms", "--back-after", "50ms",
               "--json")
    out, _, report = done.out.partition("\n{")
    assert (done.code, out.encode()) == (0, talk_output(lines, turns))
    assert done.err.count("wasmckpt: moved ") == 2
    assert [(m["source"], m["target"]) for m in json.loads("{" + report)["moves"]] == [
        ("wasmtime", "wasm3"), ("wasm3", "wasmtime"),
    ]


def test_a_move_too_late(cli: Cli, module: Module) -> None:
    done = cli("migrate", module(talk(1, 1)), "--from", "wasm3", "--to", "wasmtime", "--after", "1h")
    assert done == (0, talk_output(1, 1).decode(), "wasmckpt: the program ended before the move to wasmtime\n")


def test_standard_input_moves_along(spawn: Spawn, module: Module, tmp_path: Path) -> None:
    """A program that waits for input is moved while it waits; what was read is not read again, and nothing is lost."""
    process = spawn("migrate", module(CAT), "--from", "wasmtime", "--to", "wasm3", "--to", "wasmtime",
                    "--after", "150ms", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    os.set_blocking(process.stdout.fileno(), True)
    process.stdin.write(b"before\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"before\n"
    assert process.stderr.readline().startswith(b"wasmckpt: moved wasmtime -> wasm3")
    process.stdin.write(b"between\n")
    process.stdin.flush()
    assert process.stderr.readline().startswith(b"wasmckpt: moved wasm3 -> wasmtime")
    out, _ = process.communicate(b"after\n", timeout=PATIENCE)
    assert out == b"between\nafter\n"
    assert process.returncode == 0


def test_usr1_takes_an_image_and_the_program_goes_on(spawn: Spawn, cli: Cli, module: Module) -> None:
    process = spawn("run", module(FOREVER))
    worker_of(process)
    for _ in range(2):
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"wasmckpt: checkpoint program.wckpt: ")
    assert process.poll() is None
    assert cli("verify", "program.wckpt", "--module", "program.wasm").code == 0
    assert ends_by(process, signal.SIGTERM) == 143


def test_by_name_from_another_terminal(spawn: Spawn, cli: Cli, module: Module, tmp_path: Path) -> None:
    path = module(FOREVER)
    process = spawn("run", "--name", "j1", path)
    wait_for(lambda: cli("ps").out.count("running"), "the job in the list")
    folder = tmp_path / "wasmckpt"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "j1.sock").stat().st_mode & 0o777 == 0o600
    listed = json.loads(cli("ps", "--json").out)
    assert [(row["name"], row["state"], row["what"]) for row in listed] == [("j1", "running", "program.wasm")]
    again = cli("run", "--name", "j1", module(talk(1, 1), "talk.wasm"))
    assert (again.code, again.out) == (64, ""), "the name is taken: nothing may have run"
    assert cli("checkpoint", "j1", "-o", "a.wckpt").err.startswith("wasmckpt: checkpoint a.wckpt: ")
    stopped = cli("checkpoint", "j1", "--json", "--stop", "-o", "b.wckpt", "--carry-module")
    taken = json.loads(stopped.out)
    assert stopped.code == 0, stopped.err
    assert taken["size"] == os.path.getsize("b.wckpt")
    assert load("b.wckpt").module.content == path.read_bytes()
    assert process.wait(PATIENCE) == 0
    assert not folder.exists()
    assert cli("checkpoint", "j1").code == 64


def test_moved_by_name_while_it_waits_for_input(spawn: Spawn, cli: Cli, module: Module) -> None:
    """There and back from another terminal; nothing that was written to it is lost or comes twice."""
    process = spawn("run", "--name", "j1", module(CAT), stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    for word, target in ((b"one\n", "wasm3"), (b"two\n", "wasmtime"), (b"three\n", "wasmtime")):
        process.stdin.write(word)
        process.stdin.flush()
        assert process.stdout.readline() == word
        done = cli("migrate", "j1", "--to", target)
        assert (done.code, done.out) == (0, ""), done.err
        assert f"-> {target}: stopped " in done.err
    out, err = process.communicate(b"four\n", timeout=PATIENCE)
    assert (process.returncode, out, err) == (0, b"four\n", b"")
    assert cli("migrate", "j1", "--to", "wasm3").code == 64, "it has ended"


@pytest.mark.slow
def test_a_refused_move_by_name_harms_nothing(spawn: Spawn, cli: Cli, module: Module) -> None:
    """The runtime cannot run it: the asker is told, the program does not notice. The twin may move."""
    process = spawn("run", "--name", "j1", module(FOREVER.replace("(loop", "(drop (i32x4.splat (i32.const 1))) (loop")))
    wait_for(lambda: "running" in cli("ps").out, "the job in the list")
    done = cli("migrate", "j1", "--to", "wasm3")
    assert (done.code, done.out) == (69, "")
    assert "wasm3 cannot run this module: it uses" in done.err
    assert [row["runtime"] for row in json.loads(cli("ps", "--json").out)] == ["wasmtime"]
    assert cli("migrate", "j1", "--to", "wasmtime").code == 0
    assert ends_by(process, signal.SIGTERM) == 143
    assert process.communicate() == (b"", b"")


def test_a_signal_that_comes_too_early_is_kept(spawn: Spawn, module: Module, tmp_path: Path) -> None:
    """It comes while Python still imports: it must not end the program, and the image is taken when it runs."""
    process = spawn("run", module(FOREVER))
    first_steps(process)
    process.send_signal(signal.SIGUSR1)
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"wasmckpt: checkpoint program.wckpt: ")
    assert ends_by(process, signal.SIGTERM) == 143


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["checkpoint j1 -o a.wckpt", "migrate j1 --to wasm3"])
def test_an_end_while_another_terminal_waits(
    spawn: Spawn, cli: Cli, module: Module, tmp_path: Path, asked: str,
) -> None:
    """Ctrl-C ends the program at once; whoever has asked is told, and nothing is left."""
    process = spawn("run", "--name", "j1", module(FOREVER))
    wait_for(lambda: "running" in cli("ps").out, "the job in the list")
    os.kill(worker_of(process), signal.SIGSTOP)
    asking = spawn(*asked.split())
    descriptors = Path(f"/proc/{asking.pid}/fd")
    wait_for(lambda: any(fd.is_socket() for fd in descriptors.iterdir()), "its question")
    with pytest.raises(subprocess.TimeoutExpired):
        asking.wait(0.5)
    assert ends_by(process, signal.SIGINT) == 130
    _, err = asking.communicate(timeout=PATIENCE)
    assert asking.returncode in (70, 75)
    assert err.startswith(b"wasmckpt: error: ")
    assert sorted(os.listdir(tmp_path)) == ["program.wasm"]


@pytest.mark.slow
def test_nonsense_on_the_socket_harms_nothing(spawn: Spawn, cli: Cli, module: Module, tmp_path: Path) -> None:
    process = spawn("run", "--name", "j1", module(FOREVER))
    wait_for(lambda: "running" in cli("ps").out, "the job in the list")
    requests = [{}, {"do": "checkpoint"}, {"do": "migrate", "runtime": 7}, {"do": "dance"}, [1], "x", None]
    packed = [msgpack.packb(request) for request in requests]
    messages = [len(body).to_bytes(4, "little") + body for body in packed]
    for raw in [*messages, b"", b"GET / HTTP/1.0\r\n\r\n", b"\x05\0\0\0\xc1\xc1\xc1\xc1\xc1", b"\x05\0\0"]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(tmp_path / "wasmckpt" / "j1.sock"))
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(1 << 16)
            assert b"error" in answer or raw not in messages
    assert cli("checkpoint", "j1").code == 0
    assert ends_by(process, signal.SIGTERM) == 143
    assert process.communicate() == (b"", b"")


@pytest.mark.slow
def test_the_pid_that_ps_shows_takes_signals(spawn: Spawn, cli: Cli, module: Module) -> None:
    process = spawn("run", "--name", "j1", module(FOREVER))
    wait_for(lambda: "running" in cli("ps").out, "the job in the list")
    pid = json.loads(cli("ps", "--json").out)[0]["pid"]
    assert cli("ps").out.splitlines()[1].split()[:2] == ["j1", str(pid)]
    os.kill(pid, signal.SIGUSR1)
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"wasmckpt: checkpoint j1.wckpt: ")
    os.kill(pid, signal.SIGTERM)
    assert process.wait(PATIENCE) == 143


@pytest.mark.slow
def test_an_asker_that_is_interrupted_leaves_the_program_alone(spawn: Spawn, cli: Cli, module: Module) -> None:
    """It is interrupted while it waits for a worker that stands still."""
    process = spawn("run", "--name", "j1", module(FOREVER))
    wait_for(lambda: "running" in cli("ps").out, "the job in the list")
    worker = worker_of(process)
    os.kill(worker, signal.SIGSTOP)
    try:
        asking = spawn("checkpoint", "j1", "-o", "a.wckpt")
        descriptors = Path(f"/proc/{asking.pid}/fd")
        wait_for(lambda: any(fd.is_socket() for fd in descriptors.iterdir()), "its question")
        assert ends_by(asking, signal.SIGINT) == 130
    finally:
        os.kill(worker, signal.SIGCONT)
    assert cli("checkpoint", "j1", "-o", "b.wckpt").code == 0
    assert ends_by(process, signal.SIGTERM) == 143
    assert process.communicate() == (b"", b"")


def test_what_a_killed_process_leaves_is_cleared_away(spawn: Spawn, cli: Cli, module: Module, tmp_path: Path) -> None:
    process = spawn("run", "--name", "j1", module(FOREVER))
    wait_for(lambda: cli("ps").out.count("running"), "the job in the list")
    worker = worker_of(process)
    process.kill()
    process.wait()
    wait_for(lambda: not alive(worker), "the worker's end")
    assert (tmp_path / "wasmckpt" / "j1.sock").exists()
    assert cli("ps", "--json").out.strip() == "[]"
    assert not (tmp_path / "wasmckpt" / "j1.sock").exists()


def test_two_terminals_at_once(spawn: Spawn, module: Module, tmp_path: Path) -> None:
    """Both get their image; neither disturbs the other or the program."""
    process = spawn("run", "--name", "j1", "--checkpoint-every", "20ms", "-o", "every.wckpt", module(FOREVER))
    worker_of(process)
    wait_for(lambda: (tmp_path / "every.wckpt").exists(), "the first image")
    asking = [spawn("checkpoint", "j1", "-o", f"{i}.wckpt") for i in range(3)]
    for one in asking:
        _, err = one.communicate(timeout=PATIENCE)
        assert (one.returncode, err.count(b"\n")) == (0, 1), err
    for i in range(3):
        assert len(load(tmp_path / f"{i}.wckpt").frames) == 1
    assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE) == 143


ASKS = """(module
  (import "wasmckpt" "checkpoint_here" (func $here (result i32)))
  (func (export "run") (result i32)
    (i32.add (i32.mul (call $here) (i32.const 10)) (call $here))))"""
"""Asks for two checkpoints; gives both answers: 0 the same life, 1 a restored one, -1 none could be taken."""


def test_the_program_asks(cli: Cli, module: Module) -> None:
    path = module(ASKS)
    done = cli("run", path, "--invoke", "run", "--checkpoint-here", "-o", "i.wckpt")
    assert (done.code, done.out) == (0, "0\n")
    assert done.err.count("wasmckpt: checkpoint i.wckpt: ") == 2
    assert cli("restore", "--module", path, "i.wckpt").out == "1\n", "it was the second one"
    done = cli("run", path, "--invoke", "run", "--checkpoint-here", "--stop", "-o", "i.wckpt", "--json")
    assert json.loads(done.out)["how"] == "stopped"
    done = cli("restore", "--module", path, "--runtime", "wasm3", "--checkpoint-here", "-o", "j.wckpt", "i.wckpt")
    assert (done.code, done.out) == (0, "10\n")
    assert cli("run", path, "--invoke", "run") == (0, "0\n", ""), "nobody wants one"
    assert not Path("program.wckpt").exists()


def test_the_program_is_told_that_it_could_not_be(cli: Cli, module: Module) -> None:
    path = module(ASKS)
    os.mkfifo("i.wckpt")
    done = cli("run", path, "--invoke", "run", "--checkpoint-here", "-o", "i.wckpt")
    assert (done.code, done.out) == (73, "-11\n"), "it went on"
    assert done.err.count("wasmckpt: error: the image cannot be written") == 2
