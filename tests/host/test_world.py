"""The world outside is not what it was: each a clear error that harms nobody, or the program goes on; and two lives."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from wasmckpt import Job, WasiConfig
from wasmckpt.errors import HostStateError, JobEnded

from ..cli.conftest import wait_for
from ..support.tiers import by_tier
from .guests import ECHO, LOGGER, assemble, i32

pytestmark = pytest.mark.slow

LETTERS = b"abcdefghijklmnopqrstuvwxyz"


def letters(n: int) -> bytes:
    return (LETTERS * (n // 26 + 1))[:n]


@contextmanager
def logger(folder: Path, n: int, seed: int | None = None) -> Iterator[tuple[Job, Callable[[], bytes]]]:
    """The program, and what it has written to standard output."""
    with tempfile.TemporaryFile() as output:
        config = WasiConfig(preopens=[(folder, "/g")], stdout=output.fileno(), random_seed=seed)
        with Job.start(assemble(LOGGER), config=config, invoke="run", arguments=i32(n)) as job:
            yield job, lambda: os.pread(output.fileno(), 99, 0)


def restored(image: bytes, folder: Path, runtime: str, output: int, *, accept_changed: bool = False) -> Job:
    config = WasiConfig(preopens=[(folder, "/g")], stdout=output)
    return Job.restore(image, runtime, module=assemble(LOGGER), config=config, accept_changed=accept_changed)


def frozen(folder: Path, n: int, after: int = 10, seed: int | None = None) -> bytes:
    """An image of a program that has written some letters, and has stopped."""
    for _ in range(100):
        with logger(folder, n, seed) as (job, _):
            while not (folder / "log").exists() or (folder / "log").stat().st_size < after:
                time.sleep(0.001)
            with suppress(JobEnded):
                image = job.checkpoint(stop=True).data
                assert image is not None
                return image
        (folder / "log").unlink()  # we stood still for longer than it ran: once more
    raise AssertionError("it always ends before")


@pytest.mark.parametrize("seed", [None, 5])
def test_two_processes_from_one_image_at_once(tmp_path: Path, seed: int | None) -> None:
    """Each in a copy of the folder: the same rest of the file; other random numbers, or the same where seeded."""
    n = by_tier(check=60, test=200, soak=1000)
    (tmp_path / "a").mkdir()
    image = frozen(tmp_path / "a", n, seed=seed)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    randoms = []
    with tempfile.TemporaryFile() as one, tempfile.TemporaryFile() as two:
        with (
            restored(image, tmp_path / "a", "wasmtime", one.fileno()) as first,
            restored(image, tmp_path / "b", "wasm3", two.fileno()) as second,
        ):
            assert first.wait(120).results[0].bits == second.wait(120).results[0].bits == n
        for output in (one, two):
            output.seek(0)
            randoms.append(output.read())
    assert (tmp_path / "a" / "log").read_bytes() == (tmp_path / "b" / "log").read_bytes() == letters(n)
    assert (randoms[0] == randoms[1]) is (seed is not None)
    assert [len(drawn) for drawn in randoms] == [8, 8]


def test_two_processes_from_one_image_in_one_folder(tmp_path: Path) -> None:
    """Both append to one file: no letter is lost."""
    n = by_tier(check=60, test=200, soak=1000)
    image = frozen(tmp_path, n)
    already = (tmp_path / "log").stat().st_size
    null = os.open(os.devnull, os.O_RDWR)
    with (
        restored(image, tmp_path, "wasmtime", null) as first,
        # The first one may have written already, which is a changed file.
        restored(image, tmp_path, "wasm3", null, accept_changed=True) as second,
    ):
        first.wait(120)
        second.wait(120)
    os.close(null)
    assert sorted((tmp_path / "log").read_bytes()) == sorted(letters(n) + letters(n)[already:])


def truncate(folder: Path) -> None:
    os.truncate(folder / "log", 3)


def change(folder: Path) -> None:
    size = (folder / "log").stat().st_size
    (folder / "log").write_bytes(b"z" * size)


def lengthen(folder: Path) -> None:
    with open(folder / "log", "ab") as log:
        log.write(b"more")


def remove(folder: Path) -> None:
    (folder / "log").unlink()


def put_a_folder(folder: Path) -> None:
    remove(folder)
    (folder / "log").mkdir()


def put_a_link(folder: Path) -> None:
    (folder / "log").rename(folder.parent / "log")
    (folder / "log").symlink_to("../log")


def put_a_loop(folder: Path) -> None:
    remove(folder)
    (folder / "log").symlink_to("log")


def put_a_pipe(folder: Path) -> None:
    remove(folder)
    os.mkfifo(folder / "log")


@pytest.mark.parametrize(
    ("spoil", "said", "can_be_accepted"),
    [
        (truncate, "truncated", True), (change, "changed", True), (lengthen, "changed", True),
        (remove, "missing", False), (put_a_folder, "cannot be opened", False), (put_a_link, "cannot be opened", False),
        (put_a_loop, "cannot be opened", False), (put_a_pipe, "another file type", False),
    ],
)
def test_the_file_behind_a_descriptor(
    tmp_path: Path, spoil: Callable[[Path], None], said: str, can_be_accepted: bool
) -> None:
    folder = tmp_path / "g"
    folder.mkdir()
    image = frozen(folder, 30)
    good = (folder / "log").read_bytes()
    spoil(folder)
    null = os.open(os.devnull, os.O_RDWR)
    with pytest.raises(HostStateError, match=said) as error:
        restored(image, folder, "wasm3", null)
    assert error.value.fields["path"] == "/g/log"
    if can_be_accepted:
        with restored(image, folder, "wasm3", null, accept_changed=True) as job:
            job.wait(120)
        return_to = folder / "log"
        assert return_to.stat().st_size > 3
    for path in (folder / "log", tmp_path / "log"):
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    (folder / "log").write_bytes(good)
    with restored(image, folder, "wasm3", null) as job:
        assert job.wait(120).results[0].bits == 30
    os.close(null)
    assert (folder / "log").read_bytes() == letters(30)


def test_a_preopen_that_is_gone(tmp_path: Path) -> None:
    """Not granted, or not there: said before anything runs. The twin with the folder goes on."""
    folder = tmp_path / "g"
    folder.mkdir()
    image = frozen(folder, 30)
    with pytest.raises(HostStateError, match="not granted here"):
        Job.restore(image, module=assemble(LOGGER))
    folder.rename(tmp_path / "elsewhere")
    null = os.open(os.devnull, os.O_RDWR)
    with pytest.raises(HostStateError, match="cannot be opened"):
        restored(image, folder, "wasmtime", null)
    with restored(image, tmp_path / "elsewhere", "wasmtime", null) as job:
        assert job.wait(120).results[0].bits == 30
    os.close(null)


@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_a_folder_that_goes_while_the_program_runs(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move then fails at the target, and the program goes on where it was, in the folder that it still holds."""
    monkeypatch.setenv("WASMCKPT_SNAPSHOT", way)
    folder = tmp_path / "g"
    folder.mkdir()
    n = 3000  # six seconds at least
    with logger(folder, n) as (job, output):
        while not (folder / "log").exists():
            time.sleep(0.001)
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(HostStateError):
            job.migrate("wasm3")
        assert job.status() == "running"
        assert job.wait(120).results[0].bits == n
        assert len(output()) == 8
    assert (tmp_path / "elsewhere" / "log").read_bytes() == letters(n)


class Input:
    """A kind of standard input, to which a test may write while the program reads."""

    def __init__(self, kind: str) -> None:
        self.fds: list[int] = []
        self.write = -1
        if kind == "terminal":
            self.write, self.read = os.openpty()
            self.fds = [self.write, self.read]
        elif kind == "pipe":
            self.read, self.write = os.pipe()
            self.fds = [self.write, self.read]
        elif kind == "file":
            self.read = os.memfd_create("input")
            os.pwrite(self.read, b"abc\n", 0)
            self.fds = [self.read]
        else:
            self.read = os.open(os.devnull, os.O_RDWR)
            self.fds = [self.read]

    def say(self, text: bytes, *, end: bool = False) -> None:
        if self.write >= 0:
            os.write(self.write, text + (b"\x04" if end and os.isatty(self.read) else b""))
            if end and not os.isatty(self.read):
                os.close(self.write)
                self.fds.remove(self.write)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


@pytest.mark.parametrize("first", ["terminal", "pipe"])
@pytest.mark.parametrize("then", ["terminal", "pipe", "file", "null"])
def test_a_terminal_that_is_not_one(first: str, then: str) -> None:
    """What was read before is not read again; what comes after comes from whatever the target has."""
    before, after = Input(first), Input(then)
    try:
        with tempfile.TemporaryFile() as output:
            config = WasiConfig(stdin=before.read, stdout=output.fileno())
            with Job.start(assemble(ECHO), config=config, invoke="run") as job:
                before.say(b"one\n")
                while os.fstat(output.fileno()).st_size < 4:
                    time.sleep(0.001)
                image = job.checkpoint(stop=True).data
            assert image is not None
            config = WasiConfig(stdin=after.read, stdout=output.fileno())
            with Job.restore(image, "wasm3", module=assemble(ECHO), config=config) as job:
                after.say(b"two\n", end=True)
                said = {"file": b"abc\n", "null": b""}.get(then, b"two\n")
                assert job.wait(120).results[0].bits == 4 + len(said)
            output.seek(0)
            assert output.read() == b"one\n" + said
    finally:
        before.close()
        after.close()


def test_moves_while_standard_input_comes_and_output_goes() -> None:
    """Each byte once, over many moves."""
    moves = by_tier(check=2, test=8, soak=1000)
    source, sink = Input("pipe"), os.memfd_create("output")
    over = threading.Event()
    said: list[bytes] = []

    def feed() -> None:
        while not over.wait(0.004):
            said.append(b"%d\n" % len(said) * 5)
            source.say(said[-1])
        source.say(b"end", end=True)

    try:
        config = WasiConfig(stdin=source.read, stdout=sink)
        with Job.start(assemble(ECHO), config=config, invoke="run") as job:
            thread = threading.Thread(target=feed)
            thread.start()
            try:
                for number in range(moves):
                    wait_for(lambda: len(said) > 10 * (number + 1), "something to be said")  # noqa: B023
                    job.migrate(["wasm3", "wasmtime"][number % 2])
            finally:
                over.set()
                thread.join()
            text = b"".join(said) + b"end"
            assert job.wait(120).results[0].bits == len(text)
        assert os.pread(sink, len(text) + 1, 0) == text
    finally:
        source.close()
        os.close(sink)
