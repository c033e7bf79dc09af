"""What is not a kill at a random moment: other streams, waits, functions of the user's, moves, bad journals."""

from __future__ import annotations

import os
import pty
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wasmckpt import Call, Job, JournalOptions, UserFunction, WasiConfig
from wasmckpt.errors import (
    HostStateError,
    ImageError,
    RetryLater,
    StorageError,
    UsageError,
    WorkerDied,
)
from wasmckpt.host.journal.file import read_journal

from ..cli.programs import wat
from ..support.pairs import BASE
from .harness import INPUT, Story, guest
from .rewriting import without_call

pytestmark = pytest.mark.slow

ASKS = """(module
  (import "env" "next" (func $next (param i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (global $shouts (mut i32) (i32.const 0))
  (func (export "shout") (param i32) (result i32)
    (global.set $shouts (i32.add (global.get $shouts) (i32.const 1)))
    (i32.add (local.get 0) (global.get $shouts)))
  (func (export "_start") (local $i i32)
    (loop $again
      (i32.store (i32.const 64) (i32.add (i32.const 0x0a202030) (call $next (local.get $i))))
      (i32.store (i32.const 0) (i32.const 64))
      (i32.store (i32.const 4) (i32.const 4))
      (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))
      (br_if $again (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 9))))))"""
"""Writes what ``next(0)`` ... ``next(8)`` give, each as a digit."""


def killed(job: Job) -> None:
    os.kill(job.pid, 9)
    with pytest.raises(WorkerDied):
        job.wait()
    job.close()


def until(what: Callable[[], bool], job: Job) -> None:
    end = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end
        assert not job.ended
        time.sleep(0.001)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


# Functions of the user's


def _asking(folder: Path, pipe: tuple[int, int], function: UserFunction, runtime: str, **options: Any) -> Job:
    image = folder / "i.wckpt"
    journal = JournalOptions.beside(image, **options)
    given: dict[str, Any] = {
        "config": WasiConfig(stdout=pipe[1]), "host_functions": {("env", "next"): function}, "journal": journal,
    }
    module = wat(ASKS)
    return Job.restore(image, runtime, module=module, **given) if image.exists() else Job.start(
        module, runtime, **given)


@pytest.mark.parametrize("freeze", ["atomic", "repeatable"])
def test_functions_of_the_users_are_not_called_again(tmp_path: Path, pipe: tuple[int, int], freeze: Any) -> None:
    """Those that had returned are answered from the journal, an export that they called is called again."""
    made: list[int] = []
    stands, go_on = threading.Event(), threading.Event()

    def answer(call: Call, i: int) -> int:
        if i == 5 and not go_on.is_set():
            stands.set()
            go_on.wait(120)
        made.append(i)
        return call.call_export("shout", i)[0] if freeze == "atomic" else i

    function = UserFunction("i32 -> i32", answer, freeze=freeze)
    job = _asking(tmp_path, pipe, function, BASE[0])
    assert stands.wait(120)
    killed(job)
    go_on.set()
    if freeze == "atomic":
        with pytest.raises(HostStateError, match=r"host function env\.next was under way when .* repeat it") as told:
            _asking(tmp_path, pipe, function, BASE[1])
        assert told.value.exit_code == 66
    again = _asking(tmp_path, pipe, function, BASE[1], in_doubt="repeat")
    assert again.replay is not None
    assert (again.replay.calls, again.replay.suppressed) == (10, 20)
    again.wait()
    again.close()
    assert [i for i in made if i != 5] == [0, 1, 2, 3, 4, 6, 7, 8]
    expected = [2 * i + 1 if freeze == "atomic" else i for i in range(9)]
    assert [byte - 0x30 for byte in os.read(pipe[0], 1000)[::4]] == expected


# Streams and sleeps


@pytest.mark.parametrize("how", ["terminal", "file", "appending", "null"])
def test_other_kinds_of_output(tmp_path: Path, how: str) -> None:
    story = Story(tmp_path, 3, turns=12)
    path = tmp_path / "stdout"
    path.touch()
    controller, terminal = pty.openpty()
    story_write = story._write
    target = {
        "terminal": terminal, "file": os.open(path, os.O_WRONLY), "appending": os.open(path, os.O_WRONLY | os.O_APPEND),
        "null": os.open("/dev/null", os.O_WRONLY),
    }[how]
    story._write = target
    os.set_blocking(controller, False)
    shown = b""

    def look() -> bool:
        nonlocal shown
        if how == "terminal":
            try:
                shown += os.read(controller, 65536)
            except BlockingIOError:
                pass
        return True

    job = story.start(BASE[0])
    output = story.folder / "output"
    until(lambda: look() and output.exists() and output.stat().st_size > 200, job)
    killed(job)
    job = story.restore(BASE[1])
    story.all.set()
    while not job.ended:
        look()
        time.sleep(0.001)
    assert job.wait().exit_code == 7
    job.close()
    look()
    story.out = output.read_bytes()
    if how == "terminal":
        assert shown.replace(b"\r\n", b"\n") == story.out
    elif how != "null":
        assert path.read_bytes() == story.out
    story.check(job.wait())
    os.close(target)
    story._write = story_write
    os.close(controller)
    if how != "terminal":
        os.close(terminal)
    story.close()


def test_killed_while_it_waits(tmp_path: Path) -> None:
    """In a read of a pipe in which nothing is, after an image was taken there."""
    story = Story(tmp_path, 4, turns=3)
    read, write = os.pipe()
    fed, story._stdin = story._stdin, read
    job = story.start(BASE[0])
    story.read(30, job)
    job.checkpoint(story.image)
    story.kill(job)
    job = story.restore(BASE[1])
    job.checkpoint(story.image)
    story.kill(job)
    job = story.restore(BASE[0])
    os.write(write, INPUT)
    story.check(story.finish(job))
    os.close(write)
    os.close(fed)
    story.close()


def test_a_reader_that_is_slow(tmp_path: Path) -> None:
    """A kill in a write that waits for room in the pipe."""
    story = Story(tmp_path, 4, turns=1500, work=1)
    job = story.start(BASE[0])
    size = -1
    output = story.folder / "output"
    while not output.exists() or output.stat().st_size != size:
        size = output.stat().st_size if output.exists() else -1
        time.sleep(0.05)
    job.checkpoint(story.image)  # of a call that has done nothing yet
    story.kill(job)
    job = story.restore(BASE[1])
    story.check(story.finish(job))
    story.close()


def test_a_file_without_a_name_dies_with_its_process(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """Said before anything runs; an image that was taken after it was written carries it."""
    read, write = os.pipe()
    config = WasiConfig(preopens=[(tmp_path, "/d")], stdin=read, stdout=pipe[1])
    journal = JournalOptions.beside(tmp_path / "i.wckpt")
    module = guest("nameless")
    job = Job.start(module, BASE[0], config=config, journal=journal)
    assert os.read(pipe[0], 100) == b"ready\n"
    job.checkpoint(tmp_path / "late.wckpt")
    killed(job)
    with pytest.raises(HostStateError, match="had no name any more"):
        Job.restore(tmp_path / "i.wckpt", BASE[1], module=module, config=config)
    os.write(write, b"x")
    with Job.restore(tmp_path / "late.wckpt", BASE[1], module=module, config=config, journal=journal) as again:
        again.wait()
    assert os.read(pipe[0], 100) == b"abc"
    os.close(read)
    os.close(write)


# Moves and images


def test_moves_take_the_journal_along(tmp_path: Path) -> None:
    story = Story(tmp_path, 6, turns=60)
    job = story.start(BASE[0])
    for turn in range(3):
        story.read((turn + 1) * 150, job)
        job.migrate(BASE[(turn + 1) % 2], patience=60)
    story.read(600, job)
    story.kill(job)
    job = story.restore(BASE[0])
    story.check(story.finish(job))
    story.close()


def test_an_image_cuts_the_journal(tmp_path: Path) -> None:
    story = Story(tmp_path, 6, turns=1500, ahead=4096)  # more than we read, so it does not end
    story.all.set()
    job = story.start(BASE[0])
    path = JournalOptions.beside(story.image).path
    for _ in range(3):
        story.read(len(story.out) + 1500, job)
        taken = job.checkpoint(story.image)
        assert taken.calls is not None
        calls = taken.calls
        while read_journal(path)[0].base != calls:  # when the program makes its next call
            story.read(len(story.out) + 1, job)
            assert not job.ended
        header, _, size = read_journal(path)
        assert header.image == taken.sha256
        assert size < 69632 + 300_000  # what it did since, while we read: all of its turns are more
    story.kill(job)
    job = story.restore(BASE[1])
    assert job.replay is not None
    assert job.replay.calls < 4000
    story.check(story.finish(job))
    story.close()


def test_images_wait_until_the_journal_is_replayed(tmp_path: Path) -> None:
    story = Story(tmp_path, 6, turns=40, work=3_000_000)
    job = story.start(BASE[0])
    story.read(1500, job)
    story.kill(job)
    job = story.restore(BASE[1])
    with pytest.raises(RetryLater, match="being replayed"):
        job.checkpoint(story.image, timeout=0.0)
    job.checkpoint(story.image)
    story.kill(job)
    story.check(story.finish(story.restore(BASE[0])))
    story.close()


def test_killed_again_in_its_replay(tmp_path: Path) -> None:
    """Nothing is made in a replay, so it may be killed as often as it is begun."""
    story = Story(tmp_path, 6, turns=20, work=2_000_000)
    job = story.start(BASE[0])
    story.read(600, job)
    story.kill(job)
    calls = 0
    for _ in range(3):
        job = story.restore(BASE[1])  # the slower one: a tenth of a second until it is where it was
        assert job.replay is not None
        assert job.replay.calls >= calls
        calls = job.replay.calls
        story.kill(job)
    story.check(story.finish(story.restore(BASE[0])))
    story.close()


# Bad journals


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[tuple[Story, Path]]:
    """A program that was killed, and its journal."""
    story = Story(tmp_path, 8, turns=30)
    job = story.start(BASE[0])
    story.read(400, job)
    story.kill(job)
    yield story, Path(JournalOptions.beside(story.image).path)
    story.close()


def test_a_torn_end_is_cut_off(dead: tuple[Story, Path]) -> None:
    """Half of a frame, and what the file system makes of the rest."""
    story, path = dead
    whole, last = path.read_bytes(), read_journal(str(path))[1][-1]
    path.write_bytes(whole + whole[last.at:(last.at + last.end) // 2] + b"\0" * 50)
    story.check(story.finish(story.restore(BASE[1])))


@pytest.mark.parametrize("where", [0.0, 0.3, 0.6])
def test_damage_in_the_middle_is_refused(dead: tuple[Story, Path], where: float) -> None:
    story, path = dead
    data = bytearray(path.read_bytes())
    data[69632 + 30 + int((len(data) - 69632 - 600) * where)] ^= 1
    path.write_bytes(data)
    with pytest.raises(ImageError, match=r"the journal is damaged .*--no-journal") as told:
        story.restore(BASE[1])
    assert told.value.exit_code == 65
    assert path.read_bytes() == data


@pytest.mark.parametrize(("at", "what", "says"), [
    (0, b"X", "not a journal"), (8, b"\x02", "of version 2, newer than 1"), (21, b"\xff", "damaged"),
])
def test_a_bad_head(dead: tuple[Story, Path], at: int, what: bytes, says: str) -> None:
    story, path = dead
    data = bytearray(path.read_bytes())
    data[at : at + 1] = what
    path.write_bytes(data)
    with pytest.raises(ImageError, match=says):
        story.restore(BASE[1])


def test_a_journal_of_another_image(dead: tuple[Story, Path], tmp_path: Path) -> None:
    story, path = dead
    (tmp_path / "other").mkdir()
    other = Story(tmp_path / "other", 9, turns=5)
    job = other.start(BASE[0])
    other.kill(job)
    path.write_bytes(Path(JournalOptions.beside(other.image).path).read_bytes())
    with pytest.raises(ImageError, match="does not follow this image"):
        story.restore(BASE[1])
    other.close()


def test_two_at_once(dead: tuple[Story, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is refused while the first one lives."""
    story, _ = dead
    first = story.restore(BASE[1])
    os.kill(first.pid, 19)  # stands still
    with pytest.raises(RetryLater, match="another process writes this journal"):
        story.restore(BASE[0])
    os.kill(first.pid, 18)
    story.check(story.finish(first))


def test_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    story = Story(tmp_path, 8)
    with pytest.raises(StorageError, match="the journal cannot be used"):
        Job.start(story.module, BASE[0], config=story.config, journal=JournalOptions(str(tmp_path / "no" / "j")))
    with pytest.raises(UsageError, match="synced by"):
        JournalOptions("j", sync="never")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="in doubt"):
        JournalOptions("j", in_doubt="perhaps")  # type: ignore[arg-type]
    story.close()


def test_another_program_is_noticed(dead: tuple[Story, Path]) -> None:
    """A journal that says what the program does not do is an error, whatever else fits."""
    story, path = dead
    path.write_bytes(without_call(path.read_bytes(), 20))
    with pytest.raises(ImageError, match="does not do again what it did"):
        story.finish(story.restore(BASE[1]))
