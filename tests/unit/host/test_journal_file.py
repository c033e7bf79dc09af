"""The journal's file: what was committed is there, what was not is cut off, damage and nonsense are refused."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from wasmckpt.errors import ImageError, RetryLater, StorageError
from wasmckpt.host.journal import file as journal_file
from wasmckpt.host.journal.file import Frame, Header, JournalFile, read_journal

HEADER = Header(b"m" * 32, None, b"l" * 16, 0)
MOMENT = [[1, 2, 3, 4], None, None]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "i.journal")


def filled(path: str, frames: int = 12) -> list[list[Any]]:
    """A journal of two calls a frame, an intent between them; gives all items."""
    journal = JournalFile.create(path, HEADER)
    items: list[list[Any]] = []
    for n in range(frames):
        new: list[list[Any]] = [[1, n, 0, [[n, b"xy"]]], [-1, 1, 7, "user"], [2, n, None, [], {"exit": 3}]]
        journal.append(2 * n, MOMENT, [msgpack.packb(item) for item in new], 2)
        items += new
    journal.close()
    return items


def items_of(frames: list[Frame]) -> list[Any]:
    return [item for frame in frames for item in frame.items]


def test_what_is_written_is_read(path: str) -> None:
    items = filled(path)
    header, frames, end = read_journal(path)
    assert (header, items_of(frames), end) == (HEADER, items, os.path.getsize(path))
    journal, again = JournalFile.open(path)
    assert (items_of(again), journal.calls, journal.end) == (items, 24, end)
    assert journal.frame_end(MOMENT, [b"\x91\xfd"]) == journal.append(24, MOMENT, [b"\x91\xfd"], 0)
    journal.close()
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_cut_anywhere_it_is_a_beginning(path: str) -> None:
    """Whatever the length: whole frames count, the rest goes with the next opening, and it can be written on."""
    items = filled(path, 4)
    whole = Path(path).read_bytes()
    for length in range(len(whole) - 130, len(whole)):
        Path(path).write_bytes(whole[:length])
        journal, frames = JournalFile.open(path)
        assert items_of(frames) == items[: len(items_of(frames))]
        assert len(frames) in (1, 2, 3)
        assert os.path.getsize(path) == journal.end == frames[-1].end
        journal.append(journal.calls, MOMENT, [msgpack.packb(item) for item in items[-3:]], 2)
        journal.close()
        assert len(read_journal(path)[1]) == len(frames) + 1


def test_flipped_bits_are_seen(path: str) -> None:
    """In a frame that others follow: damage. In the last one: torn, since it cannot be told from that."""
    items = filled(path, 4)
    whole = Path(path).read_bytes()
    frames = read_journal(path)[1]
    chance = random.Random(7)
    for _ in range(150):
        at = chance.randrange(frames[0].at, len(whole))
        data = bytearray(whole)
        data[at] ^= 1 << chance.randrange(8)
        Path(path).write_bytes(data)
        if at < frames[-1].at:
            with pytest.raises(ImageError, match="damaged"):
                read_journal(path)
        else:
            assert items_of(read_journal(path)[1]) == items[:-3]


@pytest.mark.parametrize("item", [
    [1, 2, 3], [1, "x", 0, []], [1, 2, 0, [[1, 2]]], [-1, 1, 2, "out", 5, 0, [0, 0, 0], None, b""], [-9], [], "x",
    [-2, 1, [], []], [-4], [-1, 1, 2, "else"],
])
def test_items_that_are_none(path: str, item: Any) -> None:
    """The checksum is right, and yet it is nonsense."""
    filled(path, 2)
    journal, _ = JournalFile.open(path)
    journal.append(4, MOMENT, [msgpack.packb(item)], 0)
    journal.close()
    with pytest.raises(ImageError, match="damaged"):
        read_journal(path)


def test_a_cut_keeps_what_comes_after(path: str) -> None:
    items = filled(path, 6)
    calls = [item for item in items if item[0] >= 0]
    for at in range(13):
        filled(path, 6)
        journal, _ = JournalFile.open(path)
        new = journal.cut(at, b"i" * 32, b"n" * 16)
        assert (new.header.base, new.header.image, new.header.line, new.calls) == (at, b"i" * 32, b"n" * 16, 12)
        new.append(12, MOMENT, [msgpack.packb([1, 99, 0, []])], 1)
        new.close()
        header, frames, _ = read_journal(path)
        assert header.base == at
        assert [item for item in items_of(frames) if item[0] >= 0] == [*calls[at:], [1, 99, 0, []]]
        assert [frame.before for frame in frames] == sorted(frame.before for frame in frames)


def test_one_writer(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path)
    monkeypatch.setattr(journal_file, "_LOCKED_FOR", 0.01)
    journal, _ = JournalFile.open(path)
    with pytest.raises(RetryLater, match="another process"):
        JournalFile.open(path)
    new = journal.cut(3, None, b"n" * 16)  # the lock goes over to the file that takes its place
    with pytest.raises(RetryLater, match="another process"):
        JournalFile.open(path)
    new.close()
    JournalFile.open(path)[0].close()


@pytest.mark.parametrize("step", ["written", "renamed"])
def test_a_cut_that_fails_leaves_a_journal(path: str, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The one that has the name is the one that is written on."""
    items = filled(path)
    journal, _ = JournalFile.open(path)
    monkeypatch.setenv("WASMCKPT_FAULT", f"journal.{step}:ENOSPC")
    if step == "written":
        with pytest.raises(StorageError, match="No space left"):
            journal.cut(4, None, b"n" * 16)
    else:
        journal = journal.cut(4, None, b"n" * 16)
    monkeypatch.delenv("WASMCKPT_FAULT")
    assert items_of(read_journal(path)[1])[-1] == items[-1]
    journal.append(24, MOMENT, [msgpack.packb([1, 99, 0, []])], 1)
    assert items_of(read_journal(path)[1])[-1] == [1, 99, 0, []]
    assert os.listdir(os.path.dirname(path)) == ["i.journal"]
    journal.close()


def test_one_that_cannot_be_begun_leaves_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in ("written", "renamed"):
        monkeypatch.setenv("WASMCKPT_FAULT", f"journal.{step}:EIO")
        with pytest.raises(StorageError, match="the journal cannot be used"):
            JournalFile.create(path, HEADER)
        assert os.listdir(os.path.dirname(path)) == []


def test_a_full_disk_leaves_no_half_frame(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, 2)
    journal, _ = JournalFile.open(path)
    size = os.path.getsize(path)

    def full(fd: int, data: bytes, at: int) -> int:
        os.truncate(path, at + 5)  # some of it went
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal_file, "_write", full)
    with pytest.raises(StorageError, match="the program was stopped before"):
        journal.append(4, MOMENT, [b"\x91\xfd"], 0)
    assert os.path.getsize(path) == size
    journal.close()


@pytest.mark.parametrize(("data", "says"), [(b"", "not a journal"), (b"WCKPTJNL", "not a journal"),
                                            (b"WCKPTJNL" + bytes(90), "damaged"), (os.urandom(99), "not a journal")],
                         ids=["empty", "short", "zeros", "random"])
def test_what_is_none(path: str, data: bytes, says: str) -> None:
    Path(path).write_bytes(data)
    with pytest.raises(ImageError, match=says):
        JournalFile.open(path)
    with pytest.raises(StorageError):
        JournalFile.open(path + "x")
