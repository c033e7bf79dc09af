"""When images are taken: by what they cost, on signals, when the program waits, before its calls."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from wasmckpt.formats import StopKind, load

from ..support.pairs import BASE, drawn, runtimes_for
from .conftest import PATIENCE, Cli, Module, Spawn, ends_by, wait_for, worker_of
from .programs import CAT, FOREVER, talk, talk_output
from .test_json import check, last_line

ALL = list(dict.fromkeys((*BASE, *(target for _, target in drawn(runtimes_for(), "how often", 1)))))


def lines_of(process: subprocess.Popen[bytes], count: int, *, containing: bytes) -> list[bytes]:
    """The next lines of standard error that contain something."""
    found: list[bytes] = []
    assert process.stderr is not None
    while len(found) < count:
        line = process.stderr.readline()
        assert line, "standard error has ended"
        if containing in line:
            found.append(line)
    return found


@pytest.mark.slow
def test_auto(cli: Cli, module: Module) -> None:
    """Images come, the program does not notice, and the cost is under the bound but for what the last one cost."""
    lines, turns = 6, 400_000_000
    path = module(talk(lines, turns))
    done = cli("run", "--checkpoint-every", "auto", "--overhead", "20%", "--shortest-interval", "50ms", "-o", "i.wckpt",
               "--json", path)
    assert done.code == 0
    ended = check("run", last_line(done.out))
    assert done.out.encode().startswith(talk_output(lines, turns))
    assert ended["checkpoints"] >= 2
    assert 0 < ended["overhead"] < 0.5
    assert " checkpoints cost " in done.err
    rest = cli("restore", "--module", path, "i.wckpt", "--checkpoint-every", "auto", "--overhead", "20%")
    assert talk_output(lines, turns).endswith(rest.out.encode())


@pytest.mark.slow
def test_auto_says_when_the_bound_cannot_be_kept(spawn: Spawn, module: Module) -> None:
    process = spawn("run", "--checkpoint-every", "auto", "--overhead", "0.001%", "--shortest-interval", "10ms",
                    "--longest-interval", "10ms", "-o", "i.wckpt", module(FOREVER))
    (line,) = lines_of(process, 1, containing=b"costs")
    assert b"more than the overhead allows in the longest interval" in line
    lines_of(process, 2, containing=b"checkpoint i.wckpt")
    assert ends_by(process, signal.SIGTERM) == 143


@pytest.mark.slow
def test_auto_with_a_store_and_requests_of_others(spawn: Spawn, cli: Cli, module: Module) -> None:
    """Images of a store are differences; one that another terminal asks for is one more."""
    process = spawn("run", "--checkpoint-every", "auto", "--overhead", "50%", "--shortest-interval", "100ms", "--store",
                    "s", "--name", "j1", module(FOREVER))
    lines_of(process, 1, containing=b"checkpoint 2 of j1")
    assert cli("checkpoint", "j1").code == 0
    assert ends_by(process, signal.SIGINT) == 130
    images = json.loads(cli("store", "ls", "s", "--json").out)
    assert len(images) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ALL)
def test_a_signal_that_ends_it_with_an_image(spawn: Spawn, cli: Cli, module: Module, runtime: str) -> None:
    """What a machine that is taken away sends: the image is whole, the exit code says that all is well."""
    path = module(talk(20_000, 50_000))
    process = spawn("run", "--runtime", runtime, "--on-signal", "TERM", "--stop", "-o", "i.wckpt", path,
                    bufsize=0)
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert err.startswith(b"wasmckpt: checkpoint i.wckpt: ")
    rest = spawn("restore", "--module", path, "i.wckpt", bufsize=0)
    assert rest.stdout is not None
    so_far = first + out
    assert so_far + rest.stdout.readline() == talk_output(so_far.count(b"\n") + 1, 50_000)
    rest.kill()


@pytest.mark.slow
def test_signals_after_which_it_goes_on(spawn: Spawn, module: Module) -> None:
    """USR2 and Ctrl-C take images here, others are what they were; one that was ignored is heard when it is named."""
    process = spawn("run", "--on-signal", "SIGUSR2", "--on-signal", "int", "-o", "i.wckpt", module(FOREVER),
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    worker_of(process)
    for number in (signal.SIGUSR2, signal.SIGINT, signal.SIGUSR1, signal.SIGINT):
        process.send_signal(number)
        lines_of(process, 1, containing=b"checkpoint i.wckpt")
        assert process.poll() is None
    assert ends_by(process, signal.SIGTERM) == 143


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ALL)
def test_when_it_waits(spawn: Spawn, cli: Cli, module: Module, runtime: str, tmp_path: Path) -> None:
    """An image for each line that it has read and written, none while nothing comes; a kill at such a moment loses
    nothing."""
    path = module(CAT)
    process = spawn("run", "--runtime", runtime, "--on-idle", "--shortest-interval", "10ms", "--overhead", "50%", "-o",
                    "i.wckpt", path, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    lines_of(process, 1, containing=b"checkpoint i.wckpt")
    for line in (b"one\n", b"two\n"):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == line
        lines_of(process, 1, containing=b"checkpoint i.wckpt")
    image = load(tmp_path / "i.wckpt")
    taken = (tmp_path / "i.wckpt").stat()
    assert image.frames[-1].point.kind is StopKind.REPEAT
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert (tmp_path / "i.wckpt").stat() == taken, "nothing has changed, and it waits on"
    process.kill()
    rest = spawn("restore", "--module", path, "i.wckpt", stdin=subprocess.PIPE)
    assert rest.communicate(b"three\n", timeout=PATIENCE)[0] == b"three\n"


@pytest.mark.slow
def test_when_it_waits_after_a_move(spawn: Spawn, cli: Cli, module: Module) -> None:
    """It is watched in its new worker too."""
    process = spawn("run", "--on-idle", "--name", "j1", "--shortest-interval", "10ms", "--overhead", "50%", "-o",
                    "i.wckpt", module(CAT), stdin=subprocess.PIPE)
    assert process.stdin is not None
    lines_of(process, 1, containing=b"checkpoint i.wckpt")
    assert cli("migrate", "j1", "--to", "wasm3").code == 0
    process.stdin.write(b"one\n")
    process.stdin.flush()
    lines_of(process, 1, containing=b"checkpoint i.wckpt")
    wait_for(lambda: load("i.wckpt").producer.runtime == "wasm3", "an image of the new worker")
    assert process.communicate(timeout=PATIENCE)[0] == b"one\n"


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ALL)
def test_before_each_line(cli: Cli, module: Module, runtime: str) -> None:
    """With --stop: each life prints one line and ends before the next; together they print what one life prints."""
    path = module(talk(4, 100))
    first = cli("run", "--runtime", runtime, "--before-host-call", "fd_write", "--stop", "-o", "0.wckpt", path)
    assert (first.code, first.out) == (0, "")
    out = ""
    for number in range(4):
        done = cli("restore", "--runtime", BASE[number % 2], "--module", path, "--before-host-call",
                   "wasi_snapshot_preview1.fd_write", "--stop", "-o", f"{number + 1}.wckpt", f"{number}.wckpt")
        assert (done.code, done.out.count("\n")) == (0, 1)
        out += done.out
    assert out.encode() == talk_output(4, 100)
    assert not Path("4.wckpt").exists()


@pytest.mark.slow
def test_all_at_once(spawn: Spawn, module: Module) -> None:
    """They can be combined: nobody waits for another for ever, and the program does not notice."""
    options = ("--checkpoint-every auto --shortest-interval 50ms --on-idle --on-signal USR2 --checkpoint-here --json "
               "--before-host-call fd_write --before-host-call fd_read -o i.wckpt")
    process = spawn("run", *options.split(), module(CAT), stdin=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    lines_of(process, 1, containing=b"checkpoint")
    for number in range(5):
        process.stdin.write(b"%d\n" % number)
        process.stdin.flush()
        process.send_signal(signal.SIGUSR2)
        assert process.stdout.readline() == b"%d\n" % number
    out, _ = process.communicate(timeout=120)
    ended = check("run", last_line(out.decode()))
    assert (ended["how"], process.returncode) == ("done", 0)
    assert ended["checkpoints"] >= 10, "before each call at least"


@pytest.mark.parametrize(("options", "word"), [
    ("--overhead 5%", "auto"), ("--mtbf 5d", "auto"), ("--longest-interval 5s --checkpoint-every 1s", "auto"),
    ("--checkpoint-every often", "often"), ("--checkpoint-every auto --overhead 0%", "overhead"),
    ("--checkpoint-every auto --overhead 100%", "100%"), ("--checkpoint-every auto --overhead x", "'x'"),
    ("--checkpoint-every auto --shortest-interval 1ms", "10 ms"), ("--checkpoint-every 1ms", "10 ms"),
    ("--checkpoint-every auto --shortest-interval 9s --longest-interval 1s", "longest"),
    ("--checkpoint-every auto --mtbf 0s", "MTBF"), ("--on-signal KILL", "KILL"), ("--on-signal 9", "'9'"),
    ("--on-signal STOP", "STOP"), ("--before-host-call absent", "absent"), ("--before-host-call ''", "imports"),
    ("--before-host-call _start", "_start"), ("--on-idle --checkpoint-at 5", "--checkpoint-at"),
    ("--before-host-call fd_write --checkpoint-at 5", "--checkpoint-at"), ("--stop", "--stop"),
])
def test_refused(cli: Cli, module: Module, options: str, word: str) -> None:
    """Before anything has run, with exit code 64 and a line that says what is wrong."""
    done = cli("run", *(option.strip("'") for option in options.split()), module(talk(2, 2)))
    assert (done.code, done.out) == (64, "")
    assert word in done.err
    assert [path.name for path in Path().iterdir()] == ["program.wasm"]
