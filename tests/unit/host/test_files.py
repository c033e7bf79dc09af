"""Descriptors, positions, append mode, directories: what a C library relies on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasmckpt.host import Errno
from wasmckpt.host.abi import (
    ALL_RIGHTS,
    FDFLAG_APPEND,
    FDFLAG_DSYNC,
    FDFLAG_NONBLOCK,
    OFLAG_CREAT,
    OFLAG_DIRECTORY,
    OFLAG_EXCL,
    OFLAG_TRUNC,
    Rights,
)

from .conftest import Maker
from .guests import READ_RIGHTS, OurGuest

NEW = OFLAG_CREAT | OFLAG_TRUNC


def test_a_file_keeps_its_position_between_calls(guest: OurGuest) -> None:
    errno, fd = guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    assert (errno, fd) == (0, 4)
    assert guest.write(fd, b"hello ", b"world") == (0, 11)
    assert guest.tell(fd) == (0, 11)
    assert guest.seek(fd, -5, 2) == (0, 6)
    assert guest.read(fd, 2, 100) == (0, b"world")
    assert guest.pread(fd, 5, 0) == (0, b"hello")
    assert guest.pwrite(fd, b"J", 0) == (0, 1)
    assert guest.tell(fd) == (0, 11)
    assert guest.seek(fd, 3, 0) == (0, 3)
    assert guest.seek(fd, -1, 1) == (0, 2)
    assert guest.read(fd, 100) == (0, b"llo world")
    assert guest.read(fd, 100) == (0, b"")


def test_two_descriptors_of_one_file_have_two_positions(guest: OurGuest) -> None:
    _, first = guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    guest.write(first, b"abcdef")
    _, second = guest.open("f")
    assert guest.read(second, 3) == (0, b"abc")
    assert guest.tell(first) == (0, 6)


def test_a_hole_reads_as_zeros(guest: OurGuest) -> None:
    _, fd = guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    assert guest.seek(fd, 5, 0) == (0, 5)
    assert guest.write(fd, b"x") == (0, 1)
    assert guest.pread(fd, 10, 0) == (0, b"\0\0\0\0\0x")


def test_more_than_one_piece_is_transferred_in_one_call(guest: OurGuest, folder: Path) -> None:
    data = os.urandom((1 << 20) + 4097)
    (folder / "big").write_bytes(data)
    guest.memory.buffer = bytearray(4 << 20)
    _, fd = guest.open("big")
    errno, found = guest.read(fd, 1 << 20, 1 << 20)
    assert errno == 0
    assert found == data
    _, copy = guest.open("copy", oflags=NEW, rights=ALL_RIGHTS)
    assert guest.write(copy, data) == (0, len(data))
    assert (folder / "copy").read_bytes() == data


def test_append_goes_to_the_end_as_it_is_now(guest: OurGuest, folder: Path) -> None:
    """Case A14, without the move: a second writer, and the reader's own position."""
    _, writer = guest.open("log", oflags=NEW, rights=ALL_RIGHTS & ~Rights.FD_READ, fdflags=FDFLAG_APPEND)
    _, reader = guest.open("log")
    assert guest.write(writer, b"one\n") == (0, 4)
    assert guest.read(reader, 1) == (0, b"o")
    with open(folder / "log", "ab") as other:
        other.write(b"host\n")
    assert guest.seek(writer, 0, 0) == (0, 0)
    assert guest.write(writer, b"two\n") == (0, 4)
    assert guest.tell(writer) == (0, 13)
    assert guest.read(reader, 63) == (0, b"ne\nhost\ntwo\n")


def test_append_can_be_switched(guest: OurGuest) -> None:
    _, fd = guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    guest.write(fd, b"abc")
    assert guest.call("fd_fdstat_set_flags", fd, FDFLAG_APPEND) == 0
    guest.seek(fd, 0)
    guest.write(fd, b"d")
    assert guest.call("fd_fdstat_set_flags", fd, 0) == 0
    guest.seek(fd, 0)
    guest.write(fd, b"X")
    assert guest.pread(fd, 10, 0) == (0, b"Xbcd")
    assert guest.fdstat(fd)[1][1] == 0
    assert guest.call("fd_fdstat_set_flags", fd, FDFLAG_DSYNC) == Errno.INVAL


@pytest.mark.parametrize(
    ("oflags", "exists", "expected", "content"),
    [
        (0, True, 0, b"old"),
        (0, False, Errno.NOENT, None),
        (OFLAG_CREAT, True, 0, b"old"),
        (OFLAG_CREAT, False, 0, b""),
        (OFLAG_CREAT | OFLAG_EXCL, True, Errno.EXIST, b"old"),
        (OFLAG_CREAT | OFLAG_EXCL, False, 0, b""),
        (OFLAG_TRUNC, True, 0, b""),
        (OFLAG_TRUNC, False, Errno.NOENT, None),
        (OFLAG_DIRECTORY, True, Errno.NOTDIR, b"old"),
        (OFLAG_CREAT | OFLAG_DIRECTORY, False, Errno.INVAL, None),
        (1 << 4, True, Errno.INVAL, b"old"),
    ],
)
def test_open_flags(
    guest: OurGuest, folder: Path, oflags: int, exists: bool, expected: int, content: bytes | None
) -> None:
    file = folder / "f"
    if exists:
        file.write_bytes(b"old")
    assert guest.open("f", oflags=oflags, rights=ALL_RIGHTS)[0] == expected
    assert (file.read_bytes() if file.exists() else None) == content


def test_new_descriptors_fill_the_lowest_hole(guest: OurGuest, folder: Path) -> None:
    (folder / "f").touch()
    assert [guest.open("f")[1] for _ in range(4)] == [4, 5, 6, 7]
    assert guest.close(5) == 0
    assert guest.close(4) == 0
    assert guest.close(4) == Errno.BADF
    assert [guest.open("f")[1] for _ in range(3)] == [4, 5, 8]
    assert guest.close(1) == 0
    assert guest.open("f")[1] == 1


def test_renumber_closes_the_target_and_frees_the_source(guest: OurGuest, folder: Path) -> None:
    (folder / "a").write_bytes(b"aaa")
    (folder / "b").write_bytes(b"bbb")
    guest.open("a"), guest.open("b")
    assert guest.call("fd_renumber", 5, 4) == 0
    assert guest.read(4, 9) == (0, b"bbb")
    assert guest.read(5, 9)[0] == Errno.BADF
    assert guest.call("fd_renumber", 4, 4) == 0
    assert guest.call("fd_renumber", 4, 77) == Errno.BADF
    assert guest.call("fd_renumber", 77, 4) == Errno.BADF
    assert guest.open("a")[1] == 5


def names(entries: list[tuple[int, int, bytes, int]]) -> list[bytes]:
    return [entry[2] for entry in entries]


def test_a_directory_is_read_in_pieces_with_cookies(guest: OurGuest, folder: Path) -> None:
    for number in range(50):
        (folder / f"file{number:02}").touch()
    (folder / "dir").mkdir()
    (folder / "link").symlink_to("dir")
    found: list[tuple[int, int, bytes, int]] = []
    cookie = 0
    while True:
        errno, entries, used = guest.readdir(3, 200, cookie)
        assert errno == 0
        found += entries
        cookie = entries[-1][0] if entries else cookie
        if used < 200:
            break
    assert names(found) == [b".", b"..", b"dir", *(b"file%02d" % number for number in range(50)), b"link"]
    kinds = {entry[2]: entry[3] for entry in found}
    assert (kinds[b"dir"], kinds[b"file00"], kinds[b"link"], kinds[b"."]) == (3, 4, 7, 3)
    assert {entry[2]: entry[1] for entry in found}[b"file07"] == (folder / "file07").stat().st_ino


def test_cookies_stay_good_while_the_directory_changes(guest: OurGuest, folder: Path) -> None:
    for name in "abcd":
        (folder / name).touch()
    _, entries, _ = guest.readdir(3)
    after_b = next(entry[0] for entry in entries if entry[2] == b"b")
    (folder / "a").unlink()
    (folder / "aa").touch()
    assert names(guest.readdir(3, 4096, after_b)[1]) == [b"c", b"d"]
    assert names(guest.readdir(3, 4096, 0)[1]) == [b".", b"..", b"aa", b"b", b"c", b"d"]
    assert guest.readdir(3, 4096, 10**12) == (0, [], 0)


def test_a_name_that_is_not_utf8_is_said_so(guest: OurGuest, folder: Path) -> None:
    with open(os.path.join(os.fsencode(folder), b"\xff"), "wb"):
        pass
    (folder / "a").touch()
    errno, entries, _ = guest.readdir(3)
    assert (errno, names(entries)) == (0, [b".", b"..", b"a"])
    assert guest.readdir(3, 4096, entries[-1][0])[0] == Errno.ILSEQ


def test_times(guest: OurGuest, folder: Path) -> None:
    (folder / "f").touch()
    assert guest.set_times("f", 1_000_000_007, 2_000_000_009, 1 | 4) == 0
    info = guest.stat("f")[1]
    assert info[5:7] == (1_000_000_007, 2_000_000_009)
    assert guest.set_times("f", 5, 6, 4) == 0
    assert guest.stat("f")[1][5:7] == (1_000_000_007, 6)
    before = os.stat(folder).st_mtime_ns
    assert guest.set_times("f", 5, 6, 2 | 8) == 0
    assert guest.stat("f")[1][6] > before - 10**9
    assert guest.set_times("f", 5, 6, 1 | 2) == Errno.INVAL
    assert guest.set_times("f", 5, 6, 4 | 8) == Errno.INVAL
    assert guest.set_times("nothing", 5, 6, 4) == Errno.NOENT
    _, fd = guest.open("f", rights=ALL_RIGHTS)
    assert guest.call("fd_filestat_set_times", fd, 11, 12, 1 | 4) == 0
    assert guest.fstat(fd)[1][5:7] == (11, 12)


def test_times_of_a_symlink_and_of_what_it_points_to(guest: OurGuest, folder: Path) -> None:
    (folder / "f").touch()
    (folder / "l").symlink_to("f")
    assert guest.set_times("l", 1, 2, 5, follow=False) == 0
    assert guest.stat("l", follow=False)[1][5:7] == (1, 2)
    assert guest.set_times("l", 3, 4, 5, follow=True) == 0
    assert guest.stat("f")[1][5:7] == (3, 4)
    assert guest.stat("l", follow=False)[1][6] == 2


def test_filestat_says_what_the_host_says(guest: OurGuest, folder: Path) -> None:
    (folder / "f").write_bytes(b"12345")
    os.link(folder / "f", folder / "g")
    info = (folder / "f").stat()
    _, fd = guest.open("f")
    expected = (info.st_dev, info.st_ino, 4, 2, 5, info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns)
    assert guest.fstat(fd) == (0, expected)
    assert guest.stat("g") == (0, expected)


def test_size_can_be_set_and_allocated(guest: OurGuest, folder: Path) -> None:
    _, fd = guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    assert guest.call("fd_filestat_set_size", fd, 100) == 0
    assert (folder / "f").stat().st_size == 100
    assert guest.call("fd_allocate", fd, 50, 150) == 0
    assert (folder / "f").stat().st_size == 200
    assert guest.call("fd_allocate", fd, 0, 0) == Errno.INVAL
    assert guest.call("fd_filestat_set_size", fd, 1 << 63) == Errno.INVAL
    for advice in range(6):
        assert guest.call("fd_advise", fd, 0, 0, advice) == 0
    assert guest.call("fd_advise", fd, 0, 0, 6) == Errno.INVAL
    assert guest.call("fd_sync", fd) == guest.call("fd_datasync", fd) == 0


def test_a_directory_is_no_file(guest: OurGuest, folder: Path) -> None:
    (folder / "d").mkdir()
    assert guest.open("d", rights=ALL_RIGHTS)[0] == Errno.ISDIR
    _, fd = guest.open("d", rights=READ_RIGHTS, oflags=OFLAG_DIRECTORY)
    assert guest.fdstat(fd)[1][0] == 3
    assert guest.read(fd, 1)[0] == guest.write(fd, b"x")[0] == guest.seek(fd, 0)[0] == Errno.BADF
    assert guest.call("fd_filestat_set_size", fd, 1) == Errno.BADF
    assert guest.open("x", fd=fd)[0] == Errno.NOENT


def test_a_file_is_no_directory(guest: OurGuest, folder: Path) -> None:
    (folder / "f").touch()
    _, fd = guest.open("f")
    assert guest.open("x", fd=fd)[0] == guest.mkdir("x", fd=fd) == guest.readdir(fd)[0] == Errno.NOTDIR
    assert guest.call("fd_prestat_get", fd, 0) == Errno.BADF


def test_preopens_are_announced(make: Maker, tmp_path: Path) -> None:
    guest = make(preopens=[(tmp_path, "/a"), (make.folder, "bücher")])
    assert guest.call("fd_prestat_get", 3, 0) == 0
    assert guest.load(0, 8) == b"\0\0\0\0\2\0\0\0"
    assert guest.call("fd_prestat_dir_name", 4, 0x500, 100) == 0
    assert guest.load(0x500, 7) == "bücher".encode()
    assert guest.call("fd_prestat_dir_name", 4, 0x500, 6) == Errno.NAMETOOLONG
    assert guest.call("fd_prestat_get", 5, 0) == Errno.BADF
    assert guest.call("fd_prestat_get", 0, 0) == Errno.BADF


def test_named_pipe_without_the_other_end(guest: OurGuest, folder: Path) -> None:
    os.mkfifo(folder / "p")
    errno, fd = guest.open("p")
    assert (errno, guest.fdstat(fd)[1][0]) == (0, 0)
    assert guest.call("fd_fdstat_set_flags", fd, FDFLAG_NONBLOCK) == 0
    assert guest.read(fd, 5)[0] == Errno.AGAIN
    other = os.open(folder / "p", os.O_WRONLY)
    os.write(other, b"abc")
    assert guest.read(fd, 5) == (0, b"abc")
    os.close(other)
    assert guest.read(fd, 5) == (0, b"")
    assert guest.seek(fd, 0)[0] == Errno.SPIPE


def test_a_full_disk_gives_the_short_count_then_the_error(make: Maker) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        guest = make(stdout=full)
        assert guest.write(1, b"x")[0] == Errno.NOSPC
    finally:
        os.close(full)
