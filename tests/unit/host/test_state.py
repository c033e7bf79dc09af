"""A guest that is moved does not notice; a world that changed meanwhile is told of."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.errors import HostStateError, ImageError
from wasmckpt.host import Errno, ProcExit, Wasi, WasiConfig
from wasmckpt.host import evidence as evidence_module
from wasmckpt.host.abi import ALL_RIGHTS, FDFLAG_APPEND, FDFLAG_NONBLOCK, OFLAG_CREAT, OFLAG_DIRECTORY, Rights

from .conftest import Maker
from .guests import READ_RIGHTS, Guest
from .test_files import NEW, names


def test_everything_comes_back(make: Maker) -> None:
    """Numbers with their holes, offsets, flags, rights, arguments, environment."""
    guest = make(args=["prog", b"\xff"], env={"A": "1", "B": "2"})
    (make.folder / "d").mkdir()
    guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    guest.open("log", oflags=NEW, rights=ALL_RIGHTS & ~Rights.FD_READ, fdflags=FDFLAG_APPEND)
    guest.open("d", oflags=OFLAG_DIRECTORY, inheriting=READ_RIGHTS)
    guest.open("f")
    guest.write(4, b"0123456789")
    guest.write(5, b"line\n")
    guest.read(7, 4)
    guest.close(0)
    guest.call("fd_renumber", 4, 2)
    guest.call("fd_fdstat_set_flags", 1, FDFLAG_NONBLOCK)
    guest.call("fd_fdstat_set_rights", 7, Rights.FD_READ | Rights.FD_TELL, 0)
    before = {fd: guest.fdstat(fd) for fd in range(10)}
    offsets = {fd: guest.tell(fd) for fd in range(10)}

    moved = make.move(guest, args=["other"], env={})
    assert {fd: moved.fdstat(fd) for fd in range(10)} == before
    assert {fd: moved.tell(fd) for fd in range(10)} == offsets
    assert moved.strings("args") == [b"prog", b"\xff"]
    assert moved.strings("environ") == [b"A=1", b"B=2"]
    assert moved.read(7, 9) == (0, b"456789")
    assert moved.write(7, b"x")[0] == Errno.BADF
    assert moved.write(2, b"ab") == (0, 2)
    assert moved.write(5, b"more\n") == (0, 5)
    assert moved.open("../f", fd=6)[0] == Errno.PERM
    assert moved.open("x", fd=6, oflags=OFLAG_CREAT, rights=ALL_RIGHTS)[0] == Errno.NOTCAPABLE
    assert moved.open("f")[1] == 0, "the lowest hole"
    assert (make.folder / "f").read_bytes() == b"0123456789ab"
    assert (make.folder / "log").read_bytes() == b"line\nmore\n"


def without_clocks(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "clocks"}


def test_moving_twice_changes_nothing(make: Maker) -> None:
    guest = make(random_seed=5)
    guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    guest.write(4, b"contents")
    guest.open(".", oflags=OFLAG_DIRECTORY)
    guest.readdir(3)
    guest.random(7)
    first = guest.wasi.state()
    moved = make.move(guest)
    second = moved.wasi.state()
    assert without_clocks(first) == without_clocks(second)
    assert without_clocks(make.move(moved).wasi.state()) == without_clocks(second)
    assert list(first) == list(second), "same order, same bytes"


def test_append_over_a_move_with_a_second_writer(make: Maker) -> None:
    """Case A14: ``o|12|ne``, ``host``, ``two``."""
    guest = make()
    _, writer = guest.open("log", oflags=NEW, rights=ALL_RIGHTS & ~Rights.FD_READ, fdflags=FDFLAG_APPEND)
    _, reader = guest.open("log")
    guest.write(writer, b"one\n")
    assert guest.read(reader, 1) == (0, b"o")
    state = guest.wasi.state()
    guest.wasi.close()
    undisturbed = make.restore(state)
    undisturbed.wasi.close()
    with open(make.folder / "log", "ab") as other:
        other.write(b"host\n")
    with pytest.raises(HostStateError):
        make.restore(state)
    moved = make.restore(state, accept_changed=True)
    assert moved.write(writer, b"two\n") == (0, 4)
    assert moved.read(reader, 63) == (0, b"ne\nhost\ntwo\n")
    assert (make.folder / "log").read_bytes() == b"one\nhost\ntwo\n"


def test_reopening_never_creates_or_truncates(make: Maker) -> None:
    guest = make()
    guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    guest.write(4, b"kept")
    guest = make.move(guest)
    assert (make.folder / "f").read_bytes() == b"kept"
    state = guest.wasi.state()
    (make.folder / "f").unlink()
    with pytest.raises(HostStateError):
        make.restore(state)
    assert not (make.folder / "f").exists()


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to("f")


def change_contents(file: Path) -> None:
    info = file.stat()
    file.write_bytes(b"0123456X89")
    os.utime(file, ns=(info.st_atime_ns, info.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda file: file.unlink(),
    "truncated": lambda file: os.truncate(file, 3),
    "changed: 11 bytes": lambda file: file.write_bytes(b"0123456789+"),
    "changed: other contents": change_contents,
    "Is a directory": replace_by_folder,
    "symbolic links": replace_by_loop,
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_file_that_is_not_what_it_was(make: Maker, how: str) -> None:
    guest = make()
    guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    guest.write(4, b"0123456789")
    state = guest.wasi.state()
    guest.wasi.close()
    make.restore(state).wasi.close()
    CHANGES[how](make.folder / "f")
    with pytest.raises(HostStateError) as error:
        make.restore(state)
    assert error.value.fields["path"] == "/g/f"
    assert how in str(error.value.fields["difference"])
    acceptable = how.startswith(("changed", "truncated"))
    assert ("accept changed files" in error.value.hint) == acceptable
    if acceptable:
        accepted = make.restore(state, accept_changed=True)
        assert accepted.tell(4) == (0, 10)
        assert accepted.pread(4, 3, 0) == (0, b"012")


def test_a_copy_on_another_machine_is_the_same_file(make: Maker, tmp_path: Path) -> None:
    """Other inode, other times, same contents."""
    guest = make()
    guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    guest.write(4, b"0123456789")
    state = guest.wasi.state()
    other = tmp_path / "other machine"
    other.mkdir()
    (other / "f").write_bytes(b"0123456789")
    os.utime(other / "f", (1, 1))
    moved = make.restore(state, preopens=[(other, "/g")])
    assert moved.write(4, b"+") == (0, 1)
    assert (other / "f").read_bytes() == b"0123456789+"
    assert (make.folder / "f").read_bytes() == b"0123456789"


@pytest.mark.parametrize("writable", [True, False])
def test_large_files_are_compared_by_samples_and_time(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    monkeypatch.setattr(evidence_module, "WHOLE", 100_000)
    data = bytearray(os.urandom(2_000_000))
    (make.folder / "big").write_bytes(data)
    guest = make()
    guest.open("big", rights=ALL_RIGHTS if writable else READ_RIGHTS)
    state = guest.wasi.state()
    other = tmp_path / "other"
    other.mkdir()
    (other / "big").write_bytes(data)
    with pytest.raises(HostStateError, match="not what it was"):
        make.restore(state, preopens=[(other, "/g")])
    info = (make.folder / "big").stat()
    os.utime(other / "big", ns=(1, info.st_mtime_ns))
    make.restore(state, preopens=[(other, "/g")])
    data[-1] ^= 1
    (other / "big").write_bytes(data)
    os.utime(other / "big", ns=(1, info.st_mtime_ns))
    with pytest.raises(HostStateError):
        make.restore(state, preopens=[(other, "/g")])


def test_a_file_renamed_while_open_is_found(make: Maker) -> None:
    guest = make()
    guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    guest.write(4, b"abc")
    guest.mkdir("d")
    guest.rename("f", "d/renamed")
    (make.folder / "f").write_bytes(b"another file of the old name")
    moved = make.move(guest)
    assert moved.pread(4, 9, 0) == (0, b"abc")
    moved.write(4, b"d")
    assert (make.folder / "d" / "renamed").read_bytes() == b"abcd"


def test_temporary_files_without_a_name_travel_along(make: Maker) -> None:
    """Opened twice, then unlinked: still one file with two positions after the move, and never seen in the folder."""
    guest = make()
    guest.open("tmp", oflags=NEW, rights=ALL_RIGHTS)
    guest.open("tmp", rights=ALL_RIGHTS, fdflags=FDFLAG_APPEND)
    guest.write(4, b"0123456789")
    guest.unlink("tmp")
    guest.seek(4, 3)
    for _ in range(2):
        guest = make.move(guest)
    assert guest.read(4, 4) == (0, b"3456")
    guest.write(5, b"end")
    guest.seek(4, -3, 2)
    assert guest.read(4, 9) == (0, b"end")
    assert os.listdir(make.folder) == []
    small = make.restore(guest.wasi.state(), carry_limit=5)
    state = small.wasi.state()
    with pytest.raises(HostStateError, match="not what it was") as error:
        make.restore(state)
    assert "too large to carry" in str(error.value.fields["difference"])


def test_a_file_whose_own_name_is_gone_but_not_another_one(make: Maker) -> None:
    """It stays one file with its hard link."""
    guest = make()
    guest.mkdir("d")
    guest.open("a", oflags=NEW, rights=ALL_RIGHTS)
    assert guest.link("a", "d/l") == 0
    guest.unlink("a")
    guest.write(4, b"one ")
    moved = make.move(guest)
    moved.write(4, b"two")
    assert (make.folder / "d" / "l").read_bytes() == b"one two"


def test_a_directory_that_was_removed_while_it_is_open(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays what it was: empty, and nothing can be made in it. The granted folder is as before."""
    guest = make()
    guest.mkdir("d")
    rights = Rights.PATH_OPEN | Rights.PATH_CREATE_FILE | Rights.FD_READDIR
    assert guest.open("d", oflags=OFLAG_DIRECTORY, rights=rights) == (0, 4)
    guest.rmdir("d")

    def seen(guest: Guest) -> object:
        errno, entries, used = guest.readdir(4)
        return errno, names(entries), used, guest.open("f", oflags=NEW, rights=ALL_RIGHTS, fd=4)

    want = seen(guest)
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    for usable in (True, False):
        if not usable:  # as a sandbox may have it
            monkeypatch.setattr(tempfile, "gettempdir", none)
        for _ in range(2):
            guest = make.move(guest)
            assert seen(guest) == want
        assert os.listdir(make.folder) == []


def test_cookies_survive_a_move(make: Maker) -> None:
    for name in "abcdef":
        (make.folder / name).touch()
    guest = make()
    _, entries, _ = guest.readdir(3, 100)
    assert names(entries) == [b".", b"..", b"a"]
    moved = make.move(guest)
    (make.folder / "b").unlink()
    (make.folder / "z").touch()
    assert names(moved.readdir(3, 4096, entries[-1][0])[1]) == [b"b", b"c", b"d", b"e", b"f"]
    assert names(moved.readdir(3)[1]) == [b".", b"..", b"a", b"c", b"d", b"e", b"f", b"z"]


def test_restoring_grants_nothing(make: Maker, tmp_path: Path) -> None:
    guest = make()
    guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    state = guest.wasi.state()
    with pytest.raises(HostStateError) as error:
        make.restore(state, preopens=[(tmp_path, "/another")])
    assert error.value.fields["path"] == "/g"
    with pytest.raises(HostStateError) as error:
        make.restore(state, read_only=["/g"])
    assert "reading only" in str(error.value.fields["difference"])
    guest.close(4)
    assert guest.open(".", oflags=OFLAG_DIRECTORY) == (0, 4)
    guest.open("f", rights=READ_RIGHTS)
    moved = make.restore(guest.wasi.state(), read_only=["/g"])
    for fd in (3, 4):
        assert moved.open("x", fd=fd, oflags=NEW, rights=ALL_RIGHTS)[0] == Errno.NOTCAPABLE
        assert moved.mkdir("x", fd=fd) == Errno.NOTCAPABLE
        assert moved.open("f", fd=fd, rights=Rights.FD_READ)[0] == 0
    assert moved.call("fd_filestat_set_times", 5, 1, 1, 5) == Errno.NOTCAPABLE
    for fd in (3, 4, 5):
        guest.close(fd)
    make.restore(guest.wasi.state(), preopens=[])


@pytest.mark.parametrize(
    "change",
    [
        {"path": b"../secret"}, {"path": b"/etc/passwd"}, {"path": b"d/../../secret"}, {"root": b"/elsewhere"},
        {"path": b"link/secret"}, {"number": 3}, {"number": -1}, {"number": 1 << 40}, {"kind": "device"},
        {"kind": "directory"}, {"offset": 1 << 63}, {"offset": None}, {"rights": "all"}, {"flags": 1 << 20},
        {"seen": {"size": 3}}, {"seen": 5}, {"anonymous": 0}, {"anonymous": 7}, {"path": "text"}, {"writable": 1},
        {"filetype": 7},
    ],
)
def test_a_hostile_state_opens_nothing(make: Maker, change: dict[str, object]) -> None:
    (make.folder.parent / "secret").write_bytes(b"secret")
    (make.folder / "link").symlink_to("..")
    guest = make()
    guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    state: Any = guest.wasi.state()
    state["descriptors"][4].update(change)
    with pytest.raises((ImageError, HostStateError)):
        make.restore(state, accept_changed=True)


def test_rights_in_an_image_are_cut_to_what_is_granted(make: Maker) -> None:
    (make.folder / "f").write_bytes(b"abc")
    guest = make(read_only=["/g"])
    guest.open("f", rights=Rights.FD_READ)
    state: Any = guest.wasi.state()
    for record in state["descriptors"]:
        record["rights"] = record["inheriting"] = (1 << 64) - 1
    moved = make.restore(state, read_only=["/g"])
    assert moved.mkdir("x") == moved.open("x", oflags=NEW, rights=ALL_RIGHTS)[0] == Errno.NOTCAPABLE
    assert moved.write(4, b"x")[0] == Errno.BADF
    assert moved.write(0, b"x")[0] == Errno.BADF


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 64) | st.binary(max_size=4) | st.sampled_from(["stdin", "file"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["number", "kind", "size", "call", "key", "0"]), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
def test_damage_anywhere_gives_one_of_two_errors(data: st.DataObject) -> None:
    """One value of a good state replaced by anything: restored or one of two errors, and no descriptor leaks."""
    wasi = Wasi(WasiConfig(args=["p"], random_seed=1))
    try:
        state: Any = msgpack.unpackb(msgpack.packb(wasi.state()))
    finally:
        wasi.close()
    state["sleep"] = {"call": b"x", "deadlines": [5]}
    where: Any = state
    while True:
        key = data.draw(st.sampled_from(list(where) if isinstance(where, dict) else range(len(where))))
        inner = where[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        where = inner
    where[key] = data.draw(PLAIN)
    before = len(os.listdir("/proc/self/fd"))
    try:
        Wasi.restore(WasiConfig(), state).close()
    except (ImageError, HostStateError):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_standard_input_from_a_file_goes_on_where_it_was(make: Maker, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"0123456789")
    source = os.open(tmp_path / "in", os.O_RDONLY)
    os.lseek(source, 2, os.SEEK_SET)
    guest = make(stdin=source)
    assert guest.read(0, 3) == (0, b"234")
    state = guest.wasi.state()
    os.close(source)
    target = os.open(tmp_path / "in", os.O_RDONLY)
    moved = make.restore(state, stdin=target)
    assert moved.read(0, 2) == (0, b"56")
    again = make.move(moved, stdin=target)
    assert again.read(0, 9) == (0, b"789")
    os.truncate(tmp_path / "in", 4)
    with pytest.raises(HostStateError) as error:
        make.restore(state, stdin=target)
    assert "truncated" in str(error.value.fields["difference"])
    os.close(target)


def test_standard_streams_keep_their_counts(make: Maker, pipe: tuple[int, int]) -> None:
    guest = make(stdout=pipe[1])
    guest.write(1, b"12345")
    moved = make.move(guest, stdout=pipe[1])
    moved.write(1, b"678")
    state: Any = moved.wasi.state()
    assert {d["kind"]: d["produced"] for d in state["descriptors"] if "produced" in d}["stdout"] == 8
    assert os.read(pipe[0], 99) == b"12345678"


def test_exit_code_is_kept(make: Maker) -> None:
    guest = make()
    with pytest.raises(ProcExit):
        guest.call("proc_exit", 42)
    assert make.move(guest).wasi.exit_code == 42


def test_a_named_pipe_is_opened_again(make: Maker) -> None:
    os.mkfifo(make.folder / "p")
    guest = make()
    guest.open("p")
    moved = make.move(guest)
    other = os.open(make.folder / "p", os.O_WRONLY)
    os.write(other, b"abc")
    assert moved.read(4, 9) == (0, b"abc")
    os.close(other)


def test_a_mark_holds_the_moment(make: Maker) -> None:
    """What the guest does after the mark is not in the state, not even closing the file."""
    guest = make()
    guest.open("f", oflags=NEW, rights=ALL_RIGHTS)
    guest.write(4, b"abc")
    guest.readdir(3)
    mark = guest.wasi.mark()
    guest.seek(4, 1)
    guest.close(4)
    guest.open("g", oflags=NEW, rights=ALL_RIGHTS)
    guest.call("fd_renumber", 4, 1)
    state: Any = guest.wasi.state(mark)
    assert [d["number"] for d in state["descriptors"]] == [0, 1, 2, 3, 4]
    file = state["descriptors"][4]
    assert (file["path"], file["offset"], file["seen"]["size"]) == (b"f", 3, 3)
    guest.wasi.mark().release()


def test_a_mark_makes_no_system_call_that_lets_other_threads_in(make: Maker) -> None:
    """Another thread wants the GIL all the time, and the switch interval is out of reach."""
    guest = make()
    for number in range(20):
        guest.open(f"f{number}", oflags=NEW, rights=ALL_RIGHTS)
    ran = 0
    stop = threading.Event()

    def other() -> None:
        nonlocal ran
        while not stop.is_set():
            ran += 1

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=other)
    thread.start()
    sys.setswitchinterval(1.0)  # the other thread may have it once, for so long
    try:
        os.fstat(0)
        before = ran
        mark = guest.wasi.mark()
        after = ran
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    mark.release()
    assert after == before
